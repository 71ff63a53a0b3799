"""Runs of slices along an axis in ATen ops: reductions of segments, and distinct slices.

GE's segment operators take segment numbers of one axis and their count as a value; its operators for distinct slices
keep the order of first occurrence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten

# Reduction: what scatter_reduce calls it, and the value that it starts with.
_REDUCTIONS: Final = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "max": ("amax", -math.inf),
    "min": ("amin", math.inf),
    "prod": ("prod", 1.0),
}


class _Segments:
    """Which segment each element along ``axis`` is in.

    Attributes:
        count: Number of segments.
        numbers: Segment of each element, of the shape of the data; ``count`` for an element of none.
        lengths: Elements of each segment, shaped to be combined with the result.
    """

    def __init__(self, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> None:
        if offsets is not None:
            self.count = offsets.shape[axis] - 1
            begin, end = offsets.narrow(axis, 0, self.count), offsets.narrow(axis, 1, self.count)
        else:
            assert lengths is not None  # torch refuses a call with neither
            self.count = lengths.shape[axis]
            end = torch.cumsum(lengths, axis)
            begin = end - lengths
        size = data.shape[axis]
        places = torch.arange(size, dtype=end.dtype, device=data.device).expand([*data.shape[:axis], size])
        numbers = aten.searchsorted(end.contiguous(), places.contiguous(), right=True)
        if offsets is not None:
            numbers = torch.where(places < offsets.narrow(axis, 0, 1), self.count, numbers)
        trailing = [1] * (data.dim() - axis - 1)
        self.axis = axis
        self.numbers = numbers.reshape([*numbers.shape, *trailing]).expand(data.shape)
        self.lengths = (end - begin).reshape([*end.shape, *trailing])

    def reduced(self, data: Tensor, reduction: str, start: Any) -> Tensor:
        """Elements of each segment reduced together with ``start``."""
        shape = list(data.shape)
        shape[self.axis] = self.count + 1  # the last takes what is in no segment
        into = torch.full(shape, start, dtype=data.dtype, device=data.device)
        return aten.scatter_reduce(into, self.axis, self.numbers, data, reduction).narrow(self.axis, 0, self.count)

    def spread(self, values: Tensor) -> Tensor:
        """The value of its segment for each element; of an element in none that of the last segment."""
        return values.gather(self.axis, torch.clamp(self.numbers, max=self.count - 1))


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Tensor:
    """Consecutive elements along an axis reduced; a mean of nothing is not a number unless a start is given."""
    segments = _Segments(data, lengths, offsets, axis)
    name, start = _REDUCTIONS[reduce]
    reduced = segments.reduced(data, name, start if initial is None else initial)
    if reduce != "mean":
        return reduced
    filled = segments.lengths > 0
    mean = reduced / torch.where(filled, segments.lengths, 1).to(data.dtype)
    return torch.where(filled, mean, math.nan if initial is None else reduced)


def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Tensor:
    """The gradient of the data; several largest or smallest elements share a positive one."""
    segments = _Segments(data, lengths, offsets, axis)
    if reduce in ("max", "min"):
        chosen = (data == segments.spread(output)) | torch.isnan(data)
        ties = torch.clamp(segments.reduced(chosen.to(data.dtype), "sum", 0.0), min=1.0)
        share = torch.where(grad > 0, grad / ties, grad)  # eager does not divide a negative gradient
        gradient = torch.where(chosen, segments.spread(share), 0.0)
    elif reduce == "prod":
        gradient = segments.spread(grad) * _product_of_others(data, segments, 1.0 if initial is None else initial)
    else:
        whole = torch.clamp(segments.lengths, min=1).to(grad.dtype)
        gradient = segments.spread(grad / whole if reduce == "mean" else grad)
    return torch.where(segments.numbers < segments.count, gradient, 0.0)


def _product_of_others(data: Tensor, segments: _Segments, start: Any) -> Tensor:
    """The product of a segment without one element, without division by those that are zero or no number."""
    zero, undefined = data == 0, torch.isnan(data)
    plain = torch.where(zero | undefined, 1.0, data)
    product = segments.spread(segments.reduced(plain, "prod", start))
    zeros, gaps = (
        segments.spread(segments.reduced(mark.to(data.dtype), "sum", 0.0)) - mark.to(data.dtype)
        for mark in (zero, undefined)
    )
    others = torch.where(gaps > 0, math.nan, torch.where(zeros > 0, 0.0, product))
    return others / plain


def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct slices in lexicographic order, where each went, and how often it occurs.

    Elements become their ranks, and pairs of neighbouring ranks the ranks of the pairs, until a slice is one number.
    """
    slices = self.movedim(dim, 0) if self.dim() else self.reshape(1)
    if slices.numel() == 0:
        nothing = torch.zeros([0], dtype=torch.int64, device=self.device)
        return self.clone(), nothing, nothing.clone()
    slices = slices.reshape(slices.shape[0], -1)
    _, ranks, counts = aten._unique2(slices, True, True, True)
    while ranks.shape[1] > 1:
        width = ranks.shape[1]
        even = aten.constant_pad_nd(ranks, [0, width % 2])
        pairs = aten.slice(even, 1, 0, None, 2) * ranks.numel() + aten.slice(even, 1, 1, None, 2)
        _, ranks, counts = aten._unique2(pairs, True, True, True)
    inverse = ranks.reshape(-1)
    places = torch.arange(inverse.shape[0], device=self.device)
    # Any slice of those that are equal.
    chosen = torch.zeros_like(counts).scatter(0, inverse, places)
    values = aten.index_select(self, dim, chosen)
    return values, inverse, counts


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "segment_reduce.default": segment_reduce,
    "_segment_reduce_backward.default": segment_reduce_backward,
    "unique_dim.default": unique_dim,
}
