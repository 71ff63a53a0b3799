"""Order: sort, top k, unique values, places in sorted sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ge_converters.base.dtypes import cast, dtype_promote, to_ge, to_torch
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I32, I64, Support
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.emit.sorting import sorted_along
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_INF, _NAN = float("inf"), float("nan")

# Distinct values, so that eager's order of equals does not matter where the sort is not stable.
_DISTINCT = [[3.0, -1.0, 2.5, 0.5], [7.0, 6.0, -2.0, 1.0]]
_WHOLE = [[3, -1, 2, 5], [7, 6, -2, 1]]
_SORTED_INPUTS = [f(value=_DISTINCT) for f in (F32, F16, BF16)] + [f(value=_WHOLE) for f in (I64, I32)]


@register_fx_node_ge_converter(
    {
        aten.sort.default: [
            *(
                Support(x, d, o)
                for x in [*_SORTED_INPUTS, F64(value=_DISTINCT)]
                for d in (-1, 0)
                for o in (False, True)
            ),
            Support(F32()),
            Support(F32(0, 3), 1),
            Support(F32(value=[_NAN, 1.0, -_INF, 2.0])),
            Support(F32(value=[[[1.0, 3.0, 2.0]]]), 2),
        ],
        aten.sort.stable: [
            *(
                Support(f(3, 5, low=0, high=3), stable=True, dim=d, descending=o)
                for f in (F32, F16, BF16, I64, I32)
                for d in (-1, 0)
                for o in (False, True)
            ),
            Support(BOOL(2, 4), stable=True),
            Support(F32(value=_DISTINCT), stable=False),
            Support(F32(value=_DISTINCT), stable=None, dim=1),
        ],
    },
    source="native_functions.yaml: sort; GE Sort",
)
def sort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = False, meta_outputs: Any
) -> tuple[Tensor, Tensor]:
    """Values in order along a dim, and where they were; equals keep their order if stable.

    Dtypes: any real type or bool, kept; positions are int64.
    Errors: Refusal for float64 with stable=True.
    Emits:  Sort; TopKV2 for float64.
    """
    return sorted_along(self, dim, descending, stable=bool(stable))


@declare_supported(
    [Support(x, 2, d, g) for x in [*_SORTED_INPUTS, F64(value=_DISTINCT)] for d in (-1, 0) for g in (True, False)]
    + [
        Support(F32(value=[2.0, 3.0, 1.0]), 0),
        Support(F32(value=[2.0, 3.0, 1.0]), 3),
        Support(F32(), 1),
        Support(F32(value=[1.0, _NAN, 2.0]), 2),
    ]
)
@register_fx_node_ge_converter(aten.topk.default, source="aten topk; GE TopKV2")
def topk(
    self: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True, *, meta_outputs: Any
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest values along a dim, and where they were.

    Emits:  TopKV2.
    """
    if self.rank == 0:
        x = ge.Reshape(self, [1])
        count = dtype_promote(k, target_dtype=_D.DT_INT64)
        part = ge.Reshape(ge.Slice(x, [0], ge.Reshape(count, [1])), ge.Const(np.zeros(0, dtype=np.int64)))
        return part, ge.Const(0, dtype=_D.DT_INT64)
    (x,), back = carried("TopKV2", self)
    count = dtype_promote(k, target_dtype=_D.DT_INT32)
    values, positions = ge.TopKV2(
        x, count, sorted=sorted, dim=dim % self.rank, largest=largest, indices_dtype=int(_D.DT_INT64)
    )
    return back(values), positions


# -- places in a sorted sequence -------------------------------------------------------------------------------------


_EDGES = [-1.0, 0.0, 0.5, 2.0]


