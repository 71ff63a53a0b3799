"""Operators that move or repeat elements without computing: reshape, transpose, concat, split, slice, pad, tile.

Most return views; the planner copies where a view would leave the graph. Operators with a ``D`` suffix carry as an
attribute what the plain form takes as a tensor: one function serves both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_runtime import errors
from ge_runtime.cpu.registry import Call, PlanContext, Ref, kernel, plan
from ge_runtime.cpu.values import listed, one, torch_dtype


def _single(value: Any) -> Any:
    """At plan time: the number of a one-element operand, None if there is none."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 else None
    return value


# Reshape and relatives


@kernel("Reshape", host=("shape",), views=True, source="0 copies x's dim unless x is empty; axis, num_axes choose dims")
def reshape(x: Tensor, shape: Any, *, axis: int = 0, num_axes: int = -1) -> Tensor:
    """x in another shape, row-major order kept."""
    sizes = listed(shape)
    start = axis if axis >= 0 else axis + x.dim() + 1
    stop = x.dim() if num_axes == -1 else start + num_axes
    if x.numel():
        sizes = [x.shape[start + i] if s == 0 and start + i < stop else s for i, s in enumerate(sizes)]
    return torch.reshape(x, [*x.shape[:start], *sizes, *x.shape[stop:]])


@plan("Reshape")
def _reshape_plan(ctx: PlanContext) -> Call | None:
    sizes = ctx.host("shape")
    if not isinstance(sizes, list) or ctx.attr("axis", 0) != 0 or ctx.attr("num_axes", -1) != -1 or 0 in sizes:
        return None
    return Call(torch.reshape, (ctx.tensor("x"), tuple(sizes)))


@kernel("FlattenV2", views=True)
def flatten(x: Tensor, *, axis: int = 1, end_axis: int = -1) -> Tensor:
    """Dims axis..end_axis as one; an axis outside x's rank is an error."""
    return torch.flatten(x, axis, end_axis)


@kernel("Flatten", views=True)
def flatten_2d(x: Tensor, *, axis: int = 1) -> Tensor:
    """A matrix of the dims before axis and the dims from axis on."""
    cut = axis if axis >= 0 else axis + x.dim()
    return x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))


@kernel("Squeeze", "SqueezeV2", views=True, source="no axis: all dims of 1; a listed dim that is not 1 is an error")
def squeeze(x: Tensor, *, axis: Sequence[int] = ()) -> Tensor:
    """x without the listed dims of size 1."""
    for a in axis:
        if x.dim() and x.shape[a] != 1:
            raise errors.refused("Squeeze", f"dim {a} of {list(x.shape)} is not 1")
    return torch.squeeze(x, tuple(axis)) if axis else torch.squeeze(x)


@plan("Squeeze", "SqueezeV2")
def _squeeze_plan(ctx: PlanContext) -> Call | None:
    axes, shape = ctx.attr("axis", ()), ctx.shape("x")
    if len(axes) == 1 and shape is not None and -len(shape) <= axes[0] < len(shape) and shape[axes[0]] == 1:
        return Call(squeeze_one, (ctx.tensor("x"), axes[0]))
    return None


def squeeze_one(x: Tensor, axis: int) -> Tensor:
    """x without a dim that must be 1."""
    if x.shape[axis] != 1:
        raise errors.refused("Squeeze", f"dim {axis} of {list(x.shape)} is not 1")
    return x.squeeze(axis)


@kernel("SqueezeV3", host=("axes",), views=True)
def squeeze_v3(x: Tensor, axes: Any = None) -> Tensor:
    """Squeeze with the axes as a tensor."""
    return squeeze(x, axis=() if axes is None else listed(axes))


@kernel("Unsqueeze", "UnsqueezeV3", host=("axes",), views=True, source="positions in the output's shape")
def unsqueeze(x: Tensor, axes: Any = ()) -> Tensor:
    """x with dims of 1 at the given places of the result."""
    places = listed(axes)
    rank = x.dim() + len(places)
    wanted = {a + rank if a < 0 else a for a in places}
    if len(wanted) != len(places):
        raise errors.refused("Unsqueeze", f"axes {places} name a dim twice")
    for a in sorted(wanted):
        x = x.unsqueeze(a)
    return x


