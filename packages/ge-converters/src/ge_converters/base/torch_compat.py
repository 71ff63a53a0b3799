"""Every private name of torch that this project uses, in one place.

``torch_frames`` has those of dynamo's frames. Where versions of torch differ, both forms stand here, and
``tools/torch_names.tsv`` has a row for the difference.

The imports are inside the functions: dynamo and functorch take seconds to load, and only whoever compiles needs them.
"""
# ruff: noqa: TID251

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
import os
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

import torch

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
_made_constant: set[str] = set()
native_pad = torch._C._nn.pad  # what ``torch.nn.functional.pad`` calls
_VERSION = torch.torch_version.TorchVersion(torch.__version__)
_MODE_OF_ITS_OWN = _VERSION < "2.11"
profiling: Final[Callable[[], bool]] = torch._C._autograd._profiler_enabled
"""Whether ``torch.profiler`` follows this thread; asked in each call, so no function of Python."""
QUOTIENTS_TRACED_AS_INTEGERS: Final = _VERSION < "2.10"  # with open sizes; repaired since


def boxed(fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark a function as taking one list of arguments that it may empty to free them early."""
    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn


def register_backend_again(name: str, backend: Callable[..., Any]) -> None:
    """Give dynamo a backend under a name that is taken: its public function refuses those."""
    from torch._dynamo.backends import registry

    known = registry._COMPILER_FNS
    known.pop(name, None)
    registry.register_backend(backend, name=name)


def real_values() -> AbstractContextManager[Any]:
    """Dispatch modes off: AOTAutograd calls its compilers inside its fake mode, where every new tensor is fake."""
    from torch.utils._python_dispatch import _disable_current_modes

    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


@contextlib.contextmanager
def plain_eager() -> Iterator[None]:
    """Tensors inside are real and no mode sees what is called: for evaluating while a graph is being compiled."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def below_autograd() -> AbstractContextManager[Any]:
    """Calls skip the kernels of autograd, and with them the decompositions that torch puts in their place."""
    context: AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return context


def resized_sizes(size: Sequence[Any], output_size: Sequence[Any] | None, factors: Sequence[float] | None) -> Any:
    """Spatial sizes of an interpolation, out of the sizes asked for or of scale factors; symbols stay symbols."""
    from torch._decomp.decompositions import upsample_compute_output_size

    return upsample_compute_output_size(size, output_size, factors)


def surely(claim: Any) -> bool:
    """Whether a claim about symbolic numbers holds for every input; asking sets no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(claim))


def surely_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the symbols in them are; asking sets no guard."""
    return surely(a == b)


def from_data(number: Any) -> bool:
    """Whether a number is a symbol, or made of symbols, whose values only the data tell."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(number, torch.SymInt) and bool(free_unbacked_symbols(number))


def silent_fallbacks() -> tuple[type[Exception], ...]:
    """Exceptions of a backend on which dynamo breaks the graph and goes on in eager mode without a word."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return tuple(exceptions_allowed_to_be_fallback)


def run_aot(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    decompositions: Mapping[Any, Callable[..., Any]],
    keep_inference_input_mutations: bool,
    more: Mapping[str, Any],
    tracing: AbstractContextManager[Any] | None = None,
) -> Callable[..., Any]:
    """Trace a dynamo graph to ATen and compile its halves.

    Args:
        gm: The graph from dynamo.
        example_inputs: Its fake inputs.
        forward: Compiles the forward half of a training graph.
        backward: Compiles the backward half.
        inference: Compiles a graph without gradients.
        decompositions: ATen op to the function that replaces it while tracing.
        keep_inference_input_mutations: Leave writes to inputs in the inference graph.
        more: Further keywords of ``aot_autograd``.
        tracing: A context in which the graph is traced; none if not given.
    """
    from ge_converters.base.device_composites import decomposed

    keywords: dict[str, Any] = {
        "fw_compiler": forward,
        "bw_compiler": backward,
        "inference_compiler": inference,
        "decompositions": dict(decompositions),
        "keep_inference_input_mutations": keep_inference_input_mutations,
        "partition_fn": _partition,
        **more,
    }
    with (
        tracing or contextlib.nullcontext(),
        _one_fake_mode(example_inputs),
        _numbers_from_data(example_inputs),
        decomposed(decompositions),
    ):
        return _aot(gm, example_inputs, keywords)


def _aot(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], keywords: dict[str, Any]) -> Callable[..., Any]:
    """What ``aot_autograd`` of dynamo's backends does, without Inductor, which it loads only to ask for a log."""
    from torch._dynamo.backends.common import aot_autograd

    loaded = "torch._inductor.debug" in sys.modules or os.environ.get("TORCH_COMPILE_DEBUG", "0") == "1"
    if loaded or _VERSION < "2.13" or any(isinstance(value, (list, tuple, dict)) for value in example_inputs):
        made: Callable[..., Any] = aot_autograd(**keywords)(gm, example_inputs)
        return made
    from torch._dynamo import disable
    from torch._dynamo.utils import counters
    from torch._functorch.aot_autograd import aot_module_simplified

    def backward(*args: Any, **more: Any) -> Any:
        compiler = disable(keywords["bw_compiler"], reason="do not trace the compiler of the backward pass")
        return disable(compiler(*args, **more), reason="do not trace a compiled backward pass")

    counters["aot_autograd"]["total"] += 1
    call = aot_module_simplified(gm, example_inputs, **{**keywords, "bw_compiler": backward})
    counters["aot_autograd"]["ok"] += 1
    return disable(call, reason="do not trace a compiled graph")  # type: ignore[no-any-return]


