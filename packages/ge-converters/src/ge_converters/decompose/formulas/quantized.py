"""``quantized_decomposed``, the operators of quantised programs as ``convert_pt2e`` leaves them, and fake quantisation.

Scales and zero points are numbers or tensors; integers are rounded to even and then shifted, as eager's kernels do it.
The namespace exists once the user's program has imported what quantises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_F32: Final = torch.float32
_I32: Final = torch.int32


def _widened(x: Tensor) -> Tensor:
    return x.to(_F32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _inverse(scale: Any) -> Any:
    """1 / scale in the precision in which a Python number has it, for float32 operands."""
    return scale.to(torch.float64).reciprocal().to(_F32).reshape(()) if isinstance(scale, Tensor) else 1.0 / scale


def _number(x: Any) -> Any:
    """A tensor of one element, as an operand that promotes nothing."""
    return x.to(_F32).reshape(()) if isinstance(x, Tensor) else x


def _along(x: Tensor, like: Tensor, axis: int) -> Tensor:
    """A value a channel, with the axes of ``like``."""
    shape = [1] * like.dim()
    shape[axis] = -1
    return x.reshape(shape)


def _between(x: Tensor, low: Any, high: Any) -> Tensor:
    if isinstance(low, Tensor):
        return x.maximum(_number(low)).minimum(_number(high))
    return x.clamp(low, high)


def _quantize(input: Tensor, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: torch.dtype) -> Tensor:
    shifted = torch.round(_widened(input) * _inverse(scale)) + _number(zero_point)
    return _between(shifted, quant_min, quant_max).to(dtype)


def _quantize_beside(
    input: Tensor, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: torch.dtype
) -> Tensor:
    """NotImplemented for what is one GE operator: all of int8, around zero."""
    if not zero_point and (quant_min, quant_max, dtype) == (-128, 127, torch.int8) and 1 <= input.dim() <= 8:
        return NotImplemented
    return _quantize(input, scale, zero_point, quant_min, quant_max, dtype)


def _dequantize(
    input: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return (input.to(out_dtype or _F32) - _number(zero_point)) * _number(scale)


def _quantize_channels(
    input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    x = _widened(input)
    shifted = torch.round(x * (1.0 / _along(scales, x, axis))) + _along(zero_points, x, axis)
    return shifted.clamp(quant_min, quant_max).to(dtype)


def _dequantize_channels(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    x = input if zero_points is None else input - _along(zero_points, input, axis)
    return (x * _along(scales, input, axis)).to(out_dtype or _F32)


def _quantize_rows(
    input: Tensor, scales: Tensor, zero_points: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    return input.mul(1.0 / scales).add(zero_points).round().clamp(quant_min, quant_max).to(dtype)


def _dequantize_rows(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> Tensor:
    return ((input - zero_points) * scales).to(output_dtype)


def _groups(x: Tensor, scales: Tensor, size: int) -> Tensor:
    if size > x.shape[-1] and scales.shape[-1] == 1:
        size = x.shape[-1]
    return x.reshape(-1, size)


def _quantize_groups(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
) -> Tensor:
    rows = _groups(input, scales, group_size)
    made = _quantize_rows(rows, scales.reshape(-1, 1), zero_points.reshape(-1, 1), quant_min, quant_max, dtype)
    return made.reshape(input.shape)


def _dequantize_groups(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = _F32,
) -> Tensor:
    rows = _groups(input, scales, group_size)
    if zero_points is not None:
        rows = rows - zero_points.reshape(-1, 1)
    return (rows * scales.reshape(-1, 1)).reshape(input.shape).to(output_dtype)


def _range(input: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest element, of one element each; zero lies between them."""
    return input.amin().clamp(max=0).reshape(1), input.amax().clamp(min=0).reshape(1)