@kernel("UnsqueezeV2", views=True)
def unsqueeze_v2(x: Tensor, *, axis: Sequence[int] = ()) -> Tensor:
    """Unsqueeze under its other attribute name."""
    return unsqueeze(x, axis)


@kernel("ExpandDims", host=("axis",), views=True)
def expand_dims(x: Tensor, axis: Any) -> Tensor:
    """x with one dim of 1 inserted."""
    return x.unsqueeze(one(axis))


@plan("Unsqueeze")
def _unsqueeze_plan(ctx: PlanContext) -> Call | None:
    axes = ctx.attr("axes", ())
    return Call(torch.unsqueeze, (ctx.tensor("x"), axes[0])) if len(axes) == 1 else None


@plan("ExpandDims")
def _expand_dims_plan(ctx: PlanContext) -> Call | None:
    axis = _single(ctx.const("axis"))
    return None if axis is None else Call(torch.unsqueeze, (ctx.tensor("x"), axis))


@kernel("Transpose", "TransposeD", host=("perm",), views=True)
def transpose(x: Tensor, perm: Any) -> Tensor:
    """Dim i of the result is dim perm[i] of x."""
    return x.permute(listed(perm))


@kernel("Permute", views=True)
def permute(x: Tensor, *, order: Sequence[int] = (0,)) -> Tensor:
    """Transpose with the permutation as an attribute."""
    return x.permute(tuple(order))


@plan("Transpose")
def _transpose_plan(ctx: PlanContext) -> Call | Ref | None:
    perm = ctx.const("perm")
    if not isinstance(perm, list):
        return None
    rank = len(perm)
    order = [p + rank if p < 0 else p for p in perm]
    moved = [i for i, p in enumerate(order) if i != p]
    if not moved:
        x: Ref = ctx.tensor("x")
        return x
    if len(moved) == 2:
        return Call(torch.transpose, (ctx.tensor("x"), *moved))
    return Call(torch.permute, (ctx.tensor("x"), tuple(order)))


@kernel("BroadcastTo", "BroadcastToD", host=("shape",), source="-1 keeps the dim; a new leading -1 becomes 1")
def broadcast_to(x: Tensor, shape: Any) -> Tensor:
    """x repeated along dims of 1 up to the wanted shape, as memory of its own."""
    return _broadcast_view(x, shape).contiguous() if x.dim() or listed(shape) else x.clone()


def _broadcast_view(x: Tensor, shape: Any) -> Tensor:
    sizes = listed(shape)
    new = len(sizes) - x.dim()
    return x.expand([1 if s == -1 and i < new else s for i, s in enumerate(sizes)])


@kernel("Expand", "ExpandD", host=("shape",), source="as BroadcastTo, and 1 against a larger dim keeps the dim")
def expand(x: Tensor, shape: Any) -> Tensor:
    """ONNX broadcast of x with a shape."""
    sizes = listed(shape)
    new = len(sizes) - x.dim()
    sizes = [s if i < new or s != 1 else x.shape[i - new] for i, s in enumerate(sizes)]
    return _broadcast_view(x, sizes).clone(memory_format=torch.contiguous_format)


@plan("BroadcastTo", "Expand")
def _broadcast_plan(ctx: PlanContext) -> Call | None:
    sizes, shape = ctx.host("shape"), ctx.shape("x")
    if not isinstance(sizes, list) or shape is None or len(sizes) < len(shape):
        return None
    new = len(sizes) - len(shape)
    sizes = [1 if s == -1 and i < new else s for i, s in enumerate(sizes)]
    if ctx.node.op == "Expand" and any(not isinstance(s, int) or s == 1 for s in sizes[new:]):
        return None
    return Call(Tensor.expand, (ctx.tensor("x"), tuple(sizes)), views=True)


