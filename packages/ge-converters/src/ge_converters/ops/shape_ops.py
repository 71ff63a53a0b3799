"""Views and joins: reshaping, permuting, slicing, splitting, joining, padding. Sizes stay graph values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ge_converters.base.dtypes import cast, dtype_promote, to_ge
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, C64, F16, F32, F64, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic, as_content, as_number
from ge_converters.emit.compute_types import carried, carrier, move
from ge_converters.emit.shapes import axis_size, broadcast, int_operand, ints, own, permuted
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec, schema
from ge_graph import ops as ge

_D = DataType
_END = 2**63 - 1

_ANY = [
    F32(2, 3, 4),
    F16(2, 3, 4),
    BF16(2, 3, 4),
    F64(2, 3, 4),
    I64(2, 3, 4),
    I32(2, 3, 4),
    BOOL(2, 3, 4),
    F32(0, 3, 4),
]
_LAID_OUT = F32(2, 3, 4, strides=(1, 2, 6))


# -- reshape ---------------------------------------------------------------------------------------------------------


def reshape_operand(sizes: Sequence[Any], meta: TensorSpec) -> Any:
    """The shape operand of ``Reshape``: static dims as numbers, a single open dim as -1, several as graph values."""
    if len(sizes) == len(meta.size) and set(map(type, meta.size)) == {int}:
        return list(meta.size)
    wanted = [m if isinstance(m, int) else s for s, m in zip(sizes, meta.size, strict=True)]
    is_open = [i for i, s in enumerate(wanted) if not isinstance(s, int) or s < 0]
    if len(is_open) == 1 and 0 not in [s for s in wanted if isinstance(s, int)]:
        wanted[is_open[0]] = -1
    return int_operand(wanted)


_SIZES: tuple[list[int], ...] = ([6, 4], [24], [2, -1], [1, 2, 3, 4], [2, 3, 2, 2])
_RESHAPES = [
    *(Support(x, s) for x in _ANY[:-1] for s in _SIZES[:2]),
    *(Support(F32(2, 3, 4), s) for s in _SIZES),
    Support(F32(), [1]),
    Support(F32(1), []),
    Support(F32(0, 3), [3, 0]),
    Support(F32(2, 0), [0]),
]


@register_fx_node_ge_converter(
    {
        **dict.fromkeys(
            (aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten.reshape.default), _RESHAPES
        ),
        aten._reshape_alias.default: [Support(F32(2, 3), [3, 2], [2, 1])],
    },
    source="native_functions.yaml: view, reshape; GE Reshape",
    names={"shape": "size"},
)
def reshape(self: Tensor, size: Any, stride: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """The same elements in another shape.

    Dtypes: any, kept.
    Emits:  Reshape; one open dim is -1, several are graph values.
    """
    return ge.Reshape(self, reshape_operand(size, meta_outputs))


@declare_supported(
    [
        Support(F32(2, 3), torch.int32),
        Support(I64(2, 3), torch.float32),
        Support(F64(2), torch.int64),
        Support(F16(2, 4), torch.float32),
        Support(I32(2), torch.int8),
        Support(F32(2), torch.float32),
        *(Support(BF16(2, 4), t) for t in (torch.int16, torch.float16, torch.int32, torch.uint8)),
        *(Support(f(2, 4), torch.bfloat16) for f in (F16, F32, I32, I64)),
        Support(BF16(), torch.int16),
    ]
)
@register_fx_node_ge_converter(aten.view.dtype, source="aten view.dtype; GE Bitcast")
def view_dtype(self: Tensor, dtype: torch.dtype, *, meta_outputs: TensorSpec) -> Tensor:
    """The same bytes read as another type; the last dim takes up a difference in size.

    Dtypes: those of Bitcast, and bfloat16, which is the upper half of a float32: its bits go by way of float32.
    Emits:  Bitcast; Cast, Bitcast, RightShift and Cast to take the bits of bfloat16 out, the same backwards to put
            them in.
    Errors: Refusal for other types that Bitcast does not take.
    """
    target = to_ge(dtype)
    if target == self.dtype:
        return self
    domain = schema.require("Bitcast").inputs[0].domain
    foreign = [d.name for d in (self.dtype, target) if d not in domain and d != _D.DT_BF16]
    if foreign:
        raise Refusal(f"view of {self.dtype.name} as {target.name}: GE Bitcast does not take {', '.join(foreign)}")
    bits = _bits_of_bfloat16(self) if self.dtype == _D.DT_BF16 else self
    last = _D.DT_INT16 if target == _D.DT_BF16 else target
    if bits.dtype != last:
        bits = ge.Bitcast(bits, type=last, keep_dim=last.bits != bits.dtype.bits)
    return _bfloat16_of_bits(bits) if target == _D.DT_BF16 else bits


def _bits_of_bfloat16(x: Tensor) -> Tensor:
    whole = ge.Bitcast(cast(x, _D.DT_FLOAT), type=_D.DT_INT32)
    return cast(ge.RightShift(whole, ge.Const(16, dtype=_D.DT_INT32)), _D.DT_INT16)


def _bfloat16_of_bits(bits: Tensor) -> Tensor:
    whole = ge.LeftShift(cast(bits, _D.DT_INT32), ge.Const(16, dtype=_D.DT_INT32))
    return cast(ge.Bitcast(whole, type=_D.DT_FLOAT), _D.DT_BF16)


# -- unsqueeze, squeeze ----------------------------------------------------------------------------------------------


@declare_supported([Support(x, d) for x in _ANY for d in (0, -1)] + [Support(F32(), 0), Support(_LAID_OUT, 2)])
@register_fx_node_ge_converter(aten.unsqueeze.default, source="aten unsqueeze; GE Unsqueeze")
def unsqueeze(self: Tensor, dim: int, *, meta_outputs: TensorSpec) -> Tensor:
    """A dim of size 1 at ``dim``.

    Dtypes: any, kept.
    Emits:  Unsqueeze.
    """
    return ge.Unsqueeze(self, axes=[dim % (self.rank + 1)])


_ONES = [F32(1, 3, 1), F16(1, 3, 1), BF16(1, 3, 1), I64(1, 3, 1), BOOL(1, 3, 1), F32(1, 0, 1), F32()]


@register_fx_node_ge_converter(
    {
        aten.squeeze.default: [Support(x) for x in [*_ONES, F32(2, 3)]],
        aten.squeeze.dim: [*(Support(x, d) for x in _ONES for d in (0, -1)), Support(F32(1, 3, 1), 1)],
        aten.squeeze.dims: [
            *(Support(x, [0, -1]) for x in _ONES if x.shape),
            Support(F32(1, 3, 1), [0, 1]),
            Support(F32(1, 3, 1), []),
            Support(F32(2, 3), [0]),
        ],
    },
    source="native_functions.yaml: squeeze; GE Squeeze",
)
def squeeze(self: Tensor, dim: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Without the dims of size 1, or those of ``dim`` among them; ranks tell how many that are."""
    rank, dropped = self.rank, self.rank - meta_outputs.rank
    if dropped == 0:
        return self
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = sorted({d % rank for d in dims})
    sizes = meta_outputs.size
    if dropped == len(axes):
        return ge.Squeeze(self, axis=axes)
    if sum(not isinstance(s, int) for s in sizes) <= 1 and 0 not in sizes:
        return ge.Reshape(self, ints([s if isinstance(s, int) else -1 for s in sizes]))
    # Which dims are 1 is decided by the sizes at run time.
    found = ge.Shape(self, dtype=_D.DT_INT64)
    kept = ge.Const(np.asarray([i not in axes for i in range(rank)]))
    keep = ge.LogicalOr(kept, ge.NotEqual(found, ge.Const(1, dtype=_D.DT_INT64)))
    return ge.Reshape(self, ge.MaskedSelect(found, keep))


