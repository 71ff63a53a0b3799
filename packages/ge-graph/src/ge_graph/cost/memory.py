"""Memory of a graph by the lifetimes of its tensors.

Rules, as GE publishes them: a block begins with the node that makes it and ends with the last node that reads it; the
operands of a node and its results never share memory, unless the operator says so by giving an input and an output one
name; what only looks at memory in another way (Reshape and the like) has none of its own; blocks begin at multiples of
512 bytes; a block of one stream is not given to another stream; inputs and results belong to the caller, constants and
weights to the graph for its whole life.

The sum of what lives at one time is a lower bound of what a device needs; ``packed`` is what a planner needs that never
moves a block. Workspace inside kernels is not counted: no public source says it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ge_graph import schema
from ge_graph.cost.sizes import Shapes
from ge_graph.cost.work import SOURCES, VIEWS
from ge_graph.ir import Graph, Node, Tensor

ALIGNMENT: Final = 512
_PART: Final = 64  # nodes
STREAM: Final = "_user_stream_label"
_CONSTANTS: Final = SOURCES - {"Data", "RefData", "Variable"}


def aligned(size: int) -> int:
    """The size of the block that holds so many bytes; 0 for nothing."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def shared_input(node: Node, index: int) -> Tensor | None:
    """The operand whose memory a result is, by the operator's definition; None for memory of its own."""
    if node.op in VIEWS:
        entry: Any = node.inputs[0] if node.inputs else None
        return entry if isinstance(entry, Tensor) else None
    row = schema.get(node.op)
    for source, target in row.in_place if row is not None else ():
        entry = node.inputs[source] if source < len(node.inputs) else None
        if target == index and isinstance(entry, Tensor):
            return entry
    return None


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of memory that the graph asks for.

    Attributes:
        tensor: The tensor that it begins with.
        size: Bytes, a multiple of the alignment.
        first: Position of the node that makes it.
        last: Position of the last node that reads it.
        stream: Label of the stream of its node, "" for the main one.
        returned: Whether it is a result of the graph.
    """

    tensor: Tensor
    size: int
    first: int
    last: int
    stream: str
    returned: bool


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of a graph at given sizes, in bytes.

    Attributes:
        arguments: Inputs of the graph.
        constants: Constants and weights inside the graph.
        outputs: Results that have memory of their own.
        aliased: Results that are an input's memory.
        updated: Inputs that the graph updates in place, such as caches; a part of ``arguments``.
        temporary: Largest sum of intermediate results that live at one time.
        peak: Largest sum of intermediate and final results that live at one time: the lower bound.
        packed: The same for a planner that never moves a block and reuses none across streams.
        unreused: Sum of all blocks: without any reuse.
        peak_node: The node at which the peak is reached.
        at_peak: Blocks that live there, largest first.
        unknown: Tensors whose size nobody says; they count as nothing, and the figures are too small by them.
    """

    arguments: int
    constants: int
    outputs: int
    aliased: int
    updated: int
    temporary: int
    peak: int
    packed: int
    unreused: int
    peak_node: str
    at_peak: tuple[Block, ...] = ()
    unknown: tuple[Tensor, ...] = ()

    @property
    def total(self) -> int:
        """Everything: inputs, constants, and what the run needs beside them."""
        return self.arguments + self.constants + self.packed

    @property
    def total_bound(self) -> int:
        """Everything, at least."""
        return self.arguments + self.constants + self.peak


@dataclass(frozen=True, slots=True)
class _Lifetimes:
    """What does not depend on sizes."""

    roots: Mapping[Tensor, Tensor]
    last: Mapping[Tensor, int]
    position: Mapping[Node, int]
    members: Mapping[Tensor, tuple[Tensor, ...]] = field(default_factory=dict)


