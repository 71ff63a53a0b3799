"""How torch keeps compiled programs, and which torch can; private names as in ``torch_compat``."""
# ruff: noqa: TID251

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch

_VERSION = torch.torch_version.TorchVersion(torch.__version__)


def ahead_of_time() -> bool:
    """Whether torch wants a compiled graph that it can write to a file, as ``aot_compile`` does."""
    from torch._functorch import config

    names = ("bundled_autograd_cache", "bypass_autograd_cache_key", "force_autograd_cache")
    return all(getattr(config, name, False) for name in names)


FEATURES: Final = {
    "aot_compile": ("torch.compiler.load_compiled_function", "torch._inductor.output_code.OutputCode"),
    "save_cache_artifacts": ("torch.compiler.save_cache_artifacts", "torch.compiler._cache.CacheArtifactFactory"),
    "nested_compile_region": ("torch.compiler.nested_compile_region",),
}
"""What users ask of torch by name, and where a torch that has it keeps it."""


def lacks(feature: str) -> str:
    """What this torch lacks of a feature, as a sentence; empty if it has all of it."""
    for path in FEATURES[feature]:
        holder, _, name = path.rpartition(".")
        if holder == "torch.compiler._cache" and _bundles() is None:
            return f"torch {torch.__version__} has no {path}"
        try:
            found = hasattr(importlib.import_module(holder), name)
        except ImportError:
            found = False
        if not found:
            return f"torch {torch.__version__} has no {path}"
    return ""


def output_code() -> Any:
    """The class of compiled graphs that torch writes to files.

    Errors: ConfigError GE1067 if this torch has none.
    """
    if why := lacks("aot_compile"):
        from ge_graph.errors import ConfigError  # importing this module stays cheap

        raise ConfigError("GE1067", f"aot_compile: {why}", next="use a torch that has it, or cache_compile of torchair")
    from torch._inductor.output_code import OutputCode

    return OutputCode


def carry_in_bundles(kind: str, take: Callable[[str, bytes], None]) -> None:
    """Let ``torch.compiler.load_cache_artifacts`` know a kind of cache entries; nothing where torch has no bundles.

    Args:
        take: Called with key and content of each entry in a bundle.
    """
    bundles = _bundles()
    if bundles is None or kind in bundles.CacheArtifactFactory._artifact_types:
        return

    class Entry(bundles.CacheArtifact):  # type: ignore[misc, name-defined]
        def populate_cache(self) -> None:
            take(self.key, self.content)

        @staticmethod
        def type() -> str:
            return kind

    bundles.CacheArtifactFactory.register(Entry)


def put_into_bundle(kind: str, key: str, content: bytes) -> None:
    """Let ``torch.compiler.save_cache_artifacts`` carry a cache entry; nothing where torch has no bundles."""
    bundles = _bundles()
    if bundles is not None:
        bundles.CacheArtifactManager.record_artifact(kind, key, content)


def _bundles() -> Any:
    """torch's module of cache bundles; None before torch 2.8, where others have no kinds of entries.

    In 2.7 the module must not be asked for either: imported before dynamo it needs dynamo, which needs it, and what is
    left of the failed import then stops dynamo for the rest of the process.
    """
    if _VERSION < "2.8":
        return None
    from torch.compiler import _cache

    return _cache
