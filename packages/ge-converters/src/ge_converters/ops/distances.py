"""Distances between points."""

from __future__ import annotations

import math

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import F32, Support
from ge_converters.emit.compute_types import carrier, need_floats
from ge_converters.emit.shapes import axis_size
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32 = DataType.DT_FLOAT


def _number(value: float) -> Tensor:
    return ge.Const(float(value), dtype=_F32)


def _length(difference: Tensor, p: float) -> Tensor:
    """The p-norm of the last axis of float32 differences."""
    size = ge.Abs(difference)
    if p == 0:
        return ge.ReduceSum(cast(ge.NotEqual(size, _number(0.0)), _F32), [-1], keep_dims=False)
    if p == math.inf:
        return ge.ReduceMax(size, [-1], keep_dims=False)
    if p == 1:
        return ge.ReduceSum(size, [-1], keep_dims=False)
    if p == 2:
        return ge.Sqrt(ge.ReduceSum(ge.Mul(difference, difference), [-1], keep_dims=False))
    total = ge.ReduceSum(ge.Pow(size, _number(p)), [-1], keep_dims=False)
    result: Tensor = ge.Pow(total, _number(1.0 / p))
    return result


def _slope(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """Gradient of ``_length`` for the differences; ``distance`` has a last axis of 1. Zero at zero distance."""
    zero, one = _number(0.0), _number(1.0)
    if p == 0:
        return ge.ZerosLike(difference)
    sign = ge.Sign(difference)
    if p == 1:
        return sign
    if p == math.inf:
        return ge.Mul(sign, cast(ge.Equal(ge.Abs(difference), distance), _F32))
    apart = ge.SelectV2(ge.Equal(distance, zero), one, distance)
    if p == 2:
        return ge.SelectV2(ge.Equal(distance, zero), zero, ge.RealDiv(difference, apart))
    size = ge.Abs(difference)
    # |d|^(p-1) / distance^(p-1); below p = 2 the power of an exact zero is taken as zero, as torch does
    power = ge.Pow(ge.RealDiv(size, apart), _number(p - 1.0))
    slope = ge.Mul(sign, power)
    result: Tensor = ge.SelectV2(ge.Equal(ge.Mul(size, distance), zero), zero, slope)
    return result


def _differences(x1: Tensor, x2: Tensor) -> Tensor:
    return ge.Sub(ge.Unsqueeze(cast(x1, _F32), axes=[-2]), ge.Unsqueeze(cast(x2, _F32), axes=[-3]))


_ORDERS = (0.0, 1.0, 2.0, 3.0, 1.5, math.inf)


@declare_supported(
    [
        *(Support(F32(4, 3), F32(5, 3), p, None) for p in _ORDERS),
        Support(F32(2, 4, 3), F32(2, 5, 3), 2.0, None),
        Support(F32(2, 4, 3), F32(2, 5, 3), 2.0, 2),
    ]
)
@register_fx_node_ge_converter(aten._cdist_forward.default, source="native_functions.yaml: _cdist_forward; GE Cdist")
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: x1 [.., n, d]; x2 [.., m, d], leading dims broadcast -> [.., n, m].
    Dtypes: float32; halves through float32.
    Emits:  Cdist; for p = inf, which it has no sign for, and leading dims that broadcast Sub of all pairs and the norm
            of order p. compute_mode chooses between equal ways and is not read.
    """
    need_floats("Sub", x1, x2)
    if p != math.inf and _same_batches(x1, x2):
        inner = carrier("Cdist", meta_outputs.dtype)
        return cast(ge.Cdist(cast(x1, inner), cast(x2, inner), p=float(p)), meta_outputs.dtype)
    return cast(_length(_differences(x1, x2), float(p)), meta_outputs.dtype)


def _same_batches(x1: Tensor, x2: Tensor) -> bool:
    """Whether the leading dims are the same; ``Cdist`` broadcasts none."""
    if x1.rank != x2.rank:
        return False
    if x1.rank == 2:
        return True
    a, b = x1.known_shape, x2.known_shape
    return a is not None and b is not None and a[:-2] == b[:-2]


@declare_supported([Support(F32(4, 5), F32(4, 3), F32(5, 3), p, F32(4, 5, low=0.5)) for p in (1.0, 2.0, 3.0, 1.5)])
@register_fx_node_ge_converter(
    aten._cdist_backward.default, source="native_functions.yaml: _cdist_backward; GE Sub, Sign, Mul, ReduceSum"
)
def _cdist_backward(
    grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: that of x1, with the leading dims of grad.
    Dtypes: float32; halves through float32.
    Emits:  the slope of each difference, times grad, summed over the points of x2.
    """
    need_floats("Sub", grad, x1, x2)
    distance = ge.Unsqueeze(cast(cdist, _F32), axes=[-1])
    slope = _slope(_differences(x1, x2), distance, float(p))
    weighted = ge.Mul(slope, ge.Unsqueeze(cast(grad, _F32), axes=[-1]))
    result = ge.ReduceSum(weighted, [-2], keep_dims=False)
    extra = max(grad.rank, x2.rank) - meta_outputs.rank
    if extra > 0:  # x1 was shared by leading dims that x2 has alone
        result = ge.ReduceSum(result, list(range(extra)), keep_dims=False)
    shared = [i for i, size in enumerate(meta_outputs.size[:-2]) if size == 1]
    if shared:  # likewise where x1 has a leading axis of size 1
        result = ge.ReduceSum(result, shared, keep_dims=True)
    return cast(result, meta_outputs.dtype)


def _pairs(x: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """First and second point of each pair, row by row of the upper triangle; found in the graph if n is symbolic."""
    if count is not None:
        first, second = np.triu_indices(count, 1)
        return ge.Const(first.astype(np.int64)), ge.Const(second.astype(np.int64))
    points = axis_size(x, 0)
    square = ge.Fill(ge.Pack([points, points], N=2, axis=0), ge.Const(value=True, dtype=DataType.DT_BOOL))
    coordinates = ge.Where(ge.Triu(square, diagonal=1))
    last = ge.Const(1, dtype=DataType.DT_INT64)
    return tuple(ge.GatherV2(coordinates, ge.Const(i, dtype=DataType.DT_INT64), last) for i in (0, 1))  # type: ignore[return-value]


def _pair_differences(x: Tensor, count: int | None) -> tuple[Tensor, Tensor, Tensor]:
    first, second = _pairs(x, count)
    axis = ge.Const(0, dtype=DataType.DT_INT64)
    return ge.Sub(ge.GatherV2(x, first, axis), ge.GatherV2(x, second, axis)), first, second


@declare_supported([Support(F32(5, 3), p) for p in _ORDERS])
@register_fx_node_ge_converter(aten._pdist_forward.default, source="native_functions.yaml: _pdist_forward; GE Pdist")
def _pdist_forward(self: Tensor, p: float = 2.0, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n, d] -> [n * (n - 1) / 2], the pairs of the upper triangle row by row.
    Dtypes: float32; halves through float32.
    Emits:  Pdist; for p = inf GatherV2 of both points of each pair, Sub, and the norm.
    """
    need_floats("Sub", self)
    if p != math.inf:
        inner = carrier("Pdist", self.dtype)
        return cast(ge.Pdist(cast(self, inner), p=float(p)), meta_outputs.dtype)
    pairs = meta_outputs.size[0]
    count = (1 + math.isqrt(1 + 8 * pairs)) // 2 if isinstance(pairs, int) else None
    difference, _, _ = _pair_differences(cast(self, _F32), count)
    return cast(_length(difference, float(p)), meta_outputs.dtype)


@declare_supported([Support(F32(10), F32(5, 3), p, F32(10, low=0.5)) for p in (1.0, 2.0, 3.0)])
@register_fx_node_ge_converter(
    aten._pdist_backward.default, source="native_functions.yaml: _pdist_backward; GE GatherV2, InplaceIndexAdd"
)
def _pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: grad and pdist [n * (n - 1) / 2]; self [n, d] -> [n, d].
    Dtypes: float32; halves through float32.
    Emits:  the slope of each pair, added to one point and taken from the other by UnsortedSegmentSum.
    """
    need_floats("Sub", grad, self)
    size = meta_outputs.size[0]
    count = size if isinstance(size, int) else None
    difference, first, second = _pair_differences(cast(self, _F32), count)
    slope = _slope(difference, ge.Unsqueeze(cast(pdist, _F32), axes=[-1]), float(p))
    weighted = ge.Mul(slope, ge.Unsqueeze(cast(grad, _F32), axes=[-1]))
    segments = axis_size(self, 0) if count is None else ge.Const(count, dtype=DataType.DT_INT64)
    given = ge.UnsortedSegmentSum(weighted, first, segments)
    taken = ge.UnsortedSegmentSum(weighted, second, segments)
    return cast(ge.Sub(given, taken), meta_outputs.dtype)