class Memory:
    """Memory of a graph as a function of its symbols: lifetimes are found once, sizes as often as asked for.

    Args:
        graph: Nodes in the order in which they run; nothing in it changes.
        reuse: Whether memory of what is dead is given to others (``ge.exec.disableReuseMemory`` says no).
    """

    def __init__(self, graph: Graph, *, reuse: bool = True) -> None:
        self.graph, self.reuse = graph, reuse
        self._lives = _lifetimes(graph)
        self._inner = {n: [Memory(g, reuse=reuse) for g in n.subgraphs.values()] for n in graph.nodes if n.subgraphs}

    def at(self, sizes: Mapping[str, int] | Shapes | None = None) -> MemoryPlan:
        """The memory at the values of symbols.

        Args:
            sizes: Symbol to its value, or sizes already found for this very graph.
        """
        shapes = sizes if isinstance(sizes, Shapes) else Shapes(self.graph, sizes)
        blocks = self.blocks(shapes)
        inner = {
            self._lives.position[n]: max(m.at(shapes.sizes).packed for m in each)
            for n, each in self._inner.items()
            if each
        }
        count = len(self.graph.nodes)
        everything = _sums(blocks, count, inner)
        temporary = max(_sums([b for b in blocks if not b.returned], count, inner), default=0)
        peak = max(everything, default=0)
        place = everything.index(peak) if everything and blocks else 0
        at_peak = sorted((b for b in blocks if b.first <= place <= b.last), key=lambda b: -b.size)
        unreused = sum(b.size for b in blocks) + sum(inner.values())
        packed = _packed(blocks, inner) if self.reuse else unreused
        written = {self._lives.roots.get(t, t) for t in _written(self.graph)}
        arguments = [t for n in self.graph.inputs for t in n.outputs]
        aliased = {r for t in self.graph.outputs if (r := self._lives.roots.get(t, t)).node.op in SOURCES}
        return MemoryPlan(
            arguments=_total(shapes, arguments),
            constants=_total(shapes, [t for n in self.graph.nodes if n.op in _CONSTANTS for t in n.outputs]),
            outputs=sum(b.size for b in blocks if b.returned),
            aliased=_total(shapes, aliased),
            updated=_total(shapes, [t for t in arguments if t in written]),
            temporary=temporary if self.reuse else sum(b.size for b in blocks if not b.returned),
            peak=peak if self.reuse else unreused,
            packed=packed,
            unreused=unreused,
            peak_node=self.graph.nodes[place].name if blocks else "",
            at_peak=tuple(at_peak),
            unknown=tuple(shapes.unknown),
        )

    def largest(self, gears: Iterable[Mapping[str, int]]) -> MemoryPlan:
        """The plan of the gear that needs most: a device keeps memory for all of them.

        Raises:
            ValueError: If there are no gears.
        """
        return max((self.at(sizes) for sizes in gears), key=lambda plan: plan.total)

    def blocks(self, shapes: Shapes) -> list[Block]:
        """The pieces of memory that the graph asks for at given sizes, in the order in which they begin."""
        returned = {self._lives.roots.get(t, t) for t in self.graph.outputs}
        blocks = []
        for root, members in self._lives.members.items():
            size = aligned(max((shapes.bytes(t) or 0 for t in members), default=0))
            if not size or root.node.op in SOURCES:
                continue
            stream = str(root.node.attr(STREAM, "") or "")
            first = self._lives.position[root.node]
            last = len(self.graph.nodes) - 1 if root in returned else self._lives.last.get(root, first)
            blocks.append(Block(root, size, first, last, stream, root in returned))
        return sorted(blocks, key=lambda b: b.first)


def _total(shapes: Shapes, tensors: Iterable[Tensor]) -> int:
    return sum(aligned(shapes.bytes(t) or 0) for t in tensors)


def _written(graph: Graph) -> list[Tensor]:
    """Operands that a node of the graph updates in place."""
    found = []
    for node in graph.nodes:
        row = schema.get(node.op)
        for source, _ in row.in_place if row is not None else ():
            entry = node.inputs[source] if source < len(node.inputs) else None
            found += list(entry) if isinstance(entry, tuple) else [entry] if isinstance(entry, Tensor) else []
    return found


def _lifetimes(graph: Graph) -> _Lifetimes:
    roots: dict[Tensor, Tensor] = {}
    last: dict[Tensor, int] = {}
    members: dict[Tensor, list[Tensor]] = {}
    position = {node: at for at, node in enumerate(graph.nodes)}
    for at, node in enumerate(graph.nodes):
        for operand in node.operands():
            last[roots.get(operand, operand)] = at
        for tensor in node.outputs:
            shared = shared_input(node, tensor.index)
            root = tensor if shared is None else roots.get(shared, shared)
            roots[tensor] = root
            members.setdefault(root, []).append(tensor)
    return _Lifetimes(roots, last, position, {root: tuple(each) for root, each in members.items()})


def _sums(blocks: Sequence[Block], count: int, extra: Mapping[int, int]) -> list[int]:
    """Bytes alive at each node."""
    change = [0] * (count + 1)
    for block in blocks:
        change[block.first] += block.size
        change[block.last + 1] -= block.size
    return [alive + extra.get(at, 0) for at, alive in enumerate(itertools.accumulate(change[:count]))]


def _packed(blocks: Sequence[Block], extra: Mapping[int, int]) -> int:
    """Highest address of a planner that gives each block the smallest hole that holds it, stream by stream."""
    total = max(extra.values(), default=0)
    for stream in {b.stream for b in blocks}:
        own = placed([b for b in blocks if b.stream == stream])
        total += max((address + block.size for address, block in own), default=0)
    return total


def placed(blocks: Sequence[Block]) -> list[tuple[int, Block]]:
    """Addresses for blocks of one stream, none of which moves: largest first, in the smallest hole of its time."""
    by_time: dict[int, list[tuple[int, int, Block]]] = {}  # part of the order to address, end and block of what lives
    found = []
    for block in sorted(blocks, key=lambda b: (-b.size, b.first)):
        parts = range(block.first // _PART, block.last // _PART + 1)
        near = {
            other
            for part in parts
            for other in by_time.get(part, ())
            if other[2].first <= block.last and block.first <= other[2].last
        }
        address, best = 0, None
        for start, end in sorted((start, end) for start, end, _ in near):
            if start - address >= block.size and (best is None or start - address < best[1]):
                best = (address, start - address)
            address = max(address, end)
        place = address if best is None else best[0]
        for part in parts:
            by_time.setdefault(part, []).append((place, place + block.size, block))
        found.append((place, block))
    return found
