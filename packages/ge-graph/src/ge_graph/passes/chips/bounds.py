"""Between which numbers the elements of an integer tensor lie, as far as the graph shows it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np

from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_graph.passes.base import array

Bounds: TypeAlias = tuple[int, int]
_Finder: TypeAlias = Callable[[Node, "Callable[[Any], Bounds | None]"], "Bounds | None"]
_DEPTH: Final = 10  # both operands of sums are followed


def of_type(dtype: DataType) -> Bounds | None:
    """The least and the largest value of an integer type or bool."""
    if dtype is DataType.DT_BOOL:
        return 0, 1
    if not dtype.is_integer or dtype.bits < 8:
        return None
    if dtype.name.startswith("DT_UINT"):
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def constant(tensor: Any) -> np.ndarray[Any, Any] | None:
    """The value of an integer or boolean constant."""
    value = array(tensor)
    return value if value is not None and value.dtype.kind in "iub" else None


def number(tensor: Any) -> int | None:
    """The value of such a constant of one element."""
    value = constant(tensor)
    return int(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def bounds(tensor: Any, depth: int = _DEPTH) -> Bounds | None:
    """The least and the largest value that a tensor can have; None if it holds no integers."""
    if not isinstance(tensor, Tensor):
        return None
    whole = of_type(tensor.dtype)
    if whole is None:
        return None
    value = constant(tensor)
    if value is not None:
        return (int(value.min()), int(value.max())) if value.size else (0, 0)
    node = tensor.node
    interval = None
    if (axis := _PLACES.get(node.op)) is not None and tensor.index == 1:
        size = _size(node.inputs[0], node.attr(axis, -1))
        interval = None if size is None else (0, size)
    elif depth and node.op in _KNOWN and tensor.index == 0:
        interval = _KNOWN[node.op](node, lambda t: bounds(t, depth - 1))
    if interval is None or interval[0] < whole[0] or interval[1] > whole[1]:  # the result wraps around
        return whole
    return interval


def fits(tensor: Any, dtype: DataType) -> bool:
    """Whether all values of an integer tensor are values of another type."""
    interval, whole = bounds(tensor), of_type(dtype)
    return interval is not None and whole is not None and whole[0] <= interval[0] and interval[1] <= whole[1]


def _size(tensor: Any, axis: Any) -> int | None:
    shape = tensor.known_shape if isinstance(tensor, Tensor) else None
    if shape is None or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) else None


def _same(node: Node, of: Any) -> Bounds | None:
    interval: Bounds | None = of(node.inputs[0])
    return interval


def _union(*ports: int) -> _Finder:
    def find(node: Node, of: Any) -> Bounds | None:
        entries = [node.inputs[p] for p in ports]
        intervals = [of(t) for e in entries for t in (e if isinstance(e, tuple) else (e,))]
        if not intervals or any(f is None for f in intervals):
            return None
        return min(f[0] for f in intervals), max(f[1] for f in intervals)

    return find


def _corners(function: Callable[[int, int], int]) -> _Finder:
    def find(node: Node, of: Any) -> Bounds | None:
        a, b = of(node.inputs[0]), of(node.inputs[1])
        if a is None or b is None:
            return None
        values = [function(x, y) for x, y in product(a, b)]
        return min(values), max(values)

    return find


def _ordered(pick: Callable[[int, int], int]) -> _Finder:
    def find(node: Node, of: Any) -> Bounds | None:
        a, b = of(node.inputs[0]), of(node.inputs[1])
        return None if a is None or b is None else (pick(a[0], b[0]), pick(a[1], b[1]))

    return find


def _clipped(node: Node, of: Any) -> Bounds | None:
    x, low, high = (of(t) for t in node.inputs[:3])
    if x is None or low is None or high is None:
        return None
    return min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])


def _range(node: Node, of: Any) -> Bounds | None:
    start, end = of(node.inputs[0]), of(node.inputs[1])
    return None if start is None or end is None else (min(start[0], end[0]), max(start[1], end[1]))


def running(node: Node) -> Bounds | None:
    """Bounds of the sums of a Cumsum, whatever its type."""
    terms, count = bounds(node.inputs[0]), _size(node.inputs[0], number(node.inputs[1]))
    return None if terms is None or count is None else (min(0, count * terms[0]), max(0, count * terms[1]))


_KNOWN: Final[dict[str, _Finder]] = {
    **dict.fromkeys(
        (
            "Cast",
            "Reshape",
            "Transpose",
            "Unsqueeze",
            "Squeeze",
            "BroadcastTo",
            "StridedSliceV2",
            "Slice",
            "GatherV2",
            "GatherElements",
            "IndexByTensor",
            "Identity",
            "TensorMove",
            "Tile",
            "Sort",
            "TopKV2",
            "ReduceMax",
            "ReduceMin",
        ),
        _same,
    ),
    "ConcatV2": _union(0),
    "Pack": _union(0),
    "SelectV2": _union(1, 2),
    "MaskedFill": _union(0, 2),
    "Add": _corners(lambda a, b: a + b),
    "Sub": _corners(lambda a, b: a - b),
    "Mul": _corners(lambda a, b: a * b),
    "Maximum": _ordered(max),
    "Minimum": _ordered(min),
    "ClipByValueV2": _clipped,
    "Range": _range,
    "Cumsum": lambda node, of: running(node),
}
# Operators whose second output holds places along an axis of the first input, and the attribute that names the axis,
# the last one by default. A row that is finished chooses the expert after the last.
_PLACES: Final = {"Sort": "axis", "TopKV2": "dim", "MoeGatingTopKSoftmax": "", "MoeGatingTopKSoftmaxV2": ""}
