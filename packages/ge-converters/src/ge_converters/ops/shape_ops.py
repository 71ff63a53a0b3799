"""Views and joins: reshaping, permuting, slicing, splitting, joining, padding. Sizes stay graph values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ge_converters.base.dtypes import cast, dtype_promote, to_ge
from ge_converters.base.errors import Refusal
from ge_converters.base.support import BF16, BOOL, C64, F16, F32, F64, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic, as_number
from ge_converters.emit.compute_types import carried, carrier, move
from ge_converters.emit.shapes import axis_size, broadcast, int_operand, ints, own, permuted
from ge_converters.registry import declare_supported, define, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec, schema
from ge_graph import ops as ge

aten = torch.ops.aten
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


def _reshape(self: Tensor, size: Any, *, meta_outputs: TensorSpec) -> Tensor:
    return ge.Reshape(self, reshape_operand(size, meta_outputs))


def _install_reshapes() -> None:
    sizes: tuple[list[int], ...] = ([6, 4], [24], [2, -1], [1, 2, 3, 4], [2, 3, 2, 2])
    cases = [Support(x, s) for x in _ANY[:-1] for s in sizes[:2]] + [Support(F32(2, 3, 4), s) for s in sizes]
    cases += [Support(F32(), [1]), Support(F32(1), []), Support(F32(0, 3), [3, 0]), Support(F32(2, 0), [0])]
    doc = "Dtypes: any, kept.\nEmits:  Reshape; one open dim is -1, several are graph values."
    for target in (aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten.reshape.default):

        def convert(self: Tensor, size: Any, *, meta_outputs: TensorSpec) -> Tensor:
            return _reshape(self, size, meta_outputs=meta_outputs)

        if target is aten.reshape.default:

            def convert(self: Tensor, shape: Any, *, meta_outputs: TensorSpec) -> Tensor:  # type: ignore[misc]
                return _reshape(self, shape, meta_outputs=meta_outputs)

        define(target, "Reshape", convert, cases, doc)


_install_reshapes()


@declare_supported([Support(F32(2, 3), [3, 2], [2, 1])])
@register_fx_node_ge_converter(aten._reshape_alias.default, source="aten _reshape_alias; GE Reshape")
def reshape_alias(self: Tensor, size: Any, stride: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """The same elements in another shape."""
    return _reshape(self, size, meta_outputs=meta_outputs)


@declare_supported(
    [
        Support(F32(2, 3), torch.int32),
        Support(I64(2, 3), torch.float32),
        Support(F64(2), torch.int64),
        Support(F16(2, 4), torch.float32),
        Support(I32(2), torch.int8),
        Support(F32(2), torch.float32),
    ]
)
@register_fx_node_ge_converter(aten.view.dtype, source="aten view.dtype; GE Bitcast")
def view_dtype(self: Tensor, dtype: torch.dtype, *, meta_outputs: TensorSpec) -> Tensor:
    """The same bytes read as another type; the last dim takes up a difference in size.

    Errors: Refusal for types that Bitcast does not take (bfloat16).
    """
    target = to_ge(dtype)
    if target == self.dtype:
        return self
    domain = schema.require("Bitcast").inputs[0].domain
    foreign = [d.name for d in (self.dtype, target) if d not in domain]
    if foreign:
        raise Refusal(f"view of {self.dtype.name} as {target.name}: GE Bitcast does not take {', '.join(foreign)}")
    return ge.Bitcast(self, type=target, keep_dim=target.bits != self.dtype.bits)


# -- unsqueeze, squeeze ----------------------------------------------------------------------------------------------


@declare_supported([Support(x, d) for x in _ANY for d in (0, -1)] + [Support(F32(), 0), Support(_LAID_OUT, 2)])
@register_fx_node_ge_converter(aten.unsqueeze.default, source="aten unsqueeze; GE Unsqueeze")
def unsqueeze(self: Tensor, dim: int, *, meta_outputs: TensorSpec) -> Tensor:
    """A dim of size 1 at ``dim``.

    Dtypes: any, kept.
    Emits:  Unsqueeze.
    """
    return ge.Unsqueeze(self, axes=[dim % (self.rank + 1)])


def squeezed(x: Tensor, dims: Sequence[int], meta: TensorSpec) -> Tensor:
    """``x`` without those of ``dims`` that have size 1; ranks tell how many that are."""
    dropped = x.rank - meta.rank
    axes = sorted({d % x.rank for d in dims}) if x.rank else []
    if dropped == 0:
        return x
    if dropped == len(axes):
        return ge.Squeeze(x, axis=axes)
    if sum(not isinstance(s, int) for s in meta.size) <= 1 and 0 not in meta.size:
        return ge.Reshape(x, ints([s if isinstance(s, int) else -1 for s in meta.size]))
    # Which dims are 1 is decided by the sizes at run time.
    sizes = ge.Shape(x, dtype=_D.DT_INT64)
    kept = ge.Const(np.asarray([i not in axes for i in range(x.rank)]))
    keep = ge.LogicalOr(kept, ge.NotEqual(sizes, ge.Const(1, dtype=_D.DT_INT64)))
    return ge.Reshape(x, ge.MaskedSelect(sizes, keep))


_ONES = [F32(1, 3, 1), F16(1, 3, 1), BF16(1, 3, 1), I64(1, 3, 1), BOOL(1, 3, 1), F32(1, 0, 1), F32()]


@declare_supported([Support(x) for x in [*_ONES, F32(2, 3)]])
@register_fx_node_ge_converter(aten.squeeze.default, source="aten squeeze; GE Squeeze")
def squeeze(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Without all dims of size 1."""
    return self if self.rank == meta_outputs.rank else squeezed(self, range(self.rank), meta_outputs)