@kernel("Tile", "TileD", host=("multiples",))
def tile(x: Tensor, multiples: Any) -> Tensor:
    """x repeated multiples[i] times along dim i; the shorter of the two lists is filled up with ones on the left."""
    times = listed(multiples)
    times = [1] * (x.dim() - len(times)) + times
    return x.repeat(times) if times else x.clone()


# Joining and splitting


@kernel("ConcatV2", "ConcatV2D", "ConcatD", host=("concat_dim",), ignores=("N",))
def concat_v2(x: list[Tensor], concat_dim: Any) -> Tensor:
    """Tensors one after the other along a dim."""
    return torch.cat(x, one(concat_dim)) if len(x) > 1 else x[0].clone()


@kernel("Concat", host=("concat_dim",), ignores=("N",))
def concat(concat_dim: Any, x: list[Tensor]) -> Tensor:
    """Concat with the axis as first input."""
    return concat_v2(x, concat_dim)


@plan("ConcatV2", "ConcatD", "ConcatV2D")
def _concat_plan(ctx: PlanContext) -> Call | None:
    axis = _single(ctx.const("concat_dim")) if ctx.fed("concat_dim") else ctx.attr("concat_dim")
    parts = ctx.tensor("x")
    return None if axis is None or len(parts) < 2 else Call(torch.cat, (tuple(parts), axis))


