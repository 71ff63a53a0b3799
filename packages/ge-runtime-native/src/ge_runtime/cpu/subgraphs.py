"""Graphs inside nodes: branches, loops and calls as functions that run the planned programs of their graphs.

An inner graph is planned like the outer one, with two differences. Its results may be the memory of its inputs: nothing
is copied for handing values on, the outer plan is told what shares memory with what. And an input of a loop's body that
the body itself updates is the loop's own memory from the second round on; it is copied once, before the first.

Semantics of the operators: a condition that is a scalar is true unless zero, one of rank 1 or more is true unless
empty; an index outside the list of branches means the last one; a loop hands its body's results to the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import torch

from ge_graph import program as build
from ge_graph.ir import Graph, Node
from ge_graph.rules.subgraphs import LOOPS
from ge_runtime import errors
from ge_runtime.cpu.own_calls import kernel_of
from ge_runtime.cpu.program import EngineProgram

PARENT_INDEX: Final = "_parent_node_index"
# Operator to the number of its inputs in front of those that its graphs see.
OFFSETS: Final[dict[str, int]] = {
    "If": 1,
    "_If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
    "While": 0,
    "_While": 0,
    "StatelessWhile": 0,
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
}
Values: TypeAlias = "Sequence[torch.Tensor]"
OnNode: TypeAlias = "Callable[[Node, Sequence[Any], Sequence[Any]], None]"


class Reporter:
    """What a traced program calls after each node: the position of the node becomes the node.

    Args:
        on_node: The observer.
        order: Nodes in the order of the program.
    """

    __slots__ = ("_on_node", "_order")

    def __init__(self, on_node: OnNode, order: Sequence[Node]) -> None:
        self._on_node, self._order = on_node, order

    def __call__(self, index: int, ins: Values, outs: Values) -> None:
        self._on_node(self._order[index], ins, outs)

    def inside(self, order: Sequence[Node]) -> Reporter:
        """The reporter of a graph inside a node."""
        return Reporter(self._on_node, order)


@dataclass(slots=True)
class InnerPlan:
    """A planned inner graph.

    Attributes:
        program: What runs it.
        order: Its nodes as they run.
        sources: For each input of the program the position among the values handed to the graph.
        aliases: For each result the positions of the values whose memory it may be; -1 stands for memory that must
            not be written, such as a constant.
        shared: For each result an identifier of every piece of memory of its own that it may lie in.
    """

    program: EngineProgram
    order: Sequence[Node]
    sources: list[int]
    aliases: list[frozenset[int]]
    shared: list[frozenset[int]]

    def run(self, values: Values, report: Reporter | None = None) -> Values:
        """The graph's results."""
        given: list[Any] = [values[k] for k in self.sources]
        if report is not None:
            given.append(report.inside(self.order))
        return self.program.run_inside(*given)


class _Planner(Protocol):
    """What this module needs of the planner."""

    names: build.Names
    trace: bool
    inner: list[tuple[str, EngineProgram]]
    values: dict[Any, Any]

    def plan_inside(self, graph: Graph, owned: frozenset[int] = ...) -> InnerPlan: ...
    def tensor(self, edge: Any) -> Any: ...
    def render(self, arg: Any, reads: list[str]) -> Any: ...
    def emit(self, statement: Any, reads: Sequence[str] = ..., writes: Sequence[str] = ...) -> None: ...
    def new_root(self) -> int: ...
    def define_result(self, edge: Any, roots: frozenset[int]) -> str: ...


def inside(node: Node) -> Iterator[Graph]:
    """The graphs in a node, at any depth."""
    for inner in node.subgraphs.values():
        yield inner
        for each in inner.nodes:
            yield from inside(each)


def every(nodes: Sequence[Node]) -> list[Node]:
    """Nodes, and after them those of the graphs in them, at any depth."""
    return [*nodes, *(n for node in nodes for inner in inside(node) for n in inner.nodes)]


def sources(node: Node, slot: str, graph: Graph) -> list[int]:
    """For each Data of an inner graph, in the order of the indices, the position among the values it is given.

    Errors: EngineError GE4009 if it asks for a value that the node does not have.
    """
    offset = OFFSETS[node.op]
    count = sum(1 for _ in node.operands()) - offset
    positions = []
    for data in graph.inputs:
        parent = data.attr(PARENT_INDEX)
        position = data.attr("index", 0) if parent is None else parent - offset
        if not 0 <= position < count:
            raise errors.refused(node.op, f"'{data.name}' of {slot} asks for value {position} of {count}")
        positions.append(position)
    return positions


def truth(value: torch.Tensor) -> bool:
    """Whether a condition holds."""
    return bool(value) if value.dim() == 0 else value.numel() > 0


class Branches:
    """If, Case and PartitionedCall: runs one of several graphs."""

    __slots__ = ("_inner", "_choose", "__name__")

    def __init__(self, name: str, inner: Sequence[InnerPlan], choose: Callable[[torch.Tensor], int] | None) -> None:
        self.__name__, self._inner, self._choose = name, inner, choose

    def __call__(self, values: Values, report: Reporter | None = None) -> Values:
        if self._choose is None:
            return self._inner[0].run(values, report)
        return self._inner[self._choose(values[0])].run(values[1:], report)


