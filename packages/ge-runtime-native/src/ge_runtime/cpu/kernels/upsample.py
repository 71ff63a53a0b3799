"""Resizing with PyTorch's coordinate rules: pixel centres unless corners are aligned, scales that override size ratios.

A scale of 0 is not given. All compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import rounded
from ge_runtime.cpu.kernels.resize import forward_size, resize, resized, resized_grad, steps
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_SOURCE = "operator prototypes of CANN 2026; ops-cv: image, documentation"


@kernel("UpsampleNearest", views=True, source=_SOURCE)
def upsample_nearest(
    x: Tensor, *, output_size: Sequence[int], scales_h: float = 0.0, scales_w: float = 0.0, exact_mode: bool = False
) -> Tensor:
    """Nearest resize of (N, C, H, W); ``exact_mode`` samples at pixel centres."""
    if x.dim() != 4:
        raise refused("UpsampleNearest", f"x of rank {x.dim()}", "it takes (N, C, H, W)")
    return resize(x, list(output_size), "nearest", False, exact_mode, [scales_h, scales_w])


def _smooth(x: Tensor, size: Sequence[int], align: bool, scales: Sequence[float], kind: str = "linear") -> Tensor:
    return resized(x, list(size), kind, align, not align, scales)


def _smooth_grad(
    grad: Tensor, shape: Sequence[int], align: bool, scales: Sequence[float], output_size: Sequence[int] = ()
) -> Tensor:
    """``shape`` is that of the forward input."""
    return resized_grad(grad, forward_size(grad, shape, output_size), "linear", align, not align, scales)


def _nearest_grad(
    grad: Tensor, shape: Sequence[int], exact: bool, scales: Sequence[float], output_size: Sequence[int]
) -> Tensor:
    return resized_grad(grad, forward_size(grad, shape, output_size), "nearest", False, exact, scales)


def _filters(size: Sequence[int], output: Sequence[int], *scales: float) -> list[float | None]:
    """The scales that are given; ATen reads where they lead, and takes memory for filters of their inverse size."""
    for n, out, scale in zip(size[-2:], output, steps(scales, 2)):
        if scale > 0 and (scale < 0.5 / max(n, 1) or out - 0.5 >= n * scale):
            raise refused("resize", f"scale {scale} from {n} to {out}", "a scale is output size through input size")
    return [s if s > 0 else None for s in scales]


def _filtered(fn: Any) -> Callable[..., Tensor]:
    """Filters that widen with the reduction ("anti-aliased")."""
    return rounded(
        lambda x, *, output_size, align_corners=False, scales_h=0.0, scales_w=0.0: fn(
            x, list(output_size), align_corners, *_filters(x.shape, output_size, scales_h, scales_w)
        )
    )


def _filtered_grad(fn: Any) -> Callable[..., Tensor]:
    return rounded(
        lambda grad, *, input_size, output_size=(), align_corners=False, scales_h=0.0, scales_w=0.0: fn(
            grad,
            list(output_size or grad.shape[2:]),
            list(input_size),
            align_corners,
            *_filters(input_size, output_size or grad.shape[2:], scales_h, scales_w),
        )
    )


rows(
    {
        # (N, C, D, H, W) at pixel centres
        "UpsampleNearestExact3d": lambda x, *, output_size, scale_d=0.0, scale_h=0.0, scale_w=0.0: resize(
            x, list(output_size), "nearest", False, True, [scale_d, scale_h, scale_w]
        ),
        "UpsampleBicubic2d": lambda x, *, output_size, align_corners=False, scales_h=0.0, scales_w=0.0: (  # a = -0.75
            _smooth(x, output_size, align_corners, [scales_h, scales_w], "cubic")
        ),
        "UpsampleBilinear2dAA": _filtered(_ATEN._upsample_bilinear2d_aa.default),
        "UpsampleBicubic2dAA": _filtered(_ATEN._upsample_bicubic2d_aa.default),
        "UpsampleBilinear2dAABackward": _filtered_grad(_ATEN._upsample_bilinear2d_aa_backward.default),
        "UpsampleBicubic2dAAGrad": _filtered_grad(_ATEN._upsample_bicubic2d_aa_backward.default),
    },
    views=True,
    source=_SOURCE,
)
rows(
    {
        "UpsampleLinear1d ResizeLinear": lambda x, size, *, align_corners=False, scale=0.0: _smooth(
            x, listed(size), align_corners, [scale]
        ),
        "UpsampleBilinear2d": lambda x, size, *, align_corners=False, scales=(): _smooth(
            x, listed(size), align_corners, scales
        ),
    },
    host=("size",),
    views=True,
    source=_SOURCE,
)
rows(
    {  # only the shape of the image is read
        "ResizeLinearGrad": lambda grads, original_image, *, align_corners=False, scale=0.0: _smooth_grad(
            grads, original_image.shape, align_corners, [scale]
        ),
    },
    source=_SOURCE,
)
rows(
    {
        "UpsampleNearest2dGrad": lambda grad, *, input_size, output_size=(), scales_h=0.0, scales_w=0.0: _nearest_grad(
            grad, input_size, False, [scales_h, scales_w], output_size
        ),
        "UpsampleNearestExact2dGrad": lambda grad, *, input_size, output_size=(), scales_h=0.0, scales_w=0.0: (
            _nearest_grad(grad, input_size, True, [scales_h, scales_w], output_size)
        ),
        "UpsampleNearestExact3dGrad": lambda grad, *, input_size, output_size=(), scales=(): _nearest_grad(
            grad, input_size, True, scales, output_size
        ),
        "UpsampleBilinear2dGrad": (
            lambda grad, *, input_size, output_size=(), align_corners=False, scales_h=0.0, scales_w=0.0: _smooth_grad(
                grad, input_size, align_corners, [scales_h, scales_w], output_size
            )
        ),
    },
    source=_SOURCE,
)


@kernel("ResizeUpsampleTrilinear", views=True, source=_SOURCE)
def resize_upsample_trilinear(
    input: Tensor,
    *,
    output_size: Sequence[int] = (),
    align_corners: bool = False,
    scales_d: float = 0.0,
    scales_h: float = 0.0,
    scales_w: float = 0.0,
) -> Tensor:
    """Linear resize of (N, C, D, H, W) to ``output_size``, or by the scales if it is empty."""
    scales = [scales_d, scales_h, scales_w]
    size = list(output_size) or [int(n * s) for n, s in zip(input.shape[2:], scales)]
    return _smooth(input, size, align_corners, scales)
