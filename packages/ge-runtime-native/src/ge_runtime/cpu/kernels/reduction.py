"""Reductions, running sums, extrema with positions.

``axes`` is a tensor (or an attribute in the D forms); for an empty list the operators differ: ReduceAll, ReduceAny
and ReduceLogSumExp reduce everything, the others reduce nothing. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_runtime import errors
from ge_runtime.cpu.kernels.elementwise import wide
from ge_runtime.cpu.registry import Call, PlanContext, PlanHook, kernel, plan
from ge_runtime.cpu.values import listed, one, torch_dtype

Reduce = Callable[[Tensor, "tuple[int, ...]", bool], Tensor]


def _axes(x: Tensor, axes: Any) -> tuple[int, ...]:
    """Normalised axes, each once; rank 0 tolerates 0 and -1."""
    if x.dim() == 0:
        return ()
    normalised = []
    for a in listed(axes):
        if not -x.dim() <= a < x.dim():
            raise errors.refused("Reduce", f"axis {a} is outside of {x.dim()} dims")
        normalised.append(a % x.dim())
    return tuple(dict.fromkeys(normalised))


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        return torch.mean(x, axes, keep)
    count = 1
    for a in axes:
        count *= x.shape[a]
    return torch.div(torch.sum(x, axes, keep), count, rounding_mode="trunc").to(x.dtype)


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for a in sorted(axes, reverse=True):
        x = torch.prod(x, a, keep, dtype=x.dtype)
    return x


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """Plainly: the operator takes no maximum out of the sum, so exponentials above 88 overflow in float32."""
    return torch.log(torch.sum(torch.exp(wide(x)), axes, keep)).to(x.dtype)


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.log(torch.sum(wide(x), axes, keep)).to(x.dtype)


def _euclid(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sqrt(torch.sum(torch.square(wide(x)), axes, keep)).to(x.dtype)


def _all(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.all(x, axes, keep) if axes else x.clone()


def _any(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.any(x, axes, keep) if axes else x.clone()


# Operator: function, whether an empty list of axes means all of them.
_TABLE: dict[str, tuple[Reduce, bool]] = {
    "ReduceSum": (_sum, False),
    "ReduceMean": (_mean, False),
    "ReduceMax": (torch.amax, False),
    "ReduceMin": (torch.amin, False),
    "ReduceProd": (_prod, False),
    "ReduceAll": (_all, True),
    "ReduceAny": (_any, True),
    "ReduceLogSumExp": (_log_sum_exp, True),
    "ReduceLogSum": (_log_sum, True),
    "EuclideanNorm": (_euclid, False),
}


def _reducer(fn: Reduce, empty_is_all: bool) -> Callable[..., Tensor]:
    def reduce(
        x: Tensor, axes: Any, *, keep_dims: bool = False, noop_with_empty_axes: bool = not empty_is_all
    ) -> Tensor:
        chosen = listed(axes)
        if not chosen and noop_with_empty_axes:
            return x.clone()
        dims = _axes(x, chosen) if chosen else tuple(range(x.dim()))
        if not dims:  # rank 0
            return fn(x.reshape(1), (0,), False)
        return fn(x, dims, keep_dims)

    return reduce


def _direct_reduction(fn: Callable[..., Any], typed: bool) -> PlanHook:
    def hook(ctx: PlanContext) -> Call | None:
        axes, shape = ctx.const("axes"), ctx.shape("x")
        if axes is None or not shape:
            return None
        dims = axes if isinstance(axes, list) else [axes]
        clean = all(-len(shape) <= a < len(shape) for a in dims) and len({a % len(shape) for a in dims}) == len(dims)
        if not dims or not clean:
            return None
        ctx.attr("noop_with_empty_axes")  # says nothing where there are axes
        more = {"dtype": torch_dtype(ctx.out_dtype())} if typed and not ctx.out_dtype().is_float else {}
        return Call(fn, (ctx.tensor("x"), tuple(dims), bool(ctx.attr("keep_dims", False))), more)

    return hook


for _op, (_fn, _all_if_empty) in _TABLE.items():
    kernel(_op, host=("axes",))(_reducer(_fn, _all_if_empty))
    if (
        schema.get(f"{_op}D") is not None
    ):  # ReduceMeanD's header overrides noop_with_empty_axes; others follow the plain form
        kernel(f"{_op}D")(_reducer(_fn, _all_if_empty))

plan("ReduceSum")(_direct_reduction(torch.sum, True))
plan("ReduceMax")(_direct_reduction(torch.amax, False))
plan("ReduceMin")(_direct_reduction(torch.amin, False))


@plan("ReduceMean")
def _mean_plan(ctx: PlanContext) -> Call | None:
    dtype = ctx.dtype("x")
    return _direct_reduction(torch.mean, False)(ctx) if dtype is not None and dtype.is_float else None  # type: ignore[return-value]


@kernel("ReduceMeanWithCast", host=("axes",))
def reduce_mean_with_cast(
    x: Tensor, axes: Any, *, keep_dims: bool = False, noop_with_empty_axes: bool = True,
    dtype: int = DataType.DT_UNDEFINED,
) -> Tensor:  # fmt: skip
    """Cast, then ReduceMean."""
    cast = x if dtype == DataType.DT_UNDEFINED else x.to(torch_dtype(dtype))
    return _reducer(_mean, False)(cast, axes, keep_dims=keep_dims, noop_with_empty_axes=noop_with_empty_axes)


def _dims(x: Tensor, dim: Sequence[int]) -> tuple[int, ...]:
    return _axes(x, list(dim)) if dim else tuple(range(x.dim()))


def _spread(x: Tensor, mean: Tensor, dim: Sequence[int], correction: int, keepdim: bool) -> Tensor:
    """sum((x - mean)²) / max(0, N - correction), in float32 for 16-bit types."""
    dims = _dims(x, dim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    square = torch.square(wide(x) - wide(mean))
    total = torch.sum(square, dims, keepdim) if dims else square
    return total / max(0, count - correction)


@kernel("ReduceStdV2", source="two passes; N <= correction divides by zero")
def reduce_std_v2(
    x: Tensor, *, dim: Sequence[int] = (), correction: int = 1, keepdim: bool = False, is_mean_out: bool = True
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    dims = _dims(x, dim)
    mean = torch.mean(wide(x), dims, True)
    std = torch.sqrt(_spread(x, mean, dim, correction, keepdim)).to(x.dtype)
    return std, mean.reshape(std.shape).to(x.dtype)


@kernel("ReduceVar", source="operator prototypes of CANN 2026; as ReduceStdV2, without the root")
def reduce_var(
    x: Tensor, *, dim: Sequence[int] = (), correction: int = 1, keepdim: bool = False, is_mean_out: bool = True
) -> tuple[Tensor, Tensor]:
    """Variance and mean."""
    mean = torch.mean(wide(x), _dims(x, dim), True)
    var = _spread(x, mean, dim, correction, keepdim).to(x.dtype)
    return var, mean.reshape(var.shape).to(x.dtype)


@kernel("ReduceStd")
def reduce_std(
    x: Tensor, *, dim: Sequence[int] = (), unbiased: bool = True, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    return reduce_std_v2(x, dim=dim, correction=int(unbiased), keepdim=keepdim)


@kernel("ReduceStdV2Update", source="the given mean is used, not computed again")
def reduce_std_v2_update(
    x: Tensor, mean: Tensor, *, dim: Sequence[int], if_std: bool = False, unbiased: bool = True, keepdim: bool = False,
    correction: int = 1,
) -> Tensor:  # fmt: skip
    """Variance, or standard deviation, around a mean."""
    var = _spread(x, mean, dim, correction if unbiased else 0, keepdim)
    return (torch.sqrt(var) if if_std else var).to(x.dtype)


@kernel("ReduceStdWithMean", source="the square root is taken although the header speaks of a variance")
def reduce_std_with_mean(
    x: Tensor, mean: Tensor, *, dim: Sequence[int] = (), unbiased: bool = True, keepdim: bool = False,
    invert: bool = False, epsilon: float = 0.001, correction: int = 1,
) -> Tensor:  # fmt: skip
    """Standard deviation around a mean, or 1 / sqrt(variance + epsilon)."""
    var = _spread(x, mean, dim, correction if unbiased else 0, keepdim)
    return (torch.rsqrt(var + epsilon) if invert else torch.sqrt(var)).to(x.dtype)


@kernel("ReduceMeanVariance")
def reduce_mean_variance(x: Tensor, *, axes: Sequence[int] = (), keep_dims: bool = True) -> tuple[Tensor, Tensor]:
    """Mean and variance with divisor N."""
    dims = _dims(x, axes)
    mean = torch.mean(wide(x), dims, True)
    variance = _spread(x, mean, axes, 0, keep_dims)
    return mean.reshape(variance.shape).to(x.dtype), variance.to(x.dtype)


@kernel("Trace", source="operator header: integers are summed as 64-bit integers")
def trace(x: Tensor) -> Tensor:
    """Sum of the diagonal of a matrix."""
    diagonal = torch.diagonal(wide(x))
    return torch.sum(diagonal).to(x.dtype) if x.is_floating_point() or x.is_complex() else torch.sum(diagonal)


# Positions of extrema


@kernel("ArgMaxV2", "ArgMaxD", host=("dimension",))
def arg_max(x: Tensor, dimension: Any, *, dtype: int = DataType.DT_INT64) -> Tensor:
    """Position of the first largest element along an axis; NaN is largest."""
    return torch.argmax(x, one(dimension)).to(torch_dtype(dtype))


@kernel("ArgMin", "ArgMinD", host=("dimension",))
def arg_min(x: Tensor, dimension: Any, *, dtype: int = DataType.DT_INT64) -> Tensor:
    """Position of the first smallest element along an axis; NaN is smallest."""
    return torch.argmin(x, one(dimension)).to(torch_dtype(dtype))


@kernel("ArgMaxWithValue", source="outputs in order position (int32), value")
def arg_max_with_value(x: Tensor, *, dimension: int, keep_dims: bool = False) -> tuple[Tensor, Tensor]:
    """Position and value of the largest element along an axis."""
    place = torch.argmax(x, dimension, True)
    return _at(x, place, dimension, keep_dims)


@kernel("ArgMinWithValue", source="outputs in order position (int32), value")
def arg_min_with_value(x: Tensor, *, dimension: int, keep_dims: bool = False) -> tuple[Tensor, Tensor]:
    """Position and value of the smallest element along an axis."""
    place = torch.argmin(x, dimension, True)
    return _at(x, place, dimension, keep_dims)


def _at(x: Tensor, place: Tensor, dim: int, keep: bool) -> tuple[Tensor, Tensor]:
    value = torch.gather(x, dim, place)
    if not keep and x.dim():
        place, value = place.squeeze(dim), value.squeeze(dim)
    return place.to(torch.int32), value


# Running sums


def _running(fn: Callable[[Tensor, int], Tensor], neutral: float) -> Callable[..., Tensor]:
    def run(x: Tensor, axis: Any, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
        if x.dim() == 0:
            return torch.full_like(x, neutral) if exclusive else x.clone()
        dim = one(axis)
        source = torch.flip(x, (dim,)) if reverse else x
        if exclusive:
            first = torch.full_like(source.narrow(dim, 0, min(1, source.shape[dim])), neutral)
            source = torch.cat([first, source.narrow(dim, 0, max(source.shape[dim] - 1, 0))], dim)
        result = fn(source, dim)
        return torch.flip(result, (dim,)) if reverse else result

    return run


def _log_cumsum_exp(x: Tensor, dim: int) -> Tensor:
    return torch.logcumsumexp(wide(x), dim).to(x.dtype)


for _name, _function, _neutral in (
    ("Cumsum", lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), 0.0),
    ("Cumprod", lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), 1.0),
    ("CumulativeLogsumexp", _log_cumsum_exp, float("-inf")),
):
    kernel(_name, f"{_name}D", host=("axis",))(_running(_function, _neutral))


@kernel("Cummax")
def cummax(x: Tensor, *, dim: int) -> tuple[Tensor, Tensor]:
    """Running maximum and where it stands."""
    values, places = torch.cummax(x, dim)
    return values, places


@kernel("Cummin")
def cummin(x: Tensor, *, axis: int) -> tuple[Tensor, Tensor]:
    """Running minimum and where it stands."""
    values, places = torch.cummin(x, axis)
    return values, places
