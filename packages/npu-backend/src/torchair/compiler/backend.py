"""Entry points: ``get_npu_backend``, ``get_compiler`` and the dynamo backends named ``npu`` and ``npugraph_ex``."""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ge_graph.errors import ConfigError, GeError
from torchair.config.compiler_config import CompilerConfig
from torchair.config.log import logger

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
        gears: Sizes that are known beforehand, see ``torchair.compiler.gears``.
        guarded: Whether dynamo's guards stand before every call.
        before: See ``torchair.compiler.pipeline.Job``.
        told: See ``compile_graph``; None is a set of this compiler.
    """

    def __init__(
        self,
        config: CompilerConfig,
        phase: Any = "forward",
        model_id: int | None = None,
        training: bool = False,
        gears: Any = None,
        guarded: bool = False,
        before: list[float] | None = None,
        told: set[str] | None = None,
    ) -> None:
        self.config = config
        self.told = set() if told is None else told
        self.before = [] if before is None else before
        self.gears = gears
        self.guarded = guarded
        self.training = training
        self.phase = phase
        self.model_id = model_id

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        """Compile.

        Args:
            gm: ATen graph, each node with its fake value in ``meta["val"]``.
            example_inputs: Its fake inputs.

        Returns:
            A function of one list of arguments (AOTAutograd's boxed convention); a ``CompiledFxGraph`` if the caller is
            somebody else's backend.

        Errors: see ``torchair.compiler.pipeline.Pipeline.compile``.
        """
        start = time.perf_counter()
        from torchair.compiler import pipeline
        from torchair.compiler.artifacts import CompiledFxGraph, Traced

        model_id = pipeline.new_model(gm, self.config) if self.model_id is None else self.model_id
        job = pipeline.Job(
            self.config, self.phase, model_id, self.training, self.gears, self.guarded, self.before, self.told
        )
        made = pipeline.Pipeline(job)
        job.before.append(time.perf_counter() - start)
        if self.model_id is not None:  # called by our own backend, which keeps nothing
            return made.compile(gm, example_inputs)
        kept, traced = pipeline.KeptGraph(), Traced(gm)
        call = made.compile(gm, example_inputs, kept)
        return CompiledFxGraph(call, kept.stored, pipeline.device_of(gm), self.config, traced)


def get_compiler(compiler_config: CompilerConfig | None = None) -> NpuFxCompiler:
    """The compiler that ``get_npu_backend`` uses, for backends of one's own.

    Args:
        compiler_config: Options; None means all defaults.

    Errors: ConfigError GE1011 if it is not a CompilerConfig.
    """
    from torchair.oplib.torch_ops import prepare_ops_of_torch_npu

    prepare_ops_of_torch_npu()
    return NpuFxCompiler(_config(compiler_config))


compiles_for: Final[ContextVar[str]] = ContextVar("compiles_for", default="")
"""Whom a thread compiles for; torch does not take for one what it has compiled for another."""


class Backend(functools.partial):  # type: ignore[type-arg]
    """A backend with its options; equal ones compile alike, so that torch takes one's graphs for the other.

    Equal are backends of the same options, decompositions and passes, as they are now and as they were whenever one
    compiled: options that changed after a first call leave graphs behind that an unchanged backend would not make.
    Copies and what pickle brings back are equal to the original.
    """

    __name__ = "npu"  # errors of torch begin with it

    def __new__(cls, function: Callable[..., Any], /, **keywords: Any) -> Backend:
        made = super().__new__(cls, function, **keywords)
        made.used, made.told = [], set()
        return made

    used: list[dict[str, Any]]
    """The settings of each compilation, without repetitions."""
    told: set[str]
    """Operators of which an engine has said that the user's own code computes them; said once for all graphs."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        now = self._settings()
        if not any(_equal(now, before) for before in self.used):
            self.used.append(now)
        return super().__call__(*args, told=self.told, **keywords)

    def compiler(self) -> NpuFxCompiler:
        """What compiles one ATen graph by the same options; the user's decompositions are no part of it."""
        return NpuFxCompiler(_config(self.keywords.get("compiler_config")))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Backend) or self.func is not other.func:
            return False
        mine, others = [self._settings(), *self.used], [other._settings(), *other.used]
        return _equal(mine[0], others[0]) and all(
            any(_equal(a, b) for b in those) for these, those in ((mine, others), (others, mine)) for a in these
        )

    def __hash__(self) -> int:
        # of what never changes: options may, and a backend must stay where it is in a dict
        return hash((self.func, frozenset(self.keywords.get("custom_decompositions") or ())))

    def __repr__(self) -> str:
        config = self.keywords.get("compiler_config")
        more = self.keywords.get("custom_decompositions")
        parts = ["defaults" if config is None else repr(config), *([f"{len(more)} decompositions"] if more else [])]
        return f"<{self.__name__} backend: {', '.join(parts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        keywords, used = (_named(dict(self.keywords)), [*map(_named, self.used)])
        return _remade, (self.func, keywords, used)

    def _settings(self) -> dict[str, Any]:
        """Option paths away from their defaults, and the other keywords, with their present values."""
        found = dict(self.keywords)
        config = found.pop("compiler_config", None)
        if config is not None:
            found |= {f"config.{path}": copy.copy(v.value) for path, v in config.values() if not v.is_default}
        flat = getattr(config, "graph_ex", None)
        if flat is not None:
            found |= {f"graph_ex.{path}": copy.copy(v.value) for path, v in flat.values() if not v.is_default}
        found["custom_decompositions"] = dict(found.get("custom_decompositions") or {})
        found["compiles_for"] = compiles_for.get()
        return found


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with names in the place of torch's operators, which pickle does not take."""
    import torch

    made = settings.get("custom_decompositions") or {}
    ops = [(str(op) if isinstance(op, torch._ops.OpOverload) else op, fn) for op, fn in made.items()]
    return {**settings, "custom_decompositions": ops}


