"""Operators that hand values on, or write into a variable or graph input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu import torch_compat
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, Ref, kernel, plan, rows
from ge_runtime.cpu.text import decode
from ge_runtime.cpu.values import listed, one, traced
from ge_runtime.errors import refused

_HANDED_ON = ("Identity", "Snapshot", "StopGradient", "TensorRedirect", "PreventGradient")
# The planner copies where the operand would leave the graph as somebody else's memory.
rows(dict.fromkeys(_HANDED_ON, lambda x: x), views=True)


@plan(*_HANDED_ON)
def _identity_plan(ctx: PlanContext) -> Ref:
    x: Ref = ctx.tensor(ctx.ports[0])
    return x


rows({"IdentityN": lambda x: tuple(x)}, views=True)
rows({"TensorMove": lambda x: x.clone(memory_format=torch.contiguous_format)})  # dense in row-major order
rows({"Copy": lambda x, *, N: tuple(x.clone() for _ in range(N))})
rows({"Cmo": lambda src: None}, ignores=("max_size", "type", "offset"))  # a cache hint


def _fitting(op: str, ref: Tensor, value: Tensor) -> Tensor:
    if ref.shape != value.shape or ref.dtype is not value.dtype:
        raise refused(op, f"value {value.dtype}{list(value.shape)} does not match {ref.dtype}{list(ref.shape)}")
    return value


rows(
    {"Assign": lambda ref, value: ref.copy_(_fitting("Assign", ref, value))},
    updates=("ref",),
    ignores=("validate_shape", "use_locking"),
)
rows(
    {"AssignAdd": lambda ref, value: ref.add_(_fitting("AssignAdd", ref, value))},
    updates=("ref",),
    ignores=("use_locking",),
)
rows(
    {"AssignSub": lambda var, value: var.sub_(_fitting("AssignSub", var, value))},
    updates=("var",),
    ignores=("use_locking",),
)


def _rows_of(indices: Tensor) -> Tensor:
    return indices.to(torch.int64).reshape(-1)


# x with rows replaced, added to, subtracted from; the result is the whole x.
rows(
    {
        "InplaceUpdate": lambda x, indices, v: x.index_copy(0, _rows_of(indices), v),
        "InplaceAdd": lambda x, indices, v: x.index_add(0, _rows_of(indices), v),
        "InplaceSub": lambda x, indices, v: x.index_add(0, _rows_of(indices), v, alpha=-1),
    }
)


@kernel("Scatter", updates=("var",), source="blocks of updates at per-batch offsets along axis: a KV cache update")
def scatter(var: Tensor, indices: Tensor, updates: Tensor, *, reduce: str, axis: int = 0) -> Tensor:
    """var[row, …, offset + k, …] = updates[i, …, k, …]; indices give offsets [B] or (row, offset) pairs [B, 2]."""
    if reduce not in ("update", b"update"):
        raise refused("Scatter", f"reduce {reduce!r}; accepted: update")
    dim = axis % var.dim()
    if indices.dim() == 0 or dim == 0:
        var.narrow(dim, int(indices.reshape(-1)[0]), updates.shape[dim]).copy_(updates)
        return var
    places = indices.tolist() if indices.dim() == 2 else [(i, o) for i, o in enumerate(indices.tolist())]
    for i, (row, offset) in enumerate(places):
        var[row].narrow(dim - 1, offset, updates.shape[dim]).copy_(updates[i])
    return var


@kernel(
    "ViewCopy",
    updates=("dst",),
    host=("dst_size", "dst_stride", "dst_storage_offset", "src_size", "src_stride", "src_storage_offset"),
)
def view_copy(
    dst: Tensor,
    dst_size: Any,
    dst_stride: Any,
    dst_storage_offset: Any,
    src: Tensor,
    src_size: Any,
    src_stride: Any,
    src_storage_offset: Any,
) -> Tensor:
    """Elements of a strided view of src into a strided view of dst; both are flat storages in row-major order."""
    flat = dst.contiguous().view(-1)
    target = _strided(flat, dst_size, dst_stride, dst_storage_offset)
    target.copy_(_strided(src.contiguous().view(-1), src_size, src_stride, src_storage_offset))
    return dst if dst.is_contiguous() else dst.copy_(flat.reshape(dst.shape))


def _strided(flat: Tensor, size: Any, stride: Any, offset: Any) -> Tensor:
    return torch.as_strided(flat, listed(size), listed(stride), flat.storage_offset() + one(offset))


@kernel("Assert")
def assert_(input_condition: Tensor, input_data: list[Tensor], *, summarize: int = 3) -> None:
    """Stop with the data if a condition is false."""
    _checked(input_condition, input_data, [False] * len(input_data), summarize)


@plan("Assert")
def _plan_assert(ctx: Any) -> Call:
    texts = [t.dtype is DataType.DT_STRING for t in list(ctx.node.operands())[1:]]
    return Call(_checked, (ctx.tensor("input_condition"), ctx.tensor("input_data"), texts, ctx.attr("summarize", 3)))


def _checked(condition: Tensor, data: list[Tensor], texts: list[bool], summarize: int) -> None:
    if traced(condition):  # the text of the data cannot be made in compiled code
        torch_compat.require(condition.all(), "Assert: condition is false")
    elif not bool(condition.all()):
        shown = [decode(t) if text else str(t.reshape(-1)[:summarize].tolist()) for t, text in zip(data, texts)]
        raise refused("Assert", "; ".join(["condition is false", *shown]))


@kernel("Print")
def print_(x: Sequence[Tensor] | Tensor) -> None:
    """Write the values to standard error."""
    for value in x if isinstance(x, list) else [x]:
        sys.stderr.write(f"{value}\n")
