"""Gather, scatter, masks, sorting, searching. Indices that a definition forbids raise instead of wrapping silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu.kernels.elementwise import quotient
from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.limits import ensure
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import listed, one, torch_dtype, traced
from ge_runtime.errors import refused


def _long(indices: Tensor) -> Tensor:
    return indices if indices.dtype is torch.int64 else indices.to(torch.int64)


@kernel(
    "GatherV2",
    "GatherV2D",
    host=("axis",),
    ignores=("is_preprocessed", "validate_indices"),
    source="shape x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis+1:]",
)
def gather_v2(
    x: Tensor, indices: Tensor, axis: Any, *, batch_dims: int = 0, negative_index_support: bool = False
) -> Tensor:
    """Slices of x along an axis chosen by indices; leading batch_dims are shared."""
    source = x.reshape(1) if x.dim() == 0 else x
    dim = one(axis) % source.dim()
    shared = batch_dims + indices.dim() if batch_dims < 0 else batch_dims
    index = _long(indices)
    if negative_index_support:
        index = torch.where(index < 0, index + source.shape[dim], index)
    if shared == 0:
        picked = torch.index_select(source, dim, index.reshape(-1))
        return picked.reshape([*source.shape[:dim], *index.shape, *source.shape[dim + 1 :]])
    batch = source.shape[:shared]
    rows = [gather_v2(a, b, dim - shared) for a, b in zip(source.flatten(0, shared - 1), index.flatten(0, shared - 1))]
    return torch.stack(rows).unflatten(0, batch)


rows(
    {
        "Gather": lambda x, indices, *, batch_dims=0, negative_index_support=False: gather_v2(
            x, indices, batch_dims, batch_dims=batch_dims, negative_index_support=negative_index_support
        ),
    },
    source="GatherV2 along axis batch_dims",
    ignores=("validate_indices", "is_preprocessed"),
)
rows({"GatherElements": lambda x, index, *, dim=0: torch.gather(x, dim, _long(index))})


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
        if part.numel():
            low, high = part.aminmax()
            fits = high < x.shape[dim] if negative else (low >= 0) & (high < x.shape[dim])
            ensure(fits, "indices", f"coordinate {dim} leaves [0, {x.shape[dim]})")


# Scatter. In-place operators write into their first operand; the planner makes sure that it is theirs to write.


def _put(var: Tensor, indices: Tensor, updates: Tensor, *, accumulate: bool = False) -> Tensor:
    """var[indices[k]] = updates[k], or += where equal indices accumulate, in place."""
    index = _nd(indices)
    _check_nd(var, index)
    return var.index_put_(index, updates, accumulate=accumulate)


def _put_kept(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """As ``_put``, but a row with a negative coordinate is padding, and written nowhere."""
    if not indices.numel() or not indices.shape[-1]:
        return _put(var, indices, updates)
    keep = (indices >= 0).all(-1)
    if not traced(keep):
        return _put(var, indices, updates) if bool(keep.all()) else _put(var, indices[keep], updates[keep])
    # a trace knows no number of rows: padding goes to a row behind the last one, which is then left out
    depth = indices.shape[-1]
    index = tuple(torch.where(keep, part, 0) for part in _nd(indices))
    _check_nd(var, index)
    place = torch.zeros_like(index[0])
    for part, size in zip(index, var.shape):
        place = place * size + part
    rows = var.reshape(-1, *var.shape[depth:])
    longer = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
    longer = longer.index_put((torch.where(keep, place, rows.shape[0]),), updates)
    return var.copy_(longer[:-1].reshape(var.shape))


_LOCKED: dict[str, Any] = {"updates": ("var",), "ignores": ("use_locking",)}
rows(
    {
        "ScatterNdUpdate": _put_kept,  # source of the padding: integrations of serving write slots of -1 by it
        "ScatterNdAdd": lambda var, indices, updates: _put(var, indices, updates, accumulate=True),
        "ScatterNdSub": lambda var, indices, updates: _put(var, indices, -updates, accumulate=True),
    },
    **_LOCKED,
)
rows(
    {  # into a copy
        "TensorScatterUpdate": lambda x, indices, updates: _put(x.clone(), indices, updates),
        "TensorScatterAdd": lambda x, indices, updates: _put(x.clone(), indices, updates, accumulate=True),
    }
)
rows(
    {
        "ScatterNd": lambda indices, x, shape: (  # into zeros
            _put(torch.zeros(listed(shape), dtype=x.dtype), indices, x, accumulate=True)
        ),
    },
    host=("shape",),
)


def _scatter(out: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str | bytes) -> Tensor:
    mode = reduction.decode() if isinstance(reduction, bytes) else reduction
    index = _long(indices)  # a negative one is out of bounds, as the operator's documentation has it
    if mode in ("none", "update", ""):
        return out.scatter_(axis, index, updates)
    if mode == "add":
        return out.scatter_add_(axis, index, updates)
    if mode == "mul":
        return out.scatter_reduce_(axis, index, updates, "prod", include_self=True)
    raise refused("ScatterElements", f"reduction {mode!r}; accepted: none, add, mul")


# The iteration space is that of the indices, none of which is negative; of equal ones the last wins.
rows(
    {
        "ScatterElements": lambda data, indices, updates, *, axis=0, reduction="none": _scatter(
            data.clone(memory_format=torch.contiguous_format), indices, updates, axis, reduction
        ),
    }
)
rows(
    {
        "ScatterElementsV2": lambda var, indices, updates, *, axis=0, reduction="none": _scatter(
            var, indices, updates, axis, reduction
        ),
        "ScatterAddWithAxis": lambda var, indices, updates, *, axis: _scatter(var, indices, updates, axis, "add"),
    },
    updates=("var",),
)


def _row_shape(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """updates as one row for each index, scalars and missing dims broadcast."""
    rows = updates.broadcast_to([*indices.shape, *var.shape[1:]])
    return rows.reshape([indices.numel(), *var.shape[1:]])


def _combined(reduction: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """var[indices] op= updates along axis 0, in place."""

    def run(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        values, index = _row_shape(var, indices, updates), _long(indices).reshape(-1)
        full = index.reshape([-1] + [1] * (var.dim() - 1)).expand(values.shape)
        return var.scatter_reduce_(0, full, values, reduction, include_self=True)

    return run


rows(
    {
        "ScatterAdd": _combined("sum"),
        "ScatterMul": _combined("prod"),
        "ScatterMax": _combined("amax"),
        "ScatterMin": _combined("amin"),
        "ScatterUpdate": lambda var, indices, updates: var.index_copy_(
            0, _long(indices).reshape(-1), _row_shape(var, indices, updates)
        ),
        "ScatterSub": lambda var, indices, updates: var.index_add_(
            0, _long(indices).reshape(-1), _row_shape(var, indices, updates), alpha=-1
        ),
    },
    **_LOCKED,
)


@kernel("ScatterDiv", **_LOCKED)
def scatter_div(var: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """var[indices] /= updates, in place."""
    for place, row in zip(_long(indices).reshape(-1).tolist(), _row_shape(var, indices, updates)):
        var[place] = quotient(var[place], row)
    return var


@kernel("InplaceIndexAdd", updates=("var",))
def inplace_index_add(
    var: Tensor, indices: Tensor, updates: Tensor, alpha: Tensor | None = None, *, axis: int
) -> Tensor:
    """var[.., indices[i], ..] += alpha * updates[.., i, ..], in place, equal indices accumulate."""
    scale = 1 if alpha is None else alpha.reshape(()).item()
    return var.index_add_(axis, _long(indices).reshape(-1), updates, alpha=scale)


rows(
    {
        "IndexAdd": lambda var, indices, updates, *, axis=0: inplace_index_add(
            var.clone(), indices, updates, axis=axis
        ),
    }
)


# Advanced indexing


def _subscript(indices: Iterable[Tensor], chosen: Sequence[int]) -> tuple[Any, ...]:
    """indices spread over the dims whose entry in ``chosen`` is not 0, full slices elsewhere."""
    given = iter(indices)
    return tuple(next(given) if flag else slice(None) for flag in chosen)


def _as_index(index: Tensor) -> Tensor:
    return index if index.dtype in (torch.bool, torch.uint8) else _long(index)


def _picked(x: Tensor, where: tuple[Any, ...]) -> Tensor:
    """x[where] in memory of its own; indices of rank 0 alone would give a view."""
    picked = x[where]
    view = all(isinstance(w, slice) or (w.dim() == 0 and w.dtype is torch.int64) for w in where)
    return picked.clone() if view else picked


# x[sel]: dims whose mask, or entry in indexed_sizes, is 1 take the next index tensor, others are kept whole.
rows(
    {
        "IndexByTensor": lambda x, indices, *, indices_mask=(): _picked(
            x, _subscript([_long(i) for i in indices], indices_mask)
        ),
    },
    source="torch's advanced indexing",
)
rows(
    {
        "Index": lambda x, indexed_sizes, indexed_strides, indices: _picked(
            x, _subscript(map(_as_index, indices), listed(indexed_sizes))
        ),
    },
    host=("indexed_sizes",),
    ignores=("indexed_strides",),
)


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
    where = _subscript(map(_as_index, indices), listed(indexed_sizes))
    if accumulate:
        places = torch.arange(x.numel()).reshape(x.shape)[where]
        flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
        flat.index_add_(0, places.reshape(-1), value.expand(places.shape).reshape(-1))
        return x if x.is_contiguous() else x.copy_(flat.reshape(x.shape))
    try:
        x[where] = value
    except IndexError as error:
        raise IndexError(_as_given(str(error))) from error
    return x


def _as_given(text: str) -> str:
    """What ATen says of an index, with the number that a caller wrote. One of more than 62 bits is a negative one
    without its sign: a graph takes that off an index from whose place nothing may be counted from the end."""

    def named(found: re.Match[str]) -> str:
        number = int(found[0])
        return f"{number - 2**63} (without its sign {number})" if number >= 2**62 else found[0]

    return re.sub(r"\d{19}", named, text)


# Masks


def _coordinates(x: Tensor, *, transpose: bool = False, dtype: int = DataType.DT_INT64) -> Tensor:
    """Of non-zero elements, one a row, or one a column if transposed."""
    found = torch.nonzero(x).to(torch_dtype(dtype))
    return found.t().contiguous() if transpose else found


rows({"MaskedSelect MaskedSelectV2": torch.masked_select, "Where": torch.nonzero, "NonZero": _coordinates})


@kernel("MaskedScatter")
def masked_scatter(x: Tensor, mask: Tensor, updates: Tensor) -> Tensor:
    """x with its masked places filled from updates in order; the prototype knows no broadcast of the mask."""
    if x.shape != mask.shape:
        raise refused("MaskedScatter", f"a mask of shape {tuple(mask.shape)} for x {tuple(x.shape)}")
    return torch.masked_scatter(x, mask, updates)


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
        raise refused("TopKV2", f"k={count} of {x.shape[dim]} elements")
    return values.narrow(dim, 0, count).clone(), places.narrow(dim, 0, count).to(torch_dtype(indices_dtype))


@kernel("Sort", ignores=("stable",))
def sort(
    x: Tensor, *, axis: int = -1, descending: bool = False, y2_dtype: int = DataType.DT_INT32
) -> tuple[Tensor, Tensor]:
    """x in order along an axis and where each element came from; equal elements keep their order, NaN is largest."""
    values, places = torch.sort(x, dim=axis, descending=descending, stable=True)
    return values, places.to(torch_dtype(y2_dtype))


@kernel("SortV2")
def sort_v2(x: Tensor, *, axis: int = -1, descending: bool = False) -> Tensor:
    """x in order along an axis, without places; NaN is largest."""
    return torch.sort(x, dim=axis, descending=descending)[0]


@kernel("ArgMaxGrad")
def arg_max_grad(var: Tensor, indices: Tensor, updates: Tensor, *, dimension: int) -> Tensor:
    """var with each of ``updates`` at its index along a dimension, which the two lack or have with one element."""
    if indices.dim() < var.dim():
        indices, updates = indices.unsqueeze(dimension), updates.unsqueeze(dimension)
    return var.scatter(dimension, indices.long(), updates)


def _unique_in_order(x: Tensor, out_idx: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct values in order of first appearance, which of them each element is, and how often each occurs."""
    values, inverse, counts = torch.unique(x.reshape(-1), sorted=True, return_inverse=True, return_counts=True)
    first = torch.full((values.numel(),), x.numel(), dtype=torch.int64)
    first.scatter_reduce_(0, inverse, torch.arange(x.numel()), "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel())
    dtype = torch_dtype(out_idx)
    return values[order], rank[inverse].reshape(x.shape).to(dtype), counts[order].to(dtype)


rows(
    {
        "Unique": lambda x, *, out_idx=DataType.DT_INT32: _unique_in_order(x, out_idx)[:2],
        "UniqueWithCounts": lambda x, *, out_idx: _unique_in_order(x, out_idx),
        "UniqueConsecutive": lambda x, *, return_idx=False, return_counts=False, axis=1000: (  # 1000: flattened
            tuple(torch.unique_consecutive(x, True, True, dim=None if axis == 1000 else axis))
        ),
    }
)


@kernel("UniqueWithCountsAndSorting", ignores=("sorted",))
def unique_with_counts_and_sorting(
    x: Tensor, *, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct values ascending; inverse map and counts if asked for, one zero otherwise."""
    values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True)
    nothing = torch.zeros(1, dtype=torch.int64)
    return values, inverse if return_inverse or return_counts else nothing, counts if return_counts else nothing.clone()


rows(
    {  # relative to the row; NaN lands at its end
        "SearchSorted": lambda sorted_sequence, values, sorter=None, *, dtype=DataType.DT_INT64, right=False: (
            torch.searchsorted(sorted_sequence.contiguous(), values.contiguous(), right=right, sorter=sorter).to(
                torch_dtype(dtype)
            )
        ),
        # equal bins between min and max; both 0: the range of x; 16-bit floats give float32
        "Histogram": lambda x, *, bins=100, min=0.0, max=0.0: torch.histc(
            wide(x) if x.is_floating_point() else x.float(), bins, min, max
        ).to(wide(x).dtype),
    }
)
rows(
    {  # counts; equal limits: the range of x
        "HistogramV2": lambda x, min, max, *, bins=100, y_dtype=DataType.DT_INT32: torch.histc(
            wide(x) if x.is_floating_point() else x.double(), bins, one(min), one(max)
        ).to(torch_dtype(y_dtype)),
    },
    host=("min", "max"),
    source="aclnnHistc: counts between min and max, or in the range of x",
)


@kernel("Bincount", host=("size",))
def bincount(array: Tensor, size: Any, weights: Tensor) -> Tensor:
    """How often (or with which weight) each number below size occurs; larger numbers do not count."""
    count = one(size)
    flat = _long(array).reshape(-1)
    inside = flat < count
    heavy = torch.ones(flat.shape, dtype=weights.dtype) if weights.numel() == 0 else weights.reshape(-1)
    return torch.zeros(count, dtype=weights.dtype).index_add_(0, flat[inside], heavy[inside])


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
    slices = x.reshape([ids.numel(), *x.shape[segment_ids.dim() :]])  # a slice may have no elements
    kept = ids >= 0
    out = torch.zeros([one(num_segments), *slices.shape[1:]], dtype=x.dtype)
    return out.index_add_(0, ids[kept], slices[kept])


# The number of segments is the last id plus one.
rows(
    {
        "SegmentSum": lambda x, segment_ids: unsorted_segment_sum(
            x, segment_ids, int(segment_ids.max()) + 1 if segment_ids.numel() else 0
        ),
    }
)
