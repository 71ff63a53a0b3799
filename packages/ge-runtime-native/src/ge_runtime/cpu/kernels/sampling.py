"""Grid sampling, overlapping boxes, pairwise distances, patches, mirrored padding and depth-space moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.conv import from_channels_first, pad_spatial, to_channels_first
from ge_runtime.cpu.kernels.numerics import ints, number, refuse, wide
from ge_runtime.cpu.registry import kernel

_ATEN = torch.ops.aten
_F = torch.nn.functional
_INTERPOLATION: Final = {"bilinear": 0, "nearest": 1, "bicubic": 2}
_PADDING: Final = {"zeros": 0, "border": 1, "reflection": 2}


@kernel("GridSampler2D", "GridSampler3D", ignores=("data_format",), source="ops-cv: image/grid_sample, documentation")
def grid_sampler(
    x: Tensor, grid: Tensor, *, interpolation_mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:  # fmt: skip
    """Sample ``x`` at grid points -1..1, last grid axis (x, y[, z])."""
    y = _F.grid_sample(wide(x), wide(grid), interpolation_mode, padding_mode, align_corners)
    return y.to(x.dtype)


def _grid_grad(fn: Any) -> Any:
    def run(
        grad: Tensor, x: Tensor, grid: Tensor, *, interpolation_mode: str = "bilinear", padding_mode: str = "zeros",
        align_corners: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        mode, pad = _INTERPOLATION[interpolation_mode], _PADDING[padding_mode]
        dx, dgrid = fn(wide(grad), wide(x), wide(grid), mode, pad, align_corners, [True, True])
        return dx.to(x.dtype), dgrid.to(grid.dtype)

    return run


kernel("GridSampler2DGrad", source="ops-cv: image/grid_sampler2_d_grad, documentation")(
    _grid_grad(_ATEN.grid_sampler_2d_backward.default)
)
kernel("GridSampler3DGrad", source="ops-cv: image/grid_sampler3_d_grad, documentation")(
    _grid_grad(_ATEN.grid_sampler_3d_backward.default)
)


@kernel("AffineGrid", host=("output_size",), source="operator header: transformation_ops")
def affine_grid(theta: Tensor, output_size: Any, *, align_corners: bool = False) -> Tensor:
    """Sampling grid of affine matrices (N, 2, 3) or (N, 3, 4), spatial axes joined: (N, points, 2 or 3)."""
    y = _F.affine_grid(wide(theta), ints(output_size), align_corners)
    return y.reshape(y.shape[0], -1, y.shape[-1]).to(theta.dtype)


def _iou(box: Tensor, others: Tensor, offset: int) -> Tensor:
    left_top, right_bottom = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    inter = (right_bottom - left_top + offset).clamp(min=0).prod(1)
    area = (box[2:] - box[:2] + offset).prod()
    union = area + (others[:, 2:] - others[:, :2] + offset).prod(1) - inter
    return torch.where(union > 0, inter / union, 0.0)  # two boxes without area do not overlap


@kernel("NonMaxSuppressionV3", source="operator header: image_ops")
def non_max_suppression_v3(
    boxes: Tensor, scores: Tensor, max_output_size: Tensor, iou_threshold: Tensor, score_threshold: Tensor, *,
    offset: int = 0,
) -> Tensor:  # fmt: skip
    """Indices of boxes kept, best score first, each overlapping no better one by more than the threshold; int32."""
    corners = wide(boxes)
    corners = torch.cat(
        (torch.minimum(corners[:, :2], corners[:, 2:]), torch.maximum(corners[:, :2], corners[:, 2:])), 1
    )
    limit, least = number(iou_threshold), number(score_threshold)
    order = torch.sort(wide(scores), descending=True, stable=True).indices
    alive = wide(scores) > least
    kept: list[int] = []
    for index in order.tolist():
        if len(kept) >= int(number(max_output_size)):
            break
        if alive[index]:
            kept.append(index)
            alive &= _iou(corners[index], corners, offset) <= limit
    return torch.tensor(kept, dtype=torch.int32)


@kernel("Cdist", source="operator header: cdist, vector and batch of vectors")
def cdist(x1: Tensor, x2: Tensor, *, p: float = 2.0) -> Tensor:
    """p-norm distances (.., P, R) of rows (.., P, M) and (.., R, M)."""
    return torch.cdist(wide(x1), wide(x2), p, compute_mode="donot_use_mm_for_euclid_dist").to(x1.dtype)


@kernel("CdistGrad", source="operator header: cdist_grad")
def cdist_grad(grad: Tensor, x1: Tensor, x2: Tensor, cdist: Tensor, *, p: float = 2.0) -> Tensor:
    """Gradient of Cdist for x1."""
    y = _ATEN._cdist_backward.default(
        wide(grad).contiguous(), wide(x1).contiguous(), wide(x2).contiguous(), p, wide(cdist).contiguous()
    )
    return y.to(x1.dtype)  # type: ignore[no-any-return]


@kernel("Pdist", source="operator header: pdist")
def pdist(x: Tensor, *, p: float = 2.0) -> Tensor:
    """p-norm distances of all pairs of rows (N, M), those of the first row first."""
    return torch.pdist(wide(x).contiguous(), p).to(x.dtype)


_FIRST_OF_THREE = -65530  # the default of ``dim``


@kernel("Cross", "CrossV2", source="operator header: selection_ops; operator prototypes of CANN 2026")
def cross(x1: Tensor, x2: Tensor, *, dim: int = _FIRST_OF_THREE) -> Tensor:
    """Vector product along ``dim``, by default the first axis of size 3."""
    axis = list(x1.shape).index(3) if dim == _FIRST_OF_THREE else dim
    return torch.linalg.cross(wide(x1), wide(x2), dim=axis).to(x1.dtype)


@kernel("Renorm", source="operator header: nn_norm_ops")
def renorm(x: Tensor, *, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along ``dim`` whose p-norm exceeds ``maxnorm`` are scaled down to it."""
    return torch.renorm(wide(x), p, dim, maxnorm).to(x.dtype)


