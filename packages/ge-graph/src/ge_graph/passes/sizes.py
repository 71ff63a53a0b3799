"""Sizes that are known before anything runs: numbers instead of operators that compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.layout import integers
from ge_graph.passes.rewriter import Rewriter

_Array: TypeAlias = "np.ndarray[Any, Any]"

_TYPES: Final[Mapping[DataType, type[np.signedinteger[Any]]]] = {
    DataType.DT_INT32: np.int32,
    DataType.DT_INT64: np.int64,
}
_MOST: Final = 64  # elements; sizes are few numbers, anything longer is data


class FoldSizes(Pass):
    """Compute what follows from sizes that are numbers.

    * Shape of a tensor of known sizes is a constant.
    * Integer arithmetic, selection and joining of such constants is a constant.
    * BroadcastTo the sizes that a tensor has is nothing.

    Constants that come from no Shape stay as the program wrote them.
    """

    name = "fold_sizes"
    reason = (
        "a converter that serves any sizes reads them in the graph; where they are known that is a launch for nothing"
    )
    place = "first: merge_constants merges the constants made here; leaves dead nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in ("Shape", "BroadcastTo") for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        sizes: dict[Tensor, _Array] = {}
        counts: Counter[str] = Counter()
        for node in rewriter.walk(_LOOKED_AT):
            kept = _same_sizes(rewriter, node) if node.op == "BroadcastTo" else _as_constant(rewriter, node, sizes)
            if kept is not None:
                rewriter.substitute(node, kept)
                counts[node.op] += 1
        rewriter.finish()
        return [f"{count} {op} of known sizes" for op, count in sorted(counts.items())]


def _same_sizes(rewriter: Rewriter, node: Node) -> Tensor | None:
    """What a BroadcastTo reads, if it has the wanted sizes already."""
    source = node.inputs[0]
    wanted = _constant(node.inputs[1]) if len(node.inputs) > 1 else None
    shape = _whole(source) if isinstance(source, Tensor) else None
    if not isinstance(source, Tensor) or wanted is None or shape is None or wanted.tolist() != shape.tolist():
        return None
    return source if rewriter.replaceable(node, source) else None


def _as_constant(rewriter: Rewriter, node: Node, sizes: dict[Tensor, _Array]) -> Tensor | None:
    """The constant that a node gives, if it follows from known sizes."""
    value = _value(node, sizes) if len(node.outputs) == 1 else None
    if value is None or rewriter.effects.pinned(node):
        return None
    made = rewriter.like(node.outputs[0], "Const", (), {"value": Attr(Kind.TENSOR, value)}, value.shape)
    sizes[made] = value
    return made


def _whole(tensor: Tensor) -> _Array | None:
    """The sizes of a tensor, if all are numbers."""
    shape = tensor.known_shape
    if shape is None or any(not isinstance(d, int) or d < 0 for d in shape):
        return None
    return np.asarray(shape, np.int64)


def _constant(operand: Any) -> _Array | None:
    """The value of a short constant of the types of sizes."""
    value = integers(operand)
    short = value is not None and value.ndim <= 1 and value.size <= _MOST
    return value if short and operand.dtype in _TYPES else None


def _value(node: Node, sizes: Mapping[Tensor, _Array]) -> _Array | None:
    """What a node gives, as its definition says; None if it is not known or not about sizes."""
    dtype = _TYPES.get(node.outputs[0].dtype)
    if dtype is None:
        return None
    if node.op == "Shape":
        operand = node.inputs[0]
        value = _whole(operand) if isinstance(operand, Tensor) else None
    else:
        operands = list(node.operands())
        if not any(t in sizes for t in operands):
            return None
        given = [sizes[t] if t in sizes else _constant(t) for t in operands]
        known = [g for g in given if g is not None]
        if len(known) != len(given):
            return None
        # wide, so that no step overflows unseen
        value = _RULES[node.op](node, [k.astype(np.int64) for k in known])
    if value is None or value.ndim > 1 or value.size > _MOST:
        return None
    limits = np.iinfo(dtype)
    if value.size and not (limits.min <= value.min() and value.max() <= limits.max):
        return None
    return value.astype(dtype)


def _gather(node: Node, given: Sequence[_Array]) -> _Array | None:
    x, places = given[:2]
    axis = int(given[2]) if len(given) > 2 else 0
    first = -len(x) if x.ndim == 1 and node.attr("negative_index_support", False) else 0
    if x.ndim != 1 or axis not in (0, -1) or node.attr("batch_dims", 0) != 0:
        return None
    if places.size and not (first <= places.min() and places.max() < len(x)):
        return None
    return np.asarray(x[places])


def _concat(node: Node, given: Sequence[_Array]) -> _Array | None:
    parts, axis = given[:-1], given[-1]
    return np.concatenate(parts) if int(axis) in (0, -1) and all(p.ndim == 1 for p in parts) else None


def _pack(node: Node, given: Sequence[_Array]) -> _Array | None:
    return np.stack(given) if node.attr("axis", 0) in (0, -1) and all(g.ndim == 0 for g in given) else None


def _slice(node: Node, given: Sequence[_Array]) -> _Array | None:
    x, begin, count = given
    if x.ndim != 1 or begin.size != 1 or count.size != 1:
        return None
    start, size = int(begin.reshape(())), int(count.reshape(()))
    stop = len(x) if size == -1 else start + size
    return x[start:stop] if 0 <= start <= stop <= len(x) else None


def _product(node: Node, given: Sequence[_Array]) -> _Array | None:
    x, axes = given
    if x.ndim != 1 or axes.reshape(-1).tolist() not in ([0], [-1]):
        return None
    total = 1
    for size in x.tolist():  # Python's integers do not overflow
        total *= size
    if abs(total) > np.iinfo(np.int64).max:
        return None
    return np.asarray([total] if node.attr("keep_dims", False) else total, np.int64)


def _unsqueeze(node: Node, given: Sequence[_Array]) -> _Array | None:
    return given[0].reshape(1) if given[0].ndim == 0 and tuple(node.attr("axes", ())) in ((0,), (-1,)) else None


def _squeeze(node: Node, given: Sequence[_Array]) -> _Array | None:
    return (
        given[0].reshape(()) if given[0].shape == (1,) and tuple(node.attr("axis", ())) in ((), (0,), (-1,)) else None
    )


def _arithmetic(
    compute: Callable[[_Array, _Array], Any], *, divides: bool = False
) -> Callable[[Node, Sequence[_Array]], _Array | None]:
    def rule(node: Node, given: Sequence[_Array]) -> _Array | None:
        a, b = given
        if (divides and not b.all()) or any(x.size and int(np.abs(x).max()) > 2**31 for x in given):
            return None  # undefined, or near what 64 bits hold
        return np.asarray(compute(a, b), np.int64) if a.size == 1 or b.size == 1 or a.shape == b.shape else None

    return rule


_RULES: Final[Mapping[str, Callable[[Node, Sequence[_Array]], _Array | None]]] = {
    "Add": _arithmetic(np.add),
    "Cast": lambda node, given: given[0],
    "ConcatV2": _concat,
    "FloorDiv": _arithmetic(np.floor_divide, divides=True),
    "Gather": _gather,
    "GatherV2": _gather,
    "Maximum": _arithmetic(np.maximum),
    "Minimum": _arithmetic(np.minimum),
    "Mul": _arithmetic(np.multiply),
    "Pack": _pack,
    "ReduceProd": _product,
    "Shape": lambda node, given: None,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _arithmetic(np.subtract),
    "Unsqueeze": _unsqueeze,
}
_LOOKED_AT: Final = _RULES.keys() | {"BroadcastTo"}
