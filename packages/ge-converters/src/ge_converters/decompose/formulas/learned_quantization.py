"""Fake quantisation whose scales and zero points are learned, or follow the values that pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.decompose.formulas.quantized import FORMULAS as FAKED

_SMALL: Final = 6.1e-5  # scales below it are raised to it


def _axes_but(x: Tensor, axis: int | None) -> list[int]:
    return [i for i in range(x.dim()) if i != axis]


def _spread(value: Tensor, like: Tensor, axis: int | None) -> Tensor:
    shape = [1] * like.dim()
    if axis is not None:
        shape[axis] = -1
    return value.reshape(shape)


def _learned(
    self: Tensor, scale: Tensor, shift: Tensor, axis: int | None, low: int, high: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scale and shift with the axes of self, whole steps, and those cut off at the ends."""
    at, shift = (_spread(t.reshape(-1)[:1] if axis is None else t, self, axis) for t in (scale, shift))
    steps = torch.round(self * (1.0 / at)) + shift
    return at, shift, steps, steps.clamp(low, high)


def _learned_tensor(
    self: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    whole = zero_point.clamp(quant_min, quant_max).round()
    at, shift, _, cut = _learned(self, scale, whole, None, quant_min, quant_max)
    return ((cut - shift) * at).to(self.dtype)


def _learned_channels(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    whole = zero_point.clamp(quant_min, quant_max).round()
    at, shift, _, cut = _learned(self, scale, whole, axis, quant_min, quant_max)
    return ((cut - shift) * at).to(self.dtype)


def _gradients(
    grad: Tensor, self: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, low: int, high: int, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of what is quantised, of the scale and of the zero point; what is cut off moves with the ends of the range."""
    # the kernel for one scale cuts fractions off, where all others round
    whole = (zero_point + 0.5).clamp(low, high).trunc() if axis is None else zero_point.clamp(low, high).round()
    at, shift, steps, cut = _learned(self, scale, whole, axis, low, high)
    inside = steps == cut
    of_scale = torch.where(inside, ((cut - shift) * at - self) * (1.0 / at), cut - shift)
    of_shift = torch.where(inside, 0.0, -at)
    axes = _axes_but(self, axis)
    sums = [(grad * part * factor).sum(axes) for part in (of_scale, of_shift)]
    return grad * inside, sums[0].reshape(scale.shape), sums[1].reshape(zero_point.shape)


def _learned_tensor_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(grad, self, scale, zero_point, None, quant_min, quant_max, grad_factor)


def _learned_channels_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor)


# -- observed ranges -------------------------------------------------------------------------------------------------


def _parameters(least: Tensor, most: Tensor, low: int, high: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point (both float64) for a range; the middle for a symmetric one that has both signs."""
    least, most = least.to(torch.float64), most.to(torch.float64)
    both = (least < 0) & (most > 0)
    if symmetric:
        steps = (high - low) // 2
        widest = torch.maximum((least / -(steps + 1)).abs(), (most / steps).abs())
        least = torch.where(both, (widest * -(steps + 1)).to(torch.float32).to(torch.float64), least)
        most = torch.where(both, (widest * steps).to(torch.float32).to(torch.float64), most)
    least, most = least.clamp(max=0), most.clamp(min=0)
    scale = (most - least) / (high - low)
    narrow = scale.to(torch.float32)
    scale = torch.where((narrow == 0) | (1.0 / narrow == math.inf), 0.1, scale)
    small = scale < _SMALL
    wide = _SMALL * (high - low)
    grown = _SMALL / scale
    new_least = torch.where(least == 0, least, torch.where(most == 0, -wide, least * grown))
    new_most = torch.where(least == 0, wide, torch.where(most == 0, most, most * grown))
    least, most = torch.where(small, new_least, least), torch.where(small, new_most, most)
    scale = torch.where(small, _SMALL, scale)
    from_least, from_most = low - least / scale, high - most / scale
    closer = abs(low) - (least / scale).abs() < abs(high) - (most / scale).abs()
    shift = torch.where(closer, from_least, from_most)
    if symmetric:
        shift = torch.where(both, (low + high) / 2, shift)
    return scale, shift.round().clamp(low, high)


def _observed(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    """Result, mask, and the new values of running_min, running_max, scale and zero_point.

    NotImplemented for ranges that have no size yet, and for channels along another axis than the first.
    """
    axis = ch_axis if per_row_fake_quant else None
    if axis:
        return NotImplemented  # eager knows the first axis only
    if not all(isinstance(t.numel(), int) and t.numel() for t in (running_min, running_max, scale, zero_point)):
        return NotImplemented
    axes = _axes_but(self, axis)
    now = (self.detach().amin(axes), self.detach().amax(axes))
    seen = observer_on.reshape(()) != 0
    ranges = []
    for running, new in zip((running_min, running_max), now):
        new = new.to(running.dtype).reshape(running.shape)
        moved = torch.where(running.isinf(), new, running + averaging_const * (new - running))
        ranges.append(torch.where(seen, moved, running))
    made_scale, made_shift = _parameters(ranges[0], ranges[1], quant_min, quant_max, symmetric_quant)
    on = fake_quant_on.reshape(()) != 0
    scale = torch.where(on, made_scale.to(scale.dtype).reshape(scale.shape), scale)
    zero_point = torch.where(on, made_shift.to(zero_point.dtype).reshape(zero_point.shape), zero_point)
    if axis is None:
        faked = FAKED["_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default"]
        out, mask = faked(self, scale, zero_point, fake_quant_on, quant_min, quant_max)
    else:
        faked = FAKED["fake_quantize_per_channel_affine_cachemask.default"]
        out, mask = faked(self, scale, zero_point, axis, quant_min, quant_max)
        out, mask = torch.where(on, out, self), mask | ~on
    return out, mask, *ranges, scale, zero_point


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "_fake_quantize_learnable_per_tensor_affine.default": _learned_tensor,
    "_fake_quantize_learnable_per_tensor_affine_backward.default": _learned_tensor_backward,
    "_fake_quantize_learnable_per_channel_affine.default": _learned_channels,
    "_fake_quantize_learnable_per_channel_affine_backward.default": _learned_channels_backward,
    "_fused_moving_avg_obs_fq_helper_functional.default": _observed,
}