def symbols_of_fake_inputs() -> bool:
    """Whether dynamo gives symbols to the sizes of inputs that are fake already; before torch 2.11 it fixes them."""
    return not _MODE_OF_ITS_OWN


@contextlib.contextmanager
def _one_fake_mode(example_inputs: Sequence[Any]) -> Iterator[None]:
    """Inside, AOTAutograd traces in the mode of the inputs.

    Before torch 2.11 dynamo makes a mode of its own even for inputs that are fake already, and torch wants one.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get() if _MODE_OF_ITS_OWN else None
    inputs = [v.fake_mode for v in example_inputs if hasattr(v, "fake_mode")]
    if context is None or not inputs or context.fake_mode is inputs[0]:
        yield
        return
    before, context.fake_mode = context.fake_mode, inputs[0]
    try:
        yield
    finally:
        context.fake_mode = before


@contextlib.contextmanager
def _numbers_from_data(example_inputs: Sequence[Any]) -> Iterator[None]:
    """Inside, a number or size that stands in a tensor is a symbol, also where dynamo breaks graphs at ``item()``.

    dynamo leaves ``x[i]`` and ``pad(x, (i, j))`` with tensors ``i`` and ``j`` in its graph; ATen reads the numbers.
    """
    mode = fake_mode_of(example_inputs)
    shapes = None if mode is None else mode.shape_env
    if shapes is None:
        yield
        return
    before = shapes.settings
    shapes.settings = dataclasses.replace(before, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    try:
        yield
    finally:
        shapes.settings = before


def _partition(joint: torch.fx.GraphModule, inputs: Any, **more: Any) -> Any:
    """torch's min-cut, without states of random generators between the halves: a graph draws from its engine.

    Under activation checkpointing random numbers are saved, not drawn a second time, so the backward half sees those of
    the forward half. Attention without dropout, which torch counts among the random ops, is recomputed as it stands.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if "recompute" in node.meta and _draws(node):
            for kept in (node, *(user for user in node.users if user.target is operator.getitem)):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    halves = min_cut_rematerialization_partition(joint, inputs, **more)
    for half in halves:
        _without_generator_states(half)
    return halves


def _draws(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.kwargs.get("dropout_p", argument.default_value)
            return bool(node.args[position] if position < len(node.args) else given)
    return True


def _without_generator_states(gm: torch.fx.GraphModule) -> None:
    """Calls through ``run_and_save_rng_state`` and ``run_with_rng_state`` become the calls themselves."""
    graph = gm.graph
    wrapped = {"run_and_save_rng_state": 0, "run_with_rng_state": 1}
    for node in list(graph.nodes):
        first = wrapped.get(str(node.target)) if node.op == "call_function" else None
        if first is None:
            continue
        op, *args = node.args[first:]
        with graph.inserting_before(node):
            call = graph.call_function(op, tuple(args), dict(node.kwargs))
        values = torch.fx.map_arg((call.args, call.kwargs), lambda n: n.meta["val"])
        with fake_mode_of(torch.utils._pytree.tree_leaves(values)):
            call.meta["val"] = op(*values[0], **values[1])
        if first == 1:
            node.replace_all_uses_with(call)
        for user in list(node.users):
            if user.args[1] == 1:
                user.replace_all_uses_with(call)
            else:
                kind = {"dtype": torch.uint8, "device": torch.device("cpu")}
                with graph.inserting_before(node), fake_mode_of([user.meta["val"]]):
                    empty = graph.call_function(torch.ops.aten.full.default, ([0], 0), kind)
                    empty.meta["val"] = torch.empty(0, dtype=torch.uint8)
                user.replace_all_uses_with(empty)
            graph.erase_node(user)
        for key in ("stack_trace", "nn_module_stack"):
            for user in call.users:
                if key in user.meta:
                    call.meta[key] = user.meta[key]
        graph.erase_node(node)
    gm.recompile()


def fake_mode(*, dynamic: bool = False, beside_real: bool = False, only: Any = None) -> Any:
    """A mode in which tensors have metas but no data; data-dependent sizes are symbols, others if ``dynamic``.

    ``beside_real``: real tensors that meet fake ones, such as constants of a graph, count as fake ones. ``only``: the
    op that the mode serves once; what torch keeps for the next equal one, a quarter of the time, is then made only for
    ops that torch takes apart into many.
    """
    from torch._decomp import decomposition_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=not dynamic, allow_non_fake_inputs=beside_real)
    mode.cache_enabled = mode.cache_enabled and (only is None or only in decomposition_table)
    return mode


