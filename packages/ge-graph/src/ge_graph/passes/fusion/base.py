"""What rules of fusion ask of a graph, and how they change it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ge_graph import builder
from ge_graph.attrs import Attr
from ge_graph.dtypes import DataType, Format
from ge_graph.ir import Graph, Node, Operand, Shape, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.effects import Effects

FLOATS = frozenset({DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_BF16})
Outputs: TypeAlias = "Sequence[tuple[DataType, Shape | None]]"


class FusionContext:
    """A graph while it is being fused.

    Attributes:
        shared: Tensors that several fusions use, such as a mask stretched to all heads.
    """

    def __init__(self, graph: Graph, effects: Effects) -> None:
        self.graph = graph
        self.shared: dict[Any, Tensor] = {}
        self._effects = effects
        self._returned = set(graph.outputs)
        self._position = {n: i for i, n in enumerate(graph.nodes)}
        self._before: dict[Node, list[Node]] = {}
        self._front: list[Node] = []
        self._gone = set(graph.nodes) - effects.live(graph)
        self._readers: dict[Tensor, list[Node]] = readers_of([n for n in graph.nodes if n not in self._gone])

    def alive(self, node: Node) -> bool:
        """Whether a node is neither replaced nor without a reader."""
        return node not in self._gone

    def readers(self, tensor: Tensor) -> list[Node]:
        """Nodes that read a tensor, once a port."""
        return self._readers.get(tensor, [])

    def returned(self, tensor: Tensor) -> bool:
        return tensor in self._returned

    def unread(self, tensor: Tensor) -> bool:
        return not self._readers.get(tensor) and tensor not in self._returned

    def free(self, *nodes: Node) -> bool:
        """Whether neither order nor memory hangs on these nodes, and nothing that they read is ever written."""
        written = self._effects.written
        for node in nodes:
            if node in self._gone or node.subgraphs or self._effects.pinned(node):
                return False
            if written and not written.isdisjoint(node.operands()):
                return False
            for tensor in node.outputs:
                if tensor.format is not Format.FORMAT_ND:
                    return False
        return True

    def inner(self, tensor: Any, *ops: str, reads: int = 1) -> Node | None:
        """The node that made a tensor, if it is one of these operators, free, and read only so often."""
        if not isinstance(tensor, Tensor) or tensor.node.op not in ops or tensor in self._returned:
            return None
        node = tensor.node
        if len(self.readers(tensor)) != reads or not self.free(node):
            return None
        if len(node.outputs) == 1:
            return node
        return node if all(self.unread(t) for t in node.outputs if t is not tensor) else None

    def earlier(self, tensor: Tensor, node: Node) -> bool:
        """Whether a tensor is there before a node runs."""
        return self._position[tensor.node] < self._position[node]

    def all_later(self, tensor: Tensor, node: Node) -> bool:
        """Whether all that read a tensor come after a node, or are it."""
        return all(self._position[n] >= self._position[node] for n in self.readers(tensor))

    def add(
        self, at: Node, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], outputs: Outputs
    ) -> tuple[Tensor, ...]:
        """Put an operator in front of ``at``, with its origin and its scope; its outputs."""
        node = self.graph.add(op, inputs, attrs, outputs)
        self.graph.nodes.pop()
        self._before.setdefault(at, []).append(node)
        self._position[node] = self._position[at]
        node.provenance = at.provenance
        node.attrs.update({k: v for k, v in at.attrs.items() if k.startswith("_")})
        self._enter(node)
        return tuple(node.outputs)

    def constant(self, value: Any, dtype: DataType) -> Tensor:
        tensor = builder.constant(self.graph, np.asarray(value), dtype=dtype)
        if self._position.get(tensor.node, 0) >= 0:
            if tensor.node in self._position:
                tensor = self.graph.add("Const", (), dict(tensor.node.attrs), [(dtype, tensor.known_shape)]).outputs[0]
            self.graph.nodes.pop()
            self._front.append(tensor.node)
            self._position[tensor.node] = -1
        return tensor

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Let all read another tensor."""
        for node in set(self.readers(old)):
            node.replace_operands({old: new})
        self._readers.setdefault(new, []).extend(self._readers.pop(old, []))
        if old in self._returned:
            self.graph.outputs[:] = [new if t is old else t for t in self.graph.outputs]
            self._returned.discard(old)
            self._returned.add(new)

    def feed(self, node: Node, sources: dict[int, Tensor]) -> None:
        """Let a node read other tensors at these ports."""
        for port, new in sources.items():
            old = node.inputs[port]
            if isinstance(old, Tensor):
                self._readers[old].remove(node)
            node.inputs[port] = new
            self._readers.setdefault(new, []).append(node)

    def retire(self, node: Node) -> None:
        """Give up a replaced node, and what it alone needed."""
        waiting = [node]
        while waiting:
            gone = waiting.pop()
            if gone in self._gone or not all([self.unread(t) for t in gone.outputs]):
                continue
            if self._effects.acts(gone) or self._effects.pinned(gone):
                continue
            self._gone.add(gone)
            for tensor in gone.operands():
                readers = self._readers.get(tensor, [])
                if readers.count(gone) == len(readers):
                    self._readers[tensor] = []
                    waiting.append(tensor.node)
                else:
                    self._readers[tensor] = [n for n in readers if n is not gone]

    def finish(self) -> None:
        """Put the new nodes in their places and take out the old ones."""
        nodes: list[Node] = list(self._front)
        for node in self.graph.nodes:
            nodes += self._before.get(node, ())
            nodes.append(node)
        self.graph.nodes[:] = nodes
        self.graph.remove(self._gone)  # with what was dead before

    def _enter(self, node: Node) -> None:
        for tensor in node.operands():
            self._readers.setdefault(tensor, []).append(node)


def readers_of(nodes: Iterable[Node]) -> dict[Tensor, list[Node]]:
    """Tensors to the nodes that read them, once a port."""
    readers: defaultdict[Tensor, list[Node]] = defaultdict(list)
    for node in nodes:
        for entry in node.inputs:
            if entry.__class__ is Tensor:
                readers[entry].append(node)
            elif isinstance(entry, tuple):
                for tensor in entry:
                    readers[tensor].append(node)
    return dict(readers)


def number(operand: Any) -> float | None:
    """The value of a constant of one element."""
    value = array(operand)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def factors(node: Node) -> Iterable[tuple[Any, Any]]:
    """The two operands of a node, in both orders."""
    a, b = node.inputs[0], node.inputs[1]
    return ((a, b), (b, a))


def last_axis(axis: Any, rank: int) -> bool:
    """Whether an axis, as an attribute gives it, is the last one."""
    return bool(axis in (-1, rank - 1))


def rank_of(tensor: Tensor) -> int:
    """The number of axes, -1 if it is not known."""
    return -1 if tensor.known_shape is None else len(tensor.known_shape)


def uncast(ctx: FusionContext, tensor: Any) -> Any:
    """What a Cast between float types read; fused operators compute in float32 anyway."""
    node = ctx.inner(tensor, "Cast")
    source = node.inputs[0] if node is not None else None
    return source if isinstance(source, Tensor) and source.dtype in FLOATS else tensor
