"""Mode reduce-overhead: the ATen graph as a program, captured once per shape, replayed with static buffers.

Three kinds of inputs (documented for captured graphs): parameters and buffers keep their address; inputs that the graph
writes are used where they lie and never copied, another address means another capture; all others are copied into
buffers that belong to the capture. Results lie in memory of the capture. Who drops them before the next run pays
nothing; what somebody still holds then keeps its numbers, and from there on this capture hands out copies, as it always
does with ``clone_output``.

Each thread has captures, and a memory pool, of its own: what a run leaves is overwritten by the next run of the same
thread only. ``capture_limit`` counts a thread's captures; they go when the thread ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.torch_compat import tensors_on_memory_of
from torchair.config.log import logger
from torchair.passes.base import output_values, value_of
from torchair.passes.memory import Memory
from torchair.runtime.fx_program import write_program
from torchair.runtime.graph_capture import GraphCapture, Program, Recording, Told, find_capture
from torchair.runtime.views import View, ViewPlan, take_views

Node: TypeAlias = torch.fx.Node
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

    @classmethod
    def of(cls, options: Any) -> Switches:
        """Read them from a group of options."""
        return cls(**{name: getattr(options, name).value for name in cls.__slots__})


@dataclass(slots=True)
class CapturePlan:
    """What is decided when a graph is compiled.

    Attributes:
        program: Runs the graph; takes a list of arguments and empties it.
        kinds: One of STATIC, WRITTEN, USER for each input that is a tensor, "" for numbers.
        symbolic: Positions of inputs whose size or value may differ from run to run.
        results: For each value that the graph returns the input it is, or -1.
        views: How the caller's results come from what the graph returns.
        nested: Whether the caller expects a tuple.
    """

    program: Program
    kinds: list[str]
    symbolic: list[int]
    results: list[int]
    views: ViewPlan
    nested: bool


@dataclass(slots=True)
class _Entry:
    """One capture.

    Attributes:
        lent: Memory of results that was handed out, with the number of those who used it before.
        copies: Whether results are handed out as copies.
    """

    recording: Recording
    buffers: dict[int, torch.Tensor]
    addresses: dict[int, int] = field(default_factory=dict)
    lent: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    copies: bool = False


@dataclass
class _Captures:
    """What one thread has captured of a graph."""

    capture: GraphCapture
    entries: dict[Any, _Entry] = field(default_factory=dict)
    exhausted: bool = False


def compile_captured(
    gm: torch.fx.GraphModule,
    device: str,
    options: Any,
    *,
    title: str,
    static: frozenset[int],
    capture: bool = True,
    on_captured: Told | None = None,
) -> tuple[Callable[[list[Any]], Any], str]:
    """Make a graph ready to run in mode reduce-overhead.

    Args:
        device: Device type of its tensors.
        options: The group of options of captured graphs.
        title: First line of the program.
        static: Positions of parameters and buffers.
        capture: False for graphs of a training step, whose results must outlive the next run.
        on_captured: Told of each graph that the device captures, see ``torchair.runtime.graph_capture.NpuGraph``.

    Returns:
        A function of one list of arguments, which it empties, and the text of the program.

    Errors: EngineError GE1056 if the device has no capture.
    """
    switches = Switches.of(options)
    bare = not isinstance(list(gm.graph.nodes)[-1].args[0], (tuple, list))
    memory = Memory(gm.graph)
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    kinds = [_kind(n, i, memory, static) for i, n in enumerate(inputs)]
    views = take_views(gm)
    if not isinstance(list(gm.graph.nodes)[-1].args[0], (tuple, list)):
        list(gm.graph.nodes)[-1].args = ((views.returned[0],),)
    program, source = write_program(gm, title)
    position = {n: i for i, n in enumerate(inputs)}
    results = [position.get(v, -1) if isinstance(v, torch.fx.Node) else -1 for v in output_values(gm.graph)]
    symbolic = [i for i, n in enumerate(inputs) if _varies(value_of(n))]
    plan = CapturePlan(program, kinds, symbolic, results, views, not bare)
    if switches.force_eager or not capture:
        return _Uncaptured(plan), source

    def make() -> GraphCapture:
        pool = switches.use_graph_pool or _shared_pool(device, switches)
        return find_capture(device, pool=pool, error_mode=switches.capture_error_mode, on_captured=on_captured)

    make()  # a device without captures is refused here, not in the first run
    return CapturedGraph(plan, make, switches, title), source


def _kind(node: Node, position: int, memory: Memory, static: frozenset[int]) -> str:
    if not isinstance(value_of(node), torch.Tensor):
        return ""
    if memory.roots(node) & memory.written:
        return WRITTEN
    return STATIC if position in static else USER


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
    known: dict[Node, Any] = {n: v for n, v in zip(plan.views.returned, values) if isinstance(n, torch.fx.Node)}
    for view in plan.views.views:
        known[view.node] = _take(view, known)
    wanted = tuple(known[v] if isinstance(v, torch.fx.Node) else v for v in plan.views.wanted)
    return wanted if plan.nested else wanted[0]


def _take(view: View, known: Mapping[Node, Any]) -> Any:
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
        self.captures = 0

    def _mine(self) -> _Captures:
        captures: _Captures | None = getattr(self._local, "captures", None)
        if captures is None:
            captures = self._local.captures = _Captures(self._make())
        return captures

    def __call__(self, args: list[Any]) -> Any:
        key, mine = self._key(args), self._mine()
        entry = mine.entries.get(key)
        if entry is None or self._switches.force_recapture or self._moved(entry, args):
            if mine.exhausted or (entry is None and self._full(mine)):
                return run_program(self._plan, args)
            entry = mine.entries[key] = self._new(mine, args)
        given = list(args)
        args.clear()
        bound = self._bound(entry, given)
        held = _held(entry)
        try:
            values = list(entry.recording.replay(bound))
            results = [self._result(entry, i, v, given, bound) for i, v in zip(self._plan.results, values)]
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

    def _full(self, mine: _Captures) -> bool:
        """Whether the limit is reached: then this thread never captures nor replays this graph again."""
        if len(mine.entries) < self._switches.capture_limit:
            return False
        mine.exhausted = True
        mine.entries.clear()
        logger.tell(
            "%s: capture_limit = %d shapes are captured, all further runs are eager",
            self._title, self._switches.capture_limit,
        )  # fmt: skip
        return True

    def _new(self, mine: _Captures, args: Sequence[Any]) -> _Entry:
        buffers = {
            i: self._buffer(value)
            for i, (kind, value) in enumerate(zip(self._plan.kinds, args))
            # dynamo passes None for a tensor of which it needed only the sizes
            if kind == USER
            and isinstance(value, torch.Tensor)
            and not isinstance(value, torch.nn.Parameter)
            and _copyable(value)
        }
        bound = [buffers.get(i, value) for i, value in enumerate(args)]
        addresses = {
            i: value.data_ptr() for i, value in enumerate(args) if isinstance(value, torch.Tensor) and i not in buffers
        }
        with self._capturing:
            self.captures += 1
            recording = mine.capture.capture(self._plan.program, bound)
            logger.info("%s: captured by %s, capture %d", self._title, mine.capture.name, self.captures)
        return _Entry(recording, buffers, addresses, copies=self._switches.clone_output)

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
        for i, buffer in entry.buffers.items():
            if buffer.data_ptr() != args[i].data_ptr():
                buffer.copy_(args[i])
            bound[i] = buffer
        return bound

    @staticmethod
    def _result(entry: _Entry, position: int, value: Any, given: Sequence[Any], bound: Sequence[Any]) -> Any:
        if position >= 0:
            return given[position]
        if not isinstance(value, torch.Tensor):
            return value
        if entry.copies:
            return value.clone()
        if not _lies_in(value, bound):  # an input that the graph has written is the caller's own memory
            entry.lent.append((value, tensors_on_memory_of(value)))
        return value.detach()


def _lies_in(value: torch.Tensor, others: Sequence[Any]) -> bool:
    start = value.untyped_storage().data_ptr()
    return any(isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() == start for t in others)


def _held(entry: _Entry) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Memory of earlier results that somebody still uses, and a copy of it; it is lent no longer where nobody does."""
    entry.lent = [(memory, users) for memory, users in entry.lent if tensors_on_memory_of(memory) > users]
    if entry.lent:
        entry.copies = True
    return [(memory, memory.clone()) for memory, _ in entry.lent]


def _copyable(value: torch.Tensor) -> bool:
    """Whether a copy can have the layout of a tensor; expanded memory has no such copy and stays where it is."""
    return value.clone().stride() == value.stride() if not value.is_contiguous() else True
