"""Pooling that no GE operator takes, in ATen ops: windows as gathers by a table of positions, or as strided slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import order_of_memory

# -- the largest of each window, by a table of positions -------------------------------------------------------------


def _along(table: Tensor, axis: int, count: int) -> Tensor:
    """A table [.., places, width] of one axis, shaped to be added to those of all ``count`` axes.

    Shapes: [.., 1, places, 1, .. 1, width, 1]: first the places of each axis, then the offsets.
    """
    lead = table.shape[:-2]
    sizes = [1] * (2 * count)
    sizes[axis], sizes[count + axis] = table.shape[-2], table.shape[-1]
    return table.reshape([*lead, *sizes])


def _flat_positions(tables: Sequence[Tensor], sizes: Sequence[Any]) -> Tensor:
    """Row-major positions [.., places of all axes, offsets of all axes flattened] out of those of each axis."""
    count = len(sizes)
    total = _along(tables[0], 0, count)
    for axis in range(1, count):
        total = total * sizes[axis] + _along(tables[axis], axis, count)
    return total.flatten(-count)


def _largest(self: Tensor, positions: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of each window of the last ``count`` axes, and its position."""
    flat = self.flatten(-count)
    lead = flat.shape[:-1]
    spread = positions.expand([*lead, *positions.shape[-count - 1 :]])
    windows = flat.gather(-1, spread.flatten(len(lead))).reshape(spread.shape)
    values, which = torch.max(windows, -1, keepdim=True)
    return values.squeeze(-1), spread.gather(-1, which).squeeze(-1)


def scattered(grad_output: Tensor, self: Tensor, indices: Tensor, count: int) -> Tensor:
    """Each gradient added where its value came from."""
    flat = torch.zeros_like(self).flatten(-count)
    return flat.scatter_add(-1, indices.flatten(-count), grad_output.flatten(-count)).reshape(self.shape)


def _adaptive_table(length: Any, count: int, device: torch.device) -> Tensor:
    """Positions [count, width] of the windows of one axis; a shorter window repeats its last position."""
    places = torch.arange(count, device=device)
    begin = torch.div(places * length, count, rounding_mode="floor").unsqueeze(1)
    end = torch.div((places + 1) * length + (count - 1), count, rounding_mode="floor").unsqueeze(1)
    if isinstance(length, int) and length % count == 0:
        width = length // count
    else:
        width = (length + count - 1) // count + 1
    return torch.minimum(begin + torch.arange(width, device=device), end - 1)


def adaptive_max_pool3d(self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest of each of the windows that divide a volume, and its position in the volume."""
    sizes = self.shape[-3:]
    tables = [_adaptive_table(n, m, self.device) for n, m in zip(sizes, output_size)]
    return _largest(self, _flat_positions(tables, sizes), 3)


def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """Each gradient added where its value came from."""
    return scattered(grad_output, self, indices, 3)


def _fractional_table(sample: Tensor, length: Any, count: int, width: int) -> Tensor:
    """Positions [.., count, width] of windows at fractions shifted by ``sample`` [..]; the last ends the axis.

    Every step rounds to the type of the samples, as in eager: a window begins where the rounded number says.
    """
    last = torch.full_like(sample, 0, dtype=torch.int64).unsqueeze(-1) + (length - width)
    if count == 1:
        begin = last
    else:
        alpha = last[..., 0].to(sample.dtype) / torch.full((), count - 1, dtype=sample.dtype, device=sample.device)
        steps = torch.arange(count - 1, device=sample.device).to(sample.dtype)
        shifted = (steps + sample.unsqueeze(-1)) * alpha.unsqueeze(-1)
        begin = torch.cat([shifted.to(torch.int64) - (sample * alpha).to(torch.int64).unsqueeze(-1), last], -1)
    return begin.unsqueeze(-1) + torch.arange(width, device=sample.device)


def _fractional_max_pool(order: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """``order``: which sample belongs to each axis."""
    count = len(order)

    def pool(
        self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The largest of windows at random fractions, and its position."""
        sizes = self.shape[-count:]
        samples = random_samples.reshape([*self.shape[:-count], count])
        tables = [
            _fractional_table(samples.select(-1, i), n, m, k)
            for i, n, m, k in zip(order, sizes, output_size, kernel_size)
        ]
        return _largest(self, _flat_positions(tables, sizes), count)

    return pool


def fractional_max_pool_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], indices: Tensor
) -> Tensor:
    """Each gradient added where its value came from."""
    return scattered(grad_output, self, indices, len(kernel_size))


# -- pooling of integers, by strided slices --------------------------------------------------------------------------
# GE's pooling operators take floats, which do not hold every integer.


def _each(value: Sequence[int], count: int, default: Sequence[int] = ()) -> list[int]:
    given = list(value) or list(default)
    return given * count if len(given) == 1 else given


