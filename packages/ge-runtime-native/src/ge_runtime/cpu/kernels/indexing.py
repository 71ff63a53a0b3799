"""Gather, scatter, masks, sorting, searching. Indices that a definition forbids raise instead of wrapping silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime import errors
from ge_runtime.cpu.kernels.elementwise import truncated, wide
from ge_runtime.cpu.registry import Call, PlanContext, kernel, plan
from ge_runtime.cpu.values import listed, one, torch_dtype


def _long(indices: Tensor) -> Tensor:
    return indices if indices.dtype is torch.int64 else indices.to(torch.int64)


def _wrapped(indices: Tensor, size: int, allowed: bool) -> Tensor:
    """Indices as int64; negative ones count from the end only where the operator says so."""
    index = _long(indices)
    return torch.where(index < 0, index + size, index) if allowed else index


@kernel(
    "GatherV2", "GatherV2D", host=("axis",), ignores=("is_preprocessed", "validate_indices"),
    source="shape x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis+1:]",
)  # fmt: skip
def gather_v2(
    x: Tensor, indices: Tensor, axis: Any, *, batch_dims: int = 0, negative_index_support: bool = False
) -> Tensor:
    """Slices of x along an axis chosen by indices; leading batch_dims are shared."""
    source = x.reshape(1) if x.dim() == 0 else x
    dim = one(axis) % source.dim()
    shared = batch_dims + indices.dim() if batch_dims < 0 else batch_dims
    index = _wrapped(indices, source.shape[dim], negative_index_support)
    if shared == 0:
        picked = torch.index_select(source, dim, index.reshape(-1))
        return picked.reshape([*source.shape[:dim], *index.shape, *source.shape[dim + 1 :]])
    batch = source.shape[:shared]
    rows = [gather_v2(a, b, dim - shared) for a, b in zip(source.flatten(0, shared - 1), index.flatten(0, shared - 1))]
    return torch.stack(rows).unflatten(0, batch)


@kernel("Gather", source="GatherV2 along axis batch_dims", ignores=("validate_indices", "is_preprocessed"))
def gather(x: Tensor, indices: Tensor, *, batch_dims: int = 0, negative_index_support: bool = False) -> Tensor:
    """Rows of x chosen by indices."""
    return gather_v2(x, indices, batch_dims, batch_dims=batch_dims, negative_index_support=negative_index_support)


def rows_of(x: Tensor, indices: Tensor) -> Tensor:
    """x[indices] along axis 0, negative numbers refused."""
    return torch.embedding(x, indices) if x.dim() == 2 else gather_v2(x, indices, 0)


@plan("Gather", "GatherV2")
def _gather_plan(ctx: PlanContext) -> Call | None:
    """Rows of a matrix are an embedding; scalar positions are a select."""
    shape, axis = ctx.shape("x"), 0
    if ctx.node.op == "GatherV2":
        dim = ctx.const("axis")
        dim = dim[0] if isinstance(dim, list) and len(dim) == 1 else dim
        if not isinstance(dim, int) or shape is None:
            return None
        axis = dim % max(len(shape), 1)
    if not shape or ctx.attr("batch_dims", 0) or ctx.attr("negative_index_support", False):
        return None
    index, index_shape = ctx.const("indices"), ctx.shape("indices")
    if isinstance(index, int) and index >= 0:
        return Call(torch.select, (ctx.tensor("x"), axis, index), views=True)
    if index_shape is not None and len(index_shape) == 1 and ctx.dtype("indices") is DataType.DT_INT64:
        return Call(torch.index_select, (ctx.tensor("x"), axis, ctx.tensor("indices")))
    if len(shape) == 2 and axis == 0 and index_shape is not None and len(index_shape) > 1:
        return Call(torch.embedding, (ctx.tensor("x"), ctx.tensor("indices")))
    return None


@kernel("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, dim: int = 0) -> Tensor:
    """y at a position is x at the position with its coordinate on dim replaced by index."""
    return torch.gather(x, dim, _long(index))


@kernel("GatherD", host=("dim",), source="as GatherElements; the input port dim, if fed, is the axis")
def gather_d(x: Tensor, dim: Any, index: Tensor, *, attr_dim: int = 0) -> Tensor:
    """GatherElements with the axis as a tensor."""
    axis = attr_dim if dim is None else one(dim)
    position = _long(index)
    return torch.gather(x, axis, torch.where(position < 0, position + x.shape[axis], position) if x.dim() else position)


def _nd(indices: Tensor) -> tuple[Tensor, ...]:
    """The coordinates of an …Nd operator: the last dim of indices, unbound."""
    return tuple(_long(indices).unbind(-1))


@kernel("GatherNd")
def gather_nd(x: Tensor, indices: Tensor, *, negative_index_support: bool = False) -> Tensor:
    """Slices of x addressed by the last dim of indices."""
    if indices.shape[-1] == 0:
        return x.expand([*indices.shape[:-1], *x.shape]).clone(memory_format=torch.contiguous_format)
    index = _nd(indices)
    _check_nd(x, index, negative_index_support)
    return x[index]


def _check_nd(x: Tensor, index: Sequence[Tensor], negative: bool = False) -> None:
    for dim, part in enumerate(index):
        if part.numel() and (int(part.max()) >= x.shape[dim] or (int(part.min()) < 0 and not negative)):
            raise errors.refused("indices", f"coordinate {dim} leaves [0, {x.shape[dim]})")


# Scatter. In-place operators write into their first operand; the planner makes sure that it is theirs to write.


@kernel("ScatterElements", source="iteration space is indices' shape, none negative; of equal indices the last wins")
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """data with updates written, added or multiplied at the positions where indices replace the axis coordinate."""
    return _scatter(data.clone(memory_format=torch.contiguous_format), indices, updates, axis, reduction)


@kernel("ScatterElementsV2", updates=("var",))
def scatter_elements_v2(
    var: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """ScatterElements in place."""
    return _scatter(var, indices, updates, axis, reduction)


def _scatter(out: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str | bytes) -> Tensor:
    mode = reduction.decode() if isinstance(reduction, bytes) else reduction
    index = _long(indices)  # a negative one is out of bounds, as the operator's documentation has it
    if mode in ("none", "update", ""):
        return out.scatter_(axis, index, updates)
    if mode == "add":
        return out.scatter_add_(axis, index, updates)
    if mode == "mul":
        return out.scatter_reduce_(axis, index, updates, "prod", include_self=True)
    raise errors.refused("ScatterElements", f"reduction {mode!r}; accepted: none, add, mul")


@kernel("ScatterNdUpdate", updates=("var",), ignores=("use_locking",))
def scatter_nd_update(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices[k]] = updates[k], in place."""
    index = _nd(indices)
    _check_nd(var, index)
    return var.index_put_(index, updates)


