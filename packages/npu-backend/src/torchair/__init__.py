"""PyTorch on Ascend NPUs in graph mode: torch.compile backend, configuration, FX passes, scopes.

Names load on first use, so that importing this package costs next to nothing beside torch. The things done here are
defining ``torch.ops.air.*`` and the kind of our entries in torch's cache bundles, for which torch has no later moment,
keeping its names beside torch_npu, and finding the
import paths that have no source (``doors``).
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import torchair_autoload

from ge_converters.base.torch_kept import carry_in_bundles
from torchair import doors
from torchair.oplib import torch_ops as torch_ops  # defines torch.ops.air

__version__ = "0.1.0"

_MODULES: Final = ("ge", "inference", "llm_datadist", "npu_fx_compiler", "ops", "scope")  # data/doors.tsv has the rest

__all__ = doors.public(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    value = globals()[name] = doors.load(__name__, name, _MODULES)
    return value


doors.install()
torchair_autoload.watch()  # nothing without torch_npu


def _take_from_bundle(place: str, content: bytes) -> None:
    importlib.import_module("torchair.artifact.cache").take_from_bundle(place, content)


carry_in_bundles("torchair", _take_from_bundle)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})  # not what is imported here
