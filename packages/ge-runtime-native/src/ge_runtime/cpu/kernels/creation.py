"""Operators that make tensors from sizes and numbers, or tell sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, Ref, kernel, plan, rows
from ge_runtime.cpu.values import listed, of_numbers, one, torch_dtype
from ge_runtime.errors import refused


def _sizes(x: Tensor, dtype: int) -> Tensor:
    return of_numbers(list(x.shape), torch_dtype(dtype))


rows(
    {
        "Shape": lambda x, *, dtype=DataType.DT_INT32: _sizes(x, dtype),
        "ShapeN": lambda x, *, dtype=DataType.DT_INT32: tuple(_sizes(v, dtype) for v in x),
        "GetShape": lambda x: of_numbers([s for v in x for s in v.shape], torch.int32),  # of all in one vector
        "Size": lambda x, *, dtype=DataType.DT_INT32: of_numbers(x.numel(), torch_dtype(dtype)),
        "Rank": lambda x: torch.tensor(x.dim(), dtype=torch.int32),
        "ZerosLike": lambda x: torch.zeros(x.shape, dtype=x.dtype),
        "OnesLike": lambda x: torch.ones(x.shape, dtype=x.dtype),
    }
)


rows(
    {  # a single number as dims gives rank 1
        "Fill FillD": lambda dims, value: (
            value.reshape(()).expand(listed(dims)).clone(memory_format=torch.contiguous_format)
        ),
    },
    host=("dims",),
)
# Undefined contents are made reproducible: zeros.
rows(
    {"Empty": lambda shape, *, dtype=DataType.DT_INT32: torch.zeros(listed(shape), dtype=torch_dtype(dtype))},
    host=("shape",),
    ignores=("init",),
)


@plan("Fill")
def _fill_plan(ctx: PlanContext) -> Call | None:
    dims, value = ctx.host("dims"), ctx.const("value")
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if dims is None or isinstance(value, list) or value is None:
        return None
    sizes = tuple(dims) if isinstance(dims, list) else (dims,)
    return Call(torch.full, (sizes, value), {"dtype": torch_dtype(ctx.out_dtype())})


@kernel("FillV2D")
def fill_v2_d(*, dims: Sequence[int], value: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A constant; the plan hook supplies the type, which the result's edge says."""
    return torch.full(tuple(dims), value).to(dtype)


@plan("FillV2D")
def _fill_v2_d_plan(ctx: PlanContext) -> Call:
    numbers = {"dims": ctx.attr("dims"), "value": ctx.attr("value", 0.0)}
    return Call(fill_v2_d, (), {**numbers, "dtype": torch_dtype(ctx.out_dtype())})


@kernel("Eye")
def eye(
    *, num_rows: int, num_columns: int = 0, batch_shape: Sequence[int] = (), dtype: int = DataType.DT_FLOAT
) -> Tensor:
    """Identity matrices; no columns given means square."""
    one_matrix = torch.eye(num_rows, num_columns or num_rows, dtype=torch_dtype(dtype))
    return one_matrix.expand([*batch_shape, *one_matrix.shape]).clone(memory_format=torch.contiguous_format)


def range_length(start: float, limit: float, delta: float, closed: bool = False) -> int:
    """How many elements a Range has.

    Errors:
        EngineError GE4009 if delta is 0 or points away from the limit.
    """
    if delta == 0 or (limit - start) * delta < 0:
        raise refused("Range", f"from {start} to {limit} by {delta} does not end")
    if closed:
        return math.trunc((limit - start) / delta) + 1
    if all(isinstance(v, int) for v in (start, limit, delta)):
        return -((start - limit) // delta)  # type: ignore[return-value]
    return math.ceil((limit - start) / delta)


@kernel("Range", host=("start", "limit", "delta"), source="element i is start + i * delta")
def range_(start: Any, limit: Any, delta: Any, *, is_closed: bool = False, dtype: torch.dtype = torch.int64) -> Tensor:
    """start, start + delta, … below limit; the plan hook supplies the type."""
    first, last, step = (v[0] if isinstance(v, list) else v for v in (start, limit, delta))
    count = range_length(first, last, step, is_closed)
    if dtype.is_floating_point:
        return (torch.arange(count, dtype=torch.float64) * step + first).to(dtype)
    return torch.arange(first, first + count * step, step, dtype=dtype) if count else torch.zeros(0, dtype=dtype)


@plan("Range")
def _range_plan(ctx: PlanContext) -> Call:
    args = []
    for port in ("start", "limit", "delta"):
        known = ctx.host(port)
        known = ctx.const(port) if known is None else known
        args.append(Call(Tensor.tolist, (ctx.tensor(port),)) if known is None else known)
    dtype = torch_dtype(ctx.out_dtype())
    plain = [a[0] if isinstance(a, list) and len(a) == 1 else a for a in args]
    if not ctx.attr("is_closed", False) and plain[0] == 0 and plain[2] == 1 and isinstance(plain[1], (int, Ref)):
        return Call(torch.arange, (plain[1],), {"dtype": dtype})
    return Call(range_, tuple(args), {"is_closed": bool(ctx.attr("is_closed", False)), "dtype": dtype})


@kernel("LinSpace", source="step (stop - start) / (num - 1), the last element is stop; num 1 gives start")
def lin_space(start: Tensor, stop: Tensor, num: Tensor) -> Tensor:
    """num evenly spaced values from start to stop inclusive."""
    count = int(num.reshape(()))
    if count < 0:
        raise refused("LinSpace", f"num is {count}")
    return torch.linspace(start.reshape(()).item(), stop.reshape(()).item(), count, dtype=start.dtype)


@kernel("OneHot", "OneHotD", host=("depth",))
def one_hot(x: Tensor, depth: Any, on_value: Tensor, off_value: Tensor, *, axis: int = -1) -> Tensor:
    """on_value where the new axis equals x, else off_value; numbers outside [0, depth) give off_value throughout."""
    place = x.dim() if axis == -1 else axis
    steps = torch.arange(one(depth), dtype=x.dtype).reshape([-1] + [1] * (x.dim() - place))
    return torch.where(x.unsqueeze(place) == steps, on_value.reshape(()), off_value.reshape(()))
