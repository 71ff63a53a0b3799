"""Values by their rank or number: k-th value, medians, mode; positions of a fixed number of nonzeros."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.compute_types import carried, move
from ge_converters.emit.shapes import int_operand, ints, shape_operand
from ge_converters.emit.sorting import sorted_along
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_D = DataType
_NAN = float("nan")
_DISTINCT = [[3.0, -1.0, 2.5, 0.5, 9.0], [7.0, 6.0, -2.0, 1.0, 0.0]]
_HOLES = [[3.0, _NAN, 2.5, 0.5, 9.0], [_NAN, _NAN, _NAN, _NAN, _NAN]]
_WHOLE = [[3, -1, 2, 5, 9], [7, 6, -2, 1, 0]]
_INPUTS = [f(value=_DISTINCT) for f in (F32, F16, BF16, F64)] + [f(value=_WHOLE) for f in (I64, I32)]


def _long(value: int) -> Tensor:
    return ge.Const(value, dtype=_D.DT_INT64)


def _size(x: Tensor, axis: int) -> Tensor:
    return ge.GatherV2(ge.Shape(x, dtype=_D.DT_INT64), _long(axis), _long(0))


def _at_rank(x: Tensor, axis: int, rank: Any, keepdim: bool, per_line: bool = False) -> tuple[Tensor, Tensor]:
    """Value and position at a place of the sorted dim: one place for all lines of the dim, or one for each."""
    values, positions = sorted_along(x, axis, False, False)
    if per_line:
        picked = [move("GatherElements", v, rank, dim=axis) for v in (values, positions)]
        picked = picked if keepdim else [move("Squeeze", f, axis=[axis]) for f in picked]
    else:
        (place,) = [dtype_promote(rank, target_dtype=_D.DT_INT64)]
        place = ge.Reshape(place, ints([1])) if keepdim else place
        picked = [move("GatherV2", v, place, _long(axis)) for v in (values, positions)]
    return picked[0], picked[1]


@declare_supported(
    [Support(x, k, d, keep) for x in _INPUTS for k, d, keep in ((1, -1, False), (2, 0, True), (2, 1, False))]
    + [Support(F32(), 1), Support(F32(value=[_NAN, 1.0, 0.5]), 3)]
)
@register_fx_node_ge_converter(aten.kthvalue.default, source="aten kthvalue; GE Sort, GatherV2")
def kthvalue(self: Tensor, k: Any, dim: int = -1, keepdim: bool = False, *, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """The k-th smallest value along a dim, counted from 1, and where it was.

    Dtypes: any real type, kept; the position is int64.
    Emits:  Sort, GatherV2.
    """
    if self.rank == 0:
        return self, _long(0)
    rank = k - 1 if isinstance(k, int) else arithmetic("Sub", k, 1, _D.DT_INT64)
    return _at_rank(self, dim % self.rank, rank, keepdim)


def _median_rank(count: Tensor) -> Tensor:
    """The lower of the two middle places of ``count`` values; 0 for none."""
    least = ge.Maximum(ge.Sub(count, _long(1)), _long(0))
    result: Tensor = ge.FloorDiv(least, _long(2))
    return result


def _nans(x: Tensor, axis: int) -> Tensor:
    """How many NaNs each line of a dim has, the dim kept as 1."""
    (single,), _ = carried("IsNan", x)
    flags = cast(ge.IsNan(single), _D.DT_INT32)
    return cast(ge.ReduceSum(flags, [axis], keep_dims=True), _D.DT_INT64)


def _median(x: Tensor, axis: int, keepdim: bool, skip: bool) -> tuple[Tensor, Tensor]:
    count = _size(x, axis)
    if not x.dtype.is_float:
        return _at_rank(x, axis, _median_rank(count), keepdim)
    nans = _nans(x, axis)
    if skip:
        rank = _median_rank(ge.Sub(count, nans))
    else:  # NaNs are sorted to the end: one of them is the result if there is any
        first_nan = ge.Sub(count, nans)
        rank = ge.SelectV2(ge.Greater(nans, _long(0)), first_nan, _median_rank(count))
    return _at_rank(x, axis, rank, keepdim, per_line=True)


def _flat(x: Tensor) -> Tensor:
    flat: Tensor = ge.Reshape(x, ints([-1]))
    flat.record_shape((f"numel_{flat.node.name}",))  # a size of its own: only the rank is needed
    return flat


def _or_nothing(x: Tensor) -> Tensor:
    """All elements in a row, or what eager gives for none: NaN; 0, in wide integers the least number."""
    flat, sizes = _flat(x), x.known_shape or (0,)
    if all(isinstance(n, int) and n for n in sizes):
        return flat
    whole = -(2 ** (x.dtype.bits - 1)) if x.dtype.bits >= 32 else 0
    none = ge.Const(_NAN if x.dtype.is_float else whole, dtype=x.dtype)
    missing = ge.Sub(_long(1), ge.Minimum(_size(flat, 0), _long(1)))
    return _flat(ge.ConcatV2([flat, ge.Fill(ge.Reshape(missing, ints([1])), none)], 0))


_ALONG = [
    *(Support(x, d, k) for x in _INPUTS for d, k in ((-1, False), (0, True))),
    Support(F32(), 0),
    *(Support(F32(value=_HOLES[:1]), 1, keep) for keep in (True, False)),
]
_MEDIANS = [
    *(Support(f(0)) for f in (F32, F16, BF16, F64, I64, I32)),
    Support(F32(2, 0)),
    *(Support(f(value=_HOLES)) for f in (F32, F16, BF16)),
    *(Support(x) for x in [*_INPUTS, F32(), F32(2, 3, 2)]),
]


@register_fx_node_ge_converter(
    {aten.median.dim: _ALONG, aten.median.default: _MEDIANS},
    source="native_functions.yaml: median; GE Sort, GatherV2, GatherElements",
    fixed={"skip": False},
)
@register_fx_node_ge_converter(
    {aten.nanmedian.dim: _ALONG, aten.nanmedian.default: _MEDIANS},
    source="native_functions.yaml: nanmedian; GE Sort, GatherV2, GatherElements",
    fixed={"skip": True},
)
def median(self: Tensor, dim: int | None = None, keepdim: bool = False, *, skip: bool, meta_outputs: Any) -> Any:
    """The lower of two middle values along a dim and where it is, or that of all elements; ``skip`` leaves out NaNs.

    Emits:  Sort, GatherV2 or GatherElements.
    """
    if dim is None:
        return _median(_or_nothing(self), 0, False, skip)[0] if self.rank else self
    return _median(self, dim % self.rank, keepdim, skip) if self.rank else (self, _long(0))


@declare_supported(
    [Support(f(4, 7, low=0, high=4), d, k) for f in (I64, I32) for d, k in ((-1, False), (0, True))]
    + [Support(F32(3, 4, 2, low=0, high=2), d) for d in (0, 1)]
    + [Support(f(value=[[1.0, 2.0, 2.0, 0.5], [3.0, 1.0, 3.0, 1.0]])) for f in (F32, F16, BF16)]
    + [Support(BOOL(2, 5)), Support(F32())]
)
@register_fx_node_ge_converter(aten.mode.default, source="aten mode; GE Equal, ReduceSum, ReduceMax, SelectV2")
def mode(self: Tensor, dim: int = -1, keepdim: bool = False, *, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """The most frequent value along a dim, the smallest of several, and its last position.

    Dtypes: any real type or bool, kept; the position is int64.
    Emits:  every pair of a line compared: memory grows with the square of the dim.
    """
    if self.rank == 0:
        return self, _long(0)
    axis = dim % self.rank
    (x,), back = (
        ([cast(self, _D.DT_INT32)], lambda y: cast(y, _D.DT_BOOL))
        if self.dtype == _D.DT_BOOL
        else carried("Equal", self)
    )
    last = move("Transpose", x, ints(_swapped(x.rank, axis)))
    pairs = ge.Equal(ge.Unsqueeze(last, axes=[-1]), ge.Unsqueeze(last, axes=[-2]))
    counts = ge.ReduceSum(cast(pairs, _D.DT_INT32), [-1], keep_dims=False)
    frequent = ge.Equal(counts, ge.ReduceMax(counts, [-1], keep_dims=True))
    largest = ge.ReduceMax(last, [-1], keep_dims=True)
    modes = ge.ReduceMin(ge.SelectV2(frequent, last, largest), [-1], keep_dims=True)
    places = ge.Range(_long(0), _size(x, axis), _long(1))
    where = ge.SelectV2(ge.Equal(last, modes), places, _long(-1))
    position = ge.ReduceMax(where, [-1], keep_dims=True)
    order = ints(_swapped(x.rank, axis))
    modes, position = back(move("Transpose", modes, order)), move("Transpose", position, order)
    return (modes, position) if keepdim else (ge.Squeeze(modes, axis=[axis]), ge.Squeeze(position, axis=[axis]))


def _swapped(rank: int, axis: int) -> list[int]:
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


@declare_supported(
    [
        Support(F32(value=[[0.0, 1.0, 2.0], [3.0, 0.0, 4.0]]), size=s, fill_value=f)
        for s, f in ((2, -1), (4, -1), (6, 9), (0, -1))
    ]
    + [
        Support(I64(value=[0, 5, 0, 6]), size=3),
        Support(BOOL(2, 3), size=4),
        Support(F16(3), size=2),
        Support(BF16(3), size=5),
    ]
)
@register_fx_node_ge_converter(aten.nonzero_static.default, source="aten nonzero_static; GE NonZero, ConcatV2, Slice")
def nonzero_static(self: Tensor, *, size: Any, fill_value: int = -1, meta_outputs: Any) -> Tensor:
    """Positions of the first ``size`` nonzero elements, rows of ``fill_value`` after the last one.

    Emits:  NonZero, ConcatV2, Slice.
    """
    (x,), _ = carried("NonZero", self)
    positions = ge.NonZero(x, dtype=_D.DT_INT64)
    shape = [size, self.rank]
    filler = ge.Fill(shape_operand(shape), _long(fill_value))
    return ge.Slice(ge.ConcatV2([positions, filler], 0), ints([0, 0]), int_operand(shape))
