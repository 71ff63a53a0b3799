"""Losses with class targets, and bags of embeddings."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, I64, Support
from ge_converters.emit.compute_types import need_floats
from ge_converters.emit.shapes import axis_size, filled_constant, places
from ge_converters.emit.table_rows import rows_added
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_I64: Final = DataType.DT_INT64
_REDUCTIONS: Final = ("none", "mean", "sum")


def _ignored(index: Any) -> int:
    if isinstance(index, Tensor):
        raise Refusal("ignore_index is a symbolic number, but a GE attribute holds it; make it a number")
    return int(index)


# Eager adds bfloat16 losses in bfloat16, one by one; the device adds in float32.
_REDUCED: Final = ((F32, 0), (F32, 1), (F32, 2), (BF16, 0), (F16, 0))


def _classes(*shape: int) -> Any:
    return I64(*shape, low=0, high=4)


_CASES = [
    *(Support(m(3, 4), _classes(3), None, r, -100) for m in (F32, F16, BF16) for r in (0, 1, 2)),
    *(Support(F32(3, 4), _classes(3), F32(4, low=0.1), r, 1) for r in (0, 1, 2)),
    Support(F32(4), _classes(), None, 1, -100),
    Support(F32(3, 4), I64(value=[1, -100, 3]), None, 1, -100),
]


@register_fx_node_ge_converter(
    {
        aten.nll_loss_forward.default: _CASES,
        aten.nll_loss2d_forward.default: [
            *(Support(m(2, 4, 3, 5), _classes(2, 3, 5), None, r, -100) for m, r in _REDUCED),
            Support(F32(2, 4, 3, 5), _classes(2, 3, 5), F32(4, low=0.1), 1, 2),
        ],
    },
    source="native_functions.yaml: nll_loss_forward, nll_loss2d_forward; GE NLLLoss",
)
def nll_loss_forward(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: Any,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor]:
    """Shapes: self [n, c] or [c]; target [n] or []; weight [c] -> [n] or []; total_weight []; or images: self
            [n, c, h, w]; target [n, h, w] -> [n, h, w] or [].
    Dtypes: float32, float16, bfloat16; target int64 or int32.
    Emits:  NLLLoss.
    """
    need_floats("NLLLoss", self, weight)
    if weight is not None:
        weight = cast(weight, self.dtype)
    loss, total = ge.NLLLoss(
        self, target, weight, reduction=_REDUCTIONS[reduction], ignore_index=_ignored(ignore_index)
    )
    if reduction == 0:
        total = ge.Const(0.0, dtype=meta_outputs[1].dtype)  # torch leaves the total at 0 when it is not used
    return cast(loss, meta_outputs[0].dtype), cast(total, meta_outputs[1].dtype)


@register_fx_node_ge_converter(
    {
        aten.nll_loss_backward.default: [
            *(
                Support(m(), m(3, 4), _classes(3), None, r, -100, m(low=3, high=4))
                for m in (F32, F16, BF16)
                for r in (1, 2)
            ),
            Support(F32(3), F32(3, 4), _classes(3), None, 0, -100, F32(low=0, high=1)),
            Support(F32(), F32(3, 4), _classes(3), F32(4, low=0.1), 1, 1, F32(low=1, high=2)),
            Support(F32(), F32(4), _classes(), None, 1, -100, F32(low=1, high=2)),
        ],
        aten.nll_loss2d_backward.default: [
            Support(F32(), F32(2, 4, 3, 5), _classes(2, 3, 5), None, 1, -100, F32(low=29, high=30)),
            Support(F32(2, 3, 5), F32(2, 4, 3, 5), _classes(2, 3, 5), F32(4, low=0.1), 0, -100, F32(low=0, high=1)),
        ],
    },
    source="native_functions.yaml: nll_loss_backward, nll_loss2d_backward; GE NLLLossGrad",
)
def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: Any,
    total_weight: Tensor,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: that of self.
    Dtypes: float32, float16, bfloat16; target int64.
    Emits:  NLLLossGrad; a constant of ones stands in for an absent weight.
    """
    need_floats("NLLLossGrad", self, grad_output, weight)
    if weight is None:
        axis = 0 if self.rank == 1 else 1
        size = meta_outputs.size[axis]
        weight = filled_constant([size if isinstance(size, int) else axis_size(self, axis)], 1.0, self.dtype)
    result = ge.NLLLossGrad(
        self,
        cast(grad_output, self.dtype),
        target,
        cast(weight, self.dtype),
        cast(total_weight, self.dtype),
        reduction=_REDUCTIONS[reduction],
        ignore_index=_ignored(ignore_index),
    )
    return cast(result, meta_outputs.dtype)


