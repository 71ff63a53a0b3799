"""PyTorch on Ascend NPUs in graph mode: torch.compile backend, configuration, FX passes, scopes.

Names load on first use, so that importing this package costs next to nothing beside torch. The things done here are
defining ``torch.ops.air.*`` and the kind of our entries in torch's cache bundles, for which torch has no later moment,
and keeping its names beside torch_npu.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import torchair_autoload

from ge_converters.base.torch_kept import carry_in_bundles
from torchair.oplib import torch_ops as torch_ops  # defines torch.ops.air

__version__ = "0.1.0"

_HOMES: Final = {
    "CompiledModel": "tair_export.load",
    "CompilerConfig": "torchair.config.compiler_config",
    "check": "tair_debug.ask",
    "compare": "tair_debug.ask",
    "compile_exported": "torchair.export.dynamo_export",
    "cost_analysis": "tair_debug.ask",
    "digits": "tair_debug.ask",
    "dynamo_export": "torchair.export.dynamo_export",
    "get_compiler": "torchair.compiler.backend",
    "get_npu_backend": "torchair.compiler.backend",
    "logger": "torchair.config.log",
    "memory_analysis": "tair_debug.ask",
    "patch_for_hcom": "torchair.oplib.collectives",
    "plan": "tair_debug.ask",
    "record_compilation": "torchair.compiler.pipeline",
    "register_fx_node_ge_converter": "torchair.oplib.converter_forms.registering",
    "register_replacement": "torchair.passes.patterns",
    "summary": "tair_debug.ask",
    "use_internal_format_weight": "torchair.export.dynamo_export",
    "view": "tair_debug.ask",
}
_MODULES: Final = (
    "_contrib",
    "_ge_concrete_graph",
    "_utils",
    "configs",
    "core",
    "experimental",
    "ge",
    "ge_concrete_graph",
    "inference",
    "llm_datadist",
    "npu_fx_compiler",
    "ops",
    "patterns",
    "scope",
)

__all__ = sorted((*_HOMES, *(m for m in _MODULES if m[0] != "_")))


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), name)
    elif name in _MODULES:
        value = importlib.import_module(f"torchair.{name}")
    else:
        from torchair.names import missing

        raise missing("torchair", name, __all__)
    globals()[name] = value
    return value


torchair_autoload.watch()  # nothing without torch_npu


def _take_from_bundle(place: str, content: bytes) -> None:
    importlib.import_module("torchair.artifact.cache").take_from_bundle(place, content)


carry_in_bundles("torchair", _take_from_bundle)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
