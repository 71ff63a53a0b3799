"""Reductions, running sums, extrema with positions.

``axes`` is a tensor (or an attribute in the D forms); for an empty list the operators differ: ReduceAll, ReduceAny
and ReduceLogSumExp reduce everything, the others reduce nothing. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_runtime.cpu.kernels.numerics import rounded, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, PlanHook, kernel, plan, rows
from ge_runtime.cpu.values import listed, one, torch_dtype
from ge_runtime.errors import refused

Reduce = Callable[[Tensor, "tuple[int, ...]", bool], Tensor]


def _axes(x: Tensor, axes: Any) -> tuple[int, ...]:
    """Normalised axes, each once; rank 0 tolerates 0 and -1."""
    if x.dim() == 0:
        return ()
    normalised = []
    for a in listed(axes):
        if not -x.dim() <= a < x.dim():
            raise refused("Reduce", f"axis {a} is outside of {x.dim()} dims")
        normalised.append(a % x.dim())
    return tuple(dict.fromkeys(normalised))


def _volume(x: Tensor, axes: Sequence[int]) -> int:
    return math.prod(x.shape[a] for a in axes)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        return torch.mean(x, axes, keep)
    return torch.div(torch.sum(x, axes, keep), _volume(x, axes), rounding_mode="trunc").to(x.dtype)


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for a in sorted(axes, reverse=True):
        x = torch.prod(x, a, keep, dtype=x.dtype)
    return x


# Operator: function, whether an empty list of axes means all of them.
_TABLE: dict[str, tuple[Reduce, bool]] = {
    "ReduceSum": (lambda x, axes, keep: torch.sum(x, axes, keep, dtype=x.dtype), False),
    "ReduceMean": (_mean, False),
    "ReduceMax": (torch.amax, False),
    "ReduceMin": (torch.amin, False),
    "ReduceProd": (_prod, False),
    "ReduceAll": (torch.all, True),
    "ReduceAny": (torch.any, True),
    # Plainly: the operator takes no maximum out of the sum, so exponentials above 88 overflow in float32.
    "ReduceLogSumExp": (rounded(lambda x, axes, keep: torch.log(torch.sum(torch.exp(x), axes, keep))), True),
    "ReduceLogSum": (rounded(lambda x, axes, keep: torch.log(torch.sum(x, axes, keep))), True),
    "EuclideanNorm": (rounded(lambda x, axes, keep: torch.sqrt(torch.sum(torch.square(x), axes, keep))), False),
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


def _direct_reduction(fn: Callable[..., Any], *, typed: bool = False, floats: bool = False) -> PlanHook:
    """``fn`` itself where the axes are known; ``typed`` tells it an integer result, ``floats`` takes floats alone."""

    def hook(ctx: PlanContext) -> Call | None:
        axes, shape, dtype = ctx.const("axes"), ctx.shape("x"), ctx.dtype("x")
        if axes is None or not shape or (floats and (dtype is None or not dtype.is_float)):
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
    rows({_op: _reducer(_fn, _all_if_empty)}, host=("axes",))
    if schema.get(f"{_op}D") is not None:  # ReduceMeanD's header overrides noop_with_empty_axes; others follow this
        rows({f"{_op}D": _reducer(_fn, _all_if_empty)})

plan("ReduceSum")(_direct_reduction(torch.sum, typed=True))
plan("ReduceMax")(_direct_reduction(torch.amax))
plan("ReduceMin")(_direct_reduction(torch.amin))
plan("ReduceMean")(_direct_reduction(torch.mean, floats=True))


@kernel("ReduceMeanWithCast", host=("axes",))
def reduce_mean_with_cast(
    x: Tensor,
    axes: Any,
    *,
    keep_dims: bool = False,
    noop_with_empty_axes: bool = True,
    dtype: int = DataType.DT_UNDEFINED,
) -> Tensor:
    """Cast, then ReduceMean."""
    cast = x if dtype == DataType.DT_UNDEFINED else x.to(torch_dtype(dtype))
    return _reducer(_mean, False)(cast, axes, keep_dims=keep_dims, noop_with_empty_axes=noop_with_empty_axes)


def _dims(x: Tensor, dim: Sequence[int]) -> tuple[int, ...]:
    return _axes(x, list(dim)) if dim else tuple(range(x.dim()))


def _around(x: Tensor, mean: Tensor, dim: Sequence[int], correction: int, keepdim: bool) -> Tensor:
    """sum((x - mean)²) / max(0, N - correction), in float32 for 16-bit types; N <= correction divides by zero."""
    dims = _dims(x, dim)
    square = torch.square(wide(x) - wide(mean))
    return (torch.sum(square, dims, keepdim) if dims else square) / max(0, _volume(x, dims) - correction)


def _spread(
    x: Tensor, dim: Sequence[int], correction: int, keepdim: bool, root: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Variance, or its root, and mean."""
    mean = torch.mean(wide(x), _dims(x, dim), True)
    spread = _around(x, mean, dim, correction, keepdim)
    return (spread if root is None else root(spread)).to(x.dtype), mean.reshape(spread.shape).to(x.dtype)


