"""Shape arithmetic that is computed more than once."""

from __future__ import annotations

from typing import Any, Final

from ge_graph.attrs import Kind
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.rewriter import Rewriter

# Their result depends on the shape of the input alone, which nothing changes.
_SOURCES: Final = frozenset({"Shape", "Size", "Rank"})
# Arithmetic on such results: cheap, exact, without effects.
_ARITHMETIC: Final = frozenset(
    {
        "Gather",
        "GatherV2",
        "Add",
        "AddV2",
        "Sub",
        "Mul",
        "FloorDiv",
        "FloorMod",
        "Mod",
        "Div",
        "Neg",
        "Cast",
        "Pack",
        "Concat",
        "ConcatD",
        "ConcatV2",
        "ConcatV2D",
        "Slice",
        "StridedSlice",
        "Squeeze",
        "Unsqueeze",
        "Reshape",
        "Maximum",
        "Minimum",
        "ReduceProd",
        "ReduceProdD",
        "ReduceSum",
        "ReduceSumD",
        "Equal",
        "NotEqual",
        "Less",
        "LessEqual",
        "Greater",
        "GreaterEqual",
        "LogicalAnd",
        "LogicalOr",
        "LogicalNot",
        "Select",
        "SelectV2",
        "Identity",
    }
)
_LOOKED_AT: Final = _SOURCES | _ARITHMETIC | {"Const"}
# Numbers that are equal and not the same (0.0 and -0.0), and what no dictionary can hold.
_OWN: Final = frozenset({Kind.TENSOR, Kind.FLOAT, Kind.LIST_FLOAT})


class MergeShapeArithmetic(Pass):
    """Keep one of the nodes that compute the same size: Shape of one tensor, Gather of one Shape, sums of those.

    Only nodes all of whose operands are sizes or constants are looked at, so no tensor that a reference operator may
    change in between is ever read once instead of twice.
    """

    name = "merge_shape_arithmetic"
    reason = "converters compute the sizes they need on their own; under dynamic=True a third of the nodes are twins"
    place = "after merge_constants: equal index operands are then the same tensor"

    def rewrite(self, graph: Graph) -> list[str]:
        rewriter = Rewriter(graph)
        sizes: set[Tensor] = set()
        likes = Likes()
        merged = 0
        for node in rewriter.walk(_LOOKED_AT):
            op = node.op
            if op == "Const":
                sizes.update(node.outputs)
                continue
            if op in _ARITHMETIC:
                entry = node.inputs[0] if node.inputs else None
                if entry.__class__ is Tensor and entry not in sizes:
                    continue  # most are, and the rest of the question costs more
                if not sizes.issuperset(node.operands()):
                    continue
            sizes.update(node.outputs)
            if rewriter.effects.pinned(node) or node.subgraphs:
                continue
            kept = likes.first(node)
            if kept is not node:
                rewriter.substitute(node, *kept.outputs)
                merged += 1
        rewriter.finish()
        return [f"{merged} duplicate shape computations merged"] if merged else []


class Likes:
    """The first node of each operator, operands, attributes and results; numbers in attributes make a node its own."""

    def __init__(self) -> None:
        self._alone: dict[Any, Node | None] = {}  # operator and first operand to the one node that has them
        self._first: dict[Any, Node] = {}

    def first(self, node: Node) -> Node:
        """The first node like this one, which may be itself; nodes come in order, and read no repeated one any more."""
        entry = node.inputs[0] if node.inputs else None
        start = (node.op, entry if entry.__class__ is Tensor else None)
        if start not in self._alone:  # few nodes have a like, and all of a node is much to compare
            self._alone[start] = node
            return node
        before = self._alone[start]
        if before is not None:
            self._enter(before)
            self._alone[start] = None
        return self._enter(node)

    def _enter(self, node: Node) -> Node:
        for attr in node.attrs.values():
            if attr.kind in _OWN:
                return node
        outputs = [(t.dtype, t._shape, t.format) for t in node.outputs]
        key = (node.op, *node.inputs, frozenset(node.attrs.items()), *outputs)
        return self._first.setdefault(key, node)