def _pooled_size(length: Any, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> Any:
    """Number of windows of one axis; one that begins in the padding after the axis is dropped."""
    free = length + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return free // stride + 1
    count = (free + stride - 1) // stride + 1
    return count - 1 if (count - 1) * stride >= length + pad else count


class _Windows:
    """The windows of a tensor: one strided slice for each offset in them."""

    def __init__(
        self,
        x: Tensor,
        kernel: list[int],
        stride: list[int],
        pad: list[int],
        dilation: list[int],
        ceil_mode: bool,
        fill: float,
    ) -> None:
        self.kernel, self.stride, self.pad, self.dilation = kernel, stride, pad, dilation
        self.sizes = list(x.shape[-len(kernel) :])
        self.counts = [_pooled_size(*each, ceil_mode) for each in zip(self.sizes, kernel, stride, pad, dilation)]
        edges: list[Any] = []
        for n, count, k, s, p, d in reversed(list(zip(self.sizes, self.counts, kernel, stride, pad, dilation))):
            edges += [p, torch.sym_max(0, (count - 1) * s + (k - 1) * d + 1 - n - p)]
        self.padded = aten.constant_pad_nd(x, edges, fill)

    def offsets(self) -> list[tuple[int, ...]]:
        """All offsets, row by row."""
        offsets: list[tuple[int, ...]] = [()]
        for k in self.kernel:
            offsets = [(*o, i) for o in offsets for i in range(k)]
        return offsets

    def at(self, offset: tuple[int, ...]) -> Tensor:
        """The element at one offset of every window."""
        taken = self.padded
        for axis, (o, d, s, count) in enumerate(zip(offset, self.dilation, self.stride, self.counts)):
            begin = o * d
            taken = aten.slice(taken, axis - len(offset), begin, begin + (count - 1) * s + 1, s)
        return taken

    def positions(self, offset: tuple[int, ...] | None = None) -> Tensor:
        """Row-major positions in the input of those elements; without offset of the first ones inside the input."""
        total: Any = 0
        for axis, (d, s, p, n, count) in enumerate(zip(self.dilation, self.stride, self.pad, self.sizes, self.counts)):
            places = torch.arange(count, device=self.padded.device) * s - p
            if offset is None:
                places = places + d * torch.div(torch.clamp(-places, min=0) + (d - 1), d, rounding_mode="floor")
            else:
                places = places + offset[axis] * d
            total = places if axis == 0 else total.unsqueeze(-1) * n + places
        positions: Tensor = total
        return positions

    def counted(self, axis: int, include_pad: bool) -> Tensor:
        """How many elements of each window count along an axis: those of the input, or of the padded input."""
        n, p, k = self.sizes[axis], self.pad[axis], self.kernel[axis]
        begin = torch.arange(self.counts[axis], device=self.padded.device) * self.stride[axis] - p
        end = torch.clamp(begin + k, max=n + p)
        if not include_pad:
            begin, end = torch.clamp(begin, min=0), torch.clamp(end, max=n)
        return end - begin


def _max_pool_with_indices(count: int) -> Callable[..., Any]:
    def pool(
        self: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        """The largest integer or double of each window and its position; of equal ones the first, NaN above all."""
        if self.is_floating_point() and self.dtype != torch.float64:
            return NotImplemented
        least = -math.inf if self.is_floating_point() else torch.iinfo(self.dtype).min
        kernel = _each(kernel_size, count)
        windows = _Windows(
            self,
            kernel,
            _each(stride, count, kernel),
            _each(padding, count),
            _each(dilation, count),
            ceil_mode,
            least,
        )
        position = windows.positions()
        best = torch.full_like(windows.at((0,) * count), least)
        position = position.expand(best.shape)
        for offset in windows.offsets():
            value = windows.at(offset)
            larger = value > best
            if self.is_floating_point():
                larger = larger | torch.isnan(value)
            best = torch.where(larger, value, best)
            position = torch.where(larger, windows.positions(offset), position)
        return best, position

    return pool


def _avg_pool(count: int) -> Callable[..., Any]:
    def pool(
        self: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """The mean of the integers of each window, cut off towards zero; eager has it of int64 only."""
        if self.is_floating_point():
            return NotImplemented
        if self.dtype != torch.int64:
            raise NotImplementedError(f"avg_pool{count}d of {self.dtype}: eager takes int64 and floats; cast the input")
        kernel = _each(kernel_size, count)
        pad = _each(padding, count)
        windows = _Windows(self, kernel, _each(stride, count, kernel), pad, [1] * count, ceil_mode, 0)
        first, *others = windows.offsets()
        total = windows.at(first)
        for offset in others:
            total = total + windows.at(offset)
        divisor: Any = divisor_override
        if divisor is None:
            divisor = windows.counted(0, count_include_pad)
            for axis in range(1, count):
                divisor = divisor.unsqueeze(-1) * windows.counted(axis, count_include_pad)
            divisor = torch.clamp(divisor, min=1).to(self.dtype)
        return torch.div(total, divisor, rounding_mode="trunc")

    return pool


# -- interpolation with a filter as wide as the reduction ("anti-aliased") -------------------------------------------


def _triangle(x: Tensor) -> Tensor:
    return torch.clamp(1.0 - x.abs(), min=0.0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5."""
    a, x = -0.5, x.abs()
    inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    outer = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return torch.where(x < 1.0, inner, torch.where(x < 2.0, outer, 0.0))


def _lanczos(x: Tensor) -> Tensor:
    """Three lobes on each side."""
    return torch.where(x.abs() < 3.0, torch.sinc(x) * torch.sinc(x / 3.0), 0.0)


def _scale(length: Any, count: Any, align_corners: bool, scale: float | None) -> Any:
    """How many inputs one output stands for."""
    if align_corners:
        return (length - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else length / count


def _filter_matrix(
    length: Any, count: Any, scale: Any, width: int, shape: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> Tensor:
    """Weights [count, length]: a filter around the middle of each output, divided by their sum."""
    stretch = scale if scale >= 1.0 else 1.0
    support = width * 0.5 * stretch
    middle = (torch.arange(count).to(dtype) + 0.5) * scale
    places = torch.arange(length)
    begin = torch.clamp((middle - support + 0.5).to(torch.int64), min=0).unsqueeze(1)
    end = torch.clamp((middle + support + 0.5).to(torch.int64), max=length).unsqueeze(1)
    distance = (places.to(dtype) - middle.unsqueeze(1) + 0.5) * (1.0 / stretch)
    weights = torch.where((places >= begin) & (places < end), shape(distance), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _resample(width: int, shape: Callable[[Tensor], Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def matrices(
        sizes: Sequence[Any], counts: Sequence[Any], align: bool, scales: Sequence[Any], dtype: torch.dtype
    ) -> list[Tensor]:
        return [
            _filter_matrix(n, m, _scale(n, m, align, s), width, shape, dtype) for n, m, s in zip(sizes, counts, scales)
        ]

    def forward(
        self: Tensor,
        output_size: Sequence[Any],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Any:
        """Products with a matrix of filter weights for each axis. Bytes have an arithmetic of their own."""
        if not self.is_floating_point():
            return NotImplemented
        x = self.to(torch.promote_types(self.dtype, torch.float32))
        rows, columns = matrices(self.shape[-2:], output_size, align_corners, (scales_h, scales_w), x.dtype)
        return (rows @ (x @ columns.mT)).to(self.dtype)

    def backward(
        grad_output: Tensor,
        output_size: Sequence[Any],
        input_size: Sequence[Any],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """Products with the transposed matrices."""
        g = grad_output.to(torch.promote_types(grad_output.dtype, torch.float32))
        rows, columns = matrices(input_size[-2:], output_size, align_corners, (scales_h, scales_w), g.dtype)
        return (rows.mT @ (g @ columns)).to(grad_output.dtype)

    return forward, backward


_LINEAR: Final = _resample(2, _triangle)
_CUBIC: Final = _resample(4, _cubic)
_LANCZOS: Final = _resample(6, _lanczos)


def max_unpool(self: Tensor, indices: Tensor, output_size: list[int], *_: Any) -> Tensor:
    """Each value at its place in a plane of zeros; a place outside of the plane is an error, below zero as well."""
    count = len(output_size)
    lead, planes = self.shape[: self.dim() - count], math.prod(output_size)
    flat = self.new_zeros([*lead, planes]).scatter(-1, indices.flatten(-count), self.flatten(-count))
    made = flat.reshape([*lead, *output_size])
    return made.contiguous(memory_format=order_of_memory(self)) if self.dim() == 4 and count == 2 else made


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "max_unpool2d.default": max_unpool,
    "max_unpool3d.default": max_unpool,
    "adaptive_max_pool3d.default": adaptive_max_pool3d,
    "adaptive_max_pool3d_backward.default": adaptive_max_pool3d_backward,
    "fractional_max_pool2d.default": _fractional_max_pool((1, 0)),
    "fractional_max_pool2d_backward.default": fractional_max_pool_backward,
    "fractional_max_pool3d.default": _fractional_max_pool((0, 1, 2)),
    "fractional_max_pool3d_backward.default": fractional_max_pool_backward,
    "_upsample_bilinear2d_aa.default": _LINEAR[0],
    "_upsample_bilinear2d_aa_backward.default": _LINEAR[1],
    "_upsample_bicubic2d_aa.default": _CUBIC[0],
    "_upsample_bicubic2d_aa_backward.default": _CUBIC[1],
    "_upsample_lanczos2d_aa.default": _LANCZOS[0],
}

# Beside a converter that takes floats: what is given back as NotImplemented stays whole.
BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = {
    "max_pool2d_with_indices.default": _max_pool_with_indices(2),
    "max_pool3d_with_indices.default": _max_pool_with_indices(3),
    "avg_pool2d.default": _avg_pool(2),
    "avg_pool3d.default": _avg_pool(3),
}
