"""Writing into parts: strided slices, coordinates with a maximum or minimum; and bands of diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_runtime import errors
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import listed


def _write_slices(var: Tensor, value: Tensor, axes: Sequence[int], bounds: Sequence[tuple[int, int, int]]) -> Tensor:
    part = var
    for axis, (begin, end, stride) in zip(axes, bounds, strict=True):
        if stride <= 0:
            raise errors.refused("strides", f"stride {stride}; a written slice needs positive strides")
        start, stop, _ = slice(begin, end, stride).indices(var.shape[axis])
        part = torch.ops.aten.slice(part, axis, start, max(start, stop), stride)
    part.copy_(value)
    return var


@kernel(
    "StridedSliceAssignV2", host=("begin", "end", "strides", "axes"), updates=("var",),
    source="the slice that StridedSliceV2 reads is written; axes absent: the first dims in order",
)  # fmt: skip
def strided_slice_assign_v2(
    var: Tensor, input_value: Tensor, begin: Any, end: Any, strides: Any, axes: Any = None
) -> Tensor:
    """var[begin:end:strides] = input_value along the listed axes, in place."""
    begins = listed(begin)
    where = list(range(len(begins))) if axes is None else [a % var.dim() for a in listed(axes)]
    return _write_slices(var, input_value, where, list(zip(begins, listed(end), listed(strides), strict=True)))


def _scatter_extreme(x: Tensor, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Rows of x addressed by the last dim of indices, combined with updates; equal coordinates all count."""
    depth = indices.shape[-1]
    shape = x.shape[:depth]
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for dim, size in enumerate(shape):
        part = indices[..., dim].to(torch.int64)
        if part.numel() and not (int(part.min()) >= 0 and int(part.max()) < size):
            raise errors.refused("indices", f"coordinate {dim} leaves [0, {size})")
        flat = flat * size + part
    rows = x.clone(memory_format=torch.contiguous_format).reshape(shape.numel(), -1)
    values = updates.reshape(flat.numel(), -1)
    place = flat.reshape(-1, 1).expand(values.shape)
    return rows.scatter_reduce_(0, place, values, reduction, include_self=True).reshape(x.shape)


@kernel("TensorScatterMax", source="as ScatterNdMax, into a copy")
def tensor_scatter_max(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """input with the larger of itself and updates at indices."""
    return _scatter_extreme(input, indices, updates, "amax")


@kernel("TensorScatterMin", source="as ScatterNdMin, into a copy")
def tensor_scatter_min(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """input with the smaller of itself and updates at indices."""
    return _scatter_extreme(input, indices, updates, "amin")


@kernel("MatrixDiagPartV2", "MatrixDiagPartV3", host=("k",), source="TensorFlow's matrix_diag_part, which it mirrors")
def matrix_diag_part(x: Tensor, k: Any, padding_value: Tensor, *, align: str | bytes = "RIGHT_LEFT") -> Tensor:
    """One diagonal of the last two dims, or a band of them from the highest to the lowest, padded to one length."""
    offsets = listed(k) if isinstance(k, (list, tuple)) else [k]
    low, high = offsets[0], offsets[-1]
    rows, columns = x.shape[-2:]
    if not (-max(rows, 1) < low <= high < max(columns, 1)):
        raise errors.refused("k", f"diagonals {low} to {high} of a {rows} x {columns} matrix")
    if low == high:
        return torch.diagonal(x, low, -2, -1).clone()
    above, below = (align.decode() if isinstance(align, bytes) else align).split("_")
    length = min(rows + min(high, 0), columns - max(low, 0))
    band = []
    for offset in range(high, low - 1, -1):
        line = torch.diagonal(x, offset, -2, -1)
        missing = length - line.shape[-1]
        right = (above if offset >= 0 else below) == "RIGHT"
        padding = padding_value.reshape(()).expand([*line.shape[:-1], missing])
        band.append(torch.cat([padding, line] if right else [line, padding], -1))
    return torch.stack(band, -2)


@kernel("MatrixSetDiagV2", "MatrixSetDiagV3", host=("k",), source="TensorFlow's matrix_set_diag, which it mirrors")
def matrix_set_diag(input: Tensor, diagonal: Tensor, k: Any, *, align: str | bytes = "RIGHT_LEFT") -> Tensor:
    """input with one diagonal of the last two dims, or a band of them, replaced."""
    offsets = listed(k) if isinstance(k, (list, tuple)) else [k]
    low, high = offsets[0], offsets[-1]
    out = input.clone(memory_format=torch.contiguous_format)
    above, below = (align.decode() if isinstance(align, bytes) else align).split("_")
    lines = diagonal.unsqueeze(-2) if low == high and diagonal.dim() == input.dim() - 1 else diagonal
    for row, offset in enumerate(range(high, low - 1, -1)):
        target = torch.diagonal(out, offset, -2, -1)
        length = target.shape[-1]
        right = (above if offset >= 0 else below) == "RIGHT"
        line = lines[..., row, :]
        target.copy_(line[..., line.shape[-1] - length :] if right else line[..., :length])
    return out