_CANN_2026 = "operator prototypes of CANN 2026"
rows(
    {
        "ReduceStdV2": lambda x, *, dim=(), correction=1, keepdim=False, is_mean_out=True: _spread(
            x, dim, correction, keepdim, torch.sqrt
        ),
        "ReduceVar": lambda x, *, dim=(), correction=1, keepdim=False, is_mean_out=True: _spread(
            x, dim, correction, keepdim
        ),
        "ReduceStd": lambda x, *, dim=(), unbiased=True, keepdim=False: _spread(
            x, dim, int(unbiased), keepdim, torch.sqrt
        ),
    },
    source=_CANN_2026,
)


# The given mean is used, not computed again.
@kernel("ReduceStdV2Update")
@rounded
def reduce_std_v2_update(
    x: Tensor,
    mean: Tensor,
    *,
    dim: Sequence[int],
    if_std: bool = False,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: int = 1,
) -> Tensor:
    """Variance, or standard deviation, around a mean."""
    var = _around(x, mean, dim, correction if unbiased else 0, keepdim)
    return torch.sqrt(var) if if_std else var


@kernel("ReduceStdWithMean", source="the square root is taken although the header speaks of a variance")
@rounded
def reduce_std_with_mean(
    x: Tensor,
    mean: Tensor,
    *,
    dim: Sequence[int] = (),
    unbiased: bool = True,
    keepdim: bool = False,
    invert: bool = False,
    epsilon: float = 0.001,
    correction: int = 1,
) -> Tensor:
    """Standard deviation around a mean, or 1 / sqrt(variance + epsilon)."""
    var = _around(x, mean, dim, correction if unbiased else 0, keepdim)
    return torch.rsqrt(var + epsilon) if invert else torch.sqrt(var)


@kernel("Trace", source="operator header: integers are summed as 64-bit integers")
def trace(x: Tensor) -> Tensor:
    """Sum of the diagonal of a matrix."""
    diagonal = torch.diagonal(wide(x))
    return torch.sum(diagonal).to(x.dtype) if x.is_floating_point() or x.is_complex() else torch.sum(diagonal)


# Positions of extrema; NaN is one.


def _place(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The first one's position along an axis."""

    def run(x: Tensor, dimension: Any, *, dtype: int = DataType.DT_INT64) -> Tensor:
        return fn(x, one(dimension)).to(torch_dtype(dtype))

    return run


def _place_and_value(fn: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The first one's position (int32) along an axis, and its value."""

    def run(x: Tensor, *, dimension: int, keep_dims: bool = False) -> tuple[Tensor, Tensor]:
        place = fn(x, dimension, True)
        value = torch.gather(x, dimension, place)
        if not keep_dims and x.dim():
            place, value = place.squeeze(dimension), value.squeeze(dimension)
        return place.to(torch.int32), value

    return run


rows({"ArgMaxV2": _place(torch.argmax), "ArgMin": _place(torch.argmin)}, host=("dimension",))
rows(  # the port knows int32 alone, whatever the attribute dtype says
    {
        "ArgMaxD": lambda x, *, dimension: torch.argmax(x, dimension).to(torch.int32),
        "ArgMinD": lambda x, *, dimension: torch.argmin(x, dimension).to(torch.int32),
    },
    ignores=("dtype",),
)
rows(
    {
        "ArgMaxWithValue": _place_and_value(torch.argmax),
        "ArgMinWithValue": _place_and_value(torch.argmin),
        "Cummax": lambda x, *, dim: tuple(torch.cummax(x, dim)),
        "Cummin": lambda x, *, axis: tuple(torch.cummin(x, axis)),
    }
)


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


rows(
    {
        "Cumsum CumsumD": _running(lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), 0.0),
        "Cumprod CumprodD": _running(lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), 1.0),
        "CumulativeLogsumexp CumulativeLogsumexpD": _running(rounded(torch.logcumsumexp), float("-inf")),
    },
    host=("axis",),
)
