"""Resizing with PyTorch's coordinate rules: pixel centres unless corners are aligned, scales that override size ratios.

A scale of 0 is not given. All compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import ints, refuse, wide
from ge_runtime.cpu.kernels.resize import resize, resize_grad
from ge_runtime.cpu.registry import kernel

_ATEN = torch.ops.aten
_SOURCE = "operator prototypes of CANN 2026; ops-cv: image, documentation"


@kernel("UpsampleNearest", views=True, source=_SOURCE)
def upsample_nearest(
    x: Tensor, *, output_size: Sequence[int], scales_h: float = 0.0, scales_w: float = 0.0, exact_mode: bool = False
) -> Tensor:
    """Nearest resize of (N, C, H, W); ``exact_mode`` samples at pixel centres."""
    if x.dim() != 4:
        raise refuse("UpsampleNearest", f"x of rank {x.dim()}", "it takes (N, C, H, W)")
    return resize(x, list(output_size), "nearest", False, exact_mode, [scales_h, scales_w])


@kernel("UpsampleNearestExact3d", views=True, source=_SOURCE)
def upsample_nearest_exact3d(
    x: Tensor, *, output_size: Sequence[int], scale_d: float = 0.0, scale_h: float = 0.0, scale_w: float = 0.0
) -> Tensor:
    """Nearest resize of (N, C, D, H, W) at pixel centres."""
    return resize(x, list(output_size), "nearest", False, True, [scale_d, scale_h, scale_w])


def _nearest_grad(half_pixel: bool) -> Callable[..., Tensor]:
    def run(grad_output: Tensor, *, input_size: Sequence[int], scales_h: float = 0.0, scales_w: float = 0.0) -> Tensor:
        size = list(input_size)[2:]
        return resize_grad(grad_output, size, "nearest", False, half_pixel, [scales_h, scales_w]).to(grad_output.dtype)

    return run


kernel("UpsampleNearest2dGrad", ignores=("output_size",), source=_SOURCE)(_nearest_grad(False))
kernel("UpsampleNearestExact2dGrad", ignores=("output_size",), source=_SOURCE)(_nearest_grad(True))


@kernel("UpsampleNearestExact3dGrad", ignores=("output_size",), source=_SOURCE)
def upsample_nearest_exact3d_grad(
    grad_output: Tensor, *, input_size: Sequence[int], scales: Sequence[float] = (0.0, 0.0, 0.0)
) -> Tensor:
    """Gradient of UpsampleNearestExact3d; ``input_size`` is the full shape of the forward input."""
    size = list(input_size)[2:]
    return resize_grad(grad_output, size, "nearest", False, True, list(scales)).to(grad_output.dtype)


@kernel("UpsampleLinear1d", "ResizeLinear", host=("size",), views=True, source=_SOURCE)
def upsample_linear1d(x: Tensor, size: Any, *, align_corners: bool = False, scale: float = 0.0) -> Tensor:
    """Linear resize of (N, C, L)."""
    return resize(x, ints(size), "linear", align_corners, not align_corners, [scale]).to(x.dtype)


@kernel("ResizeLinearGrad", source=_SOURCE)
def resize_linear_grad(
    grads: Tensor, original_image: Tensor, *, align_corners: bool = False, scale: float = 0.0
) -> Tensor:
    """Gradient of ResizeLinear; only the shape of ``original_image`` is read."""
    size = list(original_image.shape[2:])
    return resize_grad(grads, size, "linear", align_corners, not align_corners, [scale]).to(grads.dtype)


@kernel("UpsampleBilinear2d", host=("size",), views=True, source=_SOURCE)
def upsample_bilinear2d(x: Tensor, size: Any, *, align_corners: bool = False, scales: Sequence[float] = ()) -> Tensor:
    """Linear resize of (N, C, H, W)."""
    return resize(x, ints(size), "linear", align_corners, not align_corners, list(scales)).to(x.dtype)


@kernel("UpsampleBilinear2dGrad", ignores=("output_size",), source=_SOURCE)
def upsample_bilinear2d_grad(
    grad_output: Tensor, *, input_size: Sequence[int], align_corners: bool = False, scales_h: float = 0.0,
    scales_w: float = 0.0,
) -> Tensor:  # fmt: skip
    """Gradient of UpsampleBilinear2d; ``input_size`` is the full shape of the forward input."""
    size, scales = list(input_size)[2:], [scales_h, scales_w]
    return resize_grad(grad_output, size, "linear", align_corners, not align_corners, scales).to(grad_output.dtype)


@kernel("ResizeUpsampleTrilinear", views=True, source=_SOURCE)
def resize_upsample_trilinear(
    input: Tensor, *, output_size: Sequence[int] = (), align_corners: bool = False, scales_d: float = 0.0,
    scales_h: float = 0.0, scales_w: float = 0.0,
) -> Tensor:  # fmt: skip
    """Linear resize of (N, C, D, H, W) to ``output_size``, or by the scales if it is empty."""
    scales = [scales_d, scales_h, scales_w]
    size = list(output_size) or [int(n * s) for n, s in zip(input.shape[2:], scales)]
    return resize(input, size, "linear", align_corners, not align_corners, scales).to(input.dtype)


@kernel("UpsampleBicubic2d", views=True, source=_SOURCE)
def upsample_bicubic2d(
    input: Tensor, *, output_size: Sequence[int], align_corners: bool = False, scales_h: float = 0.0,
    scales_w: float = 0.0,
) -> Tensor:  # fmt: skip
    """Cubic resize of (N, C, H, W) with a = -0.75."""
    scales = [scales_h, scales_w]
    return resize(input, list(output_size), "cubic", align_corners, not align_corners, scales).to(input.dtype)


# Filters that widen with the reduction ("anti-aliased"): operator, function of ATen.
_WIDE: Final[dict[str, Any]] = {
    "UpsampleBilinear2dAA": _ATEN._upsample_bilinear2d_aa.default,
    "UpsampleBicubic2dAA": _ATEN._upsample_bicubic2d_aa.default,
}
_WIDE_GRADS: Final[dict[str, Any]] = {
    "UpsampleBilinear2dAABackward": _ATEN._upsample_bilinear2d_aa_backward.default,
    "UpsampleBicubic2dAAGrad": _ATEN._upsample_bicubic2d_aa_backward.default,
}


def _given(scale: float) -> float | None:
    return scale if scale > 0 else None


def _filtered(fn: Any) -> Callable[..., Tensor]:
    def run(
        x: Tensor, *, output_size: Sequence[int], align_corners: bool = False, scales_h: float = 0.0,
        scales_w: float = 0.0,
    ) -> Tensor:  # fmt: skip
        y = fn(wide(x), list(output_size), align_corners, _given(scales_h), _given(scales_w))
        return y.to(x.dtype)  # type: ignore[no-any-return]

    return run


def _filtered_grad(fn: Any) -> Callable[..., Tensor]:
    def run(
        grad_output: Tensor, *, input_size: Sequence[int], output_size: Sequence[int] = (), align_corners: bool = False,
        scales_h: float = 0.0, scales_w: float = 0.0,
    ) -> Tensor:  # fmt: skip
        g, size = wide(grad_output), list(output_size) or list(grad_output.shape[2:])
        y = fn(g, size, list(input_size), align_corners, _given(scales_h), _given(scales_w))
        return y.to(grad_output.dtype)  # type: ignore[no-any-return]

    return run


for _op, _fn in _WIDE.items():
    kernel(_op, views=True, source=_SOURCE)(_filtered(_fn))
for _op, _fn in _WIDE_GRADS.items():
    kernel(_op, views=True, source=_SOURCE)(_filtered_grad(_fn))
