"""torchvision's operators that GE has none for: pooled regions by channel, and gradients, in ATen and GE's ROIAlign.

torchvision is never imported: its operators are known by name once the user's program has imported it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor


def _plane(height: Any, width: Any, batch: Any, channels: Any, like: Tensor) -> Tensor:
    return like.new_zeros([batch, channels, height, width])


def roi_pool_backward(
    grad: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scale: float,
    pooled_height: Any,
    pooled_width: Any,
    batch_size: Any,
    channels: Any,
    height: Any,
    width: Any,
) -> Tensor:
    """Each gradient added where its maximum stood; -1 stands for a cell without elements.

    Shapes: grad and argmax [k, c, ph, pw], rois [k, 5] -> [batch_size, channels, height, width].
    """
    image = rois[:, 0].to(torch.int64).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=grad.device).view(1, -1, 1, 1)
    place = (image * channels + channel) * (height * width) + argmax.clamp(min=0).to(torch.int64)
    given = torch.where(argmax >= 0, grad, 0.0)
    flat = _plane(height, width, batch_size, channels, grad).reshape(-1)
    return flat.scatter_add(0, place.reshape(-1), given.reshape(-1)).reshape(batch_size, channels, height, width)


def ps_roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: Any, pooled_width: Any, sampling_ratio: int
) -> tuple[Tensor, Tensor]:
    """ROIAlign of all channels, of which each cell keeps its own.

    Shapes: input [n, o * ph * pw, h, w], rois [k, 5] -> [k, o, ph, pw] and the channels they come from.
    """
    bins = (pooled_height, pooled_width)
    every = torch.ops.torchvision.roi_align(input, rois, spatial_scale, *bins, sampling_ratio, True)
    parts = every.unflatten(1, (-1, *bins)).diagonal(0, 2, 4).diagonal(0, 2, 3)
    count = input.shape[1]
    channel = torch.arange(count, dtype=torch.int32, device=input.device).view(1, -1, *bins)
    return parts.contiguous(), channel.expand(rois.shape[0], -1, -1, -1).contiguous()


def ps_roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    channel_mapping: Tensor,
    spatial_scale: float,
    pooled_height: Any,
    pooled_width: Any,
    sampling_ratio: int,
    batch_size: Any,
    channels: Any,
    height: Any,
    width: Any,
) -> Tensor:
    """The gradient of ROIAlign for a gradient that is zero in the cells of other channels."""
    bins = (pooled_height, pooled_width)
    rows = torch.arange(pooled_height, device=grad.device)
    columns = torch.arange(pooled_width, device=grad.device)
    own = (rows.view(-1, 1, 1, 1) == rows.view(-1, 1)) & (columns.view(-1, 1, 1) == columns)
    spread = torch.where(own, grad.unsqueeze(-1).unsqueeze(-1), 0.0).flatten(1, 3)
    sizes = (batch_size, channels, height, width)
    made: Tensor = torch.ops.torchvision._roi_align_backward(
        spread, rois, spatial_scale, *bins, *sizes, sampling_ratio, True
    )
    return made


def _rounded(x: Tensor) -> Tensor:
    """Halves away from zero, as C rounds."""
    return x.sign() * (x.abs() + 0.5).floor()


def _inside(start: Tensor, end: Tensor, bins: Any, size: Any) -> tuple[Tensor, Tensor]:
    """Which elements of an axis each cell has, [k, bins, size], and how many."""
    at, place = torch.arange(bins, device=start.device), torch.arange(size, device=start.device)
    start = start.unsqueeze(1)
    step = (end.unsqueeze(1) - start).clamp(min=1) / bins
    first = (at * step + start).floor().clamp(min=0).clamp(max=size)
    last = ((at + 1) * step + start).ceil().clamp(min=0).clamp(max=size)
    return (place >= first.unsqueeze(-1)) & (place < last.unsqueeze(-1)), last - first


def ps_roi_pool_backward(
    grad: Tensor,
    rois: Tensor,
    channel_mapping: Tensor,
    spatial_scale: float,
    pooled_height: Any,
    pooled_width: Any,
    batch_size: Any,
    channels: Any,
    height: Any,
    width: Any,
) -> Tensor:
    """The gradient of each cell, spread evenly over its elements."""
    x1, y1, x2, y2 = _rounded(rois[:, 1:] * spatial_scale).unbind(1)
    rows, high = _inside(y1, y2, pooled_height, height)
    columns, wide = _inside(x1, x2, pooled_width, width)
    area = (high.unsqueeze(2) * wide.unsqueeze(1)).unsqueeze(1)
    each = torch.where(area > 0, grad / area, 0.0)
    covered = rows.unsqueeze(2).unsqueeze(-1) & columns.unsqueeze(1).unsqueeze(-2)
    spread = torch.where(covered.unsqueeze(1), each.unsqueeze(-1).unsqueeze(-1), 0.0).flatten(1, 3)
    zeros = _plane(height, width, batch_size, channels, grad)
    return zeros.index_add(0, rois[:, 0].to(torch.int64), spread.to(grad.dtype))


# -- the gradient of a convolution whose samples are moved ------------------------------------------------------------


class _Samples:
    """Where each window of each offset group reads, and what stands at the four corners around it.

    Shapes: positions [n, groups, places], places = kernel elements * output positions; values [n, groups, c, places].
    """

    def __init__(self, input: Tensor, offset: Tensor, kernel: Any, window: Any, groups: Any) -> None:
        sh, sw, ph, pw, dh, dw = window
        count, _, out_h, out_w = offset.shape
        self.height, self.width = input.shape[-2:]
        moved = offset.reshape(count, groups, kernel[0] * kernel[1], 2, out_h, out_w)
        ky = torch.arange(kernel[0], device=offset.device).repeat_interleave(kernel[1]).view(-1, 1, 1) * dh
        kx = torch.arange(kernel[1], device=offset.device).repeat(kernel[0]).view(-1, 1, 1) * dw
        oy = torch.arange(out_h, device=offset.device).view(-1, 1) * sh - ph
        ox = torch.arange(out_w, device=offset.device) * sw - pw
        y, x = (moved[:, :, :, 0] + ky + oy).flatten(2), (moved[:, :, :, 1] + kx + ox).flatten(2)
        self.low_y, self.low_x = y.floor(), x.floor()
        self.part_y, self.part_x = y - self.low_y, x - self.low_x
        self.flat = input.reshape(count, groups, -1, self.height * self.width)

    def corners(self) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Row and column of a corner, its place in the plane, and whether it lies in it."""
        for down in (0, 1):
            for right in (0, 1):
                y, x = self.low_y + down, self.low_x + right
                inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
                place = y.clamp(min=0).clamp(max=self.height - 1) * self.width
                place = place + x.clamp(min=0).clamp(max=self.width - 1)
                yield down, right, place.to(torch.int64).unsqueeze(2).expand(-1, -1, self.flat.shape[2], -1), inside

    def weight(self, down: int, right: int) -> tuple[Tensor, Tensor]:
        """The shares of a corner along y and x."""
        return (self.part_y if down else 1 - self.part_y), (self.part_x if right else 1 - self.part_x)


