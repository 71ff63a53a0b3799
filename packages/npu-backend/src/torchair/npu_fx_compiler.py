"""Import path of existing scripts: the compiler of one ATen graph, and its results as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair.compiler.artifacts import CompiledFxArtifacts, CompiledFxGraph
from torchair.compiler.backend import NpuFxCompiler, get_compiler
from torchair.passes.base import value_of

__all__ = ["NpuFxCompiler", "get_compiler"]

_CompiledFxGraph = CompiledFxGraph
_CompiledFxArtifacts = CompiledFxArtifacts


class _NpuFxCompiler(NpuFxCompiler):
    """The compiler under its older name."""

    def _get_compiled_gm(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return self(gm, example_inputs)


def _unpack_meta(arg: Any) -> Any:
    """The fake value that an argument stands for; plain values stand for themselves."""
    return getattr(arg, "meta", value_of(arg)) if not isinstance(arg, torch.fx.Node) else value_of(arg)


def _unpack_meta_list(args: Sequence[Any]) -> list[Any]:
    return [_unpack_meta(a) for a in args]


def _optimize_fx(gm: torch.fx.GraphModule, config: Any = None, *ignored: Any) -> torch.fx.GraphModule:
    """Run the built-in FX passes on an ATen graph, in place."""
    from torchair.compiler.backend import _config
    from torchair.passes import BUILT_IN

    for each in BUILT_IN:
        if each.enabled(_config(config), "forward"):
            each.run(gm)
    gm.recompile()
    return gm


class _NpuGraphConverter:
    """Programs replace methods of this class to let lists with symbolic numbers through. Here they go through anyway,
    so a replacement is accepted and not called."""

    def _unpack_npu(self, args: Any) -> Any:
        return args


def __getattr__(name: str) -> Any:
    from torchair.names import missing

    raise missing("torchair.npu_fx_compiler", name, globals())