def _pair(values: Sequence[int]) -> list[int]:
    values = list(values)
    return values * 2 if len(values) == 1 else values[-2:]


@kernel("Im2col", source="ops-math: conversion/im2col, operator header")
def im2col(
    x: Tensor, *, ksizes: Sequence[int], strides: Sequence[int] = (1,), dilations: Sequence[int] = (1,),
    padding_mode: str = "CALCULATED", pads: Sequence[int] = (0,),
) -> Tensor:  # fmt: skip
    """(N, C, H, W) to (N, C * kh * kw, rows, columns); pads of 1, 2 (a pair an axis alike) or 4 values."""
    if padding_mode not in ("CALCULATED", "VALID"):
        raise refuse("Im2col", f"padding_mode is {padding_mode!r}, accepted: CALCULATED, VALID")
    p = list(pads) if padding_mode == "CALCULATED" else [0]
    p = p * 4 if len(p) == 1 else ([p[0], p[0], p[1], p[1]] if len(p) == 2 else p)
    size, stride, dilation = _pair(ksizes), _pair(strides), _pair(dilations)
    data = pad_spatial(x, p)
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(data.shape[2:], size, stride, dilation)]
    rows = x.shape[1] * size[0] * size[1]
    return _F.unfold(data, size, dilation, 0, stride).reshape(x.shape[0], rows, *counts)


@kernel("Col2im", host=("output_size",), source="ops-cv: image/col2im, operator header")
def col2im(
    x: Tensor, output_size: Any, *, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:  # fmt: skip
    """Sum of patches (N, C, kh * kw, L) into an image (N, C, H, W)."""
    flat = wide(x).reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[-1])
    y = _F.fold(flat, ints(output_size), _pair(kernel_size), _pair(dilation), _pair(padding), _pair(stride))
    return y.to(x.dtype)


