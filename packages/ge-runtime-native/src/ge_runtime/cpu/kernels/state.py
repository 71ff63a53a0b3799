"""Operators that hand values on, or write into a variable or graph input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime import errors
from ge_runtime.cpu.registry import Call, PlanContext, Ref, kernel, plan
from ge_runtime.cpu.text import decode
from ge_runtime.cpu.values import listed, one


@kernel("Identity", "Snapshot", "StopGradient", "TensorRedirect", "PreventGradient", views=True)
def identity(x: Tensor) -> Tensor:
    """x itself; the planner copies where it would leave the graph as somebody else's memory."""
    return x


@plan("Identity", "Snapshot", "StopGradient", "TensorRedirect", "PreventGradient")
def _identity_plan(ctx: PlanContext) -> Ref:
    x: Ref = ctx.tensor(ctx.ports[0])
    return x


@kernel("IdentityN", views=True)
def identity_n(x: list[Tensor]) -> tuple[Tensor, ...]:
    """Each tensor itself."""
    return tuple(x)


@kernel("TensorMove")
def tensor_move(x: Tensor) -> Tensor:
    """A copy, dense in row-major order."""
    return x.clone(memory_format=torch.contiguous_format)


@kernel("Copy", ignores=("N",))
def copy(x: Tensor, *, N: int) -> tuple[Tensor, ...]:
    """N copies."""
    return tuple(x.clone() for _ in range(N))


@kernel("Assign", updates=("ref",), ignores=("validate_shape", "use_locking"))
def assign(ref: Tensor, value: Tensor) -> Tensor:
    """Write value into ref."""
    return ref.copy_(_fitting("Assign", ref, value))


@kernel("AssignAdd", updates=("ref",), ignores=("use_locking",))
def assign_add(ref: Tensor, value: Tensor) -> Tensor:
    """ref += value."""
    return ref.add_(_fitting("AssignAdd", ref, value))


@kernel("AssignSub", updates=("var",), ignores=("use_locking",))
def assign_sub(var: Tensor, value: Tensor) -> Tensor:
    """var -= value."""
    return var.sub_(_fitting("AssignSub", var, value))


def _fitting(op: str, ref: Tensor, value: Tensor) -> Tensor:
    if ref.shape != value.shape or ref.dtype is not value.dtype:
        raise errors.refused(op, f"value {value.dtype}{list(value.shape)} does not match {ref.dtype}{list(ref.shape)}")
    return value


@kernel("InplaceUpdate", source="x[indices] = v; the result is the whole x")
def inplace_update(x: Tensor, indices: Tensor, v: Tensor) -> Tensor:
    """x with rows replaced."""
    return x.index_copy(0, indices.to(torch.int64).reshape(-1), v)


@kernel("InplaceAdd")
def inplace_add(x: Tensor, indices: Tensor, v: Tensor) -> Tensor:
    """x with rows added to."""
    return x.index_add(0, indices.to(torch.int64).reshape(-1), v)


@kernel("InplaceSub")
def inplace_sub(x: Tensor, indices: Tensor, v: Tensor) -> Tensor:
    """x with rows subtracted from."""
    return x.index_add(0, indices.to(torch.int64).reshape(-1), v, alpha=-1)


@kernel("Scatter", updates=("var",), source="blocks of updates at per-batch offsets along axis: a KV cache update")
def scatter(var: Tensor, indices: Tensor, updates: Tensor, *, reduce: str, axis: int = 0) -> Tensor:
    """var[row, …, offset + k, …] = updates[i, …, k, …]; indices give offsets [B] or (row, offset) pairs [B, 2]."""
    if reduce not in ("update", b"update"):
        raise errors.refused("Scatter", f"reduce {reduce!r}; accepted: update")
    dim = axis % var.dim()
    if indices.dim() == 0 or dim == 0:
        var.narrow(dim, int(indices.reshape(-1)[0]), updates.shape[dim]).copy_(updates)
        return var
    places = indices.tolist() if indices.dim() == 2 else [(i, o) for i, o in enumerate(indices.tolist())]
    for i, (row, offset) in enumerate(places):
        var[row].narrow(dim - 1, offset, updates.shape[dim]).copy_(updates[i])
    return var


@kernel(
    "ViewCopy", updates=("dst",),
    host=("dst_size", "dst_stride", "dst_storage_offset", "src_size", "src_stride", "src_storage_offset"),
)  # fmt: skip
def view_copy(
    dst: Tensor, dst_size: Any, dst_stride: Any, dst_storage_offset: Any, src: Tensor, src_size: Any, src_stride: Any,
    src_storage_offset: Any,
) -> Tensor:  # fmt: skip
    """Elements of a strided view of src into a strided view of dst; both are flat storages in row-major order."""
    flat = dst.reshape(-1)
    target = _strided(flat, dst_size, dst_stride, dst_storage_offset)
    target.copy_(_strided(src.reshape(-1), src_size, src_stride, src_storage_offset))
    return dst if flat.data_ptr() == dst.data_ptr() and dst.is_contiguous() else dst.copy_(flat.reshape(dst.shape))


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
    if not bool(condition.all()):
        shown = [decode(t) if text else str(t.reshape(-1)[:summarize].tolist()) for t, text in zip(data, texts)]
        raise errors.refused("Assert", "; ".join(["condition is false", *shown]))


@kernel("Cmo", ignores=("max_size", "type", "offset"))
def cmo(src: Tensor) -> None:
    """A cache hint: no effect on values."""


@kernel("Print")
def print_(x: Sequence[Tensor] | Tensor) -> None:
    """Write the values to standard error."""
    import sys

    for value in x if isinstance(x, list) else [x]:
        sys.stderr.write(f"{value}\n")
