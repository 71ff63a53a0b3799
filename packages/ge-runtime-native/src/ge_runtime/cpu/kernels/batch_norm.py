"""Batch normalisation: whole, in its reduce and update halves, across devices, and the gradients of each.

Channels are axis 1, or the last axis when the descriptor of the data says NHWC or NDHWC.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ge_graph import schema as schemas
from ge_graph.dtypes import DataType, Format
from ge_runtime.cpu.kernels.numerics import HALVES, rounded, wide
from ge_runtime.cpu.limits import ensure_elements, ensure_sizes
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, find, kernel, parameters, plan, rows
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_HEADER = "operator header: nn_batch_norm_ops, reduce_ops"
_LAST = (Format.FORMAT_NHWC, Format.FORMAT_NDHWC)


def _others(x: Tensor, channel: int) -> list[int]:
    axis = channel % x.dim()
    return [i for i in range(x.dim()) if i != axis]


def _view(x: Tensor, v: Tensor, channel: int) -> Tensor:
    """A per-channel vector shaped to broadcast over ``x``."""
    shape = [1] * x.dim()
    shape[channel] = -1
    return v.reshape(shape).to(wide(x).dtype)


def _affine(x: Tensor, mean: Tensor, rstd: Tensor, scale: Tensor | None, offset: Tensor | None, channel: int) -> Tensor:
    factor = rstd if scale is None else rstd * scale.to(rstd.dtype)
    shift = -mean.to(factor.dtype) * factor
    shift = shift if offset is None else shift + offset.to(factor.dtype)
    return torch.addcmul(_view(x, shift, channel), wide(x), _view(x, factor, channel)).to(x.dtype)


def _normalised(x: Tensor, mean: Tensor, rstd: Tensor, channel: int) -> Tensor:
    return (wide(x) - _view(x, mean, channel)) * _view(x, rstd, channel)


def _count(x: Tensor, channel: int) -> int:
    return x.numel() // max(x.shape[channel], 1)


def _aten_form(x: Tensor, *vectors: Tensor | None) -> list[Tensor | None]:
    """Vectors as ATen reads them beside ``x``: float32 for 16-bit data, one element after the other."""
    dtype = torch.float32 if x.dtype in HALVES else x.dtype
    return [None if v is None else v.to(dtype).contiguous() for v in vectors]


def _ensure_vectors(op: str, x: Tensor, channel: int, **vectors: Tensor) -> None:
    """Refuse vectors that have not one element a channel: ATen believes it."""
    if not -x.dim() <= channel < x.dim():
        raise refused(op, f"channel {channel} of {list(x.shape)}")
    for name, given in vectors.items():
        ensure_elements(op, name, given, x.shape[channel])


def _channel_second(x: Tensor, channel: int) -> Tensor:
    return x if channel == 1 else x.movedim(channel, 1)


@kernel(
    "BatchNormV3", updates=("running_mean", "running_var"), source="ops-nn: norm/batch_norm_v3, documentation, kernel"
)
def batch_norm_v3(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    is_training: bool = True,
    channel: int = 1,
) -> tuple[Tensor, ...]:
    """(y, running_mean, running_var, save_mean, save_rstd).

    In training the running variance takes the unbiased one (factor 1 for a single element); out of training the running
    statistics pass through and the save_ outputs, which the definition leaves open, hold what the result was made with.
    """
    vectors = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    _ensure_vectors("BatchNormV3", x, channel, **vectors)
    w, b, mean, var = _aten_form(x, *vectors.values())
    data = _channel_second(x, channel)
    if not is_training:
        y = torch.native_batch_norm(data, w, b, mean, var, False, momentum, epsilon)[0]
        saved = [running_mean.clone(), torch.rsqrt(running_var + epsilon)]
    elif _count(x, channel) == 1:
        y, saved = _single_element(data, b, epsilon)
        running_mean.lerp_(saved[0].to(running_mean.dtype), momentum)
        running_var.mul_(1 - momentum)
    else:
        y, *saved = torch.native_batch_norm(data, w, b, mean, var, True, momentum, epsilon)
        if mean is not running_mean:  # ATen updated a widened copy
            running_mean.copy_(mean)
        if var is not running_var:
            running_var.copy_(var)
    save_mean, save_rstd = (s.to(running_mean.dtype) for s in saved)
    return y if channel == 1 else y.movedim(1, channel), running_mean, running_var, save_mean, save_rstd


def _single_element(data: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, list[Tensor]]:
    """Training on one element a channel: the variance is 0 and so is the normalised value."""
    mean = wide(data).reshape(-1)
    y = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype).clone()
    return y.reshape(data.shape).to(data.dtype), [mean.clone(), torch.full_like(mean, epsilon).rsqrt()]


@kernel("BatchNormGradV3", source="ops-nn: norm/batch_norm_grad_v3, documentation and kernel")
def batch_norm_grad_v3(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    save_mean: Tensor,
    save_rstd: Tensor,
    *,
    is_training: bool = True,
    epsilon: float = 1e-5,
    channel: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for x, weight and bias; training uses the saved statistics, evaluation the running ones."""
    op = "BatchNormGradV3"
    ensure_sizes(op, "dy", dy, x.shape)
    statistics = {"running_mean": running_mean, "running_var": running_var}
    _ensure_vectors(op, x, channel, weight=weight, **statistics, save_mean=save_mean, save_rstd=save_rstd)
    w, rm, rv, sm, sr = _aten_form(x, weight, running_mean, running_var, save_mean, save_rstd)
    dx, dw, db = _ATEN.native_batch_norm_backward.default(
        _channel_second(dy, channel), _channel_second(x, channel), w, rm, rv, sm, sr, is_training, epsilon, [True] * 3
    )
    return dx if channel == 1 else dx.movedim(1, channel), dw.to(weight.dtype), db.to(weight.dtype)


