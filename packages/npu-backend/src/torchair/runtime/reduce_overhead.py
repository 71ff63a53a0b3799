"""Mode reduce-overhead: the ATen graph as a program, captured once per shape, replayed with static buffers.

Three kinds of inputs (documented for captured graphs): parameters and buffers keep their address; inputs that the graph
writes are used where they lie and never copied, another address means another capture; all others are copied into
buffers that belong to the capture. Results lie in memory of the capture. Who drops them before the next run pays
nothing; what somebody still holds then keeps its numbers, and from there on this capture hands out copies, as it always
does with ``clone_output``.

A number that changes in every step and decides no size, such as a position or a length of attention, is no part of what
tells captures apart: see ``host_tasks``.

Each thread has captures, and a memory pool, of its own: what a run leaves is overwritten by the next run of the same
thread only. ``capture_limit`` counts a thread's captures; beyond it the least used one goes. They all go when the
thread ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.torch_compat import profiling, tensors_on_memory_of
from torchair.config.log import logger
from torchair.passes.base import output_values, value_of
from torchair.passes.memory import MemoryFacts
from torchair.runtime.fx_program import HasGraph, write_program
from torchair.runtime.graph_capture import GraphCapture, Program, Recording, Told, find_capture
from torchair.runtime.host_tasks import StepNumbers, take_step_numbers
from torchair.runtime.host_work import refuse_host_work
from torchair.runtime.views import View, ViewPlan, take_views

FxNode: TypeAlias = torch.fx.Node
STATIC: Final = "static"
WRITTEN: Final = "written"
USER: Final = "user"


@dataclass(frozen=True, slots=True)
class Switches:
    """The options of captured graphs as plain values; names as in ``docs/options.md``."""

    force_eager: bool = False
    force_recapture: bool = False
    capture_limit: int = 64
    clone_input: bool = True
    clone_output: bool = False
    use_graph_pool: Any = None
    reuse_graph_pool_in_same_fx: bool = True
    capture_error_mode: str = "global"
    unsafe_skip_npugraph_capture_validation: bool = False
    static_kernel_compile: bool = False
    _aclnn_static_shape_kernel_build_dir: str | None = None
    super_kernel_optimize: bool = False
    super_kernel_optimize_options: dict[str, Any] | None = None
    super_kernel_debug_options: dict[str, Any] | None = None

    @classmethod
    def of(cls, options: Any) -> Switches:
        """Read them from a group of options."""
        return cls(**{name: getattr(options, name).value for name in cls.__slots__})


@dataclass(slots=True)
class CapturePlan:
    """What is decided when a graph is compiled.

    Attributes:
        program: Runs the graph; takes a list of arguments and empties it.
        source: Its text for people.
        kinds: One of STATIC, WRITTEN, USER for each input that is a tensor, "" for numbers.
        symbolic: Positions of inputs whose size or value needs a capture of its own.
        results: For each value that the graph returns the input it is, those of ``numbers`` included, or -1.
        views: How the caller's results come from what the graph returns.
        nested: Whether the caller expects a tuple.
        numbers: What a replay takes from the host as it comes.
        capture: False for graphs of a training step, whose results must outlive the next run.
    """

    program: Program
    source: str
    kinds: list[str]
    symbolic: list[int]
    results: list[int]
    views: ViewPlan
    nested: bool
    numbers: StepNumbers = field(default_factory=StepNumbers)
    capture: bool = True


@dataclass(frozen=True, slots=True)
class PlannedPrograms:
    """A plan and the graphs that its programs run; they hold what tracing left in them, so nobody keeps them for long.

    Attributes:
        graph: Of ``plan.program``.
        host: Of ``plan.numbers.values``, None if there are none.
    """

    plan: CapturePlan
    graph: HasGraph
    host: HasGraph | None


@dataclass(slots=True)
class _Entry:
    """One capture.

    Attributes:
        copies: Whether results are handed out as copies.
        held: Numbers of the host in device memory, the program's last arguments.
        runs: How often it was replayed.
    """

    recording: Recording
    buffers: dict[int, torch.Tensor]
    addresses: dict[int, int] = field(default_factory=dict)
    copies: bool = False
    held: list[torch.Tensor] = field(default_factory=list)
    runs: int = 0


@dataclass(slots=True)
class _Lent:
    """Memory of a result that was handed out, and how many used it before."""

    memory: torch.Tensor
    users: int
    entry: _Entry


@dataclass
class _Captures:
    """What one thread has captured of a graph.

    Attributes:
        lent: Of all captures, those that are gone included: they share a memory pool, so each may overwrite what
            another has handed out.
    """

    capture: GraphCapture
    entries: dict[Any, _Entry] = field(default_factory=dict)
    lent: list[_Lent] = field(default_factory=list)


def plan_capture(
    gm: torch.fx.GraphModule, device: str, options: Any, *, title: str, static: frozenset[int], capture: bool = True
) -> PlannedPrograms:
    """Decide how a graph runs in mode reduce-overhead; edits ``gm.graph``.

    Args:
        device: Device type of its tensors.
        options: The group of options of captured graphs.
        title: First line of the program.
        static: Positions of parameters and buffers.
        capture: See ``CapturePlan``.

    Errors: EngineError GE1058 if an operator needs the host while a device captures.
    """
    switches = Switches.of(options)
    captured = capture and not switches.force_eager
    if device != "cpu" and captured and not switches.unsafe_skip_npugraph_capture_validation:
        refuse_host_work(gm, device)
    bare = not isinstance(list(gm.graph.nodes)[-1].args[0], (tuple, list))
    memory = MemoryFacts(gm.graph)
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    kinds = [_kind(n, i, memory, static) for i, n in enumerate(inputs)]
    views = take_views(gm)
    if not isinstance(list(gm.graph.nodes)[-1].args[0], (tuple, list)):
        list(gm.graph.nodes)[-1].args = ((views.returned[0],),)
    numbers, host = take_step_numbers(gm) if captured else (StepNumbers(), None)
    program, source = write_program(gm, title)
    position = {
        n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder")) if i < len(kinds) or _of_host(n, device)
    }
    results = [position.get(v, -1) if isinstance(v, torch.fx.Node) else -1 for v in output_values(gm.graph)]
    symbolic = [i for i, n in enumerate(inputs) if _varies(value_of(n)) and i not in numbers.inputs]
    plan = CapturePlan(program, source, kinds, symbolic, results, views, not bare, numbers, capture)
    return PlannedPrograms(plan, gm, host)


def run_captured(
    plan: CapturePlan, device: str, options: Any, *, title: str, on_captured: Told | None = None
) -> Callable[[list[Any]], Any]:
    """Make a plan ready to run.

    Args:
        device: Device type of its tensors.
        options: The group of options of captured graphs.
        title: For logs.
        on_captured: Told of each graph that the device captures, see ``torchair.runtime.graph_capture.NpuGraph``.

    Returns:
        A function of one list of arguments, which it empties.

    Errors: EngineError GE1056 if the device has no capture.
    """
    switches = Switches.of(options)
    if switches.force_eager or not plan.capture:
        return _Uncaptured(plan)

    def make() -> GraphCapture:
        pool = switches.use_graph_pool or _shared_pool(device, switches)
        optimize = None
        if switches.super_kernel_optimize:
            optimize = (switches.super_kernel_optimize_options, switches.super_kernel_debug_options)
        return find_capture(
            device, pool=pool, error_mode=switches.capture_error_mode, on_captured=on_captured, super_kernels=optimize
        )

    make()  # a device without captures is refused here, not in the first run
    return CapturedGraph(plan, make, switches, title)


def _kind(node: FxNode, position: int, memory: MemoryFacts, static: frozenset[int]) -> str:
    if not isinstance(value_of(node), torch.Tensor):
        return ""
    if memory.roots(node) & memory.written:
        return WRITTEN
    return STATIC if position in static else USER


def _of_host(node: FxNode, device: str) -> bool:
    value = value_of(node)
    return device != "cpu" and isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _varies(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _shared_pool(device: str, switches: Switches) -> Any:
    """One memory pool for all captures of a graph, where the device has pools."""
    make = getattr(getattr(torch, device, None), "graph_pool_handle", None)
    return make() if make is not None and switches.reuse_graph_pool_in_same_fx else None


class _Uncaptured:
    def __init__(self, plan: CapturePlan) -> None:
        self._plan = plan

    def __call__(self, args: list[Any]) -> Any:
        return run_program(self._plan, args)


def run_program(plan: CapturePlan, args: list[Any]) -> Any:
    """Run a program without capture; its results are the caller's."""
    given = {i: args[i] for i in plan.results if i >= 0}
    values = plan.program(args)
    return finish(plan, [given[i] if i >= 0 else v for i, v in zip(plan.results, values)])