def fake_copy(mode: Any, value: Any) -> Any:
    """A deep copy whose tensors have no data, inside ``mode``; equal tensors stay one."""
    from torch._subclasses.fake_tensor import FakeCopyMode

    with FakeCopyMode(mode):
        return copy.deepcopy(value)


def propagate_fakes(gm: torch.fx.GraphModule, args: Sequence[Any]) -> None:
    """Set ``meta["val"]`` of every node for inputs like these; sizes are fixed. Raises as torch does."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    FakeTensorProp(gm, fake_mode()).propagate(*args)


@contextlib.contextmanager
def convertible(mode: Any) -> Iterator[None]:
    """Inside, modules made in a fake mode may change their type.

    ``Module.to(dtype)`` swaps the content of fake parameters, which torch refuses for a tensor that somebody refers to
    weakly. The only one who does is the mode, which remembers what it made; inside it does so by plain references.
    """
    converter = mode.fake_tensor_converter.meta_converter
    known, converter.tensor_memo = converter.tensor_memo, {}
    try:
        yield
    finally:
        converter.tensor_memo = known


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Inside, fake parameters may be initialised by a cut normal distribution, which draws until all values fit."""
    from torch.nn import init

    draw = init._no_grad_trunc_normal_

    def drawn(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if hasattr(tensor, "fake_mode") else draw(tensor, *args, **kwargs)

    init._no_grad_trunc_normal_ = drawn
    try:
        yield
    finally:
        init._no_grad_trunc_normal_ = draw


def trace_artifact(name: str, encoding: str, text: Callable[[], str]) -> None:
    """Add a text to torch's structured trace (``TORCH_TRACE``, shown by tlparse); made only if there is one."""
    from torch._logging import trace_structured

    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": encoding}, payload_fn=text)


def graph_break(reason: str) -> None:
    """While dynamo traces: stop here and go on eagerly; under ``fullgraph=True`` fail with the reason."""
    torch._dynamo.graph_break(msg=reason)


def call_untraced(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that dynamo, if it traces here, leaves to Python: before torch 2.9 it cannot raise what others
    have derived from Exception."""
    return torch._dynamo.disable(function)(*args)


def debug_folder() -> str:
    """``torch_compile_debug/run_<time>-pid_<pid>``, where dynamo keeps its record of this process."""
    from torch._dynamo.utils import get_debug_dir

    return str(get_debug_dir())


def static_input_positions() -> frozenset[int]:
    """Which inputs of the graph being compiled are parameters, buffers or marked as static; empty if nobody says."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


@dataclass(frozen=True, slots=True)
class InputResults:
    """What AOTAutograd makes of some results of a forward graph, by their positions.

    Attributes:
        updates: Results that are copied into an input after the run, with the input's position.
        views: Results of which only sizes, strides and offset count: the caller gets a view of that input.
    """

    updates: Mapping[int, int]
    views: Mapping[int, int]


def results_of_inputs() -> InputResults:
    """Which results of the forward graph being compiled stand for memory of inputs; none if nobody says."""
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return InputResults({}, {})
    first = len(metadata.tokens)
    updates = {first + i: first + at for i, at in enumerate(metadata.mutated_inp_runtime_indices)}
    first_own = first + len(updates)
    views = {
        first_own + i: first + info.base_idx
        for i, info in enumerate(metadata.output_info)
        if info.output_type is OutputType.alias_of_input
    }
    return InputResults(updates, views)


def trace_pattern(
    fn: Callable[..., Any], args: Sequence[Any], decompositions: Mapping[Any, Any]
) -> torch.fx.GraphModule:
    """The ATen graph of a function as AOTAutograd would see it, without nodes that nobody reads."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    with enable_python_dispatcher(), preserve_node_meta():
        gm = make_fx(fn, dict(decompositions), tracing_mode="real")(*args)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def without_data(values: Sequence[Any]) -> list[Any]:
    """The values, tensors in them replaced by fake ones of one mode; those that are fake already stay as they are."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_leaves, tree_map_only

    if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(list(values))):
        return list(values)
    return list(tree_map_only(torch.Tensor, fake_mode(beside_real=True).from_tensor, list(values)))


def trace_aside(fn: Callable[..., Any], args: Sequence[Any], around: AbstractContextManager[Any]) -> torch.fx.Graph:
    """The ATen graph of a function that a trace calls; the trace under way sees nothing of it.

    Args:
        args: Tensors of that trace, of which types and sizes count, and numbers.
        around: A context in which the function is called.
    """
    from torch._dispatch.python import suspend_functionalization
    from torch._guards import detect_fake_mode
    from torch._subclasses.functional_tensor import disable_functional_mode
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

    mode = detect_fake_mode(args) or fake_mode(beside_real=True)

    def alone(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)

    with suspend_functionalization(), disable_functional_mode(), disable_proxy_modes_tracing(), torch.no_grad():
        with mode:
            given = [alone(x) for x in args]
        with mode, around:
            graph: torch.fx.Graph = make_fx(fn)(*given).graph
    graph.eliminate_dead_code()
    return graph


def schema_of_region(spec: Any) -> Any:
    """The schema of one call of a higher-order operator, which ``auto_functionalized_v2`` gets as a constant."""
    from torch.utils._pytree import tree_unflatten

    return tree_unflatten([], spec).schema


def flex_attention_results(op: torch._ops.HigherOrderOperator) -> int:
    """How many results the operator of ``flex_attention`` has: 2, and since torch 2.9 the maxima of the rows too."""
    return len(typing.get_args(typing.get_type_hints(type(op).__call__)["return"]))


def pattern_matcher() -> Any:
    """The module ``torch._inductor.pattern_matcher``; loading it takes a second or two."""
    from torch._inductor import pattern_matcher as module

    return module


def fake_mode_of(values: Any) -> Any:
    """The fake mode of the first fake tensor among ``values``, None if there is none."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(values)


def split_joint_graph(
    joint: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], *, num_fwd_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Forward and backward halves of AOTAutograd's joint graph, cut at the values in ``saved``."""
    from torch._functorch.partitioners import _extract_fwd_bwd_modules

    for node in joint.graph.nodes:
        node.meta.pop("partitioner_tag", None)  # torch's idea of which half a node belongs to
    halves: tuple[torch.fx.GraphModule, torch.fx.GraphModule] = _extract_fwd_bwd_modules(
        joint, list(saved), [], num_fwd_outputs=num_fwd_outputs
    )
    return halves


@contextlib.contextmanager
def under(mode: Any) -> Iterator[None]:
    """Call ops in a fake mode, with the Python rules that know symbolic sizes where C++ does not."""
    from torch._dispatch.python import enable_python_dispatcher

    with mode, enable_python_dispatcher():
        yield


def input_source(name: str) -> Any:
    """Where a symbolic size comes from, as shape environments want to know it."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def process_group(group: Any) -> Any:
    """The process group of that name, or the group itself; None if this process has none of that name."""
    if not isinstance(group, str):
        return group
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._resolve_process_group(group)
    except (RuntimeError, ValueError, KeyError, AttributeError):  # AttributeError: torch without distributed
        return None


def current_translation() -> Any:
    """Dynamo's translator of the frame whose graph it is handing to a backend just now; None outside of that.

    ``torch_frames`` says what it knows.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return InstructionTranslator.current_tx()
    except AttributeError:
        return None


@dataclass(frozen=True, slots=True)
class FloatInput:
    """A Python float that dynamo made an input; ``changed``: it had another value in an earlier trace."""

    symbol: str
    source: Any
    changed: bool

    @property
    def name(self) -> str:
        return source_text(self.source)


def float_inputs(gm: torch.fx.GraphModule) -> list[FloatInput]:
    """The Python floats among the inputs of dynamo's present graph, but those that it was told to make constants."""
    from torch._dynamo import pgo
    from torch._dynamo.symbolic_convert import TensorifyState

    code = current_translation().f_code
    place = (code.co_filename, code.co_firstlineno, code.co_name)
    histories = [
        state.automatic_dynamic
        for code_id, state in pgo.get_code_state().items()
        if (code_id.filename, code_id.firstlineno, code_id.name) == place
    ]
    inputs = []
    for node in gm.graph.nodes:
        argument = node.meta.get("grapharg") if node.op == "placeholder" else None
        if argument is None or not argument.pass_arg_as_tensor:
            continue
        memo = getattr(node.meta.get("example_value"), "item_memo", None)
        symbol = getattr(memo.node._expr, "name", None) if isinstance(memo, torch.SymFloat) else None
        if symbol is None or TensorifyState.should_specialize(symbol):
            continue
        name = source_text(argument.source)
        changed = any(name in each and each[name].scalar is pgo.auto_dynamic for each in histories)
        inputs.append(FloatInput(symbol, argument.source, changed))
    return inputs


def retrace_with_constants(symbols: Iterable[str]) -> None:
    """Have dynamo trace the frame anew, with the floats of these symbols as constants under guards.

    Raises:
        Exception: Always; dynamo catches it.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    for symbol in symbols:
        TensorifyState.specialize(symbol)
        _made_constant.add(symbol)
    raise TensorifyScalarRestartAnalysis


@contextlib.contextmanager
def constants_of_this_graph() -> Iterator[None]:
    """Around the compilation of a graph: what ``retrace_with_constants`` said holds for it and its further traces, not
    for what dynamo traces afterwards."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    try:
        yield
    except TensorifyScalarRestartAnalysis:
        raise
    except BaseException:
        _forget_constants()
        raise
    _forget_constants()


def _forget_constants() -> None:
    from torch._dynamo.symbolic_convert import TensorifyState

    fixed = TensorifyState.force_specializations
    fixed.difference_update(_made_constant)
    _made_constant.clear()


def source_text(source: Any) -> str:
    """Where an input comes from, ``L['x'].size()[0]``; a method in older torch, a property in newer."""
    name = source.name
    return str(name() if callable(name) else name)


def from_dynamo() -> bool:
    """Whether dynamo is handing a graph to its backend just now, and will guard every call of what that returns."""
    from torch._guards import TracingContext

    return TracingContext.try_get() is not None and current_translation() is not None


def aot_metadata() -> Any:
    """What AOTAutograd found out about the inputs and outputs of the graph being compiled; None if nothing."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def around_the_graph(metadata: Any) -> str:
    """What AOTAutograd has to do around the graph in each call but to pass values on, in words; empty for nothing."""
    from torch._functorch._aot_autograd import schemas

    plain = (int, getattr(schemas, "PlainTensorMeta", int))
    if getattr(metadata, "mutated_inp_runtime_indices", ()):
        return "an input is written in a way that stays outside the graph"
    if getattr(metadata, "tokens", None) or getattr(metadata, "num_graphsafe_rng_states", 0):
        return "operators with side effects of their own"
    alias = (schemas.OutputType.alias_of_input, schemas.OutputType.is_input)
    bases = [o.base_idx for o in metadata.output_info if o.output_type in alias and o.base_idx is not None]
    if any(metadata.input_info[i].mutates_data for i in bases):
        return "a result is a view of an input that is written"
    parts = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta)
    return "tensor subclasses" if any(not isinstance(p, plain) for p in parts) else ""


def aliasing_guards() -> int:
    """How many guards AOTAutograd has set so far on inputs of the graph being compiled that share memory."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return 0 if context is None else len(context.guards_context.aotautograd_guards)


def aot_settings() -> str:
    """A text of AOTAutograd's settings: the same text for the same settings."""
    from torch._functorch import config
    from torch.utils._config_module import ConfigModule

    return str(ConfigModule.get_hash(config).hex())


def registered_decompositions() -> list[tuple[Any, Any]]:
    """Operators and functions of torch's global tables of decompositions; nothing if nobody has loaded them."""
    module = sys.modules.get("torch._decomp")
    tables = getattr(module, "global_decomposition_table", {})
    return [row for table in tables.values() for row in table.items()]


def traced_code() -> tuple[Any, ...]:
    """The code objects that dynamo has gone through for the graph that it is handing to a backend just now."""
    from torch._guards import TracingContext

    context: Any = TracingContext.try_get()
    made: Any = getattr(context, "traced_code", None)
    if made is None:  # before torch 2.8
        made = getattr(context, "previously_inlined_functions", None) or ()
    return tuple(code for code in made if isinstance(code, CodeType))


def guarded_sources(tx: Any) -> list[Any]:
    """Where the values come from that a trace has read, and that dynamo will look at before each call."""
    return [g.originating_source for g in tx.output.guards if g.originating_source is not None]


def symbol_values(environment: Any) -> dict[Any, int]:
    """The values of the symbols for the sizes that are being traced, by symbol of sympy."""
    name = "backed_var_to_val" if hasattr(environment, "backed_var_to_val") else "var_to_val"
    values = getattr(environment, name, {})
    return {symbol: int(value) for symbol, value in values.items() if getattr(value, "is_Integer", False)}


def size_values(environment: Any) -> dict[str, int]:
    """As ``symbol_values``, by the symbols' names."""
    return {symbol.name: value for symbol, value in symbol_values(environment).items()}


def size_functions() -> dict[str, Any]:
    """The functions that torch adds to those of sympy in expressions of sizes, by name."""
    from torch.utils._sympy import functions

    names = ("FloorDiv", "CleanDiv", "ModularIndexing", "Mod", "PythonMod", "Max", "Min", "PowByNatural")
    return {name: getattr(functions, name) for name in names if hasattr(functions, name)}


def mark_sizes(t: torch.Tensor, symbolic: Sequence[int], fixed: Sequence[int]) -> None:
    """Tell dynamo which dimensions of an input to trace with a symbol, if the model lets it, and which without."""
    from torch import _dynamo as dynamo

    dynamo.maybe_mark_dynamic(t, list(symbolic))
    if fixed:
        dynamo.mark_static(t, list(fixed))


def mark_static(t: torch.Tensor, dims: Any = None) -> None:
    """Tell dynamo to trace dimensions of a tensor without symbols; all of them if none is named."""
    from torch import _dynamo as dynamo

    dynamo.mark_static(t, dims)


def makes_quant_options(target: Any) -> bool:
    """Whether a call makes the options of a ``torch._higher_order_ops.InvokeQuant`` region."""
    place = (getattr(target, "__module__", ""), getattr(target, "__name__", ""))
    return place == ("torch._higher_order_ops._invoke_quant", "InvokeQuant")


def is_composite(op: Any) -> bool:
    """Whether the dispatcher itself replaces an overload by others."""
    return isinstance(op, torch._ops.OpOverload) and bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    )


