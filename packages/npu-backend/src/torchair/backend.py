"""The doors: ``get_npu_backend``, ``get_compiler`` and the dynamo backends named ``npu`` and ``npugraph_ex``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ge_graph.errors import ConfigError, GeError
from torchair.config import CompilerConfig
from torchair.log import logger

if TYPE_CHECKING:
    import torch


class TraceError(GeError, RuntimeError):
    """AOTAutograd cannot trace a graph (GE1031); without this class dynamo would run it eagerly in silence."""


class NpuFxCompiler:
    """Compiles one ATen graph; usable as ``fw_compiler`` of ``aot_module_simplified``.

    Args:
        config: The options.
        phase: ``forward`` or ``backward``.
        model_id: Number of the dynamo graph; None takes the next number for each call.
        training: Whether the graph is half of a training step, whose results must outlive the next run.
    """

    def __init__(
        self, config: CompilerConfig, phase: Any = "forward", model_id: int | None = None, training: bool = False
    ) -> None:
        self.config = config
        self.training = training
        self.phase = phase
        self.model_id = model_id

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        """Compile.

        Args:
            gm: ATen graph, each node with its fake value in ``meta["val"]``.
            example_inputs: Its fake inputs.

        Returns:
            A function of one list of arguments (AOTAutograd's boxed convention).

        Errors: see ``torchair.pipeline.Pipeline.compile``.
        """
        from torchair import pipeline

        model_id = pipeline.new_model(gm) if self.model_id is None else self.model_id
        return pipeline.Pipeline(self.config, self.phase, model_id, self.training).compile(gm, example_inputs)


def get_compiler(compiler_config: CompilerConfig | None = None) -> NpuFxCompiler:
    """The compiler that ``get_npu_backend`` uses, for backends of one's own.

    Args:
        compiler_config: Options; None means all defaults.

    Errors: ConfigError GE1011 if it is no CompilerConfig.
    """
    return NpuFxCompiler(_config(compiler_config))


def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] = {},
) -> Callable[..., Any]:
    """What to hand to ``torch.compile(model, backend=...)``.

    Args:
        compiler_config: Options; None means all defaults.
        custom_decompositions: ATen op to the function that replaces it while tracing, over the built-in ones.

    Errors: ConfigError GE1011 for another type of either.

    Example:
        >>> import torch, torchair
        >>> model = torch.compile(torch.nn.Linear(4, 2), backend=torchair.get_npu_backend())
        >>> model(torch.randn(3, 4)).shape
        torch.Size([3, 2])
    """
    _config(compiler_config)
    _decompositions(custom_decompositions)
    if getattr(sys.modules.get("torchair_autoload"), "replaced", False):
        logger.warning_once("torch_npu carries a torchair of its own; the installed package is used instead of it")
    return functools.partial(
        _npu_backend,
        compiler_config=compiler_config,
        aot_config=None,
        custom_decompositions=custom_decompositions,
    )


def _npu_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler_config: CompilerConfig | None = None,
    aot_config: Mapping[str, Any] | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] = {},
) -> Callable[..., Any]:
    """Compile a graph from dynamo.

    Args:
        gm: The graph.
        example_inputs: Its fake inputs.
        compiler_config: Options.
        aot_config: Further keywords of AOTAutograd, such as ``partition_fn``.
        custom_decompositions: See ``get_npu_backend``.

    Errors: TraceError GE1031 if AOTAutograd cannot trace the graph; else see ``torchair.pipeline.Pipeline.compile``.
    """
    from ge_converters.base.torch_compat import run_aot, silent_fallbacks
    from ge_converters.decompose.table import decomposition_table
    from ge_converters.decompose.whole import KeepWhole
    from torchair import pipeline

    config = _config(compiler_config)
    if aot_config is not None and not isinstance(aot_config, Mapping):
        raise ConfigError(
            "GE1011", f"aot_config must be a dict of keywords of AOTAutograd, got {type(aot_config).__name__}",
            next="leave it out",
        )  # fmt: skip
    config.check()
    model_id = pipeline.new_model(gm)
    try:
        return run_aot(
            gm,
            example_inputs,
            forward=NpuFxCompiler(config, "forward", model_id, training=True),
            backward=NpuFxCompiler(config, "backward", model_id, training=True),
            inference=NpuFxCompiler(config, "forward", model_id),
            decompositions=decomposition_table(_decompositions(custom_decompositions)),
            keep_inference_input_mutations=bool(config.experimental_config.keep_inference_input_mutation),
            more={**_joint(config), **(aot_config or {})},
            tracing=KeepWhole(),
        )
    except silent_fallbacks() as error:
        raise TraceError(
            "GE1031", f"AOTAutograd cannot trace the graph: {type(error).__name__}: {error}",
            next="give the op a fake kernel, or take it out of the compiled function with torch.compiler.disable",
        ) from error  # fmt: skip


def _joint(config: CompilerConfig) -> dict[str, Any]:
    experimental = config.experimental_config
    if not experimental.aot_config_enable_joint_graph:
        return {}
    from torchair.joint_graph import partition

    return {"partition_fn": partition(experimental.aot_config_output_loss_index.value)}


def npu(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """``torch.compile(model, backend="npu")``: the backend with all defaults.

    Errors: ConfigError GE1012 for ``mode=`` or ``options=`` of torch.compile, which this backend does not know.
    """
    given = {name: value for name, value in kwargs.items() if value is not None}
    if given:
        raise ConfigError(
            "GE1012", f"torch.compile(backend='npu') got {given}, this backend takes neither mode= nor options=",
            next="use backend=torchair.get_npu_backend(compiler_config=config)",
        )  # fmt: skip
    return _npu_backend(gm, example_inputs)


def npugraph_ex(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """``torch.compile(model, backend="npugraph_ex", options={...})``: captured graphs, mode reduce-overhead.

    Args:
        gm: The graph.
        example_inputs: Its fake inputs.
        options: Flat names of the last table in ``docs/options.md``; custom passes get them as a ``GraphExConfig``.
        **kwargs: What torch.compile passes besides; only None is accepted.

    Errors: ConfigError GE1012 for ``mode=``, GE1001 for an unknown option, GE1002 to GE1006 for its value.
    """
    from torchair.config import captured_config

    given = {name: value for name, value in kwargs.items() if value is not None}
    if given:
        raise ConfigError(
            "GE1012", f"torch.compile(backend='npugraph_ex') got {given}, this backend only takes options=",
            next="put the settings into options={...}",
        )  # fmt: skip
    return _npu_backend(gm, example_inputs, compiler_config=captured_config(options))


def _config(given: Any) -> CompilerConfig:
    if given is None:
        return CompilerConfig()
    if not isinstance(given, CompilerConfig):
        raise ConfigError(
            "GE1011", f"compiler_config must be a torchair.CompilerConfig, got {type(given).__name__}",
            next="config = torchair.CompilerConfig(); set options; get_npu_backend(compiler_config=config)",
        )  # fmt: skip
    return given


def _decompositions(given: Any) -> Mapping[Any, Callable[..., Any]]:
    if not isinstance(given, Mapping) or not all(callable(k) and callable(v) for k, v in given.items()):
        raise ConfigError(
            "GE1011", f"custom_decompositions must map ops to functions, got {type(given).__name__}",
            next="torch._decomp.get_decompositions([...]) returns such a dict",
        )  # fmt: skip
    return given
