"""How a pass changes a graph: what rules ask of it, and the only ways in which they touch it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np

from ge_graph import builder
from ge_graph.attrs import Attr
from ge_graph.dtypes import DataType, Format
from ge_graph.ir import Graph, Node, Operand, Shape, Tensor
from ge_graph.passes.effects import Effects
from ge_graph.ports import PLACEHOLDERS

Outputs: TypeAlias = "Sequence[tuple[DataType, Shape | None]]"
_GIVEN: Final = PLACEHOLDERS | {"Const"}
_FRONT: Final = -1.0  # the place of what stands in front of all nodes
_BEHIND: Final = 0.5  # from the place of a node to that of what stands directly behind it


class Rewriter:
    """A graph while one pass changes it.

    New nodes wait beside the list of nodes until ``finish`` puts them in their places and takes out those that went.
    What needs a look at the whole graph (effects, readers, positions) is looked up when a rule first asks, and kept up
    to date by the changes: a pass that does not ask does not pay.

    Attributes:
        shared: Tensors that several rewrites use, such as a mask stretched to all heads.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shared: dict[Any, Tensor] = {}
        self._front: list[Node] = []
        self._before: dict[Node, list[Node]] = {}
        self._behind: dict[Node, list[Node]] = {}
        self._gone: set[Node] = set()
        self._instead: dict[Tensor, Tensor] = {}  # replaced tensors, as long as nobody asked who reads them
        self._changed = False
        self._uses: dict[Tensor, list[Node]] | None = None
        self._places: dict[Node, float] | None = None

    # What rules ask.

    @cached_property
    def effects(self) -> Effects:
        """Order and memory, as they are when first asked for."""
        return Effects(self.graph)

    @cached_property
    def _returned(self) -> set[Tensor]:
        return set(self.graph.outputs)

    def walk(self, ops: Collection[str]) -> Iterator[Node]:
        """The nodes of these operators that are left, in order; their operands are replaced by then."""
        for node in list(self.graph.nodes):
            if node.op in ops and node not in self._gone:
                if self._instead:
                    node.replace_operands(self._instead)
                yield node

    def alive(self, node: Node) -> bool:
        """Whether a node is neither replaced nor without a reader."""
        self._look()
        return node not in self._gone

    def readers(self, tensor: Tensor) -> list[Node]:
        """Nodes that read a tensor, once a port. Nodes that nothing needs do not count."""
        return (self._uses or self._look()).get(tensor, [])

    def returned(self, tensor: Tensor) -> bool:
        """Whether the graph returns a tensor."""
        return tensor in self._returned

    def unread(self, tensor: Tensor) -> bool:
        """Whether no node reads a tensor, nor the graph returns it."""
        return not self.readers(tensor) and tensor not in self._returned

    def free(self, *nodes: Node) -> bool:
        """Whether neither order nor memory hangs on these nodes, and nothing that they read is ever written."""
        written = self.effects.written
        for node in nodes:
            if node in self._gone or node.subgraphs or self.effects.pinned(node):
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

    def replaceable(self, node: Node, source: Tensor) -> bool:
        """Whether readers of a node's only output may read its source instead."""
        if self.effects.pinned(node) or source in self.effects.written:
            return False
        return node.outputs[0] not in self._returned or source.node.op not in _GIVEN

    def earlier(self, tensor: Tensor, node: Node) -> bool:
        """Whether a tensor is there before a node runs."""
        position = self._positions()
        return position[tensor.node] < position[node]

    def all_later(self, tensor: Tensor, node: Node) -> bool:
        """Whether all that read a tensor come after a node, or are it."""
        position = self._positions()
        return all(position[n] >= position[node] for n in self.readers(tensor))

    # What rules do.

    def before(
        self, at: Node, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], outputs: Outputs
    ) -> tuple[Tensor, ...]:
        """Put an operator in front of a node, with its origin and, but for constants, its scope; the new outputs."""
        node = self._unlisted(op, inputs, attrs, outputs)
        node.provenance = at.provenance
        if op != "Const":
            node.attrs.update({k: v for k, v in at.attrs.items() if k.startswith("_")})
        self._before.setdefault(at, []).append(node)
        self._enter(node, at)
        return tuple(node.outputs)

    def behind(
        self, at: Node, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], outputs: Outputs
    ) -> tuple[Tensor, ...]:
        """Put an operator directly behind a node, with its origin; the new outputs."""
        node = self._unlisted(op, inputs, attrs, outputs)
        node.provenance = at.provenance
        self._behind.setdefault(at, []).insert(0, node)
        self._enter(node, at, _BEHIND)
        return tuple(node.outputs)

    def like(
        self, result: Tensor, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], shape: Shape | None
    ) -> Tensor:
        """Put an operator in front of the one that makes ``result``, with one output of its type and layout."""
        (made,) = self.before(result.node, op, inputs, attrs, [(result.dtype, shape)])
        made.format = result.format
        return made

    def constant(self, value: Any, dtype: DataType, at: Node | None = None) -> Tensor:
        """A constant in front of a node, or of all nodes: one that stands there, or a new one."""
        count = len(self.graph.nodes)
        tensor = builder.constant(self.graph, np.asarray(value), dtype=dtype)
        node = tensor.node
        if len(self.graph.nodes) > count:
            self._changed = True
            self.graph.nodes.pop()
        else:
            position = self._positions()
            if node not in self._gone and position[node] <= (_FRONT if at is None else position[at]):
                return tensor
            node = self._unlisted("Const", (), dict(node.attrs), [(dtype, tensor.known_shape)])
        (self._front if at is None else self._before.setdefault(at, [])).append(node)
        self._enter(node, at)
        return node.outputs[0]

    def feed(self, node: Node, sources: Mapping[int, Tensor]) -> None:
        """Let a node read other tensors at these ports."""
        self._changed = True
        for port, new in sources.items():
            old = node.inputs[port]
            node.inputs[port] = new
            if self._uses is not None:
                if isinstance(old, Tensor):
                    self._uses[old].remove(node)
                self._uses.setdefault(new, []).append(node)

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Let all read another tensor."""
        self._changed = True
        if self._uses is None:
            self._instead[old] = new
        else:
            for node in set(self.readers(old)):
                node.replace_operands({old: new})
            self._uses.setdefault(new, []).extend(self._uses.pop(old, []))
            if old in self._returned:
                self.graph.outputs[:] = [new if t is old else t for t in self.graph.outputs]
        if old in self._returned:
            self._returned.discard(old)
            self._returned.add(new)

    def substitute(self, node: Node, *results: Tensor) -> None:
        """Let all read other tensors than the outputs of a node, which goes.

        What the node alone needed is left to ``DropDeadNodes``, or goes with it if readers are known.
        """
        for old, new in zip(node.outputs, results):
            self.replace(old, new)
        if self._uses is None:
            self._gone.add(node)
        else:
            self.retire(node)

    def retire(self, node: Node) -> None:
        """Give up a node that nobody reads any more, and what it alone needed; both stay where they act."""
        uses = self._look()
        waiting = [node]
        while waiting:
            gone = waiting.pop()
            if gone in self._gone or not all([self.unread(t) for t in gone.outputs]):
                continue
            if self.effects.acts(gone) or self.effects.pinned(gone):
                continue
            self._changed = True
            self._gone.add(gone)
            for tensor in gone.operands():
                readers = uses.get(tensor, [])
                if readers.count(gone) == len(readers):
                    uses[tensor] = []
                    waiting.append(tensor.node)
                else:
                    uses[tensor] = [n for n in readers if n is not gone]

    def withdraw(self, at: Node, nodes: Collection[Node]) -> None:
        """Take back nodes that were put in front of one, and their names; none but they read them yet."""
        if not nodes:
            return
        self._before[at] = [n for n in self._before[at] if n not in nodes]
        for node in nodes if self._uses is not None else ():
            for tensor in node.operands():
                self.readers(tensor).remove(node)
        self.graph.remove(nodes)

    def finish(self) -> None:
        """Put the new nodes in their places and take out the old ones, if anything was done.

        Nothing may be asked or done afterwards.
        """
        if self._changed:
            self._settle()
            self.graph.remove(self._gone)

    def _look(self) -> dict[Tensor, list[Node]]:
        """Tensors to the nodes that read them; nodes that nothing needs are given up."""
        if self._uses is None:
            self._settle()
            self._gone.update(set(self.graph.nodes) - self.effects.live(self.graph))
            self._uses = readers_of([n for n in self.graph.nodes if n not in self._gone])
        return self._uses

    def _positions(self) -> dict[Node, float]:
        """Nodes to their places in the list; a new node shares that of the node in front of which it stands."""
        if self._places is None:
            self._places = {n: float(i) for i, n in enumerate(self.graph.nodes)}
            self._places.update(dict.fromkeys(self._front, _FRONT))
            for at, added in self._before.items():
                self._places.update(dict.fromkeys(added, self._places[at]))
            for at, added in self._behind.items():
                self._places.update(dict.fromkeys(added, self._places[at] + _BEHIND))
        return self._places

    def _settle(self) -> None:
        """Make the list and the operands what they are going to be, but for nodes that went."""
        if self._front or self._before or self._behind:
            nodes = self._front
            for node in self.graph.nodes:
                if node in self._before or node in self._behind:
                    self._append(node, nodes)
                else:
                    nodes.append(node)
            self.graph.nodes[:] = nodes
            self._front, self._before, self._behind, self._places = [], {}, {}, None
        if self._instead:
            self.graph.replace_all_uses(self._instead)
            self._instead = {}

    def _append(self, node: Node, nodes: list[Node]) -> None:
        """Append what was put in front of a node, the node, and what was put behind it."""
        for added in self._before.get(node, ()):
            self._append(added, nodes)
        nodes.append(node)
        for added in self._behind.get(node, ()):
            self._append(added, nodes)

    def _enter(self, node: Node, at: Node | None, shift: float = 0) -> None:
        if self._places is not None:
            self._places[node] = _FRONT if at is None else self._places[at] + shift
        if self._uses is not None:
            for tensor in node.operands():
                self._uses.setdefault(tensor, []).append(node)

    def _unlisted(self, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], outputs: Outputs) -> Node:
        self._changed = True
        node = self.graph.add(op, inputs, attrs, outputs)
        self.graph.nodes.pop()
        return node


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
