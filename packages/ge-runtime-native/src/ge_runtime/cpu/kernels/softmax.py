"""Softmax, its logarithm and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ge_runtime.cpu import torch_compat
from ge_runtime.cpu.kernels.numerics import axis_list, wide
from ge_runtime.cpu.limits import ensure_sizes
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows

_ATEN = torch.ops.aten
_HEADER = "operator header: nn_norm_ops"


def _over(fn: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Softmax or log_softmax jointly over several axes: they are moved to the end and joined."""
    axes = axis_list(axes, x.dim())
    moved = wide(x).movedim(axes, list(range(-len(axes), 0)))
    flat = moved.reshape(*moved.shape[: x.dim() - len(axes)], -1)
    y = getattr(torch, fn)(flat, -1).reshape(moved.shape)
    return y.movedim(list(range(-len(axes), 0)), axes).to(x.dtype)


@kernel("SoftmaxV2", source=_HEADER)
def softmax_v2(x: Tensor, *, axes: Sequence[int] = (-1,), half_to_float: bool = False) -> Tensor:
    """exp(x - max) / sum over ``axes``; half_to_float widens a float16 result."""
    dtype = torch.float32 if half_to_float and x.dtype == torch.float16 else None
    if len(axes) == 1:
        return torch.softmax(x, axes[0], dtype=dtype)
    return _over("softmax", x if dtype is None else x.float(), axes)


@plan("SoftmaxV2")
def _plan_softmax(ctx: PlanContext) -> Call | None:
    axes = list(ctx.attr("axes", [-1]))
    if len(axes) != 1 or ctx.attr("half_to_float", False):
        return None
    return Call(torch_compat.softmax, (ctx.tensor("x"), axes[0], False))


rows(
    {  # x - max - log(sum(exp(x - max)))
        "LogSoftmaxV2": lambda logits, *, axes=(-1,): (
            torch.log_softmax(logits, axes[0]) if len(axes) == 1 else _over("log_softmax", logits, axes)
        ),
    },
    source=_HEADER,
)


@plan("LogSoftmaxV2")
def _plan_log_softmax(ctx: PlanContext) -> Call | None:
    axes = list(ctx.attr("axes", [-1]))
    return Call(torch_compat.log_softmax, (ctx.tensor("logits"), axes[0], False)) if len(axes) == 1 else None


def _log_softmax_backward(g: Tensor, y: Tensor, axes: Sequence[int]) -> Tensor:
    """``g - exp(y) * sum(g)`` of the forward output y."""
    ensure_sizes("LogSoftmaxGrad", "grad", g, y.shape)
    if len(axes) == 1 and y.dim() and y.dtype == g.dtype:
        return _ATEN._log_softmax_backward_data.default(g, y, axes[0], g.dtype)  # type: ignore[no-any-return]
    y32, g32 = wide(y), wide(g)
    total = g32.sum(axis_list(axes, y.dim()), keepdim=True) if y.dim() else g32
    return (g32 - y32.exp() * total).to(g.dtype)


def _softmax_backward(y: Tensor, g: Tensor, axes: Sequence[int]) -> Tensor:
    """``(g - sum(g * y)) * y`` of the forward output y."""
    ensure_sizes("SoftmaxGrad", "grad_softmax", g, y.shape)
    if len(axes) == 1 and y.dim() and y.dtype == g.dtype and y.is_floating_point():
        return _ATEN._softmax_backward_data.default(g, y, axes[0], y.dtype)  # type: ignore[no-any-return]
    y32, g32 = wide(y), wide(g)
    total = (g32 * y32).sum(axis_list(axes, y.dim()), keepdim=True) if y.dim() else g32 * y32
    return ((g32 - total) * y32).to(y.dtype)


rows(
    {
        "SoftmaxGrad": lambda softmax, grad_softmax, *, axes=(-1,): _softmax_backward(softmax, grad_softmax, axes),
        "LogSoftmaxGrad": lambda grad, x, *, axis=(-1,): _log_softmax_backward(grad, x, axis),  # x: the forward output
    },
    source=_HEADER,
)


@kernel("MaskedSoftmaxWithRelPosBias", source="ops-nn: norm/masked_softmax_with_rel_pos_bias, documentation")
def masked_softmax_with_rel_pos_bias(
    x: Tensor,
    atten_mask: Tensor | None = None,
    relative_pos_bias: Tensor | None = None,
    *,
    scale_value: float = 1.0,
    inner_precision_mode: int = 0,
) -> Tensor:
    """Softmax over the last axis of ``scale_value * x + mask + bias``; a 4-d x joins batch and window."""
    scores = wide(x) * scale_value
    heads, rows, columns = x.shape[-3:]
    if atten_mask is not None:
        mask = wide(atten_mask).reshape(-1, atten_mask.shape[-2], atten_mask.shape[-1])
        windows = mask.shape[0]
        scores = scores.reshape(-1, windows, heads, rows, columns) + mask.reshape(1, windows, 1, rows, columns)
    if relative_pos_bias is not None:
        scores = scores.reshape(-1, heads, rows, columns) + wide(relative_pos_bias).reshape(heads, rows, columns)
    return torch.softmax(scores, -1).reshape(x.shape).to(x.dtype)
