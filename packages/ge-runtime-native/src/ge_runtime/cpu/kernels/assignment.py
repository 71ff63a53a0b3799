"""Writing into parts: strided slices, coordinates with a maximum or minimum; and bands of diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.limits import ensure
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused


@kernel(
    "StridedSliceAssignV2",
    host=("begin", "end", "strides", "axes"),
    updates=("var",),
    source="the slice that StridedSliceV2 reads is written; axes absent: the first dims in order",
)
def strided_slice_assign_v2(
    var: Tensor, input_value: Tensor, begin: Any, end: Any, strides: Any, axes: Any = None
) -> Tensor:
    """var[begin:end:strides] = input_value along the listed axes, in place."""
    begins, part = listed(begin), var
    where = range(len(begins)) if axes is None else [a % var.dim() for a in listed(axes)]
    for axis, first, last, stride in zip(where, begins, listed(end), listed(strides), strict=True):
        if stride <= 0:
            raise refused("strides", f"stride {stride}; a written slice needs positive strides")
        start, stop, _ = slice(first, last, stride).indices(var.shape[axis])
        part = torch.ops.aten.slice(part, axis, start, max(start, stop), stride)
    part.copy_(input_value)
    return var


def _scatter_extreme(x: Tensor, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Rows of x addressed by the last dim of indices, combined with updates; equal coordinates all count."""
    depth = indices.shape[-1]
    shape = x.shape[:depth]
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for dim, size in enumerate(shape):
        part = indices[..., dim].to(torch.int64)
        if part.numel():
            low, high = part.aminmax()
            ensure((low >= 0) & (high < size), "indices", f"coordinate {dim} leaves [0, {size})")
        flat = flat * size + part
    width = x.shape[depth:].numel()
    rows = x.clone(memory_format=torch.contiguous_format).reshape(shape.numel(), width)
    values = updates.reshape(flat.numel(), width)
    place = flat.reshape(-1, 1).expand(values.shape)
    return rows.scatter_reduce_(0, place, values, reduction, include_self=True).reshape(x.shape)


rows(
    {
        "TensorScatterMax": lambda input, indices, updates: _scatter_extreme(input, indices, updates, "amax"),
        "TensorScatterMin": lambda input, indices, updates: _scatter_extreme(input, indices, updates, "amin"),
    },
    source="as ScatterNdMax and ScatterNdMin, into a copy",
)


def _band(k: Any, align: str | bytes) -> tuple[int, int, Callable[[int], bool]]:
    """Lowest and highest diagonal, and whether one that is shorter than the longest stands at the right."""
    offsets = listed(k)
    above, below = (align.decode() if isinstance(align, bytes) else align).split("_")
    return offsets[0], offsets[-1], lambda offset: (above if offset >= 0 else below) == "RIGHT"


@kernel("MatrixDiagPartV3", host=("k",), source="TensorFlow's matrix_diag_part, which it mirrors")
def matrix_diag_part(x: Tensor, k: Any, padding_value: Tensor, *, align: str | bytes = "RIGHT_LEFT") -> Tensor:
    """One diagonal of the last two dims, or a band of them from the highest to the lowest, padded to one length."""
    low, high, at_right = _band(k, align)
    rows, columns = x.shape[-2:]
    if not (-max(rows, 1) < low <= high < max(columns, 1)):
        raise refused("k", f"diagonals {low} to {high} of a {rows} x {columns} matrix")
    if low == high:
        return torch.diagonal(x, low, -2, -1).clone()
    length = min(rows + min(high, 0), columns - max(low, 0))
    band = []
    for offset in range(high, low - 1, -1):
        line = torch.diagonal(x, offset, -2, -1)
        padding = padding_value.reshape(()).expand([*line.shape[:-1], length - line.shape[-1]])
        band.append(torch.cat([padding, line] if at_right(offset) else [line, padding], -1))
    return torch.stack(band, -2)


@kernel("MatrixSetDiagV3", host=("k",), source="TensorFlow's matrix_set_diag, which it mirrors")
def matrix_set_diag(input: Tensor, diagonal: Tensor, k: Any, *, align: str | bytes = "RIGHT_LEFT") -> Tensor:
    """input with one diagonal of the last two dims, or a band of them, replaced."""
    low, high, at_right = _band(k, align)
    out = input.clone(memory_format=torch.contiguous_format)
    lines = diagonal.unsqueeze(-2) if low == high and diagonal.dim() == input.dim() - 1 else diagonal
    for row, offset in enumerate(range(high, low - 1, -1)):
        target = torch.diagonal(out, offset, -2, -1)
        length, line = target.shape[-1], lines[..., row, :]
        target.copy_(line[..., line.shape[-1] - length :] if at_right(offset) else line[..., :length])
    return out


# The second versions know no ``align``: each diagonal begins at the left.
rows(
    {
        "MatrixDiagPartV2": lambda x, k, padding_value: matrix_diag_part(x, k, padding_value, align="LEFT_LEFT"),
        "MatrixSetDiagV2": lambda input, diagonal, k: matrix_set_diag(input, diagonal, k, align="LEFT_LEFT"),
    },
    host=("k",),
    source="TensorFlow's matrix_diag_part and matrix_set_diag of the second version",
)


@kernel("MaskedFillRange", source="ops-nn: index/masked_fill_range, documentation")
def masked_fill_range(x: Tensor, start: Tensor, end: Tensor, value: Tensor, *, axis: int = -1) -> Tensor:
    """``x[i, start[j, i] : end[j, i]] = value[j]``, one j after the other."""
    if x.dim() != 2 or axis not in (-1, 1):
        raise refused("MaskedFillRange", f"{x.dim()} dimensions, axis {axis}", "accepted: 2, along the last one")
    y = x.clone()
    for number, begins, ends in zip(value, start.tolist(), end.tolist(), strict=True):
        for row, begin, stop in zip(y, begins, ends):
            row[begin:stop] = number
    return y