def _mirror_sources(size: int, before: int, after: int, mode: str) -> Tensor:
    """Source index of every position of a padded axis."""
    position = torch.arange(-before, size + after)
    if mode == "edge":
        return position.clamp(0, size - 1)
    if mode == "circular":
        return position % size
    if mode == "symmetric":
        folded = position % (2 * size)
        return torch.where(folded < size, folded, 2 * size - 1 - folded)
    if mode == "reflect":
        period = max(2 * size - 2, 1)
        folded = position % period
        return torch.where(folded < size, folded, period - folded)
    raise refuse("padding gradient", f"mode is {mode!r}, accepted: reflect, edge, symmetric, circular")


def _pad_adjoint(x: Tensor, before: Sequence[int], after: Sequence[int], mode: str) -> Tensor:
    """Add padded positions onto the positions they were copied from, one axis after the other."""
    y = wide(x)
    for axis, (b, a) in enumerate(zip(before, after)):
        if b or a:
            size = y.shape[axis] - b - a
            shape = [*y.shape[:axis], size, *y.shape[axis + 1 :]]
            y = torch.zeros(shape, dtype=y.dtype).index_add_(axis, _mirror_sources(size, b, a, mode), y)
    return y.to(x.dtype)


@kernel("PadV3Grad", host=("paddings",), views=True, source="ops-math: conversion/pad_v3_grad, documentation")
def pad_v3_grad(x: Tensor, paddings: Any, *, mode: str = "reflect", paddings_contiguous: bool = True) -> Tensor:
    """Adjoint of PadV3 with a copying mode; paddings are (before, after) pairs, or all befores first."""
    p, rank = _flat(paddings), x.dim()
    before, after = (p[0::2], p[1::2]) if paddings_contiguous else (p[:rank], p[rank:])
    return _pad_adjoint(x, before, after, mode)


@kernel("MirrorPadGrad", host=("paddings",), views=True, source="operator header: pad_ops")
def mirror_pad_grad(x: Tensor, paddings: Any, *, mode: str) -> Tensor:
    """Adjoint of MirrorPad, mode REFLECT or SYMMETRIC."""
    p = _flat(paddings)
    return _pad_adjoint(x, p[0::2], p[1::2], mode.lower())


def _flat(value: Any) -> list[int]:
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)):
        return [int(v) for row in value for v in row]
    return ints(value)


@kernel("DepthToSpace", source="operator header: transformation_ops")
def depth_to_space(x: Tensor, *, block_size: int, mode: str = "DCR", data_format: str = "NHWC") -> Tensor:
    """Channels become blocks of pixels; DCR: the block is the outer part of the channel axis, CRD: the inner part."""
    first = to_channels_first(x, data_format)
    n, c, h, w = first.shape
    b = block_size
    if mode == "DCR":
        y = first.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        y = first.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        raise refuse("DepthToSpace", f"mode is {mode!r}, accepted: DCR, CRD")
    return from_channels_first(y.reshape(n, c // (b * b), h * b, w * b), data_format)


@kernel("SpaceToDepth", source="operator header: transformation_ops")
def space_to_depth(x: Tensor, *, block_size: int, data_format: str = "NHWC") -> Tensor:
    """Blocks of pixels become channels, the block outside."""
    first = to_channels_first(x, data_format)
    n, c, h, w = first.shape
    b = block_size
    y = first.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return from_channels_first(y.reshape(n, c * b * b, h // b, w // b), data_format)


@kernel("ShuffleChannel", source="operator header: nn_detect_ops")
def shuffle_channel(x: Tensor, *, group: int = 1) -> Tensor:
    """Axis 1 read as (group, rest) and transposed."""
    y = x.reshape(x.shape[0], group, -1, *x.shape[2:]).transpose(1, 2)
    return y.reshape(x.shape).clone()