def finish(plan: CapturePlan, values: Sequence[Any]) -> Any:
    """Take the views that are left of the values, and hand out what the caller expects."""
    known: dict[FxNode, Any] = {n: v for n, v in zip(plan.views.returned, values) if isinstance(n, torch.fx.Node)}
    for view in plan.views.views:
        known[view.node] = _take(view, known)
    wanted = tuple(known[v] if isinstance(v, torch.fx.Node) else v for v in plan.views.wanted)
    return wanted if plan.nested else wanted[0]


def _take(view: View, known: Mapping[FxNode, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((view.args, view.kwargs), known.__getitem__)
    return view.target(*args, **kwargs)


class CapturedGraph:
    """The captures of one graph, one a shape and thread.

    Args:
        plan: What was decided when compiling.
        make: Gives the device's capture, with a memory pool for one thread.
    """

    def __init__(self, plan: CapturePlan, make: Callable[[], GraphCapture], switches: Switches, title: str) -> None:
        self._plan, self._make, self._switches, self._title = plan, make, switches, title
        self._local = threading.local()
        self._capturing = threading.Lock()  # devices record what every thread launches, so one at a time
        self._told = False
        self.captures = 0

    def _mine(self) -> _Captures:
        captures: _Captures | None = getattr(self._local, "captures", None)
        if captures is None:
            captures = self._local.captures = _Captures(self._make())
        return captures

    def __call__(self, args: list[Any]) -> Any:
        key, mine = self._key(args), self._mine()
        entry = mine.entries.get(key)
        lists, numbers = self._plan.numbers.values(list(args))
        if entry is None or self._switches.force_recapture or self._moved(entry, args):
            if entry is None:
                self._make_room(mine)
            entry = mine.entries[key] = self._new(mine, args, numbers)
        entry.runs += 1
        if not profiling():
            return self._replay(mine, entry, args, lists, numbers)
        with torch.profiler.record_function(f"replay of {self._title}"):
            return self._replay(mine, entry, args, lists, numbers)

    def _replay(self, mine: _Captures, entry: _Entry, args: list[Any], lists: Any, numbers: Sequence[Any]) -> Any:
        given = list(args)
        args.clear()
        held = _held(mine)  # before anything is written: a number of the last run may be a result that is held
        bound = self._bound(entry, given)
        try:
            bound += _filled(entry.held, numbers)
            values = list(entry.recording.replay(bound, lists))
            handed = bound[: len(given)]
            known = [*given, *numbers]
            results = [self._result(mine, entry, i, v, known, handed) for i, v in zip(self._plan.results, values)]
        finally:
            bound.clear()
            for memory, kept in held:
                memory.copy_(kept)
        return finish(self._plan, results)

    def _key(self, args: Sequence[Any]) -> Any:
        return tuple(
            (tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a
            for a in map(args.__getitem__, self._plan.symbolic)
        )

    def _make_room(self, mine: _Captures) -> None:
        """At the limit the capture goes that was replayed least, of several the oldest."""
        limit = self._switches.capture_limit
        if len(mine.entries) < limit:
            return
        mine.capture.settle()
        while len(mine.entries) >= limit:
            del mine.entries[min(mine.entries, key=lambda key: mine.entries[key].runs)]
        if not self._told:
            self._told = True
            logger.tell(
                "%s: capture_limit = %d shapes are captured; from here on a new shape takes the place of the one that "
                "was used least",
                self._title,
                limit,
            )

    def _new(self, mine: _Captures, args: Sequence[Any], numbers: Sequence[Any]) -> _Entry:
        buffers = {
            i: self._buffer(value)
            for i, (kind, value) in enumerate(zip(self._plan.kinds, args))
            # dynamo passes None for a tensor of which it needed only the sizes
            if kind == USER
            and isinstance(value, torch.Tensor)
            and not isinstance(value, torch.nn.Parameter)
            and _copyable(value)
        }
        held = [_memory(*row, number) for row, number in zip(self._plan.numbers.memory, numbers, strict=True)]
        bound = [*(buffers.get(i, value) for i, value in enumerate(args)), *_filled(held, numbers)]
        addresses = {
            i: value.data_ptr() for i, value in enumerate(args) if isinstance(value, torch.Tensor) and i not in buffers
        }
        with self._capturing:
            self.captures += 1
            if self._switches.static_kernel_compile:
                # a program that runs once before its capture must not write what the caller sees
                own = [v.clone() if k == WRITTEN else v for k, v in zip(self._plan.kinds, bound)]
                folder = self._switches._aclnn_static_shape_kernel_build_dir
                mine.capture.describe(self._plan.program, own + bound[len(own) :], folder)
            recording = mine.capture.capture(self._plan.program, bound, self._plan.numbers)
            logger.info("%s: captured by %s, capture %d", self._title, mine.capture.name, self.captures)
        return _Entry(recording, buffers, addresses, copies=self._switches.clone_output, held=held)

    def _buffer(self, value: torch.Tensor) -> torch.Tensor:
        # without clone_input the first run's tensor is the buffer, and later values are copied into it
        return value.detach().clone() if self._switches.clone_input else value

    @staticmethod
    def _moved(entry: _Entry, args: Sequence[Any]) -> bool:
        """Whether an input that has no buffer lies elsewhere now; only its address is kept, never the tensor."""
        return any(args[i].data_ptr() != address for i, address in entry.addresses.items())

    @staticmethod
    def _bound(entry: _Entry, args: Sequence[Any]) -> list[Any]:
        bound = list(args)
        copies: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for i, buffer in entry.buffers.items():
            if buffer.data_ptr() != args[i].data_ptr():
                to, given = copies.setdefault(buffer.dtype, ([], []))
                to.append(buffer)
                given.append(args[i])
            bound[i] = buffer
        for to, given in copies.values():
            torch.ops.aten._foreach_copy_.default(to, given)  # a device has one task for all of a type
        return bound

    @staticmethod
    def _result(
        mine: _Captures, entry: _Entry, position: int, value: Any, given: Sequence[Any], bound: Sequence[Any]
    ) -> Any:
        if position >= 0:
            return given[position]
        if not isinstance(value, torch.Tensor):
            return value
        if entry.copies:
            return value.clone()
        if not _lies_in(value, bound):  # an input that the graph has written is the caller's own memory
            mine.lent.append(_Lent(value, tensors_on_memory_of(value), entry))
        return value.detach()


def _filled(held: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Sequence[torch.Tensor]:
    for memory, number in zip(held, numbers, strict=True):
        memory.copy_(number) if isinstance(number, torch.Tensor) else memory.fill_(number)
    return held


def _memory(dtype: torch.dtype, device: torch.device, number: Any) -> torch.Tensor:
    size = number.shape if isinstance(number, torch.Tensor) else ()
    return torch.empty(size, dtype=dtype, device=device)


def _lies_in(value: torch.Tensor, others: Sequence[Any]) -> bool:
    start = value.untyped_storage().data_ptr()
    return any(isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() == start for t in others)


def _held(mine: _Captures) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Memory of earlier results that somebody still uses, and a copy of it; it is lent no longer where nobody does."""
    mine.lent = [each for each in mine.lent if tensors_on_memory_of(each.memory) > each.users]
    for each in mine.lent:
        each.entry.copies = True
    return [(each.memory, each.memory.clone()) for each in mine.lent]


def _copyable(value: torch.Tensor) -> bool:
    """Whether a copy can have the layout of a tensor; expanded memory has no such copy and stays where it is."""
    return value.clone().stride() == value.stride() if not value.is_contiguous() else True
