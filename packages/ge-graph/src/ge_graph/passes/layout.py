"""Data movement that a plain attribute does as well, or that moves nothing."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import Format
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass, array
from ge_graph.passes.effects import Effects
from ge_graph.passes.rewriter import Rewriter

# Operator to the flags that transpose the last two dimensions of its first and second input.
_FLAGS: Final = {
    "MatMul": ("transpose_x1", "transpose_x2"),
    "MatMulV2": ("transpose_x1", "transpose_x2"),
    "MatMulV3": ("transpose_x1", "transpose_x2"),
    "BatchMatMul": ("adj_x1", "adj_x2"),
    "BatchMatMulV2": ("adj_x1", "adj_x2"),
    "BatchMatMulV3": ("adj_x1", "adj_x2"),
}
_TO_SHAPE: Final = frozenset({"BroadcastTo", "Reshape"})
_CANDIDATES: Final = frozenset({"Identity", "Cast", "Transpose", "TransposeD"}) | _TO_SHAPE | _FLAGS.keys()


class FoldLayout(Pass):
    """Fold what is exact by definition.

    * A Transpose of the last two dimensions in front of a matrix product becomes the product's flag.
    * A Reshape of a Reshape reads the first one's input, where the target has no 0 (which copies a dimension).
    * A Transpose that changes nothing, a Cast to the type and a BroadcastTo or Reshape to the shape that is there
      already, and Identity are left out.

    A node stays where order or memory hangs on it: with control edges, around inputs that are written, and where an
    output of the graph would become one of its inputs.
    """

    name = "fold_layout"
    reason = "a copy less on the device; the matrix unit reads either layout at the same speed"
    place = "after join_moves; leaves dead nodes for drop_dead_nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in _CANDIDATES for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        counts: Counter[str] = Counter()
        for node in rewriter.walk(_CANDIDATES):
            what = _fold_product(rewriter, node) if node.op in _FLAGS else _fold_move(rewriter, node)
            if what:
                counts[what] += 1
        rewriter.finish()
        return [f"{count} {what}" for what, count in sorted(counts.items())]


def _fold_product(rewriter: Rewriter, node: Node) -> str:
    folded = False
    for side, flag in enumerate(_FLAGS[node.op]):
        while (source := _untransposed(node, side, rewriter.effects)) is not None and flag in node.attrs:
            rewriter.feed(node, {side: source})
            node.attrs[flag] = Attr(Kind.BOOL, not node.attrs[flag].value)
            folded = True
    return "Transpose folded into matrix products" if folded else ""


def _untransposed(node: Node, side: int, effects: Effects) -> Tensor | None:
    """What an input of a matrix product is the transpose of."""
    operand = node.inputs[side] if side < len(node.inputs) else None
    if not isinstance(operand, Tensor) or operand.format is not Format.FORMAT_ND or effects.pinned(operand.node):
        return None
    perm = permutation(operand.node)
    if perm is None or perm != _last_two_swapped(len(perm)) or (len(perm) != 2 and node.op.startswith("MatMul")):
        return None
    source = operand.node.inputs[0]
    if not isinstance(source, Tensor) or source.format is not Format.FORMAT_ND or source in effects.written:
        return None
    return source


def _fold_move(rewriter: Rewriter, node: Node) -> str:
    source = node.inputs[0] if node.inputs else None
    if not isinstance(source, Tensor) or len(node.outputs) != 1:
        return ""
    result = node.outputs[0]
    target, what, short = source, "", ""
    if node.op in _TO_SHAPE and _same_shape(source, result):
        what = f"{node.op} to the same shape removed"
    elif node.op == "Reshape":
        short = _fold_reshape(rewriter, node, source)
        again = node.inputs[0]
        if not short or not isinstance(again, Tensor) or not _same_shape(again, result):
            return short
        target, what = again, "Reshape pairs removed"
    elif node.op == "Identity":
        what = "Identity removed"
    elif node.op == "Cast" and source.dtype is result.dtype:
        what = "Cast to the same type removed"
    elif node.op in ("Transpose", "TransposeD") and _stays(node):
        what = "Transpose without effect removed"
    if not what or not rewriter.replaceable(node, target):
        return short
    if target.dtype is not result.dtype or target.format is not result.format:
        return short
    if target.known_shape is None:
        target.record_shape(result.known_shape)
    rewriter.substitute(node, target)
    return what


def _same_shape(source: Tensor, result: Tensor) -> bool:
    """Whether both recorded shapes are complete and equal, symbols by their text."""
    shape = source.known_shape
    return shape is not None and shape == result.known_shape and not any(isinstance(d, int) and d < 0 for d in shape)


def _fold_reshape(rewriter: Rewriter, node: Node, source: Tensor) -> str:
    before, effects = source.node, rewriter.effects
    if before.op != "Reshape" or effects.pinned(before) or effects.pinned(node):
        return ""
    first = before.inputs[0]
    if not isinstance(first, Tensor) or first in effects.written or new_shape(node) is None:
        return ""
    if first.format is not source.format or not _whole(before):
        return ""
    rewriter.feed(node, {0: first})
    return "Reshape of Reshape shortened"


def new_shape(node: Node) -> np.ndarray[Any, Any] | None:
    """The shape that a Reshape gives whatever the rank of what it reads, if it is a constant without a 0."""
    shape = integers(node.inputs[1]) if len(node.inputs) > 1 else None
    return shape if shape is not None and 0 not in shape.reshape(-1).tolist() and _whole(node) else None


def _whole(reshape: Node) -> bool:
    return bool(reshape.attr("axis", 0) == 0 and reshape.attr("num_axes", -1) == -1)


def _stays(node: Node) -> bool:
    perm = permutation(node)
    return perm is not None and perm == tuple(range(len(perm)))


def permutation(node: Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose, all entries positive; ``None`` if it is not a Transpose or not constant."""
    perm: Any
    if node.op == "TransposeD":
        perm = node.attr("perm")
    elif node.op == "Transpose" and len(node.inputs) > 1:
        array = integers(node.inputs[1])
        perm = None if array is None else array.reshape(-1).tolist()
    else:
        return None
    return None if perm is None else _positive(tuple(perm))


@lru_cache(maxsize=1024)
def _positive(perm: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = len(perm)
    positive = tuple(p + rank if p < 0 else p for p in perm)
    return positive if sorted(positive) == list(range(rank)) else None


def _last_two_swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2) if rank >= 2 else ()


def integers(operand: Any) -> np.ndarray[Any, Any] | None:
    """The value of a constant of integers."""
    value = array(operand)
    return value if value is not None and value.dtype.kind in "iu" else None
