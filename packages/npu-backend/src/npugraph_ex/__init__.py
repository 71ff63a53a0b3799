"""The backend of captured graphs under the import name that existing programs use; the code is in ``torchair``.

``torch.compile(model, backend="npugraph_ex", options={...})`` needs no import of this package.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_HOMES: Final = {
    "CompilerConfig": "npugraph_ex.configs.compiler_config",
    "compile_fx": "npugraph_ex.npu_fx_compiler",
    "get_compiler": "npugraph_ex.npu_fx_compiler",
    "get_npu_backend": "npugraph_ex.npu_fx_compiler",
    "logger": "torchair.config.log",
    "register_replacement": "torchair.passes.patterns",
}
_MODULES: Final = ("configs", "core", "inference", "npu_fx_compiler", "patterns", "scope")

__all__ = sorted((*_HOMES, *_MODULES))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"npugraph_ex.{name}")
    else:
        from torchair.names import missing

        raise missing("npugraph_ex", name, __all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
