"""What a node does besides computing its outputs, and which tensors change under the reader's eyes."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from ge_graph import schema
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.ports import PLACEHOLDERS

# Operators whose results may be the memory of their first input, and those where it is another input.
VIEWS: Final = frozenset(
    {
        "Reshape",
        "Squeeze",
        "SqueezeV2",
        "SqueezeV3",
        "Unsqueeze",
        "UnsqueezeV2",
        "UnsqueezeV3",
        "ExpandDims",
        "Flatten",
        "FlattenV2",
        "Identity",
        "View",
        "Bitcast",
        "StridedSlice",
        "StridedSliceV2",
        "AsStrided",
        "Slice",
        "SliceD",
        "BroadcastTo",
        "Expand",
        "Transpose",
        "TransposeD",
        "Split",
        "SplitD",
        "SplitV",
        "SplitVD",
        "Unpack",
        "Cast",
    }
)
_VIEWED_INPUT: Final = {"Split": 1}
# Only their control edges mean something.
_ORDER_ONLY: Final = frozenset({"NoOp", "ControlTrigger"})
# Operators with outputs that act on the world outside all the same.
_OUTSIDE: Final = ("Print", "Hcom", "Hccl", "Queue", "Stack", "TensorArray", "Send", "Recv")


class Effects:
    """Facts about one graph, taken once; valid until the graph changes.

    Attributes:
        written: Tensors that may share memory with one that some node writes.
        ordered: Nodes that others wait for by a control edge; taking one away would lose the order.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.ordered: set[Node] = set(graph.output_control)
        for node in graph.nodes:
            if node.control:
                self.ordered.update(node.control)
        self._writers: set[Node] = set()
        self._written_roots: set[Tensor] = set()
        self.written: set[Tensor] = set()
        if any(map(self.refs, {n.op for n in graph.nodes})):  # in most graphs nothing is written
            roots = self._written_roots = self._writes()
            self.written = {t for t, root in self._roots.items() if root in roots} | roots

    @cached_property
    def _roots(self) -> dict[Tensor, Tensor]:
        """Tensors followed through views and in-place operators to the ones at the start."""
        return self._find_roots()[0]

    def _writes(self) -> set[Tensor]:
        """The tensors at the start that are written."""
        self._roots, written = self._find_roots()
        return written

    def _find_roots(self) -> tuple[dict[Tensor, Tensor], set[Tensor]]:
        roots: dict[Tensor, Tensor] = {}
        written: set[Tensor] = set()
        for node in self._graph.nodes:
            refs = self.refs(node.op)
            if not refs and node.op not in VIEWS:
                continue
            for source, target in refs or [(_VIEWED_INPUT.get(node.op, 0), i) for i in range(len(node.outputs))]:
                entry = node.inputs[source] if source < len(node.inputs) else None
                for operand in entry if isinstance(entry, tuple) else (entry,):
                    if operand is None:
                        continue
                    root = roots.setdefault(operand, operand)
                    if target < len(node.outputs) and not isinstance(entry, tuple):
                        roots[node.outputs[target]] = root
                    if refs:
                        written.add(root)
                        if root.node.op in PLACEHOLDERS:
                            self._writers.add(node)
        return roots, written

    def refs(self, op: str) -> tuple[tuple[int, int], ...]:
        """Pairs of input and output that are one variable: GE marks them by giving both one name."""
        row = schema.get(op)
        return () if row is None else row.in_place

    def root(self, tensor: Tensor) -> Tensor:
        """The tensor whose memory this one may be."""
        return self._roots.get(tensor, tensor)

    def variable(self, tensor: Tensor) -> Tensor:
        """The tensor that in-place operators wrote to make this one: the same elements, not a view of them."""
        while True:
            pairs = [source for source, target in self.refs(tensor.node.op) if target == tensor.index]
            entry = tensor.node.inputs[pairs[0]] if pairs and pairs[0] < len(tensor.node.inputs) else None
            if not isinstance(entry, Tensor):
                return tensor
            tensor = entry

    def written_inputs(self) -> list[Node]:
        """Graph inputs that some node writes."""
        return [t.node for t in self._written_roots if t.node.op in PLACEHOLDERS]

    def acts(self, node: Node) -> bool:
        """Whether the node must stay although nobody reads it."""
        if node.op in PLACEHOLDERS or node in self._writers:
            return True
        if node.op in _ORDER_ONLY:
            return False
        if not node.outputs or node.op.startswith(_OUTSIDE):
            return True
        if node.subgraphs:
            return any(_acts_inside(inner) for inner in node.subgraphs.values())
        return False

    def live(self, graph: Graph) -> set[Node]:
        """Nodes from which an output, a side effect or a control edge follows."""
        live: set[Node] = set()
        acting = {op for op in {n.op for n in graph.nodes} if op in PLACEHOLDERS or op.startswith(_OUTSIDE)}
        waiting = [t.node for t in graph.outputs] + list(graph.output_control)
        waiting += [
            n
            for n in graph.nodes
            if n.op in acting or ((n.subgraphs or not n.outputs or n in self._writers) and self.acts(n))
        ]
        while waiting:
            node = waiting.pop()
            if node in live:
                continue
            live.add(node)
            for entry in node.inputs:
                if entry.__class__ is Tensor:
                    if entry.node not in live:
                        waiting.append(entry.node)
                elif isinstance(entry, tuple):
                    waiting += [t.node for t in entry]
            if node.control:
                waiting += node.control
        return live

    def pinned(self, node: Node) -> bool:
        """Whether order or memory depends on the node, so that it cannot be replaced by its input."""
        if node.control or node in self.ordered:
            return True
        return bool(self.written) and not self.written.isdisjoint(node.outputs)


def _acts_inside(graph: Graph) -> bool:
    effects = Effects(graph)
    return any(n.op not in PLACEHOLDERS and effects.acts(n) for n in graph.nodes)
