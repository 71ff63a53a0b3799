"""From a model to its ATen and GE graphs: what the commands work on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import linecache
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.progress import Progress
from ge_converters.base.torch_compat import (
    boxed,
    fake_mode,
    real_values,
    run_aot,
    symbols_of_fake_inputs,
)
from ge_converters.base.torch_traces import (
    Compilation,
    breaks_of_graphs,
    compilations,
    failed_operator,
    failing_in_silence,
    unbroken,
)
from ge_graph import Graph, escape
from ge_graph.errors import ConfigError, GeError, on_purpose
from tair_debug import repeated
from tair_debug.models import Subject, given, raised_by_hand
from tair_debug.stops import Break, Recompilation, Stops

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from ge_graph.kernels import Oracle
    from ge_graph.passes import Choice

_log = logging.getLogger(__name__)
COMPILER: Final = "tair_debug.compiler"
_NO_OPERATOR: Final = "'_OpNamespace'"  # torch's word for a library whose operators it knows
_NO_INPUT: Final = "missing"  # Python's word for arguments that nobody gave
_JUMP: Final = "generic_jump"  # all that dynamo says of an ``if`` on a tensor
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")  # what dynamo calls the rest of a function
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n([^\n]*)')  # of a stack as Python prints it
_HINT: Final = re.compile(r"\(HINT: (.*)\)\s*$")
GraphCompiler = Callable[[torch.fx.GraphModule, str], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Captured:
    """One ATen graph of a model.

    Attributes:
        gm: The graph.
        phase: ``forward`` or ``backward``.
        weights: Names of its placeholders that are parameters and buffers of the model; known once it was called.
    """

    gm: torch.fx.GraphModule
    phase: str
    weights: set[str] = field(default_factory=set)


def run_with(
    subject: Subject,
    compiled: GraphCompiler,
    *,
    backward: bool = False,
    dynamic: bool = False,
    device_kernels: bool = False,
    stack: repeated.Stack | None = None,
    on_whole: Callable[[repeated.Whole, Callable[[], repeated.Whole], Sequence[Any]], object] = lambda *_: None,
) -> Any:
    """Trace a model to ATen and run it, each graph through what ``compiled`` makes of it.

    The graphs have been through the FX passes that a compilation runs, if torchair is installed.

    Args:
        subject: The model.
        compiled: Gets a graph and its phase, returns what to call with the graph's inputs.
        backward: Also run the backward pass of the sum of all floating point results.
        dynamic: Trace with symbolic sizes.
        device_kernels: Leave whole what eager operators of the device compute, and writes of inputs in the graph, as
            captured graphs do; ``subject.config`` says of which kind.
        stack: Layers of which the model has only the first ones just now; ``compiled`` gets the graph of all of them.
        on_whole: Called with that graph before the FX passes, with what makes it once more, and with the inputs of
            the shortened model's graph.

    Returns:
        What the model returns.
    """
    from ge_converters.decompose.table import decomposition_table
    from ge_converters.decompose.whole import KeepWhole

    prepare = of_compiler("prepare")
    known = {} if stack is None else repeated.names_of(subject.model)
    writes = device_kernels and bool(subject.config.experimental_config.keep_inference_input_mutation)

    taken: list[Any] = []  # the inputs of dynamo's graph
    names: list[str | None] = []  # and what the model calls them

    def compiler(phase: str) -> Any:
        def compile_one(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            few, whole = gm, None
            if stack is not None:
                whole = repeated.whole_graph(gm, stack, names)
                on_whole(whole, lambda: repeated.whole_graph(few, stack, names), taken)
                gm, example_inputs = whole.gm, [example_inputs[i] for i in whole.like]
            if prepare is not None:
                with real_values():  # constants of the graph are real, whatever mode the model was made in
                    prepare(gm, example_inputs, phase, subject.config)
            call = compiled(gm, phase)
            if whole is not None:
                call = few.forward
            return boxed(lambda args: call(*args))

        return compile_one

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        taken[:] = example_inputs
        names[:] = [known.get(id(v)) for v in example_inputs]
        return run_aot(
            gm,
            example_inputs,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("forward"),
            decompositions=decomposition_table({}, device_kernels=device_kernels),
            keep_inference_input_mutations=writes,
            more={},
            tracing=KeepWhole(),
        )

    with torch.enable_grad() if backward else torch.no_grad(), failing_in_silence():
        model = torch.compile(subject.model, backend=backend, dynamic=dynamic, fullgraph=stack is not None)
        result = model(*subject.args, **subject.kwargs)
        if backward:
            total = [t.sum() for t in _tensors(result) if t.requires_grad and t.is_floating_point()]
            if total:
                torch.stack([t.double() for t in total]).sum().backward()
    return result


def of_compiler(name: str) -> Callable[..., Any] | None:
    """``backend`` or ``prepare`` of the installed compiler (entry points ``tair_debug.compiler``), None without one."""
    points = importlib.metadata.entry_points(group=COMPILER, name=name)
    return next((point.load() for point in points), None)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    return [v for v in leaves if isinstance(v, torch.Tensor)]


@contextlib.contextmanager
def stops() -> Iterator[Stops]:
    """The breaks and recompilations of the graphs that are captured inside; there when it ends."""
    found = Stops()
    with _breaks(found.breaks), compilations() as made:
        yield found
    found.recompilations.extend(_again(made))


def _again(made: Sequence[Compilation]) -> Iterator[Recompilation]:
    inside = {each.key for each in made}
    groups: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for each in made:
        earlier, _, why = each.why.partition(": ")
        if earlier not in inside:  # the first one, or another one than that of an earlier command
            continue
        first, _, stack = why.partition("\n")
        frame = next(reversed([*_FRAME.finditer(stack)]), None)
        file, line, name = each.source  # where a torch gives no stack, the line at which the function begins
        code = frame[3] if frame else linecache.getline(file, line)
        source = "{}:{} in {}".format(*(frame.group(1, 2) if frame else (file, line)), _RESUMED.sub(r"\1", name))
        guard = re.split(r"\s+#", first)[0].strip()
        hint = _HINT.search(first)
        key = (source, re.sub(r"\d+", "0", guard), code.strip())
        groups.setdefault(key, []).append((guard, hint[1] if hint else _advice(guard)))
    for (source, _, code), told in groups.items():
        yield Recompilation(told[0][0], len(told), (told[0][1],), source, code)


def _advice(guard: str) -> str:
    if "size mismatch" in guard or ".size()" in guard:
        return "--dynamic, or torch._dynamo.mark_dynamic for the size"
    return "the same value in every call, or a tensor in its place"


_BRANCH: Final = "a branch on values: the graphs have the side that was taken, not the other"
_CHOOSE: Final = "torch.where for two values, torch.cond for two branches"


@contextlib.contextmanager
def _breaks(found: list[Break]) -> Iterator[None]:
    with breaks_of_graphs() as reasons:
        yield
    for said, frame in reasons:
        lines = [line.strip() for line in said.strip().splitlines()]
        if said.startswith(_JUMP):
            lines = [_BRANCH, f"Hint: {_CHOOSE}"]
        hints = tuple(line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:"))
        name = _RESUMED.sub(r"\1", frame.name) if frame is not None else ""
        source = f"{frame.filename}:{frame.lineno} in {name}" if frame is not None else ""
        found.append(Break(lines[0] if lines else "", hints, source, (frame.line or "") if frame is not None else ""))


def capture(
    subject: Subject, *, backward: bool = False, dynamic: bool = False, fake: bool = True, device_kernels: bool = False
) -> list[Captured]:
    """The ATen graphs of a model, in the order they are needed; nothing is computed if ``fake``.

    Errors: ConfigError GE1047 if the model cannot be traced.
    """
    if dynamic and fake and not symbols_of_fake_inputs():
        raise ConfigError(
            "GE1047",
            f"{subject.name}: torch {torch.__version__} gives no symbols to sizes of fake tensors, 2.11 does",
            next="trace with real tensors (--real)",
        )
    # before torch 2.11 dynamo makes other fake inputs, so parameters are not known again
    if fake and symbols_of_fake_inputs() and not (backward or dynamic or device_kernels):
        graphs = _captured_by_layers(subject)
        if graphs is not None:
            return graphs
    with _mode_of(subject) if fake else contextlib.nullcontext(), traceable(subject, fake=fake):
        return _captured(subject, backward=backward, dynamic=dynamic, device_kernels=device_kernels)


def _captured(subject: Subject, *, stack: repeated.Stack | None = None, **how: Any) -> list[Captured]:
    graphs: list[Captured] = []
    owned = repeated.names_of(subject.model)

    def keep(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        made = Captured(gm, phase, set(gm.meta.pop(repeated.WEIGHTS, ())))
        graphs.append(made)
        names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]

        def call(*args: Any) -> Any:
            made.weights.update(name for name, value in zip(names, args) if id(value) in owned)
            return gm.forward(*args)

        return call

    run_with(subject, keep, stack=stack, **how)
    return graphs


def _captured_by_layers(subject: Subject, on_whole: Callable[..., object] = lambda *_: None) -> list[Captured] | None:
    """The graph of a model whose equal layers need not be traced each; None for other models."""
    try:
        with _mode_of(subject):
            stack = repeated.stack_of(subject.model)
            with torch.no_grad():
                repeated.prove(stack, subject.model, subject.args, subject.kwargs)
            with stack.shortened(), unbroken():
                graphs = _captured(subject, stack=stack, on_whole=on_whole)
    except Exception as error:  # noqa: BLE001 - also what the model raises: the trace of the whole says it to the user
        _log.debug("%s is traced layer by layer: %s", subject.name, error)
        return None
    return graphs if len(graphs) == 1 else None


@dataclass(frozen=True, slots=True)
class Layered:
    """The ATen graph of a model with data, whose equal layers were traced once.

    Attributes:
        gm: The graph, after the FX passes that a compilation runs.
        args: Its arguments.
        untouched: Makes the graph before those passes.
        fakes: Arguments without data.
    """

    gm: torch.fx.GraphModule
    args: list[Any]
    untouched: Callable[[], torch.fx.GraphModule]
    fakes: list[Any]


def capture_layers(subject: Subject) -> Layered | None:
    """The graph of a model with data whose equal layers need not be traced each; None for other models."""
    if not symbols_of_fake_inputs() or not isinstance(subject.model, torch.nn.Module):
        return None
    made: list[tuple[repeated.Whole, Callable[[], repeated.Whole], Sequence[Any]]] = []
    try:
        repeated.stack_of(subject.model)
        fake = given(subject.model, subject.args, subject.kwargs, config=subject.config)
    except Exception as error:  # noqa: BLE001 - also what the model raises; the trace of the whole says it to the user
        _log.debug("%s is traced layer by layer: %s", subject.name, error)
        return None
    graphs = _captured_by_layers(fake, lambda *each: made.append(each))
    if graphs is None or len(made) != 1:
        return None
    ((whole, again, inputs),) = made
    leaves, fake_leaves = (torch.utils._pytree.tree_leaves((s.args, s.kwargs)) for s in (subject, fake))
    by_leaf = {id(value): leaves[i] for i, value in enumerate(fake_leaves) if isinstance(value, torch.Tensor)}
    held = dict(subject.model.named_parameters(remove_duplicate=False))
    held.update(subject.model.named_buffers(remove_duplicate=False))
    args = [by_leaf.get(id(inputs[i])) if name is None else held.get(name) for i, name in zip(whole.like, whole.names)]
    if any(value is None for value in args):
        _log.debug("%s is traced layer by layer: it reads a tensor that is no input of it", subject.name)
        return None
    return Layered(graphs[0].gm, args, lambda: again().gm, [inputs[i] for i in whole.like])


@contextlib.contextmanager
def traceable(subject: Subject, *, fake: bool = False) -> Iterator[None]:
    """What a model raises inside becomes GE1047; errors made on purpose stay as they are."""
    try:
        yield
    except GeError:
        raise
    except Exception as error:
        raise untraceable(subject, error, fake=fake) from error


def untraceable(subject: Subject, error: Exception, *, fake: bool) -> GeError:
    """The error for a model that raises when it is traced or run; errors made on purpose stay as they are."""
    ours = on_purpose(error)
    if ours is not None:
        return ours
    advice = "try it with real tensors (--real): fake ones have no values to decide by" if fake else "run it eagerly"
    if not subject.args and not subject.kwargs and isinstance(error, TypeError) and _NO_INPUT in str(error):
        advice = "give its inputs: -i 'float32(4, 8)' once for each, or a factory that returns (model, inputs)"
    if _NO_OPERATOR in str(error):  # an AttributeError, which dynamo before torch 2.8 raises as its own internal one
        advice = "import what registers this operator, at the head of the model's file"
    raised: BaseException = error
    where, failed = "", failed_operator(error)
    if failed is not None:
        raised, frame = failed
        if frame is not None:
            where = escape.line(f"{frame.filename}:{frame.lineno} in {frame.name}, {(frame.line or '').strip()}", 500)
        if not type(raised).__module__.startswith("torch."):  # of sizes and types; torch's own are of missing values
            inputs = ", ".join(f"{str(v.dtype)[6:]}{tuple(v.shape)}" for v in _tensors((subject.args, subject.kwargs)))
            advice = f"give inputs of other sizes or types: the model was given {inputs or 'none'}"
    elif (line := raised_by_hand(error)) is not None:
        where = escape.line(f"{line.filename}:{line.lineno} in {line.name}, {line.line}", 500)
        advice = "the model itself raises this: give it inputs that it takes, or repair it"
    if isinstance(error, TypeError | AttributeError) and [type(a) for a in subject.args] in ([tuple], [list]):
        advice = "the inputs came as one tuple or list; where the model takes them one by one: (model, *inputs)"
    said = (str(raised).strip().splitlines() or [""])[0]
    return ConfigError(
        "GE1047",
        f"{subject.name}: tracing the model raised {type(raised).__name__}: {escape.line(said, 500)}",
        where=where,
        next=advice,
    )


def _mode_of(subject: Subject) -> Any:
    """The fake mode that the model was made in."""
    parameters = [*subject.model.parameters()] if isinstance(subject.model, torch.nn.Module) else []
    for value in (*parameters, *_tensors(subject.args), *_tensors(subject.kwargs)):
        mode = getattr(value, "fake_mode", None)
        if mode is not None:
            return mode
    return fake_mode(beside_real=True)


def converted(
    gm: torch.fx.GraphModule,
    name: str,
    oracle: Oracle | None = None,
    say: Callable[[Choice], None] | None = None,
    progress: Progress = Progress(),
) -> Lowered:
    """The GE graph of an ATen graph, after the GE passes and verification, with how inputs and outputs meet it.

    Args:
        gm: The ATen graph.
        name: Name of the GE graph.
        oracle: The chip whose forms of operators are taken, the least expensive ones by its figures; None leaves them
            as they are everywhere.
        say: Told of each operator that took another form.
        progress: Shown the graph as converted, and after the GE passes.

    Errors: LoweringError for what cannot be lowered, GraphError for what GE would refuse.
    """
    from ge_converters.conversion import convert_graph
    from ge_graph import passes
    from ge_graph.cost import forms

    chosen: Sequence[passes.Pass] = passes.DEFAULT
    if oracle is not None:
        chosen = passes.for_chip(oracle, price=forms.price(oracle.soc, size_hints(gm)), say=say)
    with real_values():
        return convert_graph(gm, name=name, prepare=lambda lowered: (lowered, chosen), progress=progress)


def to_ge(gm: torch.fx.GraphModule, name: str) -> Graph:
    """The graph of ``converted``."""
    return converted(gm, name).graph


def as_converted(gm: torch.fx.GraphModule, name: str) -> Lowered:
    """The GE graph of an ATen graph, without the GE passes.

    Errors: LoweringError for what cannot be lowered.
    """
    from ge_converters.lowering import lower

    with real_values():
        return lower(gm, name=name)


def size_hints(gm: torch.fx.GraphModule) -> dict[str, int]:
    """Symbols of a traced graph and the numbers with which it was traced."""
    found: dict[str, int] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, torch.SymInt):
                hint = number.node.maybe_as_int() if not number.node.has_hint() else number.node.hint
                if isinstance(hint, int):
                    found[str(number.node.expr)] = hint
    return found


@dataclass(frozen=True)
class Formed:
    """GE graphs in the forms of a chip.

    Attributes:
        graphs: The graphs.
        choices: The operators that took another form, and what else they could have taken.
        lowered: How the inputs and outputs of ATen graphs meet the graphs; empty for graphs that come from files.
    """

    graphs: list[Graph]
    choices: list[Choice] = field(default_factory=list)
    lowered: list[Lowered] = field(default_factory=list)


def for_chips(gms: Sequence[torch.fx.GraphModule]) -> Callable[[Oracle | None], Formed]:
    """Chip to the finished GE graphs of some ATen graphs, in the forms that it takes; None takes them as they are.

    Errors: as ``converted``.
    """
    from ge_graph.passes import FitChip

    plain = [converted(gm, f"graph_{i}") for i, gm in enumerate(gms, 1)]

    def graphs(oracle: Oracle | None) -> Formed:
        if oracle is None:
            return Formed([made.graph for made in plain], lowered=plain)
        step = FitChip(oracle)
        choices: list[Choice] = []
        formed = [
            converted(gm, f"graph_{i}", oracle, choices.append) if step.concerns(made.graph) else made
            for i, (gm, made) in enumerate(zip(gms, plain), 1)
        ]
        return Formed([made.graph for made in formed], choices, formed)

    return graphs