def deform_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: Any,
    stride_w: Any,
    pad_h: Any,
    pad_w: Any,
    dilation_h: Any,
    dilation_w: Any,
    groups: Any,
    offset_groups: Any,
    use_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of input, weight, offset, mask and bias.

    Shapes: as ``torchvision.ops.deform_conv2d`` has them, grad [n, o, oh, ow].
    """
    count, channels = input.shape[:2]
    kernel = weight.shape[2:]
    taps, positions = kernel[0] * kernel[1], grad.shape[2] * grad.shape[3]
    window = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w)
    at = _Samples(input, offset, kernel, window, offset_groups)

    split = grad.reshape(count, groups, -1, positions)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    columns = (matrix.mT @ split).reshape(count, offset_groups, channels // offset_groups, taps * positions)

    seen = mask.reshape(count, offset_groups, 1, taps * positions) if use_mask else torch.ones_like(columns[:, :, :1])
    values, of_y, of_x, back = [], [], [], torch.zeros_like(at.flat)
    for down, right, place, inside in at.corners():
        value = torch.where(inside.unsqueeze(2), at.flat.gather(3, place), 0.0)
        share_y, share_x = (w.unsqueeze(2) for w in at.weight(down, right))
        values.append(value * (share_y * share_x))
        of_y.append(value * share_x if down else -value * share_x)
        of_x.append(value * share_y if right else -value * share_y)
        given = torch.where(inside.unsqueeze(2), columns * seen * (share_y * share_x), 0.0)
        back = back.scatter_add(3, place, given)
    sampled, slope_y, slope_x = (reduce(operator.add, parts) for parts in (values, of_y, of_x))

    read = (sampled * seen).reshape(count, groups, -1, positions)
    grad_weight = (split @ read.mT).sum(0).reshape(weight.shape)
    inner = (count, offset_groups, taps, *grad.shape[2:])
    slopes = [((columns * seen * slope).sum(2)).reshape(inner) for slope in (slope_y, slope_x)]
    grad_offset = torch.stack(slopes, 3).reshape(offset.shape)
    grad_mask = (columns * sampled).sum(2).reshape(mask.shape) if use_mask else torch.zeros_like(mask)
    return back.reshape(input.shape), grad_weight, grad_offset, grad_mask, grad.sum((0, 2, 3))


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "_roi_pool_backward": roi_pool_backward,
    "ps_roi_align": ps_roi_align,
    "_ps_roi_align_backward": ps_roi_align_backward,
    "_ps_roi_pool_backward": ps_roi_pool_backward,
    "_deform_conv2d_backward": deform_conv2d_backward,
}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The formulas by overload, as far as torchvision has been imported."""
    packets = {name: getattr(torch.ops.torchvision, name, None) for name in FORMULAS}
    return {packet.default: FORMULAS[name] for name, packet in packets.items() if packet is not None}