# -- bags ---------------------------------------------------------------------------------------------------------


def _bag_case(*rest: Any, **kwargs: Any) -> Support:
    return Support(F32(6, 4), I64(5, low=0, high=6), I64(value=[0, 2]), *rest, **kwargs)


_BAG_CASES = [
    *(_bag_case(False, mode) for mode in (0, 1, 2)),
    _bag_case(False, 0, False, F32(5)),
    Support(BF16(6, 4), I64(5, low=0, high=6), I64(value=[0, 2]), False, 0, False, BF16(5)).only(0),
    Support(F32(6, 4), I64(5, low=0, high=6), I64(value=[0, 2, 5]), False, 1, False, None, True).only(0),
    _bag_case(False, 0, False, None, False, 3),
]


@register_fx_node_ge_converter(
    {aten._embedding_bag.default: _BAG_CASES},
    source="native_functions.yaml: _embedding_bag; GE EmbeddingBag",
    fixed={"trained": True},
)
@register_fx_node_ge_converter(
    {aten._embedding_bag_forward_only.default: _BAG_CASES},
    source="native_functions.yaml: _embedding_bag_forward_only; GE EmbeddingBag",
    fixed={"trained": False},
)
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    trained: bool,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: weight [v, d]; indices [n]; offsets [bags] -> [bags, d] and what the gradient needs.
    Dtypes: float32, float16, bfloat16; indices int64 or int32.
    Emits:  EmbeddingBag.
    """
    need_floats("EmbeddingBag", weight)
    results: list[Tensor] = list(
        ge.EmbeddingBag(
            weight,
            indices,
            cast(offsets, indices.dtype),
            per_sample_weights,
            mode=("sum", "mean", "max")[mode],
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )
    )
    for i in (1, 3):  # torch does not note the bag of each index; off the CPU it notes places of maxima for 'max' alone
        size = meta_outputs[i].size
        if isinstance(size[0], int) and size[0] == 0:
            results[i] = ge.Const(np.zeros(tuple(d if isinstance(d, int) else 1 for d in size), np.int64))
    made: list[Tensor | None] = [cast(r, s.dtype) for r, s in zip(results, meta_outputs)]
    # With an end marker torch describes one bag more than there is, for a gradient that nobody takes here.
    return [made[0], None, None, None] if include_last_offset and not trained else made


def _bag_of(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index: how many bags have begun by then, less one. torch may leave its own note of it empty."""
    place = places(axis_size(indices, 0), 1)
    begun = ge.LessEqual(ge.Unsqueeze(cast(offsets, _I64), axes=[1]), place)
    count = ge.ReduceSum(cast(begun, _I64), [0], keep_dims=False)
    result: Tensor = ge.Sub(count, 1)
    return result


def _rows(table: Tensor, at: Tensor) -> Tensor:
    result: Tensor = ge.GatherV2(table, at, ge.Const(0, dtype=_I64))
    return result


_OFFSETS = I64(value=[0, 2])


