"""Regions of feature maps: aligned and pooled regions, sampling that a tensor of offsets moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.errors import refused

_ENLARGED: Final = 1  # roi_end_mode: one is added to the end, then all is scaled
_FREE: Final = 2  # roi_end_mode: regions moved by half a pixel, of any size; 0 and 3 are at least one cell large


def _corners(rois: Tensor, spatial_scale: float, mode: int) -> Tensor:
    if mode not in (0, 1, 2, 3):
        raise refused("ROIAlign", f"roi_end_mode is {mode}; 0, 1, 2 and 3 are defined")
    corners = wide(rois)[:, 1:]
    if mode == _ENLARGED:
        corners = corners + torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=corners.dtype)
    return corners * spatial_scale - (0.5 if mode >= _FREE else 0.0)


def _weights(start: Tensor, end: Tensor, bins: int, size: int, samples: int, mode: int) -> list[Tensor]:
    """For each region the weight (bins, size) of each cell along one axis: bilinear, averaged over the samples."""
    length = end - start if mode == _FREE else (end - start).clamp(min=1.0)
    weights = []
    for first, step in zip(start.tolist(), (length / bins).tolist()):
        count = samples if samples > 0 else max(-int(-step // 1), 0)
        weight = start.new_zeros(bins, size)
        if count:
            at = first + (torch.arange(bins * count, dtype=start.dtype) + 0.5) * (step / count)
            inside = (at >= -1) & (at <= size)
            at = at.clamp(0, size - 1)
            low = at.floor().long()
            part = at - low
            row = torch.arange(bins).repeat_interleave(count)
            weight.index_put_((row, low), torch.where(inside, 1 - part, 0.0) / count, accumulate=True)
            high = (low + 1).clamp(max=size - 1)
            weight.index_put_((row, high), torch.where(inside, part, 0.0) / count, accumulate=True)
        weights.append(weight)
    return weights


def _both(
    rois: Tensor, scale: float, pooled: Sequence[int], sizes: Sequence[int], samples: int, mode: int
) -> list[tuple[int, Tensor, Tensor]]:
    """For each region its image and its weights along height and width."""
    corners = _corners(rois, scale, mode)
    rows = _weights(corners[:, 1], corners[:, 3], pooled[0], sizes[0], samples, mode)
    columns = _weights(corners[:, 0], corners[:, 2], pooled[1], sizes[1], samples, mode)
    return list(zip(rois[:, 0].long().tolist(), rows, columns))


@kernel("ROIAlign", ignores=("rois_n",), source="ops-cv: objdetect/roi_align, documentation")
def roi_align(
    features: Tensor,
    rois: Tensor,
    rois_n: Tensor | None = None,
    *,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int = 2,
    roi_end_mode: int = 1,
    pool_mode: str = "avg",
) -> Tensor:
    """Mean of bilinear samples in each cell of each region (image, x1, y1, x2, y2); 0 samples: one for each pixel."""
    if pool_mode != "avg":
        raise refused("ROIAlign", f"pool_mode is {pool_mode!r}; 'avg' is computed")
    x, pooled = wide(features), (pooled_height, pooled_width)
    y = x.new_zeros(rois.shape[0], x.shape[1], *pooled)
    for k, (image, rows, columns) in enumerate(
        _both(rois, spatial_scale, pooled, x.shape[2:], sample_num, roi_end_mode)
    ):
        y[k] = rows @ x[image] @ columns.T
    return y.to(features.dtype)


@kernel("ROIAlignGrad", ignores=("rois_n",), source="ops-cv: objdetect/roi_align_grad, documentation")
def roi_align_grad(
    ydiff: Tensor,
    rois: Tensor,
    rois_n: Tensor | None = None,
    *,
    xdiff_shape: Sequence[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int = 2,
    roi_end_mode: int = 1,
) -> Tensor:
    """Gradient of ROIAlign for the features."""
    grad, pooled = wide(ydiff), (pooled_height, pooled_width)
    x = grad.new_zeros(tuple(xdiff_shape))
    for k, (image, rows, columns) in enumerate(
        _both(rois, spatial_scale, pooled, x.shape[2:], sample_num, roi_end_mode)
    ):
        x[image] += rows.T @ grad[k] @ columns
    return x.to(ydiff.dtype)


def _bins(start: float, length: float, count: int, size: int) -> list[tuple[int, int]]:
    step = length / count
    edges = [(int((i * step + start) // 1), -int(-((i + 1) * step + start) // 1)) for i in range(count)]
    return [(min(max(a, 0), size), min(max(b, 0), size)) for a, b in edges]


@kernel(
    "RoiPoolingWithArgMax",
    ignores=("roi_actual_num", "pool_channel"),
    source="ops-cv: objdetect/roi_pooling_with_arg_max, documentation",
)
def roi_pooling_with_arg_max(
    x: Tensor,
    rois: Tensor,
    roi_actual_num: Tensor | None = None,
    *,
    pooled_h: int,
    pooled_w: int,
    spatial_scale_h: float,
    spatial_scale_w: float,
) -> tuple[Tensor, Tensor]:
    """Maximum of each cell of each region, and its place h * W + w; an empty cell has 0 and -1."""
    channels, height, width = x.shape[1:]
    y = x.new_zeros(rois.shape[0], channels, pooled_h, pooled_w)
    places = torch.full(y.shape, -1, dtype=torch.int32)
    for k, (image, x1, y1, x2, y2) in enumerate(wide(rois).tolist()):
        left, top = x1 * spatial_scale_w, y1 * spatial_scale_h
        across, high = (x2 + 1) * spatial_scale_w - left, (y2 + 1) * spatial_scale_h - top
        if across <= 0 or high <= 0:
            continue
        for i, (h1, h2) in enumerate(_bins(top, high, pooled_h, height)):
            for j, (w1, w2) in enumerate(_bins(left, across, pooled_w, width)):
                if h2 > h1 and w2 > w1:
                    best = x[int(image), :, h1:h2, w1:w2].flatten(1).max(1)
                    y[k, :, i, j] = best.values
                    rows, columns = best.indices // (w2 - w1) + h1, best.indices % (w2 - w1) + w1
                    places[k, :, i, j] = (rows * width + columns).int()
    return y, places


def _cells(region: Sequence[float], scale: float, count: int, height: int, width: int) -> Any:
    """Of a region (image, corners): its cells down and across, each with its number and the rows or columns it has."""
    left, top = region[1] * scale, region[2] * scale
    across, down = ((region[i] + 1) * scale - first for i, first in ((3, left), (4, top)))
    rows, columns = _bins(top, max(down, 0.1), count, height), _bins(left, max(across, 0.1), count, width)
    return list(enumerate(rows)), list(enumerate(columns))


@kernel("PSROIPoolingV2", source="ops-cv: objdetect/psroi_pooling_v2, documentation")
def psroi_pooling_v2(x: Tensor, rois: Tensor, *, spatial_scale: float, output_dim: int, group_size: int) -> Tensor:
    """Mean of each cell of each region, every cell in a channel of its own; corners are rounded, then scaled."""
    n, channels, height, width = x.shape
    if channels != output_dim * group_size**2 or rois.shape[0] != n:
        raise refused("PSROIPoolingV2", f"x is {tuple(x.shape)}, rois {tuple(rois.shape)}, group_size {group_size}")
    maps = wide(x).view(n, output_dim, group_size, group_size, height, width)
    pooled = []
    for region in wide(rois).transpose(1, 2).reshape(-1, 5).round().tolist():
        y = maps.new_zeros(output_dim, group_size, group_size)
        cells = itertools.product(*_cells(region, spatial_scale, group_size, height, width))
        for (i, (h1, h2)), (j, (w1, w2)) in cells:
            if h2 > h1 and w2 > w1:
                y[:, i, j] = maps[int(region[0]), :, i, j, h1:h2, w1:w2].mean((1, 2))
        pooled.append(y)
    return (torch.stack(pooled) if pooled else maps.new_zeros(0, output_dim, group_size, group_size)).to(x.dtype)


@kernel("PSROIPoolingGradV2D", source="ops-cv: objdetect/psroi_pooling_grad_v2_d, of the forward operator")
def psroi_pooling_grad_v2_d(
    x: Tensor,
    rois: Tensor,
    *,
    spatial_scale: float,
    output_dim: int,
    group_size: int,
    input_size: Sequence[int],
) -> Tensor:
    """Gradient (images, channels, height, width) of the pooled maps: each cell gives its share to what it took."""
    images, height, width = rois.shape[0], *input_size
    maps = torch.zeros(images, output_dim, group_size, group_size, height, width)
    regions = wide(rois).transpose(1, 2).reshape(-1, 5).round().tolist()
    for region, grad in zip(regions, wide(x).view(-1, output_dim, group_size, group_size), strict=True):
        cells = itertools.product(*_cells(region, spatial_scale, group_size, height, width))
        for (i, (h1, h2)), (j, (w1, w2)) in cells:
            if h2 > h1 and w2 > w1:
                share = grad[:, i, j] / ((h2 - h1) * (w2 - w1))
                maps[int(region[0]), :, i, j, h1:h2, w1:w2] += share[:, None, None]
    return maps.view(images, -1, height, width).to(x.dtype)


def _bilinear(x: Tensor, at_y: Tensor, at_x: Tensor) -> Tensor:
    """x (C, H, W) at points; a neighbour outside counts as 0."""
    height, width = x.shape[1:]
    top, left = at_y.floor(), at_x.floor()
    y = 0.0
    for row in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - (at_y - row).abs()) * (1 - (at_x - column).abs())
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            y = y + torch.where(inside, weight, 0.0) * x.flatten(1)[:, place]
    return y


@kernel("DeformableOffsets", source="operator header: nn_ops; offsets: all x, all y, all masks")
def deformable_offsets(
    x: Tensor,
    offsets: Tensor,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    ksize: Sequence[int],
    dilations: Sequence[int] = (1, 1, 1, 1),
    data_format: str = "NCHW",
    deformable_groups: int = 1,
    modulated: bool = True,
) -> Tensor:
    """The samples of a deformable convolution side by side: (N, C, OH * kh, OW * kw), each times its mask."""
    if data_format != "NCHW":
        raise refused("DeformableOffsets", f"data_format is {data_format!r}; 'NCHW' is computed")
    if not modulated:
        raise refused("DeformableOffsets", "modulated is false; true is computed")
    kh, kw = ksize
    (sh, sw), (dh, dw), (top, _, left, _) = strides[2:], dilations[2:], pads
    n, channels = x.shape[:2]
    oh, ow = offsets.shape[2:]
    moved = wide(offsets).view(n, 3, deformable_groups, kh, kw, oh, ow)
    rows = torch.arange(oh) * sh - top + (torch.arange(kh) * dh).view(-1, 1, 1, 1)
    columns = torch.arange(ow) * sw - left + (torch.arange(kw) * dw).view(-1, 1, 1)
    rows = rows.transpose(-1, -2)  # (kh, 1, oh, 1)
    y = wide(x).new_zeros(n, channels, kh, kw, oh, ow)
    share = channels // deformable_groups
    for image in range(n):
        for group in range(deformable_groups):
            mine = slice(group * share, (group + 1) * share)
            at_x, at_y, mask = moved[image, :, group]
            y[image, mine] = _bilinear(wide(x)[image, mine], rows + at_y, columns + at_x) * mask
    return y.permute(0, 1, 4, 2, 5, 3).reshape(n, channels, oh * kh, ow * kw).to(x.dtype)