def _with_operators(settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    ops = {
        functools.reduce(getattr, op.split("."), torch.ops) if isinstance(op, str) else op: fn
        for op, fn in settings["custom_decompositions"]
    }
    return {**settings, "custom_decompositions": ops}


def _remade(function: Callable[..., Any], keywords: dict[str, Any], used: list[dict[str, Any]]) -> Backend:
    made = Backend(function, **_with_operators(keywords))
    made.used = [*map(_with_operators, used)]
    return made


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Equality that tells True from 1."""
    return one == other and all(type(value) is type(other[name]) for name, value in one.items())


def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] = {},
    **unknown: NoReturn,
) -> Callable[..., Any]:
    """What to hand to ``torch.compile(model, backend=...)``.

    Args:
        compiler_config: Options; None means all defaults.
        custom_decompositions: ATen op to the function that replaces it while tracing, over the built-in ones.

    Returns:
        A ``functools.partial`` with these keywords, equal to every other one that compiles alike.

    Errors: ConfigError GE1011 for another type of either, and for other keywords.

    Example:
        >>> import torch, torchair
        >>> model = torch.compile(torch.nn.Linear(4, 2), backend=torchair.get_npu_backend())
        >>> model(torch.randn(3, 4)).shape
        torch.Size([3, 2])
    """
    import torch

    from ge_converters.base.torch_versions import untested
    from torchair.oplib.torch_ops import prepare_ops_of_torch_npu

    if unknown:
        names = ", ".join(map(str, unknown))
        raise ConfigError(
            "GE1011", f"get_npu_backend has no {names}", next="it takes compiler_config= and custom_decompositions="
        )
    _config(compiler_config)
    _decompositions(custom_decompositions)
    if outside := untested(torch.__version__):
        logger.warning_once(f"{outside}; docs/versions.md lists what was run")
    prepare_ops_of_torch_npu()
    if getattr(sys.modules.get("torchair_autoload"), "replaced", False):
        logger.warning_once("torch_npu carries a torchair of its own; the installed package is used instead of it")
    return Backend(
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
    options: Mapping[str, Any] | None = None,
    inference: Callable[..., Any] | None = None,
    told: set[str] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a graph from dynamo.

    Args:
        gm: The graph.
        example_inputs: Its fake inputs.
        compiler_config: Options.
        inference, told: See ``compile_graph``.
        options: Settings of ``torch.compile(options=...)``, over ``compiler_config``.
        **kwargs: What torch.compile passes besides; ``mode`` is known, of the others only None is accepted.
        aot_config: Further keywords of AOTAutograd, such as ``partition_fn``.
        custom_decompositions: See ``get_npu_backend``.

    Errors: ConfigError GE1012 for a ``mode=`` of torch.compile that is not one of ours or contradicts the options;
    TraceError GE1031 if AOTAutograd cannot trace the graph; else see ``torchair.compiler.pipeline.Pipeline.compile``.
    """
    config = _config(compiler_config)
    mode = kwargs.pop("mode", None)
    advice = "use backend=torchair.get_npu_backend(compiler_config=config), or options={...}"
    _only_options(kwargs, "mode= and options=", advice)
    if mode is not None:
        options = _with_mode(config, options or {}, mode)
    if options:
        from torchair.config.compiler_config import with_options

        config = with_options(config, options)
    if aot_config is not None and not isinstance(aot_config, Mapping):
        raise ConfigError(
            "GE1011",
            f"aot_config must be a dict of keywords of AOTAutograd, got {type(aot_config).__name__}",
            next="leave it out",
        )
    return compile_graph(
        gm,
        example_inputs,
        config,
        decompositions=_decompositions(custom_decompositions),
        more=aot_config or {},
        inference=inference,
        told=told,
    )


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    *,
    decompositions: Mapping[Any, Callable[..., Any]],
    more: Mapping[str, Any] = {},
    inference: Callable[..., Any] | None = None,
    told: set[str] | None = None,
) -> Callable[..., Any]:
    """Compile a graph from dynamo.

    Args:
        gm: The graph.
        example_inputs: Its fake inputs.
        config: Options.
        decompositions: The user's, over the built-in ones.
        more: Further keywords of AOTAutograd.
        inference: Makes the compiler of graphs without gradients, of the gears of this graph; None is ours.
        told: What was said of the user's own operators for other graphs, and is not said again.

    Errors: TraceError GE1031 if AOTAutograd cannot trace the graph; else see ``compiler.pipeline.Pipeline.compile``.
    """
    from torchair.compiler.module_numbers import module_numbers_fixed

    config.check()
    told = set() if told is None else told
    with module_numbers_fixed(gm):
        return _compile_graph(gm, example_inputs, config, decompositions, more, inference, told)


