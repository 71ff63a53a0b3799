"""Losses of a prediction and a target that take more than a row of ``one_operator``.

Operands that broadcast, and element types that GE's operators do not list, are decomposed first.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, I64, Support
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.compute_types import carrier
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_converters.registry.takes import alike, gradient_of_pair, one_type, pair
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_REDUCTIONS: Final = ("none", "mean", "sum")
# Eager adds half losses up in half precision.
_CASES: Final = ((F32, 0), (F32, 1), (F32, 2), (F16, 0), (BF16, 0))


def _loss(op: str, tensors: tuple[Tensor | None, ...], dtype: DataType, reduction: int, **attrs: Any) -> Tensor:
    """``op`` in a type that it takes; halves that it lacks go through float32."""
    inner = carrier(op, dtype)
    fed = [None if t is None else cast(t, inner) for t in tensors]
    return cast(getattr(ge, op)(*fed, reduction=_REDUCTIONS[reduction], **attrs), dtype)


def _logits(self: Any, target: Any, weight: Any = None, pos_weight: Any = None, *_: Any, **__: Any) -> bool:
    """Prediction and target are alike; weights, of any shape, have their type."""
    return alike(self, target) and one_type(self, weight, pos_weight)


def _several_rows(self: Any, *_: Any, **__: Any) -> bool:
    """torch infers a size of one for the loss of a single row, which eager gives without sizes."""
    return bool(self.dim() > 1)


_PAIRS = [
    Support(m(2, 3, low=-1.0, high=1.0), m(2, 3, low=0, high=1.0), r, *d)
    for m, r in _CASES
    for d in ((), (0.5,), (2.0,))
]
_GRADIENTS = [
    s
    for d in (1.0, 0.5)
    for s in (
        *(Support(m(2, 3), m(2, 3), m(2, 3), 0, d) for m in (F32, F16, BF16)),
        *(Support(F32(), F32(2, 3), F32(2, 3), r, d) for r in (1, 2)),
    )
]


@register_fx_node_ge_converter(
    {aten.huber_loss.default: _PAIRS},
    source="native_functions.yaml: huber_loss; GE SmoothL1LossV2, Mul",
    takes=Takes("SmoothL1LossV2", pair),
    fixed={"op": "SmoothL1LossV2"},
)
@register_fx_node_ge_converter(
    {aten.huber_loss_backward.default: _GRADIENTS},
    source="native_functions.yaml: huber_loss_backward; GE SmoothL1LossGradV2, Mul",
    takes=Takes("SmoothL1LossGradV2", gradient_of_pair),
    fixed={"op": "SmoothL1LossGradV2"},
)
def huber_loss(
    self: Tensor,
    target: Tensor,
    reduction: int,
    delta: float,
    *,
    grad_output: Tensor | None = None,
    op: str,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: both equal -> the same, or [] when reduced; grad_output that of the loss -> that of self.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  SmoothL1LossV2 or its gradient, times delta if that is not 1: smooth_l1 with beta = delta is huber / delta.
    """
    if not math.isfinite(delta):
        raise Refusal(f"delta is {delta}, and the GE operator divides by it; for a delta without bound use mse_loss")
    tensors = (self, target) if grad_output is None else (self, target, grad_output)
    if delta == 1.0:
        return _loss(op, tensors, meta_outputs.dtype, reduction, sigma=1.0)
    wide = tuple(cast(t, _F32) for t in tensors)
    scaled = arithmetic("Mul", _loss(op, wide, _F32, reduction, sigma=float(delta)), float(delta), _F32)
    return cast(scaled, meta_outputs.dtype)


@declare_supported(
    [Support(m(2, 3), m(2, 3, low=0, high=1), None, None, r) for m, r in _CASES]
    + [Support(F32(2, 3), F32(2, 3, low=0, high=1), F32(2, 3, low=0), F32(3, low=0), r) for r in (0, 1)]
    + [Support(F32(2, 3), F32(2, 3, low=0, high=1), F32(3, low=0), None, 2)]
)
@register_fx_node_ge_converter(
    aten.binary_cross_entropy_with_logits.default,
    source="native_functions.yaml: binary_cross_entropy_with_logits; GE SigmoidCrossEntropyWithLogitsV2",
    takes=Takes("SigmoidCrossEntropyWithLogitsV2", _logits),
)
def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self and target equal, weights broadcast to them -> the same, or [] when reduced.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  SigmoidCrossEntropyWithLogitsV2; BroadcastTo for a weight of another shape.
    """
    weights = [None if w is None else _spread(w, self) for w in (weight, pos_weight)]
    return _loss("SigmoidCrossEntropyWithLogitsV2", (self, target, *weights), meta_outputs.dtype, reduction)


def _spread(weight: Tensor, like: Tensor) -> Tensor:
    if weight.known_shape is not None and weight.known_shape == like.known_shape:
        return weight
    result: Tensor = ge.BroadcastTo(weight, ge.Shape(like, dtype=DataType.DT_INT64))
    return result


@declare_supported(
    [
        Support(F32(3, 4), I64(value=[[3, 0, -1, 1], [0, -1, 2, 2], [-1, 0, 0, 0]]), 0),
        Support(F32(3, 4), I64(value=[[3, 0, -1, 1], [0, 1, 2, 3], [-1, 0, 0, 0]]), 1),
        Support(F32(4), I64(value=[1, 0, -1, 1]), 2),
    ]
)
@register_fx_node_ge_converter(
    aten.multilabel_margin_loss_forward.default,
    source="native_functions.yaml: multilabel_margin_loss_forward; GE MultilabelMarginLoss",
    takes=Takes("MultilabelMarginLoss", _several_rows),
)
def multilabel_margin_loss_forward(
    self: Tensor, target: Tensor, reduction: int, *, meta_outputs: list[TensorSpec]
) -> tuple[Tensor, Tensor]:
    """Shapes: self and target [n, c] or [c] -> [n] or []; is_target that of target.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  Cast of the int64 targets to int32, which GE takes; MultilabelMarginLoss.
    """
    inner = carrier("MultilabelMarginLoss", self.dtype)
    classes = cast(target, DataType.DT_INT32)
    loss, is_target = ge.MultilabelMarginLoss(cast(self, inner), classes, reduction=_REDUCTIONS[reduction])
    return cast(loss, meta_outputs[0].dtype), cast(is_target, meta_outputs[1].dtype)