def is_traceable(op: Any) -> bool:
    """Whether torch knows sizes and types of an overload's results, or makes it of others."""
    keys = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in keys)


def operator_names() -> list[str]:
    """Names of all overloads that are defined, ``aten::add.Tensor``."""
    return list(torch._C._dispatch_get_all_op_names())


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's core list after autograd, by operator.

    Not ``core_aten_decompositions()``: it walks all ops of all libraries, and fails once a library of the user is gone.
    """
    from torch._decomp import _core_aten_decompositions_post_autograd

    return dict(_core_aten_decompositions_post_autograd())


def known_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Every decomposition that torch registers, by operator."""
    from torch._decomp import decomposition_table

    known: Mapping[Any, Callable[..., Any]] = decomposition_table
    return known


def slice_backward(*args: Any) -> torch.Tensor:
    """torch's own formula of ``aten.slice_backward``."""
    from torch._decomp import decompositions

    return decompositions.slice_backward(*args)


def select_backward(*args: Any) -> torch.Tensor:
    """torch's own formula of ``aten.select_backward``."""
    from torch._decomp import decompositions

    return decompositions.select_backward(*args)


def primitive_names() -> set[str]:
    """Names in torch's module of primitive operators; importing it defines them."""
    import torch._prims

    return set(dir(torch._prims))


def order_of_memory(x: torch.Tensor) -> torch.memory_format:
    """The memory format that operators keep for a tensor."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(x)


def group_names() -> list[str]:
    """Names of the process groups of this process."""
    from torch.distributed import distributed_c10d

    return [str(name) for name in distributed_c10d._world.pg_names.values()]


def tensors_on_memory_of(value: torch.Tensor) -> int:
    """How many tensors there are on the memory of one, views and what autograd has saved among them."""
    return int(torch._C._storage_Use_Count(value.untyped_storage()._cdata))


def has_kernel(name: str) -> bool:
    """Whether torch has an operator of a name such as ``aten::add.Tensor``, without making one."""
    return bool(torch._C._dispatch_has_kernel(name))