@declare_supported(
    [
        *(
            Support(
                F32(2, 4),
                I64(5, low=0, high=6),
                I64(value=[0, 0, 1, 1, 1]),
                I64(value=[2, 3]),
                I64(0),
                6,
                False,
                mode,
                None,
            )
            for mode in (0, 1)
        ),
        Support(
            F32(2, 4), I64(5, low=0, high=6), I64(value=[0, 0, 1, 1, 1]), I64(value=[2, 3]), I64(0), 6, False, 0, F32(5)
        ),
        Support(
            F32(2, 4),
            I64(5, low=0, high=6),
            I64(value=[0, 0, 1, 1, 1]),
            I64(value=[2, 3]),
            I64(2, 4, low=0, high=6),
            6,
            False,
            2,
            None,
        ),
        Support(
            F32(3, 4),
            I64(5, low=0, high=6),
            I64(value=[0, 0, 1, 1, 1]),
            I64(value=[2, 3, 0]),
            I64(3, 4, low=0, high=6),
            6,
            False,
            2,
            None,
        ),
    ]
)
@register_fx_node_ge_converter(
    aten._embedding_bag_dense_backward.default,
    source="native_functions.yaml: _embedding_bag_dense_backward; GE EmbeddingDenseGrad, ScatterElements",
)
def _embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad [bags, d]; indices and offset2bag [n] -> [num_weights, d].
    Dtypes: float32, float16, bfloat16.
    Emits:  GatherV2 of each index's bag and EmbeddingDenseGrad (UnsortedSegmentSum if num_weights is symbolic); for
        maxima MaskedFill and ScatterElements with add.
    """
    need_floats("EmbeddingDenseGrad", grad)
    if mode == 2:
        width = meta_outputs.size[1]
        zeros = filled_constant([num_weights, width if isinstance(width, int) else axis_size(grad, 1)], 0.0, grad.dtype)
        empty = ge.Unsqueeze(ge.Equal(bag_size, 0), axes=[1])  # an empty bag has no maximum: its index means nothing
        kept = ge.MaskedFill(grad, empty, ge.Const(0.0, dtype=grad.dtype))
        result: Tensor = ge.ScatterElements(zeros, maximum_indices, kept, axis=0, reduction="add")
        return result
    rows = _rows(grad, offset2bag)
    if mode == 1:
        rows = ge.RealDiv(rows, ge.Unsqueeze(cast(_rows(bag_size, offset2bag), grad.dtype), axes=[1]))
    if per_sample_weights is not None:
        rows = ge.Mul(rows, ge.Unsqueeze(cast(per_sample_weights, grad.dtype), axes=[1]))
    return cast(rows_added(rows, indices, num_weights, padding_idx, scale_grad_by_freq), meta_outputs.dtype)


@declare_supported(
    [
        Support(
            F32(2, 4),
            I64(5, low=0, high=6),
            _OFFSETS,
            I64(value=[0, 0, 1, 1, 1]),
            I64(value=[2, 3]),
            I64(2),
            6,
            False,
            mode,
            False,
            None,
        )
        for mode in (0, 1)
    ]
)
@register_fx_node_ge_converter(
    aten._embedding_bag_backward.default,
    source="native_functions.yaml: _embedding_bag_backward; GE EmbeddingDenseGrad, ScatterElements",
)
def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad [bags, d]; indices [n] -> [num_weights, d].
    Dtypes: float32, float16, bfloat16.
    Emits:  as _embedding_bag_dense_backward, with the bags found from offsets.
    Errors: refused for sparse gradients.
    """
    if sparse:
        raise Refusal("sparse=True: a GE tensor is dense; use EmbeddingBag(sparse=False)")
    bags = offset2bag if mode == 2 else _bag_of(indices, offsets)
    return _embedding_bag_dense_backward(
        grad,
        indices,
        bags,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
        meta_outputs=meta_outputs,
    )


@declare_supported(
    [
        Support(F32(2, 4), F32(6, 4), I64(5, low=0, high=6), _OFFSETS, I64(value=[0, 0, 1, 1, 1]), 0),
        Support(F32(2, 4), F32(6, 4), I64(5, low=0, high=6), _OFFSETS, I64(value=[0, 0, 1, 1, 1]), 0, 3),
    ]
)
@register_fx_node_ge_converter(
    aten._embedding_bag_per_sample_weights_backward.default,
    source="native_functions.yaml: _embedding_bag_per_sample_weights_backward; GE GatherV2, Mul, ReduceSum",
)
def _embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad [bags, d]; weight [v, d]; indices [n] -> [n].
    Dtypes: float32; halves through float32.
    Emits:  GatherV2 of both rows, Mul, ReduceSum.
    """
    need_floats("Mul", grad, weight)
    if offsets.dtype not in (DataType.DT_INT32, DataType.DT_INT64):
        raise Refusal(f"offsets are places in indices, int32 or int64, not {offsets.dtype.name}")
    terms = ge.Mul(cast(_rows(grad, _bag_of(indices, offsets)), _F32), cast(_rows(weight, indices), _F32))
    result = ge.ReduceSum(terms, [1], keep_dims=False)
    if padding_idx >= 0:
        skipped = ge.Equal(indices, ge.Const(padding_idx, dtype=indices.dtype))
        result = ge.SelectV2(skipped, ge.Const(0.0, dtype=_F32), result)
    return cast(result, meta_outputs.dtype)
