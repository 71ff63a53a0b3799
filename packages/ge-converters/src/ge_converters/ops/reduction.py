"""Reductions and running reductions: sums, means, extremes, truth, spread, positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I32, I64, U8, Support
from ge_converters.emit.arithmetic import HALF_TYPES, arithmetic
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_INF, _NAN = float("inf"), float("nan")


def axes_of(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """The axes that eager reduces: all of them for None and for an empty list, never negative."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    listed = [dim] if isinstance(dim, int) else list(dim)
    return sorted({d % rank for d in listed}) if rank else []


def reduced(op: str, x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    """``op`` over ``axes``; a 0-d tensor has nothing to reduce."""
    if not axes:
        return x
    (inner,), back = carried(op, x)
    return back(getattr(ge, op)(inner, axes, keep_dims=keepdim))


def _axis(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


# -- sum, mean, prod -------------------------------------------------------------------------------------------------


_ALL = [F32(2, 3), F16(2, 3), BF16(2, 3), F64(2, 3), I64(2, 3), I32(2, 3), BOOL(2, 3), F32(), F32(0, 3)]
_FLOAT = [x for x in _ALL if x.dtype.is_floating_point]
_DIMS: list[tuple[Any, ...]] = [([1],), ([-1], True), ([0, 1],), ([0, -1], True), (None,), ([],), (None, True)]


def _dim_cases(inputs: list[Any], dims: list[tuple[Any, ...]], **kwargs: Any) -> list[Support]:
    made = [Support(x, *d, **kwargs) for x in inputs if x.shape == (2, 3) for d in dims]
    made += [Support(x, *dims[0], **kwargs) for x in inputs if x.shape not in ((2, 3), ())]
    return made + [Support(F32(2, 3, 4), [1], **kwargs), Support(F32(2, 3, 4), [0, 2], True, **kwargs)]


@register_fx_node_ge_converter(
    {
        aten.sum.default: [
            *(Support(x) for x in _ALL),
            Support(F16(2, 3), dtype=torch.float32),
            Support(I64(3), dtype=torch.float32),
        ],
        aten.sum.dim_IntList: [
            *_dim_cases(_ALL, _DIMS),
            Support(F32(), []),
            Support(F32(), [0]),
            Support(F16(2, 3), [1], dtype=torch.float32),
            Support(BOOL(2, 3), [0], dtype=torch.int32),
        ],
    },
    source="native_functions.yaml: sum; GE ReduceSum",
    fixed={"op": "ReduceSum"},
)
@register_fx_node_ge_converter(
    {
        aten.mean.default: [
            *(Support(x) for x in _FLOAT if x.shape != (0, 3)),
            Support(I64(2, 3), dtype=torch.float32),
        ],
        aten.mean.dim: [
            *_dim_cases(_FLOAT, _DIMS),
            Support(F32(), []),
            Support(I64(2, 3), [1], dtype=torch.float32),
        ],
    },
    source="native_functions.yaml: mean; GE ReduceMean",
    fixed={"op": "ReduceMean"},
)
@register_fx_node_ge_converter(
    {
        aten.prod.default: [Support(x) for x in _ALL],
        aten.prod.dim_int: [
            *(Support(x, *d) for x in _ALL if x.shape for d in ((1,), (-2, True))),
            Support(F32(), 0),
            Support(I32(2, 3), 1, dtype=torch.float32),
        ],
    },
    source="native_functions.yaml: prod; GE ReduceProd",
    fixed={"op": "ReduceProd"},
)
def accumulated(
    self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, op: str, meta_outputs: TensorSpec
) -> Tensor:
    """Sum, mean or product over dims, all of them for None or an empty list.

    Dtypes: integers and bool give int64; ``dtype`` casts first.
    Emits:  ReduceSum, ReduceMean or ReduceProd; ReduceAny or ReduceAll for bool, whose sum would wrap in a byte.
    """
    if meta_outputs.dtype == _D.DT_BOOL:
        op = {"ReduceSum": "ReduceAny", "ReduceProd": "ReduceAll"}[op]
    return reduced(op, cast(self, meta_outputs.dtype), axes_of(dim, self.rank), keepdim)


# -- extremes --------------------------------------------------------------------------------------------------------


_FULL = [x for x in _ALL if 0 not in x.shape]
_NANS = F32(value=[[1.0, _NAN, 2.0], [_INF, -_INF, 0.0]])


def _extreme(largest: bool, x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    if x.dtype == _D.DT_BOOL:
        return reduced("ReduceAny" if largest else "ReduceAll", x, axes, keepdim)
    return reduced("ReduceMax" if largest else "ReduceMin", x, axes, keepdim)


def _position(largest: bool, x: Tensor, axis: int, keepdim: bool) -> Tensor:
    op = "ArgMaxV2" if largest else "ArgMin"
    (inner,), _ = carried(op, x)
    position: Tensor = getattr(ge, op)(inner, axis, dtype=_D.DT_INT64)
    return ge.Unsqueeze(position, axes=[axis]) if keepdim else position


_ORDERED = [*_FULL, _NANS, F32(2, 3, 4)]


_PER_DIM = [Support(x, *d) for x in _ORDERED if x.shape for d in ((1,), (-1, True), (0,))] + [Support(F32(), 0)]
_OVER_DIMS = [*_dim_cases(_FULL, [d for d in _DIMS if d[0] is not None]), Support(_NANS, [1]), Support(F32())]
_OVER_ALL = [Support(x) for x in _ORDERED]
_PLACES = [
    Support(x, *d) for x in _ORDERED if x.shape and x.dtype != torch.bool for d in ((), (1,), (-2, True), (None, True))
] + [Support(F32()), Support(F32(), 0), Support(F32(value=[2.0, 3.0, 3.0, 1.0]))]


@register_fx_node_ge_converter(
    {aten.amax.default: _OVER_DIMS, aten.max.default: _OVER_ALL},
    source="native_functions.yaml: amax, max; GE ReduceMax, ReduceAny",
    fixed={"largest": True},
)
@register_fx_node_ge_converter(
    {aten.amin.default: _OVER_DIMS, aten.min.default: _OVER_ALL},
    source="native_functions.yaml: amin, min; GE ReduceMin, ReduceAll",
    fixed={"largest": False},
)
def extreme(self: Tensor, dim: Any = (), keepdim: bool = False, *, largest: bool, meta_outputs: TensorSpec) -> Tensor:
    """The largest or smallest element over dims, all of them for an empty list.

    Dtypes: any real type or bool, kept; NaN wins.
    """
    return _extreme(largest, self, axes_of(dim, self.rank), keepdim)


@register_fx_node_ge_converter(
    {aten.max.dim: _PER_DIM}, source="native_functions.yaml: max.dim; GE ArgMaxWithValue", fixed={"largest": True}
)
@register_fx_node_ge_converter(
    {aten.min.dim: _PER_DIM}, source="native_functions.yaml: min.dim; GE ArgMinWithValue", fixed={"largest": False}
)
def extreme_with_position(
    self: Tensor, dim: int, keepdim: bool = False, *, largest: bool, meta_outputs: Any
) -> tuple[Tensor, Tensor]:
    """Values and positions along a dim; float16, bfloat16 and float32 in one operator, the other types in two.

    Dtypes: any real type or bool, kept; NaN wins. Positions are int64; the first of equals wins.
    """
    axis = _axis(dim, self.rank)
    if self.rank == 0:
        return self, ge.Const(0, dtype=_D.DT_INT64)
    if self.dtype in (_D.DT_FLOAT, *HALF_TYPES):
        op = "ArgMaxWithValue" if largest else "ArgMinWithValue"
        (x,), back = carried(op, self)
        positions, values = getattr(ge, op)(x, dimension=axis, keep_dims=keepdim)
        return back(values), cast(positions, _D.DT_INT64)
    return _extreme(largest, self, [axis], keepdim), _position(largest, self, axis, keepdim)


@register_fx_node_ge_converter(
    {aten.argmax.default: _PLACES}, source="native_functions.yaml: argmax; GE ArgMaxV2", fixed={"largest": True}
)
@register_fx_node_ge_converter(
    {aten.argmin.default: _PLACES}, source="native_functions.yaml: argmin; GE ArgMin", fixed={"largest": False}
)
def position_of_extreme(
    self: Tensor, dim: int | None = None, keepdim: bool = False, *, largest: bool, meta_outputs: TensorSpec
) -> Tensor:
    """Where the largest or smallest element is along a dim, in the flattened tensor for None.

    Dtypes: any real type -> int64; the first of equals wins, NaN wins over numbers.
    """
    if dim is not None and self.rank:
        return _position(largest, self, _axis(dim, self.rank), keepdim)
    position = _position(largest, ge.Reshape(self, [-1]), 0, False)
    return ge.Reshape(position, [1] * self.rank) if keepdim and self.rank else position


# -- truth -----------------------------------------------------------------------------------------------------------


_TRUTHS = [
    BOOL(2, 3),
    F32(2, 3, low=0, high=0.1),
    I64(2, 3, low=0, high=2),
    F16(2, 3),
    U8(2, 3, high=2),
    _NANS,
    BOOL(0, 3),
]
_TRUTH_ALL = [Support(x) for x in [*_TRUTHS, BOOL(), F32()]]
_TRUTH_DIM = [Support(x, *d) for x in _TRUTHS for d in ((1,), (-1, True))] + [Support(BOOL(), 0)]
_TRUTH_DIMS = [Support(x, *d) for x in _TRUTHS for d in (([1],), ([0, 1], True), (None,), ([],))]


@register_fx_node_ge_converter(
    {aten.any.default: _TRUTH_ALL, aten.any.dim: _TRUTH_DIM, aten.any.dims: _TRUTH_DIMS},
    source="native_functions.yaml: any; GE ReduceAny",
    fixed={"op": "ReduceAny"},
)
@register_fx_node_ge_converter(
    {aten.all.default: _TRUTH_ALL, aten.all.dim: _TRUTH_DIM, aten.all.dims: _TRUTH_DIMS},
    source="native_functions.yaml: all; GE ReduceAll",
    fixed={"op": "ReduceAll"},
)
def truth(self: Tensor, dim: Any = None, keepdim: bool = False, *, op: str, meta_outputs: TensorSpec) -> Tensor:
    """Whether any or all elements over dims are true, over all dims for None.

    Dtypes: any, nonzero is true -> bool; uint8 stays uint8.
    """
    # Unlike sum, an empty list reduces nothing here.
    axes = [] if isinstance(dim, Sequence) and not dim else axes_of(dim, self.rank)
    inner = cast(self, _D.DT_BOOL)
    return cast(getattr(ge, op)(inner, axes, keep_dims=keepdim) if axes else inner, meta_outputs.dtype)


# -- spread ----------------------------------------------------------------------------------------------------------


def _count(x: Tensor, axes: list[int], dtype: DataType) -> Tensor:
    """How many elements are reduced into one, as a 0-d tensor."""
    sizes = ge.Shape(x, dtype=_D.DT_INT64)
    if len(axes) == 1:
        return cast(ge.GatherV2(sizes, ge.Const(axes[0], dtype=_D.DT_INT64), 0), dtype)
    if axes != list(range(x.rank)):
        sizes = ge.GatherV2(sizes, axes, 0)
    return cast(ge.ReduceProd(sizes, [0]), dtype)


def variance(x: Tensor, axes: list[int], correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Variance and mean of a float32 or float64 tensor; the mean keeps its dims."""
    mean = reduced("ReduceMean", x, axes, True)
    squares = ge.Square(ge.Sub(x, mean))
    if not isinstance(correction, Tensor) and correction == 0:
        return reduced("ReduceMean", squares, axes, keepdim), mean
    count = _count(x, axes, x.dtype) if axes else ge.Const(1.0, dtype=x.dtype)
    divisor = ge.Maximum(arithmetic("Sub", count, correction, x.dtype), ge.Const(0.0, dtype=x.dtype))
    return ge.RealDiv(reduced("ReduceSum", squares, axes, keepdim), divisor), mean


def _spread(
    self: Tensor, dim: Any, correction: Any, keepdim: bool, dtype: DataType
) -> tuple[Tensor, Tensor, list[int]]:
    axes = axes_of(dim, self.rank)
    inner = _D.DT_FLOAT if dtype in HALF_TYPES else dtype
    if correction != correction:  # NaN: eager's max(0, N - correction) is then 0, as for a correction beyond all counts
        correction = math.inf
    variances, mean = variance(cast(self, inner), axes, 1 if correction is None else correction, keepdim)
    return variances, mean, axes


def _native_spread(
    op: str, self: Tensor, dim: Any, correction: Any, keepdim: bool, *, mean: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Spread and mean by ``ReduceVar`` or ``ReduceStdV2``, which divide by max(0, N - correction) as eager does.

    None if the operator does not take the form: its correction is a whole number, its type a float of at most 32 bits.
    """
    whole = correction is None or (isinstance(correction, (int, float)) and float(correction).is_integer())
    axes = axes_of(dim, self.rank)
    if not whole or not axes or self.dtype not in (_D.DT_FLOAT, *HALF_TYPES):
        return None
    count = 1 if correction is None else int(correction)
    spread, average = getattr(ge, op)(self, dim=axes, correction=count, keepdim=keepdim, is_mean_out=mean)
    return spread, average


_SPREAD_CASES = [
    Support(x, *d, **k)
    for x in (F32(4, 3), F16(4, 3), BF16(4, 3), F64(4, 3))
    for d in ((), ([0],), ([-1, 0],), (None,), ([],))
    for k in ({}, {"correction": 0}, {"correction": 2, "keepdim": True}, {"correction": 0.5})
] + [Support(F32(2, 1), [1]), Support(F32(2, 3, 4), [0, 2], correction=1), Support(F32(), correction=0)]


@register_fx_node_ge_converter(
    {
        aten.var.correction: _SPREAD_CASES,
        aten.var.dim: [
            Support(F32(4, 3), [0]),
            Support(F32(4, 3), [0], False),
            Support(F16(4, 3), None, True, True),
            Support(F32(2, 3), [-1], False, True),
        ],
    },
    source="native_functions.yaml: var; GE ReduceVar",
    names={"unbiased": "correction"},
    fixed={"op": "ReduceVar"},
)
@register_fx_node_ge_converter(
    {aten.std.correction: _SPREAD_CASES},
    source="native_functions.yaml: std; GE ReduceStdV2",
    fixed={"op": "ReduceStdV2"},
)
def spread(
    self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False, op: str, meta_outputs: TensorSpec
) -> Tensor:
    """Variance or its square root: squared distances from the mean over N - correction (1 for None and unbiased).

    Dtypes: floats; half types compute in float32.
    Emits:  ReduceVar, ReduceStdV2; for float64 and a fractional correction ReduceMean, Sub, Square, then ReduceMean
            (correction 0) or ReduceSum and the count as a graph value, and Sqrt.
    """
    correction = int(correction) if isinstance(correction, bool) else correction
    native = _native_spread(op, self, dim, correction, keepdim)
    if native is not None:
        return native[0]
    variances = _spread(self, dim, correction, keepdim, meta_outputs.dtype)[0]
    return cast(ge.Sqrt(variances) if op == "ReduceStdV2" else variances, meta_outputs.dtype)


@declare_supported(_SPREAD_CASES)
@register_fx_node_ge_converter(aten.var_mean.correction, source="aten var_mean.correction; GE ReduceVar")
def var_mean(
    self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False, meta_outputs: Any
) -> tuple[Tensor, Tensor]:
    """Variance and mean.

    Emits:  ReduceVar; for float64 and a fractional correction the composition of ``var``.
    """
    native = _native_spread("ReduceVar", self, dim, correction, keepdim, mean=True)
    if native is not None:
        return native
    dtype = meta_outputs[0].dtype
    variances, mean, axes = _spread(self, dim, correction, keepdim, dtype)
    if not keepdim and axes:
        mean = ge.Squeeze(mean, axis=axes)
    return cast(variances, dtype), cast(mean, dtype)


# -- running reductions ----------------------------------------------------------------------------------------------


_RUNNING = [Support(x, d) for x in _ALL if x.shape for d in (0, -1)] + [
    Support(F32(), 0),
    Support(I32(2, 3), 1, dtype=torch.float32),
]


@register_fx_node_ge_converter(
    {aten.cumsum.default: _RUNNING}, source="native_functions.yaml: cumsum; GE Cumsum", fixed={"op": "Cumsum"}
)
@register_fx_node_ge_converter(
    {aten.cumprod.default: _RUNNING}, source="native_functions.yaml: cumprod; GE Cumprod", fixed={"op": "Cumprod"}
)
def running(self: Tensor, dim: int, *, dtype: Any = None, op: str, meta_outputs: TensorSpec) -> Tensor:
    """Running sum or product; integers and bool run as int64."""
    x = cast(self, meta_outputs.dtype)
    if self.rank == 0:
        return x
    (x,), back = carried(op, x)
    return back(getattr(ge, op)(x, _axis(dim, self.rank)))


@declare_supported([Support(x, d) for x in _FLOAT if x.shape for d in (0, -1)] + [Support(F32(), 0)])
@register_fx_node_ge_converter(aten.logcumsumexp.default, source="aten logcumsumexp; GE CumulativeLogsumexp")
def logcumsumexp(self: Tensor, dim: int, *, meta_outputs: TensorSpec) -> Tensor:
    """Logarithm of the running sum of exponentials."""
    if self.rank == 0:
        return self
    x = cast(self, carrier("CumulativeLogsumexp", self.dtype))
    axis = dtype_promote(_axis(dim, self.rank), target_dtype=_D.DT_INT32)
    return cast(ge.CumulativeLogsumexp(x, axis), self.dtype)


_RUNNING_EXTREMES = [Support(x, d) for x in _ORDERED if x.shape for d in (0, -1)] + [Support(F32(), 0)]


@register_fx_node_ge_converter(
    {aten.cummax.default: _RUNNING_EXTREMES},
    source="native_functions.yaml: cummax; GE Cummax",
    fixed={"op": "Cummax", "attribute": "dim"},
)
@register_fx_node_ge_converter(
    {aten.cummin.default: _RUNNING_EXTREMES},
    source="native_functions.yaml: cummin; GE Cummin",
    fixed={"op": "Cummin", "attribute": "axis"},
)
def running_extreme(self: Tensor, dim: int, *, op: str, attribute: str, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """The largest or smallest element so far and where it is, int64."""
    if self.rank == 0:
        return self, ge.Const(0, dtype=_D.DT_INT64)
    (x,), back = carried(op, self)
    values, positions = getattr(ge, op)(x, **{attribute: _axis(dim, self.rank)})
    return back(values), cast(positions, _D.DT_INT64)
