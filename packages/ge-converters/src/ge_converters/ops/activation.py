"""Activations and other functions of one or two tensors that decide more than a row of ``one_operator`` says."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from ge_converters.base.dtypes import cast, dtype_promote, to_torch
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I64, Support
from ge_converters.emit.compute_types import carried
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_converters.registry.takes import pair
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

Number: TypeAlias = "int | float"


def _called(op: str, *xs: Tensor, **attrs: Any) -> Tensor:
    """``op`` in a type that it takes; halves that it lacks go through float32, in which eager computes too."""
    inner, back = carried(op, *xs)
    return back(getattr(ge, op)(*inner, **attrs))


@declare_supported(
    [Support(x) for x in (F32(2, 3), F16(2, 3), BF16(2, 3), F32(), F32(0, 2), F32(2, 3, strides=(1, 2)))]
)
@register_fx_node_ge_converter(
    aten.log_sigmoid_forward.default,
    source="native_functions.yaml: log_sigmoid_forward; GE LogSigmoid",
    takes=Takes("LogSigmoid"),
)
def log_sigmoid_forward(self: Tensor, *, meta_outputs: list[TensorSpec]) -> tuple[Tensor, Tensor]:
    """Dtypes: float32, float16, bfloat16.
    Emits:  LogSigmoid; buffer is exp(-abs(self)), which is dropped where nobody reads it.
    """
    (x,), back = carried("Exp", self)
    return _called("LogSigmoid", self), back(ge.Exp(ge.Neg(ge.Abs(x))))


_NAN, _INF = float("nan"), float("inf")
_ODD = [[_NAN, 1.0, _INF], [-_INF, 0.0, -2.0]]


@declare_supported(
    [Support(f(value=_ODD), *a) for f in (F32, F16, BF16) for a in ((), (1.0,), (0.5, 2.0, -3.0), (None, None, -1.0))]
    + [Support(F32()), Support(F32(0, 2))]
)
@register_fx_node_ge_converter(
    aten.nan_to_num.default, source="native_functions.yaml: nan_to_num; GE NanToNum", takes=Takes("NanToNum")
)
def nan_to_num(
    self: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Dtypes: float32, float16, bfloat16; None is 0 and the largest and the smallest number of the type.
    Emits:  NanToNum.
    """
    limits = torch.finfo(to_torch(self.dtype))
    return _called(
        "NanToNum",
        self,
        nan=0.0 if nan is None else float(nan),
        posinf=limits.max if posinf is None else float(posinf),
        neginf=limits.min if neginf is None else float(neginf),
    )


@declare_supported([Support(f(4, 3), f(4, 3)) for f in (F32, F16, BF16)] + [Support(F32(3, 2), F32(3, 2), dim=0)])
@register_fx_node_ge_converter(
    aten.linalg_cross.default,
    source="native_functions.yaml: linalg_cross; GE Cross, CrossV2",
    takes=Takes("Cross", pair),
)
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: both equal; operands that broadcast are decomposed.
    Dtypes: floats and integers.
    Emits:  CrossV2; Cross for the types that it lacks, int64 and float64.
    """
    op = "CrossV2" if meta_outputs.dtype.bits < 64 else "Cross"
    return cast(_called(op, self, other, dim=dim), meta_outputs.dtype)


@declare_supported(
    [Support(m(2, 3), m(2, 3), t) for m in (F32, F16, BF16, F64, I64) for t in (0, 0.5 if m is not I64 else 2)]
    + [Support(m(), m(), t) for m in (F32,) for t in (0, 0.5)]
    + [Support(F32(0, 3), F32(0, 3), t) for t in (0, 0.5)]
)
@register_fx_node_ge_converter(
    aten.threshold_backward.default,
    source="native_functions.yaml: threshold_backward; GE ReluGrad, LessEqual, SelectV2",
)
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: all equal.
    Dtypes: floats and integers, kept.
    Emits:  ReluGrad for threshold 0, else LessEqual and SelectV2.
    """
    dtype = meta_outputs.dtype
    if not isinstance(threshold, Tensor) and threshold == 0:
        return cast(_called("ReluGrad", cast(grad_output, dtype), cast(self, dtype)), dtype)
    (x,), _ = carried("LessEqual", self)
    closed = ge.LessEqual(x, dtype_promote(threshold, target_dtype=x.dtype))
    result: Tensor = ge.SelectV2(closed, dtype_promote(0, target_dtype=dtype), grad_output)
    return result


@declare_supported(
    [Support(m(2, 3), BOOL(2, 3), 2.0) for m in (F32, F16, BF16, F64)]
    + [Support(m(2, 3), BOOL(2, 3), 1.1111) for m in (F32, I64, BOOL)]
)
@register_fx_node_ge_converter(
    aten.native_dropout_backward.default, source="native_functions.yaml: native_dropout_backward; GE Mul"
)
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: all equal.
    Dtypes: floats, integers, bool; the mask is bool.
    Emits:  Cast, Mul, Mul; all but float64 is scaled in float32, as in eager.
    """
    inner = grad_output.dtype if grad_output.dtype == DataType.DT_DOUBLE else DataType.DT_FLOAT
    kept = ge.Mul(cast(grad_output, inner), cast(mask, inner))
    return cast(ge.Mul(kept, dtype_promote(scale, target_dtype=inner)), meta_outputs.dtype)
