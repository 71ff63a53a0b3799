"""Reading and writing by strides: as_strided, diagonals, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I64, Support
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.compute_types import carried, move
from ge_converters.emit.shapes import filled, int_operand, ints, own, permuted
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType


_STRIDED = [
    *(Support(f(4, 3), [2, 3], [3, 1], 1) for f in (F32, F16, BF16, F64, I64, BOOL)),
    Support(F32(12), [3, 2], [1, 3]),
    Support(F32(4), [2, 2, 2], [1, 0, 1]),
    Support(F32(4), [], [], 2),
]


@register_fx_node_ge_converter(
    {aten.as_strided.default: _STRIDED, aten.as_strided_copy.default: _STRIDED},
    source="native_functions.yaml: as_strided; GE AsStrided",
)
def as_strided(self: Tensor, size: Any, stride: Any, storage_offset: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Elements of the storage of self by size, stride and offset; self is given in the order of its memory.

    Emits:  AsStrided.
    """
    offset = int_operand([0 if storage_offset is None else storage_offset])
    return move("AsStrided", self, int_operand(size), int_operand(stride), offset)


@declare_supported(
    [Support(f(4, 3), f(2, 3), [2, 3], [3, 1], 1) for f in (F32, F16, BF16, I64)]
    + [Support(F32(6), F32(2, 2), [2, 2], [1, 3])]
)
@register_fx_node_ge_converter(aten.as_strided_scatter.default, source="aten as_strided_scatter; GE ViewCopy")
def as_strided_scatter(
    self: Tensor, src: Tensor, size: Any, stride: Any, storage_offset: Any = None, *, meta_outputs: TensorSpec
) -> Tensor:
    """self with the elements addressed by size, stride and offset replaced by src.

    Emits:  TensorMove, ViewCopy.
    """
    (var, value), back = carried("ViewCopy", self, cast(src, self.dtype), moves=True)
    shape = int_operand(size)
    weights = [_product(size[following + 1 :]) for following in range(len(size))]
    offset = int_operand([0 if storage_offset is None else storage_offset])
    return back(
        ge.ViewCopy(own(var), shape, int_operand(stride), offset, value, shape, int_operand(weights), ints([0]))
    )


def _product(values: Sequence[Any]) -> Any:
    product: Any = 1
    for v in values:
        both = isinstance(v, int) and isinstance(product, int)
        product = product * v if both else arithmetic("Mul", product, v, _D.DT_INT64)
    return product


@declare_supported(
    [Support(f(3, 4)) for f in (F32, F16, BF16, F64, I64, BOOL)]
    + [Support(F32(3, 4), o) for o in (1, -1, 3, -2)]
    + [Support(F32(2, 3, 4), 0, 0, 2), Support(F32(2, 3, 4), 1, -1, 1)]
)
@register_fx_node_ge_converter(aten.diagonal.default, source="aten diagonal; GE MatrixDiagPartV3")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1, *, meta_outputs: TensorSpec) -> Tensor:
    """The diagonal of two dims as a new last dim.

    Emits:  MatrixDiagPartV3, after a Transpose if the two dims are not the last ones.
    """
    first, second = dim1 % self.rank, dim2 % self.rank
    if meta_outputs.size[-1] == 0:
        if not all(isinstance(s, int) for s in meta_outputs.size):
            raise Refusal(f"diagonal with offset {offset} outside the matrix and symbolic sizes; slice before")
        return filled(meta_outputs.size, 0, self.dtype)
    rest = [d for d in range(self.rank) if d not in (first, second)]
    x = permuted(self, [*rest, first, second])
    (x,), back = carried("MatrixDiagPartV3", x, moves=True)
    k = dtype_promote(offset, target_dtype=_D.DT_INT32)
    return back(ge.MatrixDiagPartV3(x, k, dtype_promote(0, target_dtype=x.dtype)))


@declare_supported(
    [Support(f(2, 7), 1, 3, 2) for f in (F32, F16, BF16, I64, BOOL)]
    + [Support(F32(5, 2), 0, 2, 1), Support(F32(6), -1, 2, 3)]
)
@register_fx_node_ge_converter(aten.unfold.default, source="aten unfold; GE GatherV2")
def unfold(self: Tensor, dimension: int, size: int, step: int, *, meta_outputs: TensorSpec) -> Tensor:
    """All windows of ``size`` along a dim, ``step`` apart, as a new last dim.

    Emits:  GatherV2, and Transpose if the dim is not the last one.
    """
    if self.rank == 0:
        return ge.Reshape(self, ints([1]))
    axis = dimension % self.rank
    windows = meta_outputs.size[axis]
    within = np.arange(size, dtype=np.int64)
    if isinstance(windows, int):
        places: Tensor = ge.Const(np.arange(windows, dtype=np.int64)[:, None] * step + within)
    else:
        length = ge.GatherV2(ge.Shape(self, dtype=_D.DT_INT64), ge.Const(axis, dtype=_D.DT_INT64), 0)
        last = arithmetic("Sub", length, size - 1, _D.DT_INT64)
        starts = ge.Range(*dtype_promote(0, last, step, target_dtype=_D.DT_INT64))
        places = ge.Add(ge.Unsqueeze(starts, axes=[1]), ge.Const(within))
    (x,), back = carried("GatherV2", self, moves=True)
    unfolded = ge.GatherV2(x, places, axis)
    if axis != self.rank - 1:
        order = [d for d in range(self.rank + 1) if d != axis + 1] + [axis + 1]
        unfolded = ge.Transpose(unfolded, ints(order))
    return back(unfolded)
