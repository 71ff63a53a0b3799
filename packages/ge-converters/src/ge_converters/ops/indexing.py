"""Reading and writing by index: gather, scatter, advanced indexing, masks, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote, to_torch
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic, as_content
from ge_converters.emit.compute_types import carried, carrier, carry, move, shaped
from ge_converters.emit.shapes import broadcast, ints, own, permuted
from ge_converters.emit.table_rows import rows_added
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_KINDS = (F32, F16, BF16, F64, I64, I32, BOOL)


def _places(n: int, *shape: int, of: Any = I64) -> Any:
    return of(*shape, low=0, high=n)


def _index_of(index: Tensor) -> Tensor:
    """An index of at least one dim in a type that GE takes; eager allows uint8 for empty ones."""
    whole = _at_least_1d(index)
    return whole if whole.dtype in (_D.DT_INT64, _D.DT_INT32) else shaped(cast(whole, _D.DT_INT64), whole)


def _at_least_1d(x: Tensor) -> Tensor:
    if x.rank:
        return x
    whole: Tensor = ge.Reshape(x, ints([1]))
    whole.record_shape((1,))
    return whole


# -- gather ----------------------------------------------------------------------------------------------------------


@declare_supported(
    [Support(f(3, 4), 0, _places(3, 2, 4)) for f in _KINDS]
    + [
        Support(F32(3, 4), -1, _places(4, 3, 2)),
        Support(F32(), 0, I64(value=0)),
        Support(F32(3), 0, I64(value=1)),
        Support(F32(3, 4), 1, _places(4, 0, 2)),
        Support(F32(3, 4), 0, _places(3, 2, 2), sparse_grad=False),
    ]
)
@register_fx_node_ge_converter(aten.gather.default, source="aten gather; GE GatherElements")
def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, meta_outputs: TensorSpec) -> Tensor:
    """Elements of self at index along a dim.

    Dtypes: any, kept; index int64 or int32.
    Emits:  GatherElements.
    """
    axis = dim % self.rank if self.rank else 0
    (x,), back = carried("GatherElements", _at_least_1d(self), moves=True)
    result = back(ge.GatherElements(x, _index_of(index), dim=axis))
    return result if index.rank else ge.Reshape(result, ints([]))


@declare_supported(
    [Support(f(3, 4), 0, _places(3, 5)) for f in _KINDS]
    + [
        Support(F32(3, 4), -1, _places(4, 2, of=I32)),
        Support(F32(3, 4), 1, I64(value=2)),
        Support(F32(), 0, I64(value=[0])),
        Support(F32(3, 4), 0, _places(3, 0)),
    ]
)
@register_fx_node_ge_converter(aten.index_select.default, source="aten index_select; GE GatherV2")
def index_select(self: Tensor, dim: int, index: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Slices of self along a dim, one for each entry of a 1-d index.

    Emits:  GatherV2.
    """
    (x,), back = carried("GatherV2", _at_least_1d(self), moves=True)
    result = back(ge.GatherV2(x, _index_of(index), dim % max(self.rank, 1)))
    return result if self.rank else ge.Reshape(result, ints([]))


@declare_supported(
    [Support(f(5, 3), _places(5, 2, 4)) for f in (F32, F16, BF16)]
    + [
        Support(F32(5, 3), _places(5, 4, of=I32), 1),
        Support(F32(5, 3), I64(value=2)),
        Support(F32(5, 3), _places(5, 0)),
    ]
)
@register_fx_node_ge_converter(aten.embedding.default, source="aten embedding; GE GatherV2")
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Rows of weight; the other arguments concern gradients only.

    Emits:  GatherV2.
    """
    return move("GatherV2", weight, indices, 0)


@declare_supported(
    [
        Support(f(2, 4, 3), _places(5, 2, 4), 5, p, s)
        for f in (F32, F16, BF16)
        for p, s in ((-1, False), (2, False), (-1, True))
    ]
    + [Support(F32(4, 3), _places(5, 4, of=I32), 5, -1, False)]
)
@register_fx_node_ge_converter(
    aten.embedding_dense_backward.default,
    source="aten embedding_dense_backward; GE EmbeddingDenseGrad",
)
def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: Any,
    padding_idx: Any,
    scale_grad_by_freq: bool,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Gradient rows added up by index.

    Emits:  EmbeddingDenseGrad; UnsortedSegmentSum if num_weights is symbolic.
    """
    return rows_added(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)


