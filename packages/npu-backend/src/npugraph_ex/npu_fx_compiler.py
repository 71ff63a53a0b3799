"""Compiling for captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchair.compiler.backend import Backend, NpuFxCompiler, compile_with
from torchair.config.compiler_config import CompilerConfig, GraphExConfig, captured_config, captured_from
from torchair.names import door
from torchair.npu_fx_compiler import (
    _CompiledFxArtifacts,
    _CompiledFxGraph,
    _NpuGraphConverter,
    _optimize_fx,
    _unpack_meta,
    _unpack_meta_list,
)

__all__ = [
    "_CompiledFxArtifacts",
    "_CompiledFxGraph",
    "_NpuFxCompiler",
    "_NpuGraphConverter",
    "_optimize_fx",
    "_unpack_meta",
    "_unpack_meta_list",
    "compile_fx",
    "get_compiler",
    "get_npu_backend",
]

__getattr__ = door(__name__)


class _NpuFxCompiler(NpuFxCompiler):
    """The compiler of one ATen graph for capture.

    Programs put another function in the place of ``_get_compiled_gm`` while the backend compiles, to keep what it
    returns as text: ``get_code`` of the graph.
    """

    def __init__(
        self, config: GraphExConfig | CompilerConfig | None = None, *, gears: Any = None, told: set[str] | None = None
    ) -> None:
        super().__init__(captured_from(config, None), gears=gears, told=told)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        """As the base class; by way of ``_get_compiled_gm``."""
        return self._get_compiled_gm(gm, example_inputs)

    def _get_compiled_gm(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return super().__call__(gm, example_inputs)


_OWN = _NpuFxCompiler._get_compiled_gm


def get_compiler(compiler_config: GraphExConfig | None = None) -> NpuFxCompiler:
    """The compiler that ``get_npu_backend`` uses, for backends of one's own."""
    return _NpuFxCompiler(compiler_config)


def compile_fx(
    gm: torch.fx.GraphModule | Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile an ATen graph for capture; usable as ``fw_compiler`` of ``aot_module_simplified``.

    Args:
        gm: ATen graph, each node with its fake value in ``meta["val"]``. None is no graph, and flat options in its
            place are none either.
        example_inputs: Its fake inputs; None takes them from the graph.
        options: Flat options.

    Returns:
        The compiled graph; without a graph what compiles one by these options, a ``NpuFxCompiler``.

    Errors: ConfigError GE1001 for an unknown option, others for its value.
    """
    if gm is None or isinstance(gm, Mapping):
        return NpuFxCompiler(captured_config(options if gm is None else {**gm, **(options or {})}))
    if example_inputs is None:
        example_inputs = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    return NpuFxCompiler(captured_config(options))(gm, example_inputs)


def get_npu_backend(
    *,
    compiler_config: GraphExConfig | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] = {},
) -> Callable[..., Any]:
    """The backend of captured graphs, for ``torch.compile(model, backend=...)``.

    Args:
        compiler_config: Options; None means all defaults.
        custom_decompositions: ATen op to the function that replaces it while tracing.

    Errors: ConfigError GE1011 for another type of either.
    """
    captured_from(compiler_config, None)
    return Backend(_backend, compiler_config=compiler_config, custom_decompositions=custom_decompositions)


def _backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler_config: GraphExConfig | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] = {},
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    config = captured_from(compiler_config, options)
    if _NpuFxCompiler._get_compiled_gm is not _OWN:
        kwargs["inference"] = lambda gears: _NpuFxCompiler(config, gears=gears, told=kwargs.get("told"))
    return compile_with(
        gm, example_inputs, compiler_config=config, custom_decompositions=custom_decompositions, **kwargs
    )