@declare_supported([Support(x, d) for x in _ONES for d in (0, -1)] + [Support(F32(1, 3, 1), 1)])
@register_fx_node_ge_converter(aten.squeeze.dim, source="aten squeeze.dim; GE Squeeze")
def squeeze_dim(self: Tensor, dim: int, *, meta_outputs: TensorSpec) -> Tensor:
    """Without ``dim`` if its size is 1."""
    return squeezed(self, [dim], meta_outputs)


@declare_supported(
    [Support(x, [0, -1]) for x in _ONES if x.shape]
    + [Support(F32(1, 3, 1), [0, 1]), Support(F32(1, 3, 1), []), Support(F32(2, 3), [0])]
)
@register_fx_node_ge_converter(aten.squeeze.dims, source="aten squeeze.dims; GE Squeeze")
def squeeze_dims(self: Tensor, dim: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """Without those of ``dim`` whose size is 1."""
    return squeezed(self, dim, meta_outputs)


# -- permute ---------------------------------------------------------------------------------------------------------


@declare_supported(
    [Support(x, p) for x in _ANY for p in ([2, 0, 1], [0, -1, 1])]
    + [Support(F32(), []), Support(F32(2, 3), [0, 1]), Support(_LAID_OUT, [1, 2, 0])]
)
@register_fx_node_ge_converter(aten.permute_copy.default, source="aten permute_copy; GE Transpose")
@register_fx_node_ge_converter(aten.permute.default, source="aten permute; GE Transpose")
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
    [
        Support(x, [5, -1, 3, 4])
        for x in (
            F32(2, 1, 4),
            F16(2, 1, 4),
            BF16(2, 1, 4),
            F64(2, 1, 4),
            I64(2, 1, 4),
            I32(2, 1, 4),
            BOOL(2, 1, 4),
            F32(0, 1, 4),
        )
    ]
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
    [
        Support(x, r)
        for x in (F32(2, 3), F16(2, 3), BF16(2, 3), F64(2, 3), I64(2, 3), BOOL(2, 3))
        for r in ([2, 1], [3, 1, 2])
    ]
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
    [Support(x, F32(3)) for x in (F32(2, 3), F16(2, 3), I64(2, 3), BOOL(2, 3))]
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


def sliced(x: Tensor, dim: int, start: Any, end: Any, step: Any) -> Tensor:
    """``x[start:end:step]`` along one dim."""
    axis = dim % x.rank
    start = 0 if start is None else start
    end = _END if end is None else end
    whole = isinstance(start, int) and start == 0 and isinstance(end, int) and end == _END
    if whole and isinstance(step, int) and step == 1:
        return x
    return move("StridedSliceV2", x, int_operand([start]), int_operand([end]), ints([axis]), int_operand([step]))


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
    return sliced(self, dim, start, end, step)


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


def _split(x: Tensor, sizes: Sequence[Any], dim: int) -> list[Tensor]:
    if len(sizes) == 1:
        return [x]
    (inner,), back = carried("SplitV", x, moves=True)
    axis = dtype_promote(dim % x.rank, target_dtype=_D.DT_INT32)
    parts = ge.SplitV(inner, int_operand(sizes), axis, num_split=len(sizes), size_of_y=len(sizes))
    return [back(p) for p in parts]


_SPLIT_INPUTS = [f(6, 4) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]


@declare_supported(
    [Support(x, 2) for x in _SPLIT_INPUTS]
    + [Support(F32(7, 2), 3), Support(F32(2, 7), 3, -1), Support(F32(3), 5), Support(F32(0, 2), 2)]
)
@register_fx_node_ge_converter(aten.split.Tensor, source="aten split.Tensor; GE SplitV")
def split(self: Tensor, split_size: Any, dim: int = 0, *, meta_outputs: list[TensorSpec]) -> list[Tensor]:
    """Pieces of ``split_size`` along a dim, the last one smaller if need be.

    Emits:  SplitV; nothing for one piece.
    """
    return _split(self, [split_size] * (len(meta_outputs) - 1) + [-1], dim)


@declare_supported(
    [Support(x, [1, 2, 3]) for x in _SPLIT_INPUTS]
    + [Support(F32(2, 6), [4, 2], -1), Support(F32(3), [3]), Support(F32(3), [0, 3])]
)
@register_fx_node_ge_converter(aten.split_with_sizes.default, source="aten split_with_sizes; GE SplitV")
def split_with_sizes(self: Tensor, split_sizes: Any, dim: int = 0, *, meta_outputs: list[TensorSpec]) -> list[Tensor]:
    """Pieces of the given sizes along a dim."""
    return _split(self, split_sizes, dim)


@declare_supported([Support(F32(7, 2), 3), Support(F16(4), 2), Support(F32(2, 4), 2, 1)])
@register_fx_node_ge_converter(aten.chunk.default, source="aten chunk; GE SplitV")
def chunk(self: Tensor, chunks: int, dim: int = 0, *, meta_outputs: list[TensorSpec]) -> list[Tensor]:
    """At most ``chunks`` pieces of equal size, the last one smaller."""
    size: Any = meta_outputs[0].size[dim]
    if len(meta_outputs) > 1 and not isinstance(size, int):
        length = axis_size(self, dim % self.rank)
        size = arithmetic("FloorDiv", arithmetic("Add", length, chunks - 1, _D.DT_INT64), chunks, _D.DT_INT64)
    return _split(self, [size] * (len(meta_outputs) - 1) + [-1], dim)


@declare_supported([Support(x) for x in _SPLIT_INPUTS] + [Support(F32(2, 3), -1), Support(F32(1, 3)), Support(F32(3))])
@register_fx_node_ge_converter(aten.unbind_copy.int, source="aten unbind_copy.int; GE Unpack")
@register_fx_node_ge_converter(aten.unbind.int, source="aten unbind.int; GE Unpack")
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


def _triangle(op: str, kept: str) -> Callable[..., Tensor]:
    def convert(self: Tensor, diagonal: Any = 0, *, meta_outputs: TensorSpec) -> Tensor:
        if isinstance(diagonal, int):
            return move(op, self, diagonal=diagonal)
        rows = ge.Unsqueeze(ge.Range(0, axis_size(self, self.rank - 2), 1), axes=[1])
        columns = ge.Range(0, axis_size(self, self.rank - 1), 1)
        keep = getattr(ge, kept)(columns, ge.Add(rows, diagonal))
        moved, back = carried("SelectV2", self, port="then", moves=True)
        return back(ge.SelectV2(keep, moved[0], ge.Const(0, dtype=moved[0].dtype)))

    return convert


_TRIANGLES = [Support(f(3, 4), d) for f in (F32, F16, BF16, F64, I64, BOOL) for d in (0, 1)] + [
    Support(F32(2, 3, 3), -1),
    Support(F32(3, 3), 9),
]
_TRIANGLE_DOC = (
    "Dtypes: any, kept.\nEmits:  one operator; two ranges compared and SelectV2 if the diagonal is a graph value."
)
define(aten.tril.default, "Tril", _triangle("Tril", "LessEqual"), _TRIANGLES, _TRIANGLE_DOC)
define(aten.triu.default, "Triu", _triangle("Triu", "GreaterEqual"), _TRIANGLES, _TRIANGLE_DOC)


def paddings(pad: Sequence[Any], rank: int) -> Any:
    """GE's paddings, first dim first, from torch's, last dim first."""
    pairs: list[Any] = [0] * (2 * rank)
    for i in range(len(pad) // 2):
        axis = rank - 1 - i
        pairs[2 * axis], pairs[2 * axis + 1] = pad[2 * i], pad[2 * i + 1]
    return int_operand(pairs)


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
    fill = dtype_promote(as_number(as_number(value, self.dtype), inner), target_dtype=inner)
    return cast(ge.PadV3(cast(self, inner), paddings(pad, self.rank), fill, mode="constant"), self.dtype)


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