def _compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    decompositions: Mapping[Any, Callable[..., Any]],
    more: Mapping[str, Any],
    inference: Callable[..., Any] | None,
    told: set[str],
) -> Callable[..., Any]:
    start = time.perf_counter()
    from ge_converters.base.torch_compat import from_dynamo, run_aot, silent_fallbacks
    from ge_converters.base.torch_kept import ahead_of_time
    from ge_converters.decompose.table import decomposition_table
    from ge_converters.decompose.whole import KeepWhole
    from torchair.compiler import observers, pipeline
    from torchair.compiler.gears import gears_of
    from torchair.compiler.traced_graph import traced_graph
    from torchair.oplib import converters
    from torchair.passes.written_operands import tell_of_written_operands

    guarded = from_dynamo()
    model_id = pipeline.new_model(gm, config)
    tell_of_written_operands(gm)
    gears = gears_of(gm, config)
    traced = None
    before: list[float] = []
    ahead = inference is None and ahead_of_time()
    if ahead:
        from torchair.compiler.ahead import compiler_for_files

        inference = compiler_for_files(config, "forward", model_id, training=False, told=told)
    elif inference is None and not more and not _joint(config) and not observers.compile_observers(config):
        traced = traced_graph(
            config, gm, example_inputs, decompositions=decompositions, gears=gears, label=f"model {model_id}"
        )
    if traced is not None:
        stages = pipeline.Pipeline(pipeline.Job(config, "forward", model_id, False, gears, guarded, before, told))
        before.append(time.perf_counter() - start)
        loaded = traced.load(stages)
        if loaded is not None:
            return loaded if gears is None else gears.wrap(loaded)
    forward: Callable[..., Any] = NpuFxCompiler(
        config, "forward", model_id, training=True, gears=gears, guarded=guarded, before=before, told=told
    )
    backward: Callable[..., Any] = NpuFxCompiler(
        config, "backward", model_id, training=True, gears=gears, guarded=guarded, told=told
    )
    if ahead:
        forward = compiler_for_files(config, "forward", model_id, training=True, told=told)(gears)
        backward = compiler_for_files(config, "backward", model_id, training=True, told=told)(gears)
    if inference is not None:
        compiler = inference(gears)
    elif traced is not None:
        compiler = traced.compiler(stages)
    else:
        compiler = NpuFxCompiler(config, "forward", model_id, gears=gears, guarded=guarded, before=before, told=told)
    converters.register()  # before the table: it is built anew for each change of the registry
    table = decomposition_table(decompositions, device_kernels=config.mode.value == "reduce-overhead")
    before[:] = [time.perf_counter() - start]
    try:
        call = run_aot(
            gm,
            example_inputs,
            forward=forward,
            backward=backward,
            inference=compiler,
            decompositions=table,
            keep_inference_input_mutations=bool(config.experimental_config.keep_inference_input_mutation),
            more={**_joint(config), **more},
            tracing=KeepWhole(sparse_gradients=config.fallback.value == "split"),
        )
    except silent_fallbacks() as error:
        raise TraceError(
            "GE1031",
            f"AOTAutograd cannot trace the graph: {type(error).__name__}: {error}",
            next="give the op a fake kernel, or take it out of the compiled function with torch.compiler.disable",
        ) from error
    if traced is not None:
        call = traced.watched(call)
    return call if gears is None else gears.wrap(call)