@kernel("Pack", ignores=("N",))
def pack(x: list[Tensor], *, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    return torch.stack(x, axis)


@plan("Pack")
def _pack_plan(ctx: PlanContext) -> Call:
    return Call(torch.stack, (tuple(ctx.tensor("x")), ctx.attr("axis", 0)))


@kernel("Unpack", views=True)
def unpack(x: Tensor, *, num: int, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along an axis, without that axis."""
    if x.shape[axis] != num:
        raise errors.refused("Unpack", f"num={num}, but dim {axis} of x has size {x.shape[axis]}")
    return torch.unbind(x, axis)


@kernel("Split", host=("split_dim",), views=True)
def split(split_dim: Any, x: Tensor, *, num_split: int) -> tuple[Tensor, ...]:
    """x in num_split equal parts."""
    axis = one(split_dim)
    if x.shape[axis] % num_split:
        raise errors.refused("Split", f"dim {axis} of size {x.shape[axis]} has no {num_split} equal parts")
    return torch.split(x, max(x.shape[axis] // num_split, 1), axis) if x.shape[axis] else (x,) * num_split


@kernel("SplitD", views=True)
def split_d(x: Tensor, *, split_dim: int, num_split: int) -> tuple[Tensor, ...]:
    """Split with the axis as an attribute."""
    return split(split_dim, x, num_split=num_split)


@kernel("SplitV", "SplitVD", host=("size_splits", "split_dim"), views=True, source="one size may be -1: the rest")
def split_v(x: Tensor, size_splits: Any, split_dim: Any, *, num_split: int) -> tuple[Tensor, ...]:
    """x in parts of the given sizes."""
    axis, sizes = one(split_dim), listed(size_splits)
    if len(sizes) != num_split or sizes.count(-1) > 1:
        raise errors.refused("SplitV", f"size_splits {sizes} does not describe {num_split} parts")
    rest = x.shape[axis] - sum(s for s in sizes if s != -1)
    return torch.split(x, [rest if s == -1 else s for s in sizes], axis)


@plan("SplitV")
def _split_v_plan(ctx: PlanContext) -> Call | None:
    sizes, axis = ctx.host("size_splits"), _single(ctx.const("split_dim"))
    if not isinstance(sizes, list) or axis is None or any(not isinstance(s, Ref) and s < 0 for s in sizes):
        return None
    if len(sizes) != ctx.attr("num_split"):
        return None
    return Call(torch.split_with_sizes, (ctx.tensor("x"), tuple(sizes), axis))


# Slicing


@kernel(
    "Slice", "SliceD", host=("offsets", "size"), views=True, source="no negative offsets, no clamping; -1: to the end"
)
def slice_block(x: Tensor, offsets: Any, size: Any) -> Tensor:
    """The block x[offsets : offsets + size]."""
    starts, sizes = listed(offsets), listed(size)
    if len(starts) != x.dim() or len(sizes) != x.dim():
        raise errors.refused(
            "Slice", f"offsets {starts} and size {sizes} must have one entry for each of {x.dim()} dims"
        )
    for dim, (start, length) in enumerate(zip(starts, sizes)):
        length = x.shape[dim] - start if length == -1 else length
        if start or length != x.shape[dim]:
            x = x.narrow(dim, start, length)
    return x


def _masked(mask: int, i: int) -> bool:
    return bool(mask >> i & 1)


def _step_slice(x: Tensor, dim: int, begin: int | None, end: int | None, stride: int) -> Tensor:
    """x[begin:end:stride] along one dim by Python's rules, negative strides included."""
    if stride == 0:
        raise errors.refused("StridedSlice", "stride 0")
    places = range(*slice(begin, end, stride).indices(x.shape[dim]))
    if stride > 0:
        return torch.ops.aten.slice(x, dim, places.start, max(places.stop, places.start), stride)
    return x.index_select(dim, torch.tensor(list(places), dtype=torch.int64))


@kernel(
    "StridedSlice", "StridedSliceD", host=("begin", "end", "strides"), views=True,
    source="Python's slice rules an axis, with masks for begin, end, ellipsis, new axis, shrink",
)  # fmt: skip
def strided_slice(
    x: Tensor, begin: Any, end: Any, strides: Any, *, begin_mask: int = 0, end_mask: int = 0, ellipsis_mask: int = 0,
    new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Tensor:  # fmt: skip
    """x[begin[i]:end[i]:strides[i], …] where entry i is one subscript, bit i of a mask changes its meaning."""
    begins, ends, steps = listed(begin), listed(end), listed(strides)
    new = {i for i in range(len(begins)) if _masked(new_axis_mask, i) and not _masked(ellipsis_mask, i)}
    dim = 0
    for i in range(len(begins)):
        if _masked(ellipsis_mask, i):
            dim = x.dim() - sum(1 for later in range(i + 1, len(begins)) if later not in new)
        elif i in new:
            x, dim = x.unsqueeze(dim), dim + 1
        elif _masked(shrink_axis_mask, i):
            x = x.select(dim, begins[i])
        else:
            start = None if _masked(begin_mask, i) else begins[i]
            x, dim = _step_slice(x, dim, start, None if _masked(end_mask, i) else ends[i], steps[i]), dim + 1
    return x


@kernel("StridedSliceV2", "StridedSliceV3", host=("begin", "end", "axes", "strides"), views=True)
def strided_slice_v2(
    x: Tensor, begin: Any, end: Any, axes: Any = None, strides: Any = None, *, begin_mask: int = 0, end_mask: int = 0,
    ellipsis_mask: int = 0, new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Tensor:  # fmt: skip
    """Slices along listed axes; the masks apply after begin, end and strides were spread over all dims of x."""
    begins, ends = listed(begin), listed(end)
    steps = [1] * len(begins) if strides is None else listed(strides)
    where = list(range(len(begins))) if axes is None else listed(axes)
    if ellipsis_mask or new_axis_mask:
        raise errors.refused("StridedSliceV2", "ellipsis_mask and new_axis_mask have no defined meaning with axes")
    removed = []
    for b, e, s, axis in zip(begins, ends, steps, where, strict=True):
        dim = axis + x.dim() if axis < 0 else axis
        if not 0 <= dim < x.dim():
            continue  # an axis outside the rank is skipped by definition
        if _masked(shrink_axis_mask, dim):
            removed.append((dim, b))
            continue
        x = _step_slice(x, dim, None if _masked(begin_mask, dim) else b, None if _masked(end_mask, dim) else e, s)
    for dim, place in sorted(removed, reverse=True):
        x = x.select(dim, place)
    return x


@plan("StridedSliceV2", "StridedSlice")
def _strided_slice_plan(ctx: PlanContext) -> Call | None:
    """One axis, positive stride, no mask: one subscript."""
    masks = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    if any(ctx.attr(m, 0) for m in masks):
        return None
    begin, end = ctx.host("begin"), ctx.host("end")
    axes = ctx.const("axes") if ctx.fed("axes") else list(range(len(begin))) if isinstance(begin, list) else None
    strides = ctx.const("strides") if ctx.fed("strides") else [1]
    if not (isinstance(axes, list) and isinstance(strides, list) and isinstance(begin, list) and isinstance(end, list)):
        return None
    if not len(begin) == len(end) == len(axes) == len(strides) == 1 or strides[0] <= 0:
        return None
    shape = ctx.shape("x")
    if shape is None or not -len(shape) <= axes[0] < len(shape):
        return None
    axis = axes[0] % len(shape)
    return Call(operator.getitem, (ctx.tensor("x"), (slice(None),) * axis + (slice(begin[0], end[0], strides[0]),)))


# Padding, reversing, rolling, diagonals


def _pad_constant(x: Tensor, pairs: list[tuple[int, int]], value: Any) -> Tensor:
    flat = [v for pair in reversed(pairs) for v in pair]
    return torch.constant_pad_nd(x, flat, value)


def _mirror_index(size: int, before: int, after: int, mode: str) -> Tensor:
    """Source positions along one dim for the padded positions."""
    places = torch.arange(-before, size + after)
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "circular":
        return places % max(size, 1)
    period = 2 * size - 2 if mode == "reflect" else 2 * size
    folded = places % period if period else places * 0
    return torch.where(folded < size, folded, (period if mode == "reflect" else period - 1) - folded)


_PAD_LIMIT = {"reflect": lambda size: size - 1, "symmetric": lambda size: size}


def _pad_by_index(x: Tensor, pairs: list[tuple[int, int]], mode: str) -> Tensor:
    for dim, (before, after) in enumerate(pairs):
        if not (before or after):
            continue
        limit = _PAD_LIMIT.get(mode, lambda size: math.inf if size else 0)(x.shape[dim])
        if before > limit or after > limit:
            raise errors.refused("Pad", f"{mode} padding {(before, after)} of dim {dim} with size {x.shape[dim]}")
        x = x.index_select(dim, _mirror_index(x.shape[dim], before, after, mode))
    return x


@kernel(
    "PadV3", "PadV3D", host=("paddings", "constant_values"),
    source="first dim first; negative values crop; modes constant, reflect, edge, symmetric, circular",
)  # fmt: skip
def pad_v3(
    x: Tensor, paddings: Any, constant_values: Any = 0, *, mode: str = "constant", paddings_contiguous: bool = True
) -> Tensor:
    """x with elements added before and after each dim."""
    values = listed(paddings)
    half = len(values) // 2
    if half != x.dim():
        raise errors.refused("Pad", f"{len(values)} paddings for {x.dim()} dims")
    split_up = zip(values[::2], values[1::2]) if paddings_contiguous else zip(values[:half], values[half:])
    pairs = list(split_up)
    if mode == "constant":
        value = constant_values[0] if isinstance(constant_values, list) else constant_values
        return _pad_constant(x, pairs, 0 if value is None else value)
    if mode not in ("reflect", "edge", "symmetric", "circular"):
        raise errors.refused("Pad", f"mode {mode!r}; accepted: constant, reflect, edge, symmetric, circular")
    if min((n for pair in pairs for n in pair), default=0) < 0:
        raise errors.refused("Pad", f"paddings {values} in mode {mode!r}; negative ones crop in mode constant only")
    return _pad_by_index(x, pairs, mode).clone()


@kernel("Pad", "PadD", "PadV2", host=("paddings", "constant_values"))
def pad(x: Tensor, paddings: Any, constant_values: Any = 0) -> Tensor:
    """x with constants added before and after each dim."""
    return pad_v3(x, paddings, constant_values)


@kernel("MirrorPad", host=("paddings",))
def mirror_pad(x: Tensor, paddings: Any, *, mode: str) -> Tensor:
    """x mirrored at its borders, border excluded (REFLECT) or included (SYMMETRIC)."""
    text = mode.decode() if isinstance(mode, bytes) else mode
    return pad_v3(x, paddings, mode=text.lower())


@kernel("ReverseV2", "ReverseV2D", host=("axis",))
def reverse_v2(x: Tensor, axis: Any) -> Tensor:
    """Element order reversed along the listed axes."""
    return torch.flip(x, listed(axis))


@kernel("Roll")
def roll(x: Tensor, *, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Cyclic shift; without dims the flattened tensor is shifted."""
    return torch.roll(x, tuple(shifts), tuple(dims))


@kernel("RollV2", host=("shift", "axes"))
def roll_v2(input: Tensor, shift: Any, axes: Any) -> Tensor:
    """Cyclic shift along axes; an axis that is named twice is shifted by the sum."""
    return torch.roll(input, tuple(listed(shift)), tuple(listed(axes)))


@kernel("Tril")
def tril(x: Tensor, *, diagonal: int = 0) -> Tensor:
    """Elements with column <= row + diagonal, else 0."""
    return torch.tril(x, diagonal)


@kernel("Triu")
def triu(x: Tensor, *, diagonal: int = 0) -> Tensor:
    """Elements with column >= row + diagonal, else 0."""
    return torch.triu(x, diagonal)


@kernel("Diag", source="rank k gives rank 2k")
def diag(x: Tensor) -> Tensor:
    """x on the diagonal of a tensor of twice its rank, else 0."""
    return torch.diag(x.reshape(-1)).reshape([*x.shape, *x.shape])


@kernel("DiagPart")
def diag_part(x: Tensor) -> Tensor:
    """The inverse of Diag: the diagonal of a tensor whose first and second half of dims agree."""
    shape = x.shape[: x.dim() // 2]
    return x.reshape(math.prod(shape), math.prod(shape)).diagonal().reshape(shape).clone()


@kernel("DiagV2")
def diag_v2(x: Tensor, *, diagonal: int = 0) -> Tensor:
    """A vector on a diagonal of a matrix, or the diagonal of a matrix."""
    return torch.diag(x, diagonal).clone()


@kernel("MatrixDiag")
def matrix_diag(x: Tensor) -> Tensor:
    """The last dim on the diagonal of matrices."""
    return torch.diag_embed(x)


@kernel("MatrixDiagPart")
def matrix_diag_part(x: Tensor) -> Tensor:
    """The diagonals of the last two dims."""
    return torch.diagonal(x, dim1=-2, dim2=-1).clone()


# Raw memory


@kernel("AsStrided", host=("size", "stride", "storage_offset"), source="x is taken as contiguous storage; a copy")
def as_strided(x: Tensor, size: Any, stride: Any, storage_offset: Any = 0) -> Tensor:
    """Elements of flat x at storage_offset + Σ index * stride."""
    flat = x.reshape(-1)
    offset = 0 if storage_offset is None else one(storage_offset)
    sizes, steps = listed(size), listed(stride)
    last = offset + sum((n - 1) * s for n, s in zip(sizes, steps))
    if 0 not in sizes and not 0 <= offset <= last < flat.numel():  # what lies behind x is not x
        raise errors.refused("AsStrided", f"elements {offset} to {last} of a tensor of {flat.numel()} are addressed")
    return torch.as_strided(flat, sizes, steps, flat.storage_offset() + offset).clone()


@kernel(
    "Bitcast", source="equal size: same shape; smaller type: extra last dim; larger: last dim is the ratio and goes"
)
def bitcast(x: Tensor, *, type: int, keep_dim: bool = False) -> Tensor:
    """The bytes of x read as another type."""
    dtype = torch_dtype(type)
    source = x.contiguous() if x.is_contiguous() is False else x
    old, new = x.element_size(), dtype.itemsize
    if old == new:
        return source.view(dtype).clone()
    if new < old:
        result = source.unsqueeze(-1).view(dtype)
        return (result.flatten(-2) if keep_dim and x.dim() else result).clone()
    if not keep_dim and x.shape[-1] != new // old:
        raise errors.refused("Bitcast", f"last dim {x.shape[-1]} must be {new // old}")
    result = source.view(dtype)
    return result.clone() if keep_dim else result.squeeze(-1).clone()
