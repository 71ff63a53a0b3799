"""Data movement in a row: one move where two follow each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects
from ge_graph.passes.layout import new_shape, permutation
from ge_graph.passes.rewriter import Rewriter

_FLOATS: Final = frozenset({DataType.DT_FLOAT16, DataType.DT_BF16, DataType.DT_FLOAT, DataType.DT_DOUBLE})
_LONG: Final = frozenset({DataType.DT_INT32, DataType.DT_INT64})
_INTS: Final = _LONG | {DataType.DT_INT8, DataType.DT_UINT8, DataType.DT_INT16}
_WIDE: Final = frozenset({DataType.DT_FLOAT, DataType.DT_DOUBLE})

# Types between which hold every value of the first, and the types to go on to: an integer made of a float may overflow,
# and then each way there has its own result.
_HOLD: Final[Mapping[DataType, tuple[frozenset[DataType], frozenset[DataType]]]] = {
    DataType.DT_BOOL: (_FLOATS | _INTS, _FLOATS | _INTS | {DataType.DT_BOOL}),
    DataType.DT_INT8: (_LONG | {DataType.DT_INT16}, _FLOATS | _INTS | {DataType.DT_BOOL}),
    DataType.DT_UINT8: (_LONG | {DataType.DT_INT16}, _FLOATS | _INTS | {DataType.DT_BOOL}),
    DataType.DT_INT16: (_LONG, _FLOATS | _INTS | {DataType.DT_BOOL}),
    DataType.DT_INT32: (frozenset({DataType.DT_INT64}), _FLOATS | _INTS | {DataType.DT_BOOL}),
    DataType.DT_FLOAT16: (_WIDE, _FLOATS | {DataType.DT_BOOL}),
    DataType.DT_BF16: (_WIDE, _FLOATS | {DataType.DT_BOOL}),
    DataType.DT_FLOAT: (frozenset({DataType.DT_DOUBLE}), _FLOATS | {DataType.DT_BOOL}),
}

_Change: TypeAlias = "tuple[int, ...] | str | None"
_NOTHING: Final = "nothing"  # both moves together do nothing
_SAME: Final = "same"  # the move stays as it is


class JoinMoves(Pass):
    """Read past a move that the next one makes needless.

    * Transpose of Transpose is one Transpose.
    * Transpose that moves only axes of one element is a Reshape, which copies nothing.
    * Unsqueeze of Unsqueeze is one Unsqueeze; Squeeze of Unsqueeze at the same axes is nothing.
    * Reshape of Unsqueeze or Squeeze is that Reshape.
    * Cast of Cast is the second one where the type between holds every value of the first; nothing if it leads back.

    A node stays where order or memory hangs on it, as for ``FoldLayout``.
    """

    name = "join_moves"
    reason = "each move is a launch, and most are a copy"
    place = "before fold_layout, which joins reshapes and puts a Transpose into a product; leaves dead nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in _RULES for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        effects = rewriter.effects
        counts: Counter[str] = Counter()
        shortened = 0
        for node in rewriter.walk(_RULES):
            while True:
                pair = _before(node, effects)
                change = None if pair is None else _RULES[node.op](node, *pair)
                if pair is None or change is None:
                    sizes = _keeps_order(node, effects)
                    if sizes is None:
                        break
                    made = _as_reshape(rewriter, node, sizes)
                    rewriter.substitute(node, made)
                    shortened += 1
                    node = made.node
                    continue
                if change == _NOTHING and not rewriter.replaceable(node, pair[1]):
                    break
                counts[node.op] += 1
                if change == _NOTHING:
                    rewriter.substitute(node, pair[1])
                    break
                _join(rewriter, node, pair[1], change)
        rewriter.finish()
        notes = [f"{count} {op} joined with the move before" for op, count in sorted(counts.items())]
        return [*notes, f"{shortened} Transpose of single elements made Reshape"] if shortened else notes


def _keeps_order(node: Node, effects: Effects) -> tuple[int, ...] | None:
    """The sizes that a Transpose gives, if they are numbers and no two axes of several elements change places."""
    if node.op not in ("Transpose", "TransposeD") or effects.pinned(node):
        return None
    source = node.inputs[0]
    if not isinstance(source, Tensor) or source.format is not node.outputs[0].format:
        return None
    order, shape = permutation(node), source.known_shape
    if order is None or shape is None or len(order) != len(shape) or order == tuple(sorted(order)):
        return None
    sizes = tuple(d for i in order if isinstance(d := shape[i], int) and d > 0)
    moved = [i for i in order if shape[i] != 1]
    return sizes if len(sizes) == len(order) and moved == sorted(moved) else None


def _as_reshape(rewriter: Rewriter, node: Node, sizes: tuple[int, ...]) -> Tensor:
    """The Reshape that gives what a Transpose does."""
    attrs = {"axis": Attr(Kind.INT, 0), "num_axes": Attr(Kind.INT, -1)}
    return rewriter.like(node.outputs[0], "Reshape", [node.inputs[0], _const(rewriter, node, sizes)], attrs, sizes)


def _const(rewriter: Rewriter, node: Node, numbers: tuple[int, ...]) -> Tensor:
    value = np.asarray(numbers, np.int64)
    attrs = {"value": Attr(Kind.TENSOR, value)}
    return rewriter.before(node, "Const", (), attrs, [(DataType.DT_INT64, value.shape)])[0]


def _join(rewriter: Rewriter, node: Node, first: Tensor, change: _Change) -> None:
    rewriter.feed(node, {0: first})
    if not isinstance(change, tuple):
        return
    if node.op == "Unsqueeze":
        node.attrs["axes"] = Attr(Kind.LIST_INT, change)
    elif node.op == "TransposeD":
        node.attrs["perm"] = Attr(Kind.LIST_INT, change)
    else:
        rewriter.feed(node, {1: _const(rewriter, node, change)})


def _before(node: Node, effects: Effects) -> tuple[Tensor, Tensor] | None:
    """What a move reads, and what the move before it reads, if neither order nor memory hangs on either."""
    source = node.inputs[0] if node.inputs else None
    if not isinstance(source, Tensor) or source.node.op not in _RULES or node.op not in _RULES:
        return None
    if len(node.outputs) != 1 or effects.pinned(node) or effects.pinned(source.node):
        return None
    first = source.node.inputs[0]
    if not isinstance(first, Tensor) or first in effects.written or source in effects.written:
        return None
    return (source, first) if first.format is source.format is node.outputs[0].format else None


def _transpose(node: Node, middle: Tensor, first: Tensor) -> _Change:
    before = middle.node
    outer, inner = permutation(node), permutation(before)
    if outer is None or inner is None or len(outer) != len(inner):
        return None
    joined = tuple(inner[i] for i in outer)
    return _NOTHING if joined == tuple(range(len(joined))) else joined


def _axes(node: Node, rank: int) -> tuple[int, ...] | None:
    """Axes of an Unsqueeze in its result, or of a Squeeze in what it reads, of that rank."""
    given = node.attr("axes" if node.op == "Unsqueeze" else "axis", ())
    axes = tuple(sorted(a + rank if a < 0 else a for a in given))
    return axes if len(set(axes)) == len(axes) and all(0 <= a < rank for a in axes) else None


def _unsqueeze(node: Node, middle: Tensor, first: Tensor) -> _Change:
    before = middle.node
    if before.op != "Unsqueeze" or first.known_shape is None:
        return None
    inner_rank = len(first.known_shape) + len(before.attr("axes", ()))
    rank = inner_rank + len(node.attr("axes", ()))
    inner, outer = _axes(before, inner_rank), _axes(node, rank)
    if inner is None or outer is None:
        return None
    left = [i for i in range(rank) if i not in outer]
    return tuple(sorted((*outer, *(left[i] for i in inner))))


def _squeeze(node: Node, middle: Tensor, first: Tensor) -> _Change:
    before = middle.node
    if before.op != "Unsqueeze" or first.known_shape is None:
        return None
    inner_rank = len(first.known_shape) + len(before.attr("axes", ()))
    inner, outer = _axes(before, inner_rank), _axes(node, inner_rank)
    return _NOTHING if inner is not None and inner and inner == outer else None


def _reshape(node: Node, middle: Tensor, first: Tensor) -> _Change:
    before = middle.node
    return _SAME if before.op in ("Unsqueeze", "Squeeze") and new_shape(node) is not None else None


def _cast(node: Node, middle: Tensor, first: Tensor) -> _Change:
    before = middle.node
    between, last = middle.dtype, node.outputs[0].dtype
    holds, onward = _HOLD.get(first.dtype, (frozenset(), frozenset()))
    if before.op != "Cast" or between not in holds or last not in onward:
        return None
    return _NOTHING if last is first.dtype else _SAME


_RULES: Final[Mapping[str, Callable[[Node, Tensor, Tensor], _Change]]] = {
    "Cast": _cast,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "TransposeD": _transpose,
    "Unsqueeze": _unsqueeze,
}
