"""Operators that move or repeat elements without computing: reshape, transpose, concat, split, slice, pad, tile.

Most return views; the planner copies where a view would leave the graph. Operators with a ``D`` suffix carry as an
attribute what the plain form takes as a tensor: one function serves both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, Ref, kernel, plan, rows
from ge_runtime.cpu.values import listed, one, torch_dtype
from ge_runtime.errors import refused


def _single(value: Any) -> Any:
    """At plan time: the number of a one-element operand, None if there is none."""
    return (value[0] if len(value) == 1 else None) if isinstance(value, list) else value


# Reshape and relatives

rows(
    {
        "FlattenV2": lambda x, *, axis=1, end_axis=-1: torch.flatten(
            x, axis, end_axis
        ),  # refuses an axis outside x's rank
        "Flatten": lambda x, *, axis=1: _as_matrix(x, axis if axis >= 0 else axis + x.dim()),
        "Permute": lambda x, *, order=(0,): x.permute(tuple(order)),
        "UnsqueezeV2": lambda x, *, axis=(): unsqueeze(x, axis),
    },
    views=True,
)
rows({"Transpose TransposeD": lambda x, perm: x.permute(listed(perm))}, host=("perm",), views=True)
rows({"ExpandDims": lambda x, axis: x.unsqueeze(one(axis))}, host=("axis",), views=True)
rows(
    {"SqueezeV3": lambda x, axes=None: squeeze(x, axis=() if axes is None else listed(axes))},
    host=("axes",),
    views=True,
)


def _as_matrix(x: Tensor, cut: int) -> Tensor:
    return x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))


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


@kernel("Squeeze", "SqueezeV2", views=True, source="no axis: all dims of 1; a listed dim that is not 1 is an error")
def squeeze(x: Tensor, *, axis: Sequence[int] = ()) -> Tensor:
    """x without the listed dims of size 1."""
    for a in axis:
        if x.dim() and x.shape[a] != 1:
            raise refused("Squeeze", f"dim {a} of {list(x.shape)} is not 1")
    return torch.squeeze(x, tuple(axis)) if axis else torch.squeeze(x)


@plan("Squeeze", "SqueezeV2")
def _squeeze_plan(ctx: PlanContext) -> Call | None:
    axes, shape = ctx.attr("axis", ()), ctx.shape("x")
    if len(axes) == 1 and shape is not None and -len(shape) <= axes[0] < len(shape) and shape[axes[0]] == 1:
        return Call(_squeeze_one, (ctx.tensor("x"), axes[0]))
    return None


def _squeeze_one(x: Tensor, axis: int) -> Tensor:
    if x.shape[axis] != 1:
        raise refused("Squeeze", f"dim {axis} of {list(x.shape)} is not 1")
    return x.squeeze(axis)


@plan("Unsqueeze", "ExpandDims")
def _unsqueeze_plan(ctx: PlanContext) -> Call | None:
    """One ATen call an axis; places counted from the end of the result only if there is one."""
    axes = list(ctx.attr("axes", ())) if ctx.node.op == "Unsqueeze" else ctx.const("axis")
    if (axis := _single(axes)) is not None:
        return Call(torch.unsqueeze, (ctx.tensor("x"), axis))
    if not axes or min(axes) < 0 or len(set(axes)) != len(axes):
        return None
    x = ctx.tensor("x")
    for axis in sorted(axes):
        x = Call(torch.unsqueeze, (x, axis))
    return x


@kernel("Unsqueeze", "UnsqueezeV3", host=("axes",), views=True, source="positions in the output's shape")
def unsqueeze(x: Tensor, axes: Any = ()) -> Tensor:
    """x with dims of 1 at the given places of the result."""
    places = listed(axes)
    rank = x.dim() + len(places)
    wanted = {a + rank if a < 0 else a for a in places}
    if len(wanted) != len(places):
        raise refused("Unsqueeze", f"axes {places} name a dim twice")
    for a in sorted(wanted):
        x = x.unsqueeze(a)
    return x


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


def _broadcast(x: Tensor, sizes: list[int], *, keep_ones: bool) -> Tensor:
    """x repeated along dims of 1 up to the sizes, as memory of its own; -1 keeps a dim, a new leading -1 becomes 1."""
    new = len(sizes) - x.dim()
    if keep_ones:  # ONNX: 1 against a larger dim keeps the dim
        sizes = [s if i < new or s != 1 else x.shape[i - new] for i, s in enumerate(sizes)]
    view = x.expand([1 if s == -1 and i < new else s for i, s in enumerate(sizes)])
    return view.clone(memory_format=torch.contiguous_format)


def _repeated(x: Tensor, times: list[int]) -> Tensor:
    """x repeated times[i] times along dim i; the shorter of the two lists is filled up with ones on the left."""
    times = [1] * (x.dim() - len(times)) + times
    return x.repeat(times) if times else x.clone()


def _concatenated(x: list[Tensor], concat_dim: Any) -> Tensor:
    return torch.cat(x, one(concat_dim)) if len(x) > 1 else x[0].clone()


rows(
    {
        "BroadcastTo BroadcastToD": lambda x, shape: _broadcast(x, listed(shape), keep_ones=False),
        "Expand ExpandD": lambda x, shape: _broadcast(x, listed(shape), keep_ones=True),
    },
    host=("shape",),
)
rows({"Tile TileD": lambda x, multiples: _repeated(x, listed(multiples))}, host=("multiples",))
rows(
    {"ConcatV2 ConcatV2D ConcatD": _concatenated, "Concat": lambda concat_dim, x: _concatenated(x, concat_dim)},
    host=("concat_dim",),
    ignores=("N",),
)
rows(
    {"Pack": lambda x, *, axis=0: torch.stack(x, axis)},
    ignores=("N",),
    plan=lambda ctx: Call(torch.stack, (tuple(ctx.tensor("x")), ctx.attr("axis", 0))),
)


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


# Joining and splitting


@plan("ConcatV2", "ConcatD", "ConcatV2D")
def _concat_plan(ctx: PlanContext) -> Call | None:
    axis = _single(ctx.const("concat_dim")) if ctx.fed("concat_dim") else ctx.attr("concat_dim")
    parts = ctx.tensor("x")
    return None if axis is None or len(parts) < 2 else Call(torch.cat, (tuple(parts), axis))


@kernel("Unpack", views=True)
def unpack(x: Tensor, *, num: int, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along an axis, without that axis."""
    if x.shape[axis] != num:
        raise refused("Unpack", f"num={num}, but dim {axis} of x has size {x.shape[axis]}")
    return torch.unbind(x, axis)