compile_with = _npu_backend


def _joint(config: CompilerConfig) -> dict[str, Any]:
    experimental = config.experimental_config
    if not experimental.aot_config_enable_joint_graph:
        return {}
    from torchair.compiler.joint_graph import partition

    return {"partition_fn": partition(experimental.aot_config_output_loss_index.value)}


_MODES = {
    "default": "max-autotune",
    "max-autotune": "max-autotune",
    "max-autotune-no-cudagraphs": "max-autotune",
    "reduce-overhead": "reduce-overhead",
    "npugraph_ex": "reduce-overhead",
}
"""What a mode of torch.compile is here: captured graphs or a GE graph."""


def _with_mode(config: CompilerConfig, options: Mapping[str, Any], mode: Any) -> Mapping[str, Any]:
    """The options with ``mode=`` of torch.compile among them."""
    wanted = _MODES.get(mode) if isinstance(mode, str) else None
    if wanted is None:
        raise ConfigError(
            "GE1012",
            f"torch.compile got mode={mode!r}, this backend knows {', '.join(map(repr, _MODES))}",
            next="use one of them, or options={'mode': ...}",
        )
    chosen = options.get("mode", None if config.mode.is_default else config.mode.value)
    if chosen is not None and _MODES.get(chosen, chosen) != wanted:
        raise ConfigError(
            "GE1012", f"torch.compile got mode={mode!r}, the options say mode = {chosen!r}", next="give one of the two"
        )
    return {**options, "mode": wanted}


def _only_options(kwargs: Mapping[str, Any], taken: str, advice: str) -> None:
    given = {name: value for name, value in kwargs.items() if value is not None}
    if given:
        raise ConfigError("GE1012", f"torch.compile got {given}, this backend only takes {taken}", next=advice)


def _config(given: Any) -> CompilerConfig:
    if given is None:
        return CompilerConfig()
    if not isinstance(given, CompilerConfig):
        raise ConfigError(
            "GE1011",
            f"compiler_config must be a torchair.CompilerConfig, got {type(given).__name__}",
            next="config = torchair.CompilerConfig(); set options; get_npu_backend(compiler_config=config)",
        )
    return given


def _decompositions(given: Any) -> Mapping[Any, Callable[..., Any]]:
    if not isinstance(given, Mapping) or not all(callable(k) and callable(v) for k, v in given.items()):
        raise ConfigError(
            "GE1011",
            f"custom_decompositions must map ops to functions, got {type(given).__name__}",
            next="torch._decomp.get_decompositions([...]) returns such a dict",
        )
    return given


class NamedBackend:
    """A backend that dynamo knows by name. It keeps what was told to whoever compiles by the same options.

    Args:
        name: The name.
        function: A backend that takes ``told`` besides what ``torch.compile`` passes.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.__name__ = name
        self.__doc__ = function.__doc__
        self._function = function
        self._told: dict[str, set[str]] = {}

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """As ``torch.compile`` calls a backend; see the docstring of this object."""
        told = self._told.setdefault(repr(kwargs), set())  # a text keeps no objects of the user's alive
        return self._function(gm, example_inputs, told=told, **kwargs)  # type: ignore[no-any-return]

    def __reduce__(self) -> str:
        return self.__name__  # where this module has it

    def reset(self) -> None:
        """Forget what was told; ``torch.compiler.reset`` calls it."""
        self._told.clear()


def _npu(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """``torch.compile(model, backend="npu", mode=..., options={...})``: all defaults but what mode and options say.

    Errors: ConfigError GE1012 for a ``mode=`` that is not one of ours or contradicts the options; GE1001 to GE1006 for
    an unknown option or its value.
    """
    return _npu_backend(gm, example_inputs, **kwargs)


def _npugraph_ex(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    told: set[str],
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """``torch.compile(model, backend="npugraph_ex", options={...})``: captured graphs, mode reduce-overhead.

    Options are flat names of the last table in ``docs/options.md``; custom passes get them as a ``GraphExConfig``.

    Errors: ConfigError GE1012 for ``mode=``, GE1001 for an unknown option, GE1002 to GE1006 for its value.
    """
    from torchair.config.compiler_config import captured_config

    _only_options(kwargs, "options=", "put the settings into options={...}")
    return _npu_backend(gm, example_inputs, compiler_config=captured_config(options), told=told)


npu = NamedBackend("npu", _npu)
npugraph_ex = NamedBackend("npugraph_ex", _npugraph_ex)