@register_fx_node_ge_converter(
    {
        aten.searchsorted.Tensor: [
            *(Support(f(value=_EDGES), f(3, 4), right=r) for f in (F32, F16, BF16) for r in (False, True)),
            Support(I64(value=[1, 3, 5]), I64(2, 3)),
            Support(I32(value=[1, 3]), I32(4), out_int32=True),
            Support(F32(value=[_EDGES, _EDGES]), F32(2, 3)),
            Support(F32(value=_EDGES), F32()),
            Support(I64(value=[-1, 0, 2]), F32(3, 4)),
            Support(F16(value=_EDGES), I32()),
            Support(F32(value=_EDGES), F32(3), side="right"),
            Support(F32(value=[2.0, 0.0, 1.0]), F32(3), sorter=I64(value=[1, 2, 0])),
        ],
        aten.bucketize.Tensor: [
            *(Support(f(3, 4), f(value=_EDGES), right=r) for f in (F32, F16) for r in (False, True)),
            Support(I64(4), I64(value=[1, 3])),
            Support(F32(3, 4), I64(value=[-1, 0, 2])),
            Support(F32(3), F32(value=_EDGES), out_int32=True),
        ],
    },
    source="native_functions.yaml: searchsorted, bucketize; GE SearchSorted",
    names={"boundaries": "sorted_sequence"},
)
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Where each value has to be put to keep the sequence sorted, or the bucket between boundaries that it falls into.

    Errors: refused if the two types have no common one that holds all values of both.
    Emits:  SearchSorted.
    """
    values = self
    if not self.rank:
        values = ge.Reshape(self, [1])
        values.record_shape((1,))
    both = [torch.empty([1] * t.rank, dtype=to_torch(t.dtype), device="meta") for t in (sorted_sequence, values)]
    inner = carrier("SearchSorted", to_ge(torch.result_type(*both)))  # eager compares in the type of both
    sequence, values = cast(sorted_sequence, inner), cast(values, inner)
    right = right or side == "right"
    place: Tensor = ge.SearchSorted(sequence, values, sorter, dtype=meta_outputs.dtype, right=right)
    return place if self.rank else ge.Reshape(place, ge.Const(np.zeros(0, dtype=np.int64)))


# -- unique values ---------------------------------------------------------------------------------------------------


_REPEATED = [3.0, 1.0, 3.0, 2.0, 1.0]


def _unasked(spec: TensorSpec) -> Tensor:
    """Positions or counts that nobody asked for; torch before 2.11 traces them in the type of the elements."""
    return cast(ge.Const(np.zeros(0, dtype=np.int64)), spec.dtype)


@declare_supported(
    [Support(f(value=_REPEATED), True, i, c) for f in (F32, F16, BF16) for i, c in ((False, False), (True, True))]
    + [
        Support(I64(value=[[3, 1], [1, 3]]), True, True, True),
        Support(I32(value=[2, 2]), True),
        Support(BOOL(value=[True, False, True]), True, True, True),
    ]
)
@register_fx_node_ge_converter(aten._unique2.default, source="aten _unique2; GE UniqueWithCountsAndSorting")
def unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, *, meta_outputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct values in order, where each element went, and how often each occurs.

    Emits:  UniqueWithCountsAndSorting; parts that were not asked for are empty, as in eager.
    """
    (x,), back = carried("UniqueWithCountsAndSorting", self)
    values, inverse, counts = ge.UniqueWithCountsAndSorting(
        x, return_inverse=return_inverse, return_counts=return_counts, sorted=True
    )
    return (
        back(values),
        inverse if return_inverse else _unasked(meta_outputs[1]),
        counts if return_counts else _unasked(meta_outputs[2]),
    )


@declare_supported(
    [Support(f(value=[1.0, 1.0, 2.0, 1.0]), i, c) for f in (F32, F16, BF16) for i, c in ((False, False), (True, True))]
    + [Support(I64(value=[[1, 1], [2, 2]]), True, True), Support(I64(value=[[1, 1], [1, 1], [2, 2]]), True, True, 0)]
)
@register_fx_node_ge_converter(aten.unique_consecutive.default, source="aten unique_consecutive; GE UniqueConsecutive")
def unique_consecutive(
    self: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    *,
    meta_outputs: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values without immediate repetitions, where each element went, and how long each run is.

    Emits:  UniqueConsecutive; parts that were not asked for are empty, as in eager.
    """
    (x,), back = carried("UniqueConsecutive", self)
    axis = 1000 if dim is None else dim % self.rank  # 1000 is GE's word for the flattened tensor
    values, inverse, counts = ge.UniqueConsecutive(x, return_idx=return_inverse, return_counts=return_counts, axis=axis)
    return (
        back(values),
        cast(inverse, _D.DT_INT64) if return_inverse else _unasked(meta_outputs[1]),
        cast(counts, _D.DT_INT64) if return_counts else _unasked(meta_outputs[2]),
    )


@declare_supported(
    [
        Support(I64(value=[0, 3, 3, 1])),
        Support(I32(value=[2, 0]), minlength=5),
        Support(I64(0, low=0, high=1), minlength=2),
    ]
    + [Support(I64(value=[0, 3, 3, 1]), f(4)) for f in (F32, F64)]
    + [Support(I64(value=[1, 1]), I64(2))]
)
@register_fx_node_ge_converter(
    aten.bincount.default, source="aten bincount; GE UnsortedSegmentSum (Bincount counts in int32)"
)
def bincount(self: Tensor, weights: Tensor | None = None, minlength: Any = 0, *, meta_outputs: Any) -> Tensor:
    """How often each whole number occurs, or the sum of its weights.

    Dtypes: any integer type -> int64; with weights float32 stays, everything else gives float64.
    Emits:  ReduceMax for the length, UnsortedSegmentSum.
    """
    places = cast(self, _D.DT_INT64)
    least = dtype_promote(minlength, target_dtype=_D.DT_INT64)
    highest = ge.ReduceMax(ge.ConcatV2([places, ge.Const(np.array([-1], dtype=np.int64))], 0), [0], keep_dims=False)
    length = ge.Maximum(ge.Add(highest, ge.Const(1, dtype=_D.DT_INT64)), least)
    # Not what the graph says of the result: torch 2.8 traces a sum of weights in the type of the places.
    summed = None if weights is None else _D.DT_FLOAT if weights.dtype == _D.DT_FLOAT else _D.DT_DOUBLE
    counted = ge.OnesLike(places) if weights is None else cast(weights, summed)
    return ge.UnsortedSegmentSum(counted, places, length)