@kernel("BatchNorm", source=_HEADER)
def batch_norm(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
    *,
    epsilon: float = 1e-4,
    data_format: str = "NHWC",
    is_training: bool = True,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, ...]:
    """(y, batch_mean, batch_variance, reserve_space_1, reserve_space_2, reserve_space_3).

    In training the batch variance is the unbiased one, the reserves hold mean and biased variance for the gradient.
    """
    channel = x.dim() - 1 if data_format.endswith("C") else 1
    if not is_training:
        if mean is None or variance is None:
            raise refused("BatchNorm", "is_training is false and mean or variance is not fed", "feed both")
        y = _affine(x, mean, torch.rsqrt(variance + epsilon), scale, offset, channel)
        return y, mean.clone(), variance.clone(), mean.clone(), variance.clone(), variance.clone()
    var, batch = torch.var_mean(wide(x), _others(x, channel), correction=0)
    n = _count(x, channel)
    unbiased = var * (n / max(n - 1, 1))
    y = _affine(x, batch, torch.rsqrt(var + epsilon), scale, offset, channel)
    new_mean, new_var = batch.clone(), unbiased
    if mean is not None and variance is not None and exponential_avg_factor != 1.0:
        new_mean = mean * (1 - exponential_avg_factor) + batch * exponential_avg_factor
        new_var = variance * (1 - exponential_avg_factor) + unbiased * exponential_avg_factor
    return y, new_mean, new_var, batch, var, var.clone()


rows(
    {  # of volumes, without the third reserve
        "BatchNorm3D": lambda *operands, data_format="NCDHW", epsilon=1e-4, is_training=True: batch_norm(
            *operands, data_format=data_format, epsilon=epsilon, is_training=is_training
        )[:5],
    },
    source=_HEADER,
)


@kernel("BatchNormGrad", source=_HEADER)
def batch_norm_grad(
    y_backprop: Tensor,
    x: Tensor,
    scale: Tensor,
    reserve_space_1: Tensor,
    reserve_space_2: Tensor,
    reserve_space_3: Tensor | None = None,
    *,
    epsilon: float = 1e-4,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Tensor, ...]:
    """Gradients for x, scale and offset, and two empty reserves; the reserves read are mean and variance."""
    channel = x.dim() - 1 if data_format.endswith("C") else 1
    rstd = torch.rsqrt(reserve_space_2 + epsilon)
    dx, dw, db = batch_norm_grad_v3(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        reserve_space_1,
        rstd,
        is_training=is_training,
        epsilon=epsilon,
        channel=channel,
    )
    return dx, dw, db, torch.zeros_like(scale), torch.zeros_like(scale)


def _moments(x: Tensor, sum: Tensor, square_sum: Tensor, channel: int) -> tuple[Tensor, Tensor, float]:
    n = _count(x, channel)
    mean = sum.float() / n
    return mean, square_sum.float() / n - mean.square(), (n / (n - 1) if n > 1 else 0.0)