class Loop:
    """While: runs a graph as long as another one says so.

    Args:
        name: Operator type.
        cond: The condition.
        body: The rounds.
        owned: Positions that are copied first, since the body writes their memory.
        fresh: Positions whose results must be memory of the loop, also after no round.
    """

    __slots__ = ("_cond", "_body", "_owned", "_fresh", "__name__")

    def __init__(
        self, name: str, cond: InnerPlan, body: InnerPlan, owned: frozenset[int], fresh: frozenset[int]
    ) -> None:
        self.__name__, self._cond, self._body, self._owned, self._fresh = name, cond, body, owned, fresh

    def __call__(self, values: Values, report: Reporter | None = None) -> Values:
        cond, body = self._cond, self._body
        rounds = 0
        while truth(cond.run(values, report)[0]):
            if not rounds and self._owned:
                values = [v.clone() if k in self._owned else v for k, v in enumerate(values)]
            values = body.run(values, report)
            rounds += 1
        return values if rounds else [v.clone() if k in self._fresh else v for k, v in enumerate(values)]


def plan(planner: _Planner, node: Node) -> None:
    """Plan a node with graphs: its inner programs, the call, and what the results share memory with.

    Errors: EngineError GE4009 for graphs that do not fit the node.
    """
    runner, aliases, shared = _loop(planner, node) if node.op in LOOPS else _branches(planner, node)
    operands = list(node.operands())
    reads: list[str] = []
    values = planner.render([planner.tensor(e) for e in operands], reads)
    seen = operands[OFFSETS[node.op] :]
    own: dict[int, int] = {}
    writes = []
    for edge, borrowed, pieces in zip(node.outputs, aliases, shared, strict=True):
        roots = {own.setdefault(p, planner.new_root()) for p in pieces}
        for position in borrowed:
            roots |= {0} if position < 0 else planner.values[seen[position]].roots
        writes.append(planner.define_result(edge, frozenset(roots or {planner.new_root()})))
    function = build.name(planner.names.bind(runner, node.op))
    call = build.call(function, [values, build.name("report")] if planner.trace else [values])
    planner.emit(build.assign(writes, call) if writes else build.do(call), reads, writes)


def _inner(planner: _Planner, node: Node, slot: str, owned: frozenset[int] = frozenset()) -> InnerPlan:
    graph = node.subgraphs[slot]
    positions = sources(node, slot, graph)
    made = planner.plan_inside(graph, frozenset(k for k, p in enumerate(positions) if p in owned))
    made.sources = positions
    made.aliases = [frozenset(-1 if k < 0 else positions[k] for k in aliases) for aliases in made.aliases]
    planner.inner.append((f"{node.name} {slot}", made.program))
    return made


def _branches(planner: _Planner, node: Node) -> tuple[Any, list[frozenset[int]], list[frozenset[int]]]:
    inner = [_inner(planner, node, slot) for slot in node.subgraphs]
    choose: Callable[[torch.Tensor], int] | None = None
    if "Case" in node.op:
        choose = lambda value: i if 0 <= (i := int(value)) < len(inner) else len(inner) - 1  # noqa: E731
    elif OFFSETS[node.op]:
        choose = lambda value: 0 if truth(value) else 1  # noqa: E731
    count = len(node.outputs)
    if not inner or any(len(i.aliases) != count for i in inner):
        raise errors.refused(node.op, f"{count} outputs; its graphs give {[len(i.aliases) for i in inner]}")
    aliases = [frozenset().union(*(i.aliases[k] for i in inner)) for k in range(count)]
    # pieces of one branch are told from those of another
    shared = [frozenset((b << 32) | p for b, i in enumerate(inner) for p in i.shared[k]) for k in range(count)]
    return Branches(node.op, inner, choose), aliases, shared


def _loop(planner: _Planner, node: Node) -> tuple[Any, list[frozenset[int]], list[frozenset[int]]]:
    cond = _inner(planner, node, "cond")
    count = len(node.outputs)
    owned = frozenset() if planner.trace else _updated(node, count)
    body = _inner(planner, node, "body", owned)
    if owned and not _separate(body, owned):
        planner.inner.pop()
        owned = frozenset()
        body = _inner(planner, node, "body")
    if len(body.aliases) != count or len(cond.aliases) != 1:
        given = f"its body gives {len(body.aliases)}, its condition {len(cond.aliases)}"
        raise errors.refused(node.op, f"{count} outputs; {given}")
    reached = [_reached(body, k) for k in range(count)]
    # after no round a result is the first value itself, which the loop then copies unless a round may hand it on too
    aliases = [frozenset((r - owned) | {k}) if r - owned else frozenset() for k, r in enumerate(reached)]
    shared = [body.shared[k].union(*(body.shared[j] for j in r if j >= 0)) for k, r in enumerate(reached)]
    fresh = frozenset(k for k in range(count) if not aliases[k])
    return Loop(node.op, cond, body, owned, fresh), aliases, shared


def _updated(node: Node, count: int) -> frozenset[int]:
    """Values that the body updates in place and hands on in the same position."""
    graph = node.subgraphs["body"]
    positions = sources(node, "body", graph)
    updated = set()
    for data, position in zip(graph.inputs, positions):
        edge = data.outputs[0]
        readers = [n for n in graph.nodes if any(t is edge for t in n.operands())]
        kernels = [kernel_of(n) for n in readers]
        if position < count and any(k is not None and k.updates for k in kernels):
            updated.add(position)
    return frozenset(updated)


def _separate(body: InnerPlan, owned: frozenset[int]) -> bool:
    """Whether each value that the body owns is handed on in its own position only."""
    return all(
        body.aliases[k] == {k} if k in owned else not body.aliases[k] & owned for k in range(len(body.aliases))
    ) and all(not body.shared[k] for k in owned)


def _reached(body: InnerPlan, k: int) -> set[int]:
    """The positions of the values that result ``k`` may be after any number of rounds; -1 as in ``aliases``."""
    reached: set[int] = set()
    waiting = set(body.aliases[k])
    while waiting:
        position = waiting.pop()
        if position not in reached:
            reached.add(position)
            waiting |= body.aliases[position] if position >= 0 else set()
    return reached