def _choose(input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    low, high = _range(input)
    scale = ((high - low) / float(quant_max - quant_min)).clamp(min=eps)
    zero_point = (quant_min - torch.round(low / scale).to(_I32)).clamp(quant_min, quant_max)
    return scale.to(torch.float64), zero_point.to(torch.int64)


def _choose_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    low, high = _range(input)
    scale = (torch.maximum(-low, high) / (float(quant_max - quant_min) / 2)).clamp(min=eps)
    zero_point = torch.full_like(scale, 128 if dtype == torch.uint8 else 0, dtype=torch.int64)
    return scale.to(torch.float64), zero_point


def _choose_rows(input: Tensor, dtype: torch.dtype) -> Any:
    if dtype != torch.int8:
        return NotImplemented
    scales = input.abs().amax(dim=-1, keepdim=True)
    scales = scales.float() if scales.dtype == torch.float16 else scales
    scales = scales.clamp(min=1e-5).div(127)
    return scales, torch.zeros_like(scales)


def _choose_rows_asymmetric(input: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    least, most = -128, 127
    low = input.amin(dim=-1, keepdim=True).clamp(max=0)
    high = input.amax(dim=-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / float(most - least)).clamp(min=torch.finfo(_F32).eps)
    from_low, from_high = low / scale, high / scale
    shift = torch.where((least + from_low) + (most + from_high) > 0, least - from_low, most - from_high)
    return scale.to(torch.float64), shift.clamp(least, most).round().to(torch.int64)


def _fake_channels(
    input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    at, shift = _along(scales.to(_F32), input, axis), _along(zero_points.to(_I32), input, axis)
    steps = torch.round(input * (1.0 / at)) + shift
    return (steps.clamp(quant_min, quant_max) - shift) * at


QUANTIZED: Final[dict[str, Callable[..., Any]]] = {
    "quantize_per_tensor.tensor": _quantize,
    "quantize_per_tensor.tensor2": _quantize,
    "dequantize_per_tensor.default": _dequantize,
    "dequantize_per_tensor.tensor": _dequantize,
    "dequantize_per_tensor.tensor2": _dequantize,
    "quantize_per_channel.default": _quantize_channels,
    "dequantize_per_channel.default": _dequantize_channels,
    "quantize_per_token.default": _quantize_rows,
    "dequantize_per_token.default": _dequantize_rows,
    "quantize_per_channel_group.default": _quantize_groups,
    "dequantize_per_channel_group.default": _dequantize_groups,
    "choose_qparams.tensor": _choose,
    "choose_qparams_symmetric.tensor": _choose_symmetric,
    "choose_qparams_per_token.default": _choose_rows,
    "choose_qparams_per_token_asymmetric.default": _choose_rows_asymmetric,
    "_choose_qparams_per_token_asymmetric_impl.default": _choose_rows_asymmetric,
    "fake_quant_per_channel.default": _fake_channels,
    "convert_element_type.no_fuse": lambda input, dtype: input.to(dtype),
}


BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = {"quantize_per_tensor.default": _quantize_beside}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The formulas by overload, as far as the namespace is registered."""
    return _by_overload(QUANTIZED)


def beside_converters() -> dict[Any, Callable[..., Any]]:
    """Formulas for arguments that the op's converter cannot take, likewise."""
    return _by_overload(BESIDE_CONVERTERS)


def _by_overload(table: dict[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    found = {}
    for name, function in table.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.quantized_decomposed, packet, None), overload, None)
        if op is not None:
            found[op] = function
    return found


# -- fake quantisation: quantised and back, with a mask of what was not cut off --------------------------------------


def _faked(input: Tensor, steps: Tensor, scale: Any, shift: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    return ((steps.clamp(low, high) - shift) * scale).to(input.dtype), (steps >= low) & (steps <= high)


def _fake_tensor(self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    inverse = float(np.float32(1) / np.float32(scale))  # the kernel divides in float32
    steps = torch.round(self.to(_F32) * inverse) + zero_point
    return _faked(self, steps, scale, zero_point, quant_min, quant_max)


def _fake_tensor_by_tensors(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    at, shift = _number(scale), _number(zero_point)
    steps = torch.round(self.to(_F32) * (1.0 / at)) + shift
    made, mask = _faked(self, steps, at, shift, quant_min, quant_max)
    on = fake_quant_enabled.reshape(()) != 0
    return torch.where(on, made, self), mask | ~on


def _fake_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    at, shift = _along(scale.to(_F32), self, axis), _along(zero_point, self, axis)
    scaled = self.to(_F32) * (1.0 / at)
    steps = torch.round(scaled + shift) if zero_point.is_floating_point() else torch.round(scaled) + shift
    return _faked(self, steps, at, shift, quant_min, quant_max)


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "fake_quantize_per_tensor_affine_cachemask.default": _fake_tensor,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_tensor_by_tensors,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_channel,
}