@kernel("ScatterNdAdd", updates=("var",), ignores=("use_locking",))
def scatter_nd_add(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices[k]] += updates[k], in place, equal indices accumulate."""
    index = _nd(indices)
    _check_nd(var, index)
    return var.index_put_(index, updates, accumulate=True)


@kernel("ScatterNdSub", updates=("var",), ignores=("use_locking",))
def scatter_nd_sub(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices[k]] -= updates[k], in place, equal indices accumulate."""
    return scatter_nd_add(var, indices, -updates)


@kernel("TensorScatterUpdate")
def tensor_scatter_update(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """ScatterNdUpdate into a copy."""
    return scatter_nd_update(x.clone(), indices, updates)


@kernel("TensorScatterAdd")
def tensor_scatter_add(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """ScatterNdAdd into a copy."""
    return scatter_nd_add(x.clone(), indices, updates)


@kernel("ScatterNd", host=("shape",), source="zeros of shape, equal indices accumulate")
def scatter_nd(indices: Tensor, x: Tensor, shape: Any) -> Tensor:
    """A tensor of zeros with x added at indices."""
    return scatter_nd_add(torch.zeros(listed(shape), dtype=x.dtype), indices, x)


def _row_shape(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """updates as one row for each index, scalars and missing dims broadcast."""
    return updates.broadcast_to([*indices.shape, *var.shape[1:]]).reshape([-1, *var.shape[1:]])


_SCATTER_ROWS = {"Add": "sum", "Mul": "prod", "Max": "amax", "Min": "amin"}


def _scatter_rows(name: str) -> None:
    """ScatterAdd and friends: var[indices] op= updates along axis 0."""

    def run(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        rows, index = _row_shape(var, indices, updates), _long(indices).reshape(-1)
        full = index.reshape([-1] + [1] * (var.dim() - 1)).expand(rows.shape)
        return var.scatter_reduce_(0, full, rows, _SCATTER_ROWS[name], include_self=True)

    kernel(f"Scatter{name}", updates=("var",), ignores=("use_locking",))(_named(run))


def _named(run: Any) -> Any:
    run.__module__ = __name__
    return run


for _name in _SCATTER_ROWS:
    _scatter_rows(_name)


@kernel("ScatterSub", updates=("var",), ignores=("use_locking",))
def scatter_sub(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices] -= updates, in place, equal indices accumulate."""
    return var.index_add_(0, _long(indices).reshape(-1), _row_shape(var, indices, updates), alpha=-1)


@kernel("ScatterDiv", updates=("var",), ignores=("use_locking",))
def scatter_div(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices] /= updates, in place."""
    for place, row in zip(_long(indices).reshape(-1).tolist(), _row_shape(var, indices, updates)):
        var[place] = torch.div(var[place], row) if var.is_floating_point() else truncated(var[place], row)
    return var


@kernel("ScatterUpdate", updates=("var",), ignores=("use_locking",))
def scatter_update(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices] = updates along axis 0, in place."""
    return var.index_copy_(0, _long(indices).reshape(-1), _row_shape(var, indices, updates))


@kernel("ScatterAddWithAxis", updates=("var",))
def scatter_add_with_axis(var: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    """ScatterElements with reduction add, in place."""
    return _scatter(var, indices, updates, axis, "add")


@kernel("InplaceIndexAdd", updates=("var",))
def inplace_index_add(
    var: Tensor, indices: Tensor, updates: Tensor, alpha: Tensor | None = None, *, axis: int
) -> Tensor:
    """var[.., indices[i], ..] += alpha * updates[.., i, ..], in place, equal indices accumulate."""
    scale = 1 if alpha is None else alpha.reshape(()).item()
    return var.index_add_(axis, _long(indices).reshape(-1), updates, alpha=scale)


@kernel("IndexAdd")
def index_add(var: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    """InplaceIndexAdd into a copy."""
    return inplace_index_add(var.clone(), indices, updates, axis=axis)


# Advanced indexing


def _subscript(indices: Sequence[Tensor], chosen: Sequence[int]) -> tuple[Any, ...]:
    """indices spread over the dims whose entry in ``chosen`` is not 0, full slices elsewhere."""
    given = iter(indices)
    return tuple(next(given) if flag else slice(None) for flag in chosen)


def _as_index(index: Tensor) -> Tensor:
    return index if index.dtype in (torch.bool, torch.uint8) else _long(index)


def _picked(x: Tensor, where: tuple[Any, ...]) -> Tensor:
    """x[where] in memory of its own; indices of rank 0 alone would give a view."""
    picked = x[where]
    return picked.clone() if picked.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else picked


@kernel("IndexByTensor", source="torch's advanced indexing: indices_mask says which dims have an index")
def index_by_tensor(x: Tensor, indices: list[Tensor], *, indices_mask: Sequence[int] = ()) -> Tensor:
    """x[sel] where dims with mask 1 take the next index tensor, others are kept whole."""
    return _picked(x, _subscript([_long(i) for i in indices], indices_mask))


@kernel("Index", host=("indexed_sizes",), ignores=("indexed_strides",))
def index(x: Tensor, indexed_sizes: Any, indexed_strides: Any, indices: list[Tensor]) -> Tensor:
    """torch's advanced indexing: indexed_sizes[d] is 1 where dim d has an index tensor, 0 where it is kept whole."""
    chosen = listed(indexed_sizes)
    return _picked(x, _subscript([_as_index(i) for i in indices], chosen))


@kernel("IndexPutV2", updates=("x",), host=("indexed_sizes",))
def index_put_v2(
    x: Tensor,
    value: Tensor,
    indexed_sizes: Any,
    indexed_strides: Any,
    indices: list[Tensor],
    *,
    accumulate: bool = False,
) -> Tensor:
    """x[sel] = value or += value, in place; see Index for sel."""
    where = _subscript([_as_index(i) for i in indices], listed(indexed_sizes))
    if accumulate:
        places = torch.arange(x.numel()).reshape(x.shape)[where]
        flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
        flat.index_add_(0, places.reshape(-1), value.expand(places.shape).reshape(-1))
        return x if x.is_contiguous() else x.copy_(flat.reshape(x.shape))
    x[where] = value
    return x


# Masks


@kernel("MaskedSelect", "MaskedSelectV2")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements of x where mask is set, as a vector."""
    return torch.masked_select(x, mask)


@kernel("MaskedScatter")
def masked_scatter(x: Tensor, mask: Tensor, updates: Tensor) -> Tensor:
    """x with its masked places filled from updates in order; the prototype knows no broadcast of the mask."""
    if x.shape != mask.shape:
        raise errors.refused("MaskedScatter", f"a mask of shape {tuple(mask.shape)} for x {tuple(x.shape)}")
    return torch.masked_scatter(x, mask, updates)


@kernel("Where", source="coordinates of elements that are not zero, [count, rank] int64")
def where(x: Tensor) -> Tensor:
    """Coordinates of non-zero elements."""
    return torch.nonzero(x)


@kernel("NonZero")
def non_zero(x: Tensor, *, transpose: bool = False, dtype: int = DataType.DT_INT64) -> Tensor:
    """Coordinates of non-zero elements, one a row, or one a column if transposed."""
    coordinates = torch.nonzero(x).to(torch_dtype(dtype))
    return coordinates.t().contiguous() if transpose else coordinates


# Sorting and searching


@kernel("TopKV2", "TopK", host=("k",), source="equal elements: the smaller position first", ignores=("sorted",))
def top_k_v2(
    x: Tensor, k: Any, *, dim: int = -1, largest: bool = True, indices_dtype: int = DataType.DT_INT32
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) along a dim, in order, with their positions."""
    count = one(k)
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch_dtype(indices_dtype))
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    if count > x.shape[dim]:
        raise errors.refused("TopKV2", f"k={count} of {x.shape[dim]} elements")
    return values.narrow(dim, 0, count).clone(), places.narrow(dim, 0, count).to(torch_dtype(indices_dtype))


@kernel("Sort", ignores=("stable",))
def sort(
    x: Tensor, *, axis: int = -1, descending: bool = False, y2_dtype: int = DataType.DT_INT32
) -> tuple[Tensor, Tensor]:
    """x in order along an axis and where each element came from; equal elements keep their order, NaN is largest."""
    values, places = torch.sort(x, dim=axis, descending=descending, stable=True)
    return values, places.to(torch_dtype(y2_dtype))


@kernel("Unique")
def unique(x: Tensor, *, out_idx: int = DataType.DT_INT32) -> tuple[Tensor, Tensor]:
    """Distinct values in order of first appearance, and which of them each element is."""
    values, inverse, _ = _unique_in_order(x)
    return values, inverse.to(torch_dtype(out_idx))


@kernel("UniqueWithCounts")
def unique_with_counts(x: Tensor, *, out_idx: int) -> tuple[Tensor, Tensor, Tensor]:
    """Unique, and how often each value occurs."""
    values, inverse, counts = _unique_in_order(x)
    dtype = torch_dtype(out_idx)
    return values, inverse.to(dtype), counts.to(dtype)


def _unique_in_order(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, inverse, counts = torch.unique(x.reshape(-1), sorted=True, return_inverse=True, return_counts=True)
    first = torch.full((values.numel(),), x.numel(), dtype=torch.int64)
    first.scatter_reduce_(0, inverse, torch.arange(x.numel()), "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel())
    return values[order], rank[inverse].reshape(x.shape), counts[order]


@kernel("UniqueWithCountsAndSorting", ignores=("sorted",))
def unique_with_counts_and_sorting(
    x: Tensor, *, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct values ascending; inverse map and counts if asked for, one zero otherwise."""
    values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True)
    nothing = torch.zeros(1, dtype=torch.int64)
    return values, inverse if return_inverse or return_counts else nothing, counts if return_counts else nothing.clone()


@kernel("UniqueConsecutive")
def unique_consecutive(
    x: Tensor, *, return_idx: bool = False, return_counts: bool = False, axis: int = 1000
) -> tuple[Tensor, Tensor, Tensor]:
    """x without repeats of the neighbour; axis 1000 means flattened."""
    values, inverse, counts = torch.unique_consecutive(
        x, return_inverse=True, return_counts=True, dim=None if axis == 1000 else axis
    )
    return values, inverse, counts


@kernel("SearchSorted", source="relative to the row; NaN lands at its end")
def search_sorted(
    sorted_sequence: Tensor, values: Tensor, sorter: Tensor | None = None, *, dtype: int = DataType.DT_INT64,
    right: bool = False,
) -> Tensor:  # fmt: skip
    """Where each value would be inserted into its sorted row."""
    positions = torch.searchsorted(sorted_sequence.contiguous(), values.contiguous(), right=right, sorter=sorter)
    return positions.to(torch_dtype(dtype))


@kernel("Bincount", host=("size",))
def bincount(array: Tensor, size: Any, weights: Tensor) -> Tensor:
    """How often (or with which weight) each number below size occurs; larger numbers do not count."""
    count = one(size)
    flat = _long(array).reshape(-1)
    inside = flat < count
    heavy = torch.ones(flat.shape, dtype=weights.dtype) if weights.numel() == 0 else weights.reshape(-1)
    return torch.zeros(count, dtype=weights.dtype).index_add_(0, flat[inside], heavy[inside])


@kernel("Histogram")
def histogram(x: Tensor, *, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Tensor:
    """How many elements fall into each of equal bins between min and max; both 0: the range of x. Halves: float32."""
    data = wide(x) if x.is_floating_point() else x.float()
    return torch.histc(data, bins, min, max).to(wide(x).dtype)


@kernel("RepeatInterleave", source="axis 1000 (no axis): flattened; one repeat serves all")
def repeat_interleave(x: Tensor, repeats: Tensor, *, axis: int = 1000) -> Tensor:
    """Each slice along an axis repeated in place."""
    source, dim = (x.reshape(-1), 0) if axis == 1000 else (x, axis)
    times = _long(repeats).reshape(-1)
    times = times.expand(source.shape[dim]) if times.numel() == 1 else times
    return torch.repeat_interleave(source, times, dim)


@kernel("UnsortedSegmentSum", host=("num_segments",), ignores=("is_preprocessed",))
def unsorted_segment_sum(x: Tensor, segment_ids: Tensor, num_segments: Any) -> Tensor:
    """Sums of the slices of x that share an id; negative ids are dropped."""
    ids = _long(segment_ids).reshape(-1)
    slices = x.reshape([-1, *x.shape[segment_ids.dim() :]])
    kept = ids >= 0
    out = torch.zeros([one(num_segments), *slices.shape[1:]], dtype=x.dtype)
    return out.index_add_(0, ids[kept], slices[kept])


@kernel("SegmentSum")
def segment_sum(x: Tensor, segment_ids: Tensor) -> Tensor:
    """UnsortedSegmentSum whose number of segments is the last id plus one."""
    last = int(segment_ids.max()) + 1 if segment_ids.numel() else 0
    return unsorted_segment_sum(x, segment_ids, last)