def _updated(
    x: Tensor, sum: Tensor, square_sum: Tensor, scale: Tensor, offset: Tensor, epsilon: float, channel: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, mean of the batch, its biased variance, its unbiased one) out of the sums."""
    batch, var, unbias = _moments(x, sum, square_sum, channel)
    return _affine(x, batch, torch.rsqrt(var + epsilon), scale, offset, channel), batch, var, var * unbias


@kernel("BNTrainingUpdate", "BN3DTrainingUpdate", source=_HEADER)
def bn_training_update(
    x: Tensor,
    sum: Tensor,
    square_sum: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    factor: float,
    epsilon: float,
    channel: int = 1,
) -> tuple[Tensor, ...]:
    """(y, mean, variance, batch_mean, batch_variance): moving statistics take ``factor`` of the batch's.

    The moving variance takes the unbiased variance, batch_variance is the biased one.
    """
    y, batch, var, unbiased = _updated(x, sum, square_sum, scale, offset, epsilon, channel)
    new_mean = mean * (1 - factor) + batch * factor
    return y, new_mean, variance * (1 - factor) + unbiased * factor, batch, var


@kernel("BNTrainingUpdateV3", source=_HEADER)
def bn_training_update_v3(
    x: Tensor, sum: Tensor, square_sum: Tensor, scale: Tensor, offset: Tensor, *, epsilon: float, channel: int = 1
) -> tuple[Tensor, ...]:
    """(y, batch_mean, batch_variance, reserve_1, reserve_2): batch_variance unbiased, the reserves as in V2."""
    y, batch, var, unbiased = _updated(x, sum, square_sum, scale, offset, epsilon, channel)
    return y, batch, unbiased, batch.clone(), var


@kernel("BNInfer", source=_HEADER)
def bn_infer(
    x: Tensor, scale: Tensor, offset: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float, channel: int = 1
) -> Tensor:
    """``(x - mean) * scale / sqrt(variance + epsilon) + offset``."""
    _ensure_vectors("BNInfer", x, channel, scale=scale, offset=offset, mean=mean, variance=variance)
    w, b, m, v = _aten_form(x, scale, offset, mean, variance)
    y = torch.native_batch_norm(x.movedim(channel, 1), w, b, m, v, False, 0.0, epsilon)[0]
    return y.movedim(1, channel)  # type: ignore[no-any-return]


rows(
    {
        # (y, batch_mean, batch_variance), the biased variance
        "BNTrainingUpdateV2": lambda x, sum, square_sum, scale, offset, *, epsilon, channel=1: _updated(
            x, sum, square_sum, scale, offset, epsilon, channel
        )[:3],
        # per-channel sums of x and x squared, float32
        "BNTrainingReduce BN3DTrainingReduce": lambda x, *, channel=1: (
            x.float().sum(_others(x, channel)),
            x.float().square().sum(_others(x, channel)),
        ),
        "BNInferGrad": lambda grads, scale, batch_variance, *, epsilon=1e-4, channel=1: (
            wide(grads) * _view(grads, scale * torch.rsqrt(batch_variance + epsilon), channel)
        ).to(grads.dtype),
        "SyncBNTrainingUpdate": rounded(
            lambda mean, running_mean, *, momentum=0.1: mean * momentum + running_mean * (1 - momentum)
        ),
    },
    source=_HEADER,
)


@kernel("BNTrainingUpdateGrad", "BN3DTrainingUpdateGrad", source=_HEADER)
def bn_training_update_grad(
    grads: Tensor, x: Tensor, batch_mean: Tensor, batch_variance: Tensor, *, epsilon: float = 1e-4, channel: int = 1
) -> tuple[Tensor, Tensor]:
    """(diff_scale, diff_offset): sums of ``grads * xhat`` and ``grads``; the fourth input is a variance."""
    xhat = _normalised(x, batch_mean, torch.rsqrt(batch_variance + epsilon), channel).float()
    g, axes = grads.float(), _others(x, channel)
    return (g * xhat).sum(axes), g.sum(axes)


@kernel("BNTrainingReduceGrad", "BN3DTrainingReduceGrad", source=_HEADER)
def bn_training_reduce_grad(
    grads: Tensor,
    x: Tensor,
    diff_scale: Tensor,
    diff_offset: Tensor,
    scale: Tensor,
    batch_mean: Tensor,
    batch_variance: Tensor,
    *,
    epsilon: float = 1e-4,
    channel: int = 1,
) -> Tensor:
    """``scale * r * (grads - diff_offset / n - xhat * diff_scale / n)`` with r = 1/sqrt(batch_variance + epsilon)."""
    rstd, n = torch.rsqrt(batch_variance + epsilon), _count(x, channel)
    xhat = _normalised(x, batch_mean, rstd, channel)
    inner = wide(grads) - _view(x, diff_offset, channel) / n - xhat * _view(x, diff_scale, channel) / n
    return (_view(x, scale * rstd, channel) * inner).to(grads.dtype)


_LAYOUT_FREE = (
    "BatchNormV3",
    "BatchNormGradV3",
    "BNInfer",
    "BNInferGrad",
    "BNTrainingReduce",
    "BN3DTrainingReduce",
    "BNTrainingUpdate",
    "BN3DTrainingUpdate",
    "BNTrainingUpdateV2",
    "BNTrainingUpdateV3",
    "BNTrainingUpdateGrad",
    "BN3DTrainingUpdateGrad",
    "BNTrainingReduceGrad",
    "BN3DTrainingReduceGrad",
)


@plan(*_LAYOUT_FREE)
def _plan_channels_last(ctx: PlanContext) -> Call | None:
    """These operators have no layout attribute: the descriptor of the data names the channel axis.

    float32 inference in the usual layout is one ATen call.
    """
    first = next(iter(ctx.node.operands()), None)
    if first is None or first.format not in _LAST:
        if ctx.node.op != "BNInfer" or ctx.dtype("x") is not DataType.DT_FLOAT:
            return None
        operands = [ctx.tensor(p) for p in ("x", "scale", "offset", "mean", "variance")]
        return Call(torch.batch_norm, (*operands, False, 0.0, ctx.attr("epsilon"), False))
    entry, schema = find(ctx.node.op), schemas.get(ctx.node.op)
    if entry is None or schema is None:
        return None
    accepted = parameters(entry.run)[1] or set()
    attrs: dict[str, Any] = {n: ctx.attr(n) for n in ctx.node.attrs if n in accepted}
    return Call(entry.run, tuple(ctx.tensor(p.name) for p in schema.inputs), {**attrs, "channel": -1})


@kernel("SyncBatchNormBackwardElemt", source="operator documentation of sync_batch_norm_backward_elemt")
@rounded
def sync_batch_norm_backward_elemt(
    grad_output: Tensor,
    save_input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor,
    mean_dy: Tensor,
    mean_dy_xmu: Tensor,
) -> Tensor:
    """``((dy - mean_dy) - (x - mean) * invstd**2 * mean_dy_xmu) * invstd * weight``, all operands of one shape."""
    return ((grad_output - mean_dy) - (save_input - mean) * invstd * invstd * mean_dy_xmu) * invstd * weight


@kernel("SyncBatchNormBackwardReduce", source="operator documentation of sync_batch_norm_backward_reduce")
def sync_batch_norm_backward_reduce(
    sum_dy: Tensor, sum_dy_dx_pad: Tensor, mean: Tensor, invert_std: Tensor
) -> tuple[Tensor, Tensor]:
    """(sum_dy_xmu, grad_weight)."""
    xmu = wide(sum_dy_dx_pad) - wide(sum_dy) * wide(mean)
    return xmu.to(sum_dy.dtype), (xmu * wide(invert_std)).to(sum_dy.dtype)


@kernel("SyncBatchNormGatherStats", source="operator documentation of sync_batch_norm_gather_stats")
def sync_batch_norm_gather_stats(
    total_sum: Tensor,
    total_square_sum: Tensor,
    sample_count: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, ...]:
    """(batch_mean, batch_invstd, mean, variance) of all devices from their sums."""
    dtype, n = total_sum.dtype, sample_count.sum().float()
    m = total_sum.float().sum(0) / n
    var = total_square_sum.float().sum(0) / n - m.square()
    new_mean = mean.float() * (1 - momentum) + m * momentum
    new_var = variance.float() * (1 - momentum) + var * (n / (n - 1)) * momentum
    return m.to(dtype), torch.rsqrt(var + eps).to(dtype), new_mean.to(dtype), new_var.to(dtype)