# -- advanced indexing -----------------------------------------------------------------------------------------------


def _resolved(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Integer indices: a bool mask becomes the positions of its true elements, one index for each of its dims."""
    resolved: list[Tensor | None] = []
    for index in indices:
        if index is None:
            resolved.append(None)
        elif index.dtype in (_D.DT_BOOL, _D.DT_UINT8):
            if index.rank == 0:
                raise Refusal("a 0-d bool index adds a dim of its truth; use torch.where or unsqueeze and a 1-d mask")
            positions = ge.NonZero(index, dtype=_D.DT_INT64)
            if index.rank == 1:
                resolved.append(ge.Squeeze(positions, axis=[1]))
            else:
                resolved.extend(ge.Unpack(positions, num=index.rank, axis=1, size_of_y=index.rank))
        else:
            resolved.append(cast(index, _D.DT_INT64))
    return resolved


_INDEXED: list[tuple[Any, Any]] = [(f(3, 4, 5), [_places(3, 2)]) for f in _KINDS]
_INDEXED += [
    (F32(3, 4, 5), [None, _places(4, 2, 2)]),
    (F32(3, 4, 5), [_places(3, 2), _places(4, 2)]),
    (F32(3, 4, 5), [_places(3, 2), None, _places(5, 2)]),
    (F32(3, 4, 5), [None, _places(4, 2, 1), _places(5, 3)]),
    (F32(3, 4, 5), [I64(value=[-1, 0])]),
    (F32(3, 4, 5), [I32(value=[1, -2])]),
    (F32(3, 4), [I64(value=1)]),
    (F32(3, 4), [I64(0, low=0, high=1)]),
]


_MASKED = [
    (F32(3, 4), [BOOL(3, value=[True, False, True])]),
    (F32(3, 2), [BOOL(value=[[True, False], [False, True], [True, True]])]),
]


@register_fx_node_ge_converter(
    {
        aten.index.Tensor: [Support(*c) for c in [*_INDEXED, *_MASKED]],
        aten._unsafe_index.Tensor: [Support(*c) for c in _INDEXED],
    },
    source="native_functions.yaml: index; GE IndexByTensor",
)
def index(self: Tensor, indices: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: indices broadcast; a bool mask selects its true positions.
    Emits:  IndexByTensor; NonZero before it for a mask.
    """
    resolved = _resolved(indices)
    while resolved and resolved[-1] is None:
        resolved.pop()
    if not resolved:
        return self
    (x,), back = carried("IndexByTensor", self, moves=True)
    mask = [int(i is not None) for i in resolved]
    return back(ge.IndexByTensor(x, [i for i in resolved if i is not None], indices_mask=mask))


def _value_shape(x: Tensor, rank: int, indices: list[Tensor], first: int) -> Tensor:
    """Shape of ``x[..., indices, ...]`` with consecutive indices from dim ``first``."""
    sizes = ge.Shape(x, dtype=_D.DT_INT64)
    joined = indices[0]
    for other in indices[1:]:
        joined = ge.Add(joined, other)
    parts = [ge.Shape(joined, dtype=_D.DT_INT64)]
    if first:
        parts.insert(0, ge.GatherV2(sizes, ints(range(first)), 0))
    after = range(first + len(indices), rank)
    if len(after):
        parts.append(ge.GatherV2(sizes, ints(after), 0))
    return ge.ConcatV2(parts, 0, N=len(parts)) if len(parts) > 1 else parts[0]


_PUTS: list[tuple[Any, ...]] = [(f(4, 3), [I64(value=[2, 0])], f(2, 3)) for f in _KINDS]
_PUTS += [
    (F32(4, 3), [I64(value=[1, -1])], F32()),
    (F32(4, 3), [None, I64(value=[0, 2])], F32(4, 2)),
    (F32(4, 3, 2), [I64(value=[0, 1]), I64(value=[2, 0])], F32(2)),
    (F32(4, 3, 2), [I64(value=[0, 1]), None, I64(value=[1, 0])], F32(2, 3)),
    (F32(4, 3), [BOOL(value=[True, False, True, False])], F32(3)),
    (F32(2, 2), [BOOL(value=[[True, False], [False, True]])], F32()),
    (F32(4), [I32(value=[3, 1])], F32(2)),
]
_PUT_FORMS = [Support(*p) for p in _PUTS] + [
    Support(f(4, 3), [I64(value=[2, 0, 2])], f(3, 3), True) for f in (F32, F16, BF16, I64, I32)
]


@register_fx_node_ge_converter(
    {aten.index_put.default: _PUT_FORMS, aten._unsafe_index_put.default: _PUT_FORMS},
    source="native_functions.yaml: index_put; GE IndexPutV2",
)
def index_put(
    self: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: values broadcast to self[indices].
    Emits:  TensorMove, BroadcastTo, IndexPutV2; Transpose around it if the indexed dims are not adjacent.
    """
    if accumulate and self.dtype == _D.DT_BOOL:
        counts = shaped(cast(self, _D.DT_INT32), self)
        added = cast(cast(values, _D.DT_BOOL), _D.DT_INT32)
        return cast(index_put(counts, indices, added, True, meta_outputs=meta_outputs), _D.DT_BOOL)
    resolved = _resolved(indices)
    chosen = [d for d, i in enumerate(resolved) if i is not None]
    if not chosen:
        return (
            arithmetic("Add", self, values, self.dtype)
            if accumulate
            else broadcast(cast(values, self.dtype), ge.Shape(self, dtype=_D.DT_INT64))
        )
    adjacent = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    order = chosen + [d for d in range(self.rank) if d not in chosen]
    x = self if adjacent else permuted(self, order)
    first = chosen[0] if adjacent else 0
    used = [i for i in resolved if i is not None]
    (var, value), back = carried("IndexPutV2", x, cast(values, self.dtype), moves=not accumulate)
    value = ge.BroadcastTo(value, _value_shape(x, self.rank, used, first))
    mask = ints([0] * first + [1] * len(used))
    written = back(ge.IndexPutV2(own(var), value, mask, mask, used, accumulate=accumulate))
    if adjacent:
        return written
    return move("Transpose", written, ints([order.index(d) for d in range(self.rank)]))


# -- scatter ---------------------------------------------------------------------------------------------------------


def scattered(self: Tensor, dim: int, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """``ScatterElements`` for any rank and type."""
    if self.dtype == _D.DT_BOOL and reduction != "none":  # in a byte 256 true ones would sum to none
        data, values = cast(self, _D.DT_INT32), cast(cast(updates, _D.DT_BOOL), _D.DT_INT32)
        return cast(scattered(data, dim, index, values, reduction), _D.DT_BOOL)
    axis = dim % self.rank if self.rank else 0
    data, values = _at_least_1d(self), _at_least_1d(cast(updates, self.dtype))
    (data, values), back = carried("ScatterElements", data, values, moves=reduction == "none")
    written = back(ge.ScatterElements(data, _index_of(index), values, axis=axis, reduction=reduction))
    return shaped(written if self.rank else ge.Reshape(written, ints([])), self)


def _full_like(index: Tensor, value: Any, dtype: DataType) -> Tensor:
    scalar: Tensor = dtype_promote(as_content(value, dtype), target_dtype=dtype)
    return shaped(ge.Fill(ge.Shape(index, dtype=_D.DT_INT64), scalar), index) if index.rank else scalar


_SCATTERS = [(f(3, 4), 0, I64(value=[[0, 2, 1], [1, 0, 2]])) for f in _KINDS]
_WHOLE = [
    (F32(3, 4), -1, I64(value=[[0, 3], [1, 0], [2, 2]])),
    (F32(), 0, I64(value=0)),
    (F32(3, 4), 0, I64(0, 4, low=0, high=1)),
]


_ADD_SCATTERS = [(f(3, 4), 0, I64(value=[[0, 0, 1], [1, 0, 2]]), f(2, 3)) for f in (F32, F16, BF16, F64, I64, I32)]
_REDUCTIONS = {"": "none", "add": "add", "sum": "add", "multiply": "mul", "prod": "mul"}


@register_fx_node_ge_converter(
    {
        aten.scatter_add.default: [
            *(Support(*s) for s in _ADD_SCATTERS),
            Support(F32(3, 4), -1, I64(value=[[0, 0], [1, 0], [2, 2]]), F32(3, 2)),
            Support(F32(), 0, I64(value=0), F32()),
        ]
    },
    source="native_functions.yaml: scatter_add; GE ScatterElements",
    fixed={"reduce": "add"},
)
@register_fx_node_ge_converter(
    {
        aten.scatter.src: [
            *(Support(*s, s[0].__class__(s[0].dtype, (2, 3))) for s in _SCATTERS),
            Support(F32(3, 4), -1, I64(value=[[0, 3], [1, 0], [2, 1]]), F32(3, 2)),
            Support(F32(), 0, I64(value=0), F32()),
            Support(F32(3, 4), 0, I64(value=[[0], [2]]), F32(3, 4)),
        ],
        aten.scatter.value: [*(Support(*s, 2) for s in _SCATTERS), *(Support(*s, 1.5) for s in _WHOLE)],
        aten.scatter.reduce: [Support(*s, reduce=r) for s in _ADD_SCATTERS[:2] for r in ("add", "multiply")],
        aten.scatter.value_reduce: [
            Support(*s[:3], 2.0, reduce=r) for s in _ADD_SCATTERS[:2] for r in ("add", "multiply")
        ],
    },
    source="native_functions.yaml: scatter; GE ScatterElements, Fill",
)
def scatter(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | None = None,
    *,
    value: Any = None,
    reduce: str = "",
    meta_outputs: TensorSpec,
) -> Tensor:
    """self with elements of src, or one number, written to, added to or multiplied with it at index along a dim.

    Emits:  ScatterElements; Fill for a number.
    """
    updates = _full_like(index, value, self.dtype) if src is None else src
    return scattered(self, dim, index, updates, _REDUCTIONS[reduce])


def _coordinates(index: Tensor, axis: int) -> Tensor:
    """Full coordinates [n, rank] of all positions of ``index``, its value in the place of ``axis``."""
    everywhere = ge.NonZero(ge.Equal(index, index), dtype=_D.DT_INT64)
    flat = ge.Reshape(cast(index, _D.DT_INT64), ints([-1]))
    if index.rank == 1:
        return ge.Unsqueeze(flat, axes=[1])
    columns = ge.Unpack(everywhere, num=index.rank, axis=1, size_of_y=index.rank)
    return ge.Pack([flat if d == axis else c for d, c in enumerate(columns)], axis=1, N=index.rank)


def _extreme_scatter(self: Tensor, axis: int, index: Tensor, src: Tensor, largest: bool) -> Tensor:
    op = "TensorScatterMax" if largest else "TensorScatterMin"
    (data, values), back = carried(op, self, src)
    places = _coordinates(index, axis)
    covered = ge.Slice(values, ints([0] * values.rank), ge.Shape(index, dtype=_D.DT_INT64))
    return back(getattr(ge, op)(data, places, ge.Reshape(covered, ints([-1]))))


def _bound(dtype: DataType, largest: bool) -> Any:
    """The number that never wins: the smallest of the type for a maximum."""
    if dtype.is_float:
        return float("-inf") if largest else float("inf")
    info = torch.iinfo(to_torch(dtype))
    return info.min if largest else info.max


def _mean_scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Sum and count; eager rounds integer means down."""
    total = scattered(self, dim, index, src, "add")
    ones = _full_like(index, 1, self.dtype)
    everywhere = _full_like(self, 1, self.dtype)
    count = scattered(everywhere, dim, index, ones, "add")
    return arithmetic("RealDiv" if self.dtype.is_float else "FloorDiv", total, count, self.dtype)


_WAYS = ("sum", "prod", "amax", "amin", "mean")


@declare_supported(
    [
        Support(*s, reduce=r, include_self=i)
        for s in _ADD_SCATTERS
        if s[0].dtype != torch.float64
        for r in _WAYS
        for i in (True, False)
    ]
    + [Support(BOOL(3), 0, I64(value=[0, 0, 2]), BOOL(3), reduce=r) for r in ("sum", "prod", "amax", "amin")]
    + [
        Support(F32(3), 0, I64(value=[0, 0, 2]), F32(3), reduce="amax"),
        Support(F32(), 0, I64(value=0), F32(), reduce="sum"),
    ]
)
@register_fx_node_ge_converter(
    aten.scatter_reduce.two,
    source="aten scatter_reduce.two; GE ScatterElements, TensorScatterMax, TensorScatterMin",
)
def scatter_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    meta_outputs: TensorSpec,
) -> Tensor:
    """self combined with elements of src at index along a dim; without include_self only src counts where it falls.

    Emits:  ScatterElements for sum, prod and mean; TensorScatterMax or TensorScatterMin with full coordinates.
    """
    if self.dtype == _D.DT_BOOL:
        spec = TensorSpec(_D.DT_INT32, meta_outputs.size)  # in a byte 256 true ones would sum to none
        numbers = [shaped(cast(x, _D.DT_INT32), x) for x in (self, src)]
        return cast(
            scatter_reduce(numbers[0], dim, index, numbers[1], reduce, include_self=include_self, meta_outputs=spec),
            _D.DT_BOOL,
        )
    start = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
    if start is None:
        start = _bound(self.dtype, reduce == "amax")
    base = self
    if not include_self:
        base = scattered(self, dim, index, _full_like(index, start, self.dtype), "none")
    if reduce in _REDUCTIONS:
        return scattered(base, dim, index, src, _REDUCTIONS[reduce])
    if reduce == "mean":
        return _mean_scatter(base, dim, index, src) if include_self else _mean_of_src(self, base, dim, index, src)
    if not self.rank:
        return arithmetic("Maximum" if reduce == "amax" else "Minimum", base, src, self.dtype)
    return _extreme_scatter(base, dim % self.rank, index, cast(src, self.dtype), reduce == "amax")


def _mean_of_src(self: Tensor, base: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Mean of src alone where it falls, self elsewhere."""
    total = scattered(base, dim, index, src, "add")
    none = _full_like(self, 0, self.dtype)
    count = scattered(none, dim, index, _full_like(index, 1, self.dtype), "add")
    one = dtype_promote(1, target_dtype=self.dtype)
    divisor = arithmetic("Maximum", count, one, self.dtype)
    return arithmetic("RealDiv" if self.dtype.is_float else "FloorDiv", total, divisor, self.dtype)


@declare_supported(
    [
        Support(f(4, 3), 0, I64(value=[2, 0, 2]), f(3, 3), alpha=a)
        for f in (F32, F16, BF16, F64, I64, I32)
        for a in (1, 2)
    ]
    + [Support(F32(4, 3), -1, I32(value=[1]), F32(4, 1))]
)
@register_fx_node_ge_converter(aten.index_add.default, source="aten index_add; GE InplaceIndexAdd")
def index_add(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1, meta_outputs: TensorSpec
) -> Tensor:
    """self with slices of source added at index along a dim.

    Emits:  TensorMove, InplaceIndexAdd.
    """
    if not self.rank:
        return arithmetic("Add", self, arithmetic("Mul", ge.Reshape(source, ints([])), alpha, self.dtype), self.dtype)
    inner = carrier("InplaceIndexAdd", self.dtype)
    var, updates = carry(self, inner), cast(source, inner)
    if alpha != 1:
        updates = arithmetic("Mul", updates, alpha, inner)
    added = ge.InplaceIndexAdd(own(var), _index_of(index), updates, axis=dim % self.rank)
    return cast(added, self.dtype)


# -- masks -----------------------------------------------------------------------------------------------------------


@declare_supported(
    [Support(f(2, 3)) for f in _KINDS]
    + [Support(F32(4, value=[0.0, 1.0, 0.0, 2.0])), Support(BOOL(0, 2)), Support(F32())]
)
@register_fx_node_ge_converter(aten.nonzero.default, source="aten nonzero; GE NonZero")
def nonzero(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Coordinates [n, rank] of all elements that are not zero.

    Emits:  NonZero.
    """
    (x,), _ = carried("NonZero", self)
    return ge.NonZero(x, dtype=_D.DT_INT64)


@declare_supported(
    [Support(f(2, 3), BOOL(2, 3)) for f in _KINDS]
    + [Support(F32(2, 3), BOOL(3)), Support(F32(3), BOOL(2, 3)), Support(F32(), BOOL(2)), Support(F32(0), BOOL(0))]
)
@register_fx_node_ge_converter(aten.masked_select.default, source="aten masked_select; GE MaskedSelect")
def masked_select(self: Tensor, mask: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """The elements where the mask holds, as a 1-d tensor; both broadcast.

    Emits:  MaskedSelect.
    """
    return move("MaskedSelect", self, cast(mask, _D.DT_BOOL))


@declare_supported(
    [Support(f(2, 3), BOOL(2, 3), f(6)) for f in _KINDS]
    + [Support(F32(2, 3), BOOL(3), F32(2, 3)), Support(F32(3), BOOL(2, 3), F32(9))]
)
@register_fx_node_ge_converter(aten.masked_scatter.default, source="aten masked_scatter; GE MaskedScatter")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """self with the elements where the mask holds replaced by those of source in order.

    Emits:  MaskedScatter, after BroadcastTo of self and mask to their common shape.
    """
    truth = cast(mask, _D.DT_BOOL)
    if all(isinstance(s, int) for s in meta_outputs.size):
        sizes: Any = ints(meta_outputs.size)  # type: ignore[arg-type]
    else:
        sizes = ge.Shape(ge.LogicalOr(truth, ge.Equal(self, self)), dtype=_D.DT_INT64)
    (x, updates), back = carried("MaskedScatter", self, cast(source, self.dtype), moves=True)
    return back(ge.MaskedScatter(broadcast(x, sizes), broadcast(truth, sizes), updates))


@declare_supported(
    [Support(F32(value=1.5)), Support(I64(value=3)), Support(BOOL(value=True)), Support(F32(value=[2.0]))]
)
@register_fx_node_ge_converter(aten._local_scalar_dense.default, source="aten _local_scalar_dense; GE Reshape, Cast")
def local_scalar_dense(self: Tensor, *, meta_outputs: Any) -> Tensor:
    """The only element as a 0-d tensor: INT64, DOUBLE or BOOL, as symbolic numbers travel."""
    kind = _D.DT_BOOL if self.dtype == _D.DT_BOOL else _D.DT_DOUBLE if self.dtype.is_float else _D.DT_INT64
    return cast(ge.Reshape(self, ints([])) if self.rank else self, kind)


@declare_supported(
    [Support(f(3, 4), f(3)) for f in _KINDS]
    + [Support(F32(3, 4), F32(2), -1), Support(F32(2, 3, 4), F32(3, 2), 0, 0, 2)]
)
@register_fx_node_ge_converter(aten.diagonal_scatter.default, source="aten diagonal_scatter; GE MatrixSetDiagV3")
def diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1, *, meta_outputs: TensorSpec
) -> Tensor:
    """self with the diagonal of two dims replaced by src.

    Emits:  MatrixSetDiagV3, with Transpose around it if the two dims are not the last ones.
    """
    first, second = dim1 % self.rank, dim2 % self.rank
    order = [d for d in range(self.rank) if d not in (first, second)] + [first, second]
    (x, line), back = carried("MatrixSetDiagV3", permuted(self, order), cast(src, self.dtype), moves=True)
    written = back(ge.MatrixSetDiagV3(x, line, dtype_promote(offset, target_dtype=_D.DT_INT32)))
    if order == list(range(self.rank)):
        return written
    return move("Transpose", written, ints([order.index(d) for d in range(self.rank)]))


@declare_supported([Support(I64(value=[0, 2, 1])), Support(I32(value=[1, 1])), Support(I64(0))])
@register_fx_node_ge_converter(
    aten.repeat_interleave.Tensor, source="aten repeat_interleave.Tensor; GE RepeatInterleave"
)
def repeat_interleave(repeats: Tensor, *, output_size: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Each position as often as repeats says.

    Emits:  RepeatInterleave of a Range.
    """
    length = ge.GatherV2(ge.Shape(repeats, dtype=_D.DT_INT64), ge.Const(0, dtype=_D.DT_INT64), 0)
    places = ge.Range(*dtype_promote(0, length, 1, target_dtype=_D.DT_INT64))
    return cast(ge.RepeatInterleave(places, cast(repeats, _D.DT_INT64), axis=0), meta_outputs.dtype)
