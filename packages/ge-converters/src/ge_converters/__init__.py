"""FX to GE: the converter registry, the built-in converters and their proofs.

Importing this package loads nothing but names; the converters load when the first graph is lowered.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

__version__ = "0.1.0"

_HOMES: Final = {
    "dtype_promote": "base.dtypes",
    "LoweringError": "base.errors",
    "Refusal": "base.errors",
    "Lowered": "lowering",
    "lower": "lowering",
    "REGISTRY": "registry",
    "Registry": "registry",
    "Takes": "registry",
    "declare_supported": "registry",
    "register_fx_node_ge_converter": "registry",
    "Support": "base.support",
    **dict.fromkeys(
        ["F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "U8", "BOOL", "C64", "C128"], "base.support"
    ),
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ge_converters' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ge_converters.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