# -- permute ---------------------------------------------------------------------------------------------------------


_PERMUTATIONS = [
    *(Support(x, p) for x in _ANY for p in ([2, 0, 1], [0, -1, 1])),
    Support(F32(), []),
    Support(F32(2, 3), [0, 1]),
    Support(_LAID_OUT, [1, 2, 0]),
]


@register_fx_node_ge_converter(
    {aten.permute.default: _PERMUTATIONS, aten.permute_copy.default: _PERMUTATIONS},
    source="native_functions.yaml: permute; GE Transpose",
)
def permute(self: Tensor, dims: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """Dims in another order.

    Dtypes: any, kept; types that Transpose does not take travel in one of the same size.
    Emits:  Transpose, nothing for the identity.
    """
    return permuted(self, dims)


@declare_supported([Support(x, 0, -1) for x in _ANY] + [Support(F32(), 0, -1), Support(F32(2, 3), 1, 1)])
@register_fx_node_ge_converter(aten.transpose.int, source="aten transpose.int; GE Transpose")
def transpose(self: Tensor, dim0: int, dim1: int, *, meta_outputs: TensorSpec) -> Tensor:
    """Two dims exchanged."""
    order = list(range(self.rank))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(self, order)


@declare_supported([Support(F32(2, 3)), Support(BOOL(2, 3)), Support(F16(3)), Support(F32()), Support(I64(0, 2))])
@register_fx_node_ge_converter(aten.t.default, source="aten t; GE Transpose")
def t(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """A matrix transposed; vectors and scalars stay."""
    return permuted(self, [1, 0]) if self.rank == 2 else self


# -- expand, repeat --------------------------------------------------------------------------------------------------


@declare_supported(
    [Support(f(2, 1, 4), [5, -1, 3, 4]) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]
    + [Support(F32(0, 1, 4), [5, -1, 3, 4])]
    + [
        Support(F32(), [2, 3]),
        Support(F32(2, 1), [-1, -1]),
        Support(F32(1), [0]),
        Support(F32(), []),
        Support(F32(2, 3), [2, 3], implicit=True),
    ]
)
@register_fx_node_ge_converter(aten.expand.default, source="aten expand; GE BroadcastTo")
def expand(self: Tensor, size: Any, *, implicit: bool = False, meta_outputs: TensorSpec) -> Tensor:
    """Dims of size 1 stretched, new dims in front; -1 keeps a dim.

    Emits:  BroadcastTo.
    """
    if len(size) == self.rank and all(isinstance(s, int) and s == -1 for s in size):
        return self
    wanted = [m if isinstance(m, int) else s for s, m in zip(size, meta_outputs.size, strict=True)]
    return broadcast(self, int_operand(wanted))


@declare_supported(
    [Support(f(2, 3), r) for f in (F32, F16, BF16, F64, I64, BOOL) for r in ([2, 1], [3, 1, 2])]
    + [Support(F32(), [2]), Support(F32(), []), Support(F32(2), [0]), Support(F32(2, 3), [1, 1])]
)
@register_fx_node_ge_converter(aten.repeat.default, source="aten repeat; GE Tile")
def repeat(self: Tensor, repeats: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """The whole tensor repeated along each dim; more numbers than dims add dims in front.

    Emits:  Tile.
    """
    if all(isinstance(r, int) and r == 1 for r in repeats) and len(repeats) == self.rank:
        return self
    return move("Tile", self, int_operand(repeats))


@declare_supported(
    [Support(f(2, 3), F32(3)) for f in (F32, F16, I64, BOOL)]
    + [Support(F32(), F32()), Support(F32(2, 3), F32(2, 3)), Support(F32(0, 3), F32(3), True)]
)
@register_fx_node_ge_converter(aten.copy.default, source="aten copy; GE Cast, BroadcastTo")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False, *, meta_outputs: TensorSpec) -> Tensor:
    """The values of src in the type and shape of self."""
    values = cast(src, self.dtype)
    if self.rank == 0 and src.rank == 0:
        return values
    static = all(isinstance(s, int) for s in meta_outputs.size)
    return broadcast(values, ints(meta_outputs.size) if static else ge.Shape(self, dtype=_D.DT_INT64))  # type: ignore[arg-type]


# -- slice -----------------------------------------------------------------------------------------------------------


_SLICES: list[tuple[Any, ...]] = [
    (0, 1, 2),
    (1, 0, 3, 2),
    (-1, -3, -1),
    (1, None, 2),
    (2, 1, _END),
    (0, 5, 9),
    (1, 2, 1),
    (0,),
]


@declare_supported(
    [Support(F32(4, 3, 5), *s) for s in _SLICES] + [Support(x, 1, 1, 3) for x in _ANY] + [Support(_LAID_OUT, 2, 1, 3)]
)
@register_fx_node_ge_converter(aten.slice.Tensor, source="aten slice.Tensor; GE StridedSliceV2")
def slice_(
    self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1, *, meta_outputs: TensorSpec
) -> Tensor:
    """self[start:end:step] along one dim, with Python's rules for negative and large bounds.

    Dtypes: any, kept.
    Emits:  StridedSliceV2; nothing for the whole dim.
    """
    start = 0 if start is None else start
    end = _END if end is None else end
    whole = isinstance(start, int) and start == 0 and isinstance(end, int) and end == _END
    if whole and isinstance(step, int) and step == 1:
        return self
    places = int_operand([start]), int_operand([end]), ints([dim % self.rank]), int_operand([step])
    return move("StridedSliceV2", self, *places)


@declare_supported(
    [Support(x, d, i) for x in _ANY[:-1] for d, i in ((0, 1), (-1, -1))]
    + [Support(F32(3), 0, 2), Support(F32(2, 0), 0, 1)]
)
@register_fx_node_ge_converter(aten.select.int, source="aten select.int; GE GatherV2")
def select_int(self: Tensor, dim: int, index: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """One slice along a dim, without that dim.

    Emits:  GatherV2 with a 0-d index.
    """
    place = dtype_promote(index, target_dtype=_D.DT_INT64)
    return move("GatherV2", self, place, dim % self.rank, negative_index_support=True)


def assigned(x: Tensor, src: Tensor, axis: int, start: Any, end: Any, step: Any) -> Tensor:
    """``x`` with ``x[start:end:step] = src`` along one dim; ``x`` itself is untouched."""
    (var, value), back = carried("StridedSliceAssignV2", x, src, moves=True)
    written = ge.StridedSliceAssignV2(
        own(var), value, int_operand([start]), int_operand([end]), int_operand([step]), ints([axis])
    )
    return back(written)


_SCATTERED = [(f(4, 5), f(2, 5), 0, 1, 3) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]


@declare_supported(
    [Support(*s) for s in _SCATTERED]
    + [
        Support(F32(4, 5), F32(4, 2), -1, 0, 4, 2),
        Support(F32(4, 5), F32(4, 1), 1, -1),
        Support(F32(4, 5), F32(4, 5), 0),
        Support(F32(4), F32(2), 0, -2, _END),
    ]
)
@register_fx_node_ge_converter(aten.slice_scatter.default, source="aten slice_scatter; GE StridedSliceAssignV2")
def slice_scatter(
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """self with a slice replaced by src.

    Emits:  TensorMove, StridedSliceAssignV2; src itself if the slice is the whole dim.
    """
    start, end = (0 if start is None else start), (_END if end is None else end)
    if all(isinstance(v, int) for v in (start, end, step)) and (start, end, step) == (0, _END, 1):
        return cast(src, self.dtype)
    return assigned(self, cast(src, self.dtype), dim % self.rank, start, end, step)


@declare_supported(
    [Support(f(4, 5), f(5), 0, 1) for f in (F32, F16, BF16, I64, BOOL)]
    + [Support(F32(4, 5), F32(4), -1, -1), Support(F32(3), F32(), 0, 2)]
)
@register_fx_node_ge_converter(aten.select_scatter.default, source="aten select_scatter; GE StridedSliceAssignV2")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """self with one slice along a dim replaced by src."""
    axis = dim % self.rank
    if isinstance(index, int):
        end: Any = _END if index == -1 else index + 1
    else:
        index = ge.FloorMod(
            index, axis_size(self, axis)
        )  # the slice after the last one, -1, would end before the first
        end = arithmetic("Add", index, 1, _D.DT_INT64)
    return assigned(self, ge.Unsqueeze(cast(src, self.dtype), axes=[axis]), axis, index, end, 1)


# -- split, join -----------------------------------------------------------------------------------------------------


_SPLIT_INPUTS = [f(6, 4) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]


@register_fx_node_ge_converter(
    {
        aten.split.Tensor: [
            *(Support(x, 2) for x in _SPLIT_INPUTS),
            Support(F32(7, 2), 3),
            Support(F32(2, 7), 3, -1),
            Support(F32(3), 5),
            Support(F32(0, 2), 2),
        ],
        aten.split_with_sizes.default: [
            *(Support(x, [1, 2, 3]) for x in _SPLIT_INPUTS),
            Support(F32(2, 6), [4, 2], -1),
            Support(F32(3), [3]),
            Support(F32(3), [0, 3]),
        ],
    },
    source="native_functions.yaml: split; GE SplitV",
    names={"split_size": "split_sizes"},
)
def split(self: Tensor, split_sizes: Any, dim: int = 0, *, meta_outputs: list[TensorSpec]) -> list[Tensor]:
    """Pieces of the given sizes along a dim, or of one size, the last one smaller if need be.

    Emits:  SplitV; nothing for one piece.
    """
    count = len(meta_outputs)
    if count == 1:
        return [self]
    sizes = split_sizes if isinstance(split_sizes, Sequence) else [split_sizes] * (count - 1) + [-1]
    (inner,), back = carried("SplitV", self, moves=True)
    axis = dtype_promote(dim % self.rank, target_dtype=_D.DT_INT32)
    return [back(p) for p in ge.SplitV(inner, int_operand(sizes), axis, num_split=count, size_of_y=count)]


@declare_supported([Support(F32(7, 2), 3), Support(F16(4), 2), Support(F32(2, 4), 2, 1)])
@register_fx_node_ge_converter(aten.chunk.default, source="aten chunk; GE SplitV")
def chunk(self: Tensor, chunks: int, dim: int = 0, *, meta_outputs: list[TensorSpec]) -> list[Tensor]:
    """At most ``chunks`` pieces of equal size, the last one smaller."""
    size: Any = meta_outputs[0].size[dim]
    if len(meta_outputs) > 1 and not isinstance(size, int):
        length = axis_size(self, dim % self.rank)
        size = arithmetic("FloorDiv", arithmetic("Add", length, chunks - 1, _D.DT_INT64), chunks, _D.DT_INT64)
    return split(self, size, dim, meta_outputs=meta_outputs)


_UNBINDS = [*(Support(x) for x in _SPLIT_INPUTS), Support(F32(2, 3), -1), Support(F32(1, 3)), Support(F32(3))]


@register_fx_node_ge_converter(
    {aten.unbind.int: _UNBINDS, aten.unbind_copy.int: _UNBINDS}, source="native_functions.yaml: unbind; GE Unpack"
)
def unbind(self: Tensor, dim: int = 0, *, meta_outputs: list[TensorSpec]) -> list[Tensor]:
    """All slices along a dim.

    Emits:  Unpack.
    """
    if not meta_outputs:
        return []
    (x,), back = carried("Unpack", self, moves=True)
    count = len(meta_outputs)
    return [back(p) for p in ge.Unpack(x, num=count, axis=dim % self.rank, size_of_y=count)]


@declare_supported(
    [Support([f(2, 3), f(4, 3)]) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]
    + [
        Support([F32(2, 3), F32(2, 1)], -1),
        Support([F32(2, 3)]),
        Support([F32(2), I64(3)]),
        Support([F32(0), F32(2, 3)], 1),
        Support([F32(0, 3), F32(2, 3)]),
        Support([F16(2), F32(2), BOOL(1)]),
    ]
)
@register_fx_node_ge_converter(aten.cat.default, source="aten cat; GE ConcatV2")
def cat(tensors: list[Tensor], dim: int = 0, *, meta_outputs: TensorSpec) -> Tensor:
    """Tensors joined along a dim; an empty 1-d tensor among tensors of another rank is left out, as in eager.

    Dtypes: promoted to one type.
    Emits:  ConcatV2; nothing for one tensor.
    """
    parts = [cast(x, meta_outputs.dtype) for x in tensors if x.rank == meta_outputs.rank]
    if len(parts) == 1:
        return parts[0]
    parts, back = carried("ConcatV2", *parts, moves=True)
    return back(ge.ConcatV2(parts, dim % meta_outputs.rank, N=len(parts)))


@declare_supported(
    [Support([f(2, 3), f(2, 3)]) for f in (F32, F16, BF16, F64, I64, BOOL)]
    + [Support([F32(2, 3), F32(2, 3)], -1), Support([F32(), F32()]), Support([F32(2)], 1)]
)
@register_fx_node_ge_converter(aten.stack.default, source="aten stack; GE Pack")
def stack(tensors: list[Tensor], dim: int = 0, *, meta_outputs: TensorSpec) -> Tensor:
    """Tensors of one shape joined along a new dim.

    Emits:  Pack.
    """
    parts = [cast(x, meta_outputs.dtype) for x in tensors]
    parts, back = carried("Pack", *parts, moves=True)
    return back(ge.Pack(parts, axis=dim % meta_outputs.rank, N=len(parts)))


# -- flip, roll, triangles, padding ----------------------------------------------------------------------------------


@declare_supported([Support(x, [0, -1]) for x in _ANY] + [Support(F32(2, 3), []), Support(F32(), [])])
@register_fx_node_ge_converter(aten.flip.default, source="aten flip; GE ReverseV2")
def flip(self: Tensor, dims: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """Elements in reverse order along dims."""
    if not len(dims) or not self.rank:
        return self
    return move("ReverseV2", self, ints([d % self.rank for d in dims]))


@declare_supported(
    [Support(f(3, 4), [1], [0]) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]
    + [Support(F32(3, 4), [5]), Support(F32(3, 4), [-1, 2], [0, -1])]
)
@register_fx_node_ge_converter(aten.roll.default, source="aten roll; GE Roll, RollV2")
def roll(self: Tensor, shifts: Any, dims: Any = (), *, meta_outputs: TensorSpec) -> Tensor:
    """Elements shifted around; without dims the flattened tensor is shifted.

    Emits:  Roll; RollV2, whose shifts are a port, for shifts that are graph values.
    """
    if not self.rank:
        return self
    axes = [d % self.rank for d in dims]
    if not any(isinstance(s, Tensor) for s in shifts):
        return move("Roll", self, shifts=list(shifts), dims=axes)
    if axes:
        return move("RollV2", self, int_operand(shifts), ints(axes))
    flat = move("RollV2", ge.Reshape(self, ints([-1])), int_operand(shifts), ints([0]))
    return ge.Reshape(flat, ge.Shape(self, dtype=int(_D.DT_INT64)))


_TRIANGLES = [Support(f(3, 4), d) for f in (F32, F16, BF16, F64, I64, BOOL) for d in (0, 1)] + [
    Support(F32(2, 3, 3), -1),
    Support(F32(3, 3), 9),
]


@register_fx_node_ge_converter(
    {aten.tril.default: _TRIANGLES},
    source="native_functions.yaml: tril; GE Tril",
    fixed={"op": "Tril", "kept": "LessEqual"},
)
@register_fx_node_ge_converter(
    {aten.triu.default: _TRIANGLES},
    source="native_functions.yaml: triu; GE Triu",
    fixed={"op": "Triu", "kept": "GreaterEqual"},
)
def triangle(self: Tensor, diagonal: Any = 0, *, op: str, kept: str, meta_outputs: TensorSpec) -> Tensor:
    """The lower or upper triangle of matrices, zeros elsewhere.

    Dtypes: any, kept.
    Emits:  one operator; two ranges compared and SelectV2 if the diagonal is a graph value.
    """
    if isinstance(diagonal, int):
        return move(op, self, diagonal=diagonal)
    rows = ge.Unsqueeze(ge.Range(0, axis_size(self, self.rank - 2), 1), axes=[1])
    columns = ge.Range(0, axis_size(self, self.rank - 1), 1)
    keep = getattr(ge, kept)(columns, ge.Add(rows, diagonal))
    moved, back = carried("SelectV2", self, port="then", moves=True)
    return back(ge.SelectV2(keep, moved[0], ge.Const(0, dtype=moved[0].dtype)))


@declare_supported(
    [Support(f(2, 3), [1, 2], 0) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]
    + [
        Support(F32(2, 3), [1, 0, 0, 2], 1.5),
        Support(F32(2, 5), [-1, -2]),
        Support(I64(2, 3), [1, 1], 7),
        Support(F32(2, 3), []),
        Support(F32(2, 3), [1, 1], float("-inf")),
        Support(F32(0, 3), [0, 0, 1, 1]),
    ]
)
@register_fx_node_ge_converter(aten.constant_pad_nd.default, source="aten constant_pad_nd; GE PadV3")
def constant_pad_nd(self: Tensor, pad: Any, value: Any = 0, *, meta_outputs: TensorSpec) -> Tensor:
    """The last dims widened by a number, or cut where pad is negative.

    Emits:  PadV3.
    """
    if all(isinstance(p, int) and p == 0 for p in pad):
        return self
    inner = carrier("PadV3", self.dtype)
    fill = dtype_promote(as_number(as_content(value, self.dtype), inner), target_dtype=inner)
    pairs: list[Any] = [0] * (2 * self.rank - len(pad))  # GE's first dim comes first, torch's last dim
    for i in reversed(range(len(pad) // 2)):
        pairs += pad[2 * i : 2 * i + 2]
    return cast(ge.PadV3(cast(self, inner), int_operand(pairs), fill, mode="constant"), self.dtype)


# -- complex as pairs ------------------------------------------------------------------------------------------------


@declare_supported([Support(C64(2, 3)), Support(C64())])
@register_fx_node_ge_converter(aten.view_as_real.default, source="aten view_as_real; GE Real, Imag, Pack")
def view_as_real(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Real and imaginary part as a new last dim."""
    kind = meta_outputs.dtype
    return ge.Pack([ge.Real(self, Tout=kind), ge.Imag(self, Tout=kind)], axis=self.rank, N=2)


@declare_supported([Support(F32(3, 2)), Support(F32(2)), Support(F64(3, 2))])
@register_fx_node_ge_converter(aten.view_as_complex.default, source="aten view_as_complex; GE Unpack, Complex")
def view_as_complex(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Pairs of the last dim as complex numbers."""
    real, imaginary = ge.Unpack(self, num=2, axis=self.rank - 1, size_of_y=2)
    return ge.Complex(real, imaginary, Tout=meta_outputs.dtype)


@declare_supported(
    [Support(F32(2, 3), F32(2, 3)), Support(F64(2), F64(2)), Support(F32(2, 3), F32(3)), Support(F32(), F32())]
)
@register_fx_node_ge_converter(aten.complex.default, source="aten complex; GE Complex")
def complex_(real: Tensor, imag: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Complex numbers from their parts.

    Errors: Refusal for float16 parts, whose complex type GE Complex does not make.
    """
    kind = carrier("Complex", real.dtype)
    if kind != real.dtype:
        raise Refusal(f"complex of {real.dtype.name}: GE Complex takes float32 and float64; cast the parts")
    return ge.Complex(real, imag, Tout=meta_outputs.dtype)
