"""Values in order along an axis."""

from __future__ import annotations

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.compute_types import carried
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_D = DataType


def sorted_along(x: Tensor, dim: int, descending: bool, stable: bool) -> tuple[Tensor, Tensor]:
    if x.rank == 0:
        return x, ge.Const(0, dtype=_D.DT_INT64)
    axis = dim % x.rank
    if x.dtype == _D.DT_DOUBLE:
        return _sort_double(x, axis, descending, stable)
    (inner,), back = carried("Sort", x)
    values, positions = ge.Sort(inner, axis=axis, descending=descending, stable=stable, y2_dtype=int(_D.DT_INT64))
    return back(values), positions


def _sort_double(x: Tensor, axis: int, descending: bool, stable: bool) -> tuple[Tensor, Tensor]:
    """``Sort`` takes no float64; ``TopKV2`` over the whole dim does, without a promise about equals."""
    if stable:
        raise Refusal("stable sort of DT_DOUBLE: GE Sort does not take it and TopKV2 is not stable; cast to float32")
    count = ge.GatherV2(ge.Shape(x, dtype=_D.DT_INT64), ge.Const(axis, dtype=_D.DT_INT64), 0)
    values, positions = ge.TopKV2(x, cast(count, _D.DT_INT32), dim=axis, largest=descending)
    return values, cast(positions, _D.DT_INT64)