@kernel("Split", "SplitD", host=("split_dim",), views=True)
def split(split_dim: Any, x: Tensor, *, num_split: int) -> tuple[Tensor, ...]:
    """x in num_split equal parts."""
    axis = one(split_dim)
    if x.shape[axis] % num_split:
        raise refused("Split", f"dim {axis} of size {x.shape[axis]} has no {num_split} equal parts")
    return torch.split(x, max(x.shape[axis] // num_split, 1), axis) if x.shape[axis] else (x,) * num_split


@kernel("SplitV", "SplitVD", host=("size_splits", "split_dim"), views=True, source="one size may be -1: the rest")
def split_v(x: Tensor, size_splits: Any, split_dim: Any, *, num_split: int) -> tuple[Tensor, ...]:
    """x in parts of the given sizes."""
    axis, sizes = one(split_dim), listed(size_splits)
    if len(sizes) != num_split or sizes.count(-1) > 1:
        raise refused("SplitV", f"size_splits {sizes} does not describe {num_split} parts")
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
        raise refused("Slice", f"offsets {starts} and size {sizes} must have one entry for each of {x.dim()} dims")
    for dim, (start, length) in enumerate(zip(starts, sizes)):
        length = x.shape[dim] - start if length == -1 else length
        if start or length != x.shape[dim]:
            x = x.narrow(dim, start, length)
    return x


def _bits(mask: int) -> Callable[[int], bool]:
    return lambda i: bool(mask >> i & 1)


def _step_slice(x: Tensor, dim: int, begin: int | None, end: int | None, stride: int) -> Tensor:
    """x[begin:end:stride] along one dim by Python's rules, negative strides included."""
    if stride == 0:
        raise refused("StridedSlice", "stride 0")
    places = range(*slice(begin, end, stride).indices(x.shape[dim]))
    if stride > 0:
        return torch.ops.aten.slice(x, dim, places.start, max(places.stop, places.start), stride)
    return x.index_select(dim, torch.tensor(list(places), dtype=torch.int64))


@kernel(
    "StridedSlice",
    "StridedSliceD",
    host=("begin", "end", "strides"),
    views=True,
    source="Python's slice rules an axis, with masks for begin, end, ellipsis, new axis, shrink",
)
def strided_slice(
    x: Tensor,
    begin: Any,
    end: Any,
    strides: Any,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    """x[begin[i]:end[i]:strides[i], …] where entry i is one subscript, bit i of a mask changes its meaning."""
    begins, ends, steps = listed(begin), listed(end), listed(strides)
    to_first, to_last, ellipsis = _bits(begin_mask), _bits(end_mask), _bits(ellipsis_mask)
    new = {i for i in range(len(begins)) if _bits(new_axis_mask)(i) and not ellipsis(i)}
    dim = 0
    for i in range(len(begins)):
        if ellipsis(i):
            dim = x.dim() - sum(1 for later in range(i + 1, len(begins)) if later not in new)
        elif i in new:
            x, dim = x.unsqueeze(dim), dim + 1
        elif _bits(shrink_axis_mask)(i):
            x = x.select(dim, begins[i])
        else:
            start, end = None if to_first(i) else begins[i], None if to_last(i) else ends[i]
            x, dim = _step_slice(x, dim, start, end, steps[i]), dim + 1
    return x


@kernel("StridedSliceV2", "StridedSliceV3", host=("begin", "end", "axes", "strides"), views=True)
def strided_slice_v2(
    x: Tensor,
    begin: Any,
    end: Any,
    axes: Any = None,
    strides: Any = None,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    """Slices along listed axes; the masks apply after begin, end and strides were spread over all dims of x."""
    begins, ends = listed(begin), listed(end)
    steps = [1] * len(begins) if strides is None else listed(strides)
    where = list(range(len(begins))) if axes is None else listed(axes)
    if ellipsis_mask or new_axis_mask:
        raise refused("StridedSliceV2", "ellipsis_mask and new_axis_mask have no defined meaning with axes")
    removed = []
    for b, e, s, axis in zip(begins, ends, steps, where, strict=True):
        dim = axis + x.dim() if axis < 0 else axis
        if not 0 <= dim < x.dim():
            continue  # an axis outside the rank is skipped by definition
        if _bits(shrink_axis_mask)(dim):
            removed.append((dim, b))
            continue
        x = _step_slice(x, dim, None if _bits(begin_mask)(dim) else b, None if _bits(end_mask)(dim) else e, s)
    for dim, place in sorted(removed, reverse=True):
        x = x.select(dim, place)
    return x


@kernel("ConfusionTransposeD")
def confusion_transpose(x: Tensor, *, perm: Sequence[int], shape: Sequence[int], transpose_first: bool) -> Tensor:
    """x with its axes moved and then another shape, or the other way round."""
    moved = x.permute(*perm).reshape(*shape) if transpose_first else x.reshape(*shape).permute(*perm)
    return moved.contiguous()


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


PAD_MODES = ("reflect", "edge", "symmetric", "circular")


def mirror_index(size: int, before: int, after: int, mode: str) -> Tensor:
    """Source positions along one dim for the padded positions; the mode is one of ``PAD_MODES``."""
    places = torch.arange(-before, size + after)
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "circular":
        return places % max(size, 1)
    period = 2 * size - 2 if mode == "reflect" else 2 * size
    folded = places % period if period else places * 0
    return torch.where(folded < size, folded, (period if mode == "reflect" else period - 1) - folded)


@kernel(
    "PadV3",
    "PadV3D",
    host=("paddings", "constant_values"),
    source="first dim first; negative values crop; modes constant, reflect, edge, symmetric, circular",
)
def pad_v3(
    x: Tensor, paddings: Any, constant_values: Any = 0, *, mode: str = "constant", paddings_contiguous: bool = True
) -> Tensor:
    """x with elements added before and after each dim."""
    values = listed(paddings)
    half = len(values) // 2
    if half != x.dim():
        raise refused("Pad", f"{len(values)} paddings for {x.dim()} dims")
    pairs = list(zip(values[::2], values[1::2]) if paddings_contiguous else zip(values[:half], values[half:]))
    if mode == "constant":
        value = constant_values[0] if isinstance(constant_values, list) else constant_values
        return torch.constant_pad_nd(x, [v for pair in reversed(pairs) for v in pair], 0 if value is None else value)
    if mode not in PAD_MODES:
        raise refused("Pad", f"mode {mode!r}; accepted: constant, {', '.join(PAD_MODES)}")
    if min(values, default=0) < 0:
        raise refused("Pad", f"paddings {values} in mode {mode!r}; negative ones crop in mode constant only")
    out = x
    for dim, (before, after) in enumerate(pairs):
        if before or after:
            size = x.shape[dim]
            limit = size - 1 if mode == "reflect" else size if mode == "symmetric" else math.inf if size else 0
            if max(before, after) > limit:
                raise refused("Pad", f"{mode} padding {(before, after)} of dim {dim} with size {size}")
            out = out.index_select(dim, mirror_index(size, before, after, mode))
    return out.clone()


rows(
    {"Pad PadD PadV2": lambda x, paddings, constant_values=0: pad_v3(x, paddings, constant_values)},
    host=("paddings", "constant_values"),
)
# The border is left out (REFLECT) or repeated (SYMMETRIC).
rows(
    {
        "MirrorPad": lambda x, paddings, *, mode: pad_v3(
            x, paddings, mode=(mode.decode() if isinstance(mode, bytes) else mode).lower()
        ),
    },
    host=("paddings",),
)
rows({"ReverseV2 ReverseV2D": lambda x, axis: torch.flip(x, listed(axis))}, host=("axis",))
# An axis that is named twice is rolled by the sum; without axes the flattened tensor is.
rows(
    {"RollV2": lambda input, shift, axes: torch.roll(input, tuple(listed(shift)), tuple(listed(axes)))},
    host=("shift", "axes"),
)
rows(
    {
        "Roll": lambda x, *, shifts, dims=(): torch.roll(x, tuple(shifts), tuple(dims)),
        "Tril": lambda x, *, diagonal=0: torch.tril(x, diagonal),
        "Triu": lambda x, *, diagonal=0: torch.triu(x, diagonal),
        "Diag": lambda x: torch.diag(x.reshape(-1)).reshape([*x.shape, *x.shape]),  # rank k gives rank 2k
        "DiagPart": lambda x: (  # the inverse of Diag
            x.reshape([math.prod(x.shape[: x.dim() // 2])] * 2).diagonal().reshape(x.shape[: x.dim() // 2]).clone()
        ),
        "DiagV2": lambda x, *, diagonal=0: torch.diag(x, diagonal).clone(),
        "MatrixDiag": torch.diag_embed,
        "MatrixDiagPart": lambda x: torch.diagonal(x, dim1=-2, dim2=-1).clone(),
    }
)


# Raw memory


@kernel("AsStrided", host=("size", "stride", "storage_offset"), source="x is taken as contiguous storage; a copy")
def as_strided(x: Tensor, size: Any, stride: Any, storage_offset: Any = 0) -> Tensor:
    """Elements of flat x at storage_offset + Σ index * stride."""
    flat = x.contiguous().view(-1)
    offset = 0 if storage_offset is None else one(storage_offset)
    sizes, steps = listed(size), listed(stride)
    last = offset + sum((n - 1) * s for n, s in zip(sizes, steps))
    if 0 not in sizes and not 0 <= offset <= last < flat.numel():  # what lies after x in memory is not x
        raise refused("AsStrided", f"elements {offset} to {last} of a tensor of {flat.numel()} are addressed")
    return torch.as_strided(flat, sizes, steps, flat.storage_offset() + offset).clone()


@kernel(
    "Bitcast", source="equal size: same shape; smaller type: extra last dim; larger: last dim is the ratio and goes"
)
def bitcast(x: Tensor, *, type: int, keep_dim: bool = False) -> Tensor:
    """The bytes of x read as another type."""
    dtype = torch_dtype(type)
    x = x.resolve_conj().resolve_neg()  # whose bytes are not the values
    source = x.contiguous() if x.is_contiguous() is False else x
    old, new = x.element_size(), dtype.itemsize
    if old == new:
        return source.view(dtype).clone()
    if new < old:
        result = source.unsqueeze(-1).view(dtype)
        return (result.flatten(-2) if keep_dim and x.dim() else result).clone()
    if not keep_dim and x.shape[-1] != new // old:
        raise refused("Bitcast", f"last dim {x.shape[-1]} must be {new // old}")
    result = source.view(dtype)
    return result.clone() if keep_dim else result.squeeze(-1).clone()
