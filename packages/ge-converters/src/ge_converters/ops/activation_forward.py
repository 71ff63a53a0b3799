"""Activations and other functions of one or two tensors that are one GE operator with attributes.

Element types that GE's operator does not take are decomposed first, see ``decompose.formulas.beside_native``.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from ge_converters.base.dtypes import cast, to_torch
from ge_converters.base.support import BF16, F16, F32, Support
from ge_converters.emit.compute_types import carried
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten
Number: TypeAlias = "int | float"
_FLOATS = [F32(2, 3), F16(2, 3), BF16(2, 3), F32(), F32(0, 2), F32(2, 3, strides=(1, 2))]


def _apply(op: str, *xs: Tensor, **attrs: Any) -> Tensor:
    """``op`` in a type that it takes; halves that it lacks go through float32, in which eager computes too."""
    inner, back = carried(op, *xs)
    return back(getattr(ge, op)(*inner, **attrs))


@declare_supported([Support(x, *a) for x in _FLOATS for a in ((), (0.2,))])
@register_fx_node_ge_converter(aten.softshrink.default, source="native_functions.yaml: softshrink; GE Softshrink")
def softshrink(self: Tensor, lambd: Number = 0.5, *, meta_outputs: TensorSpec) -> Tensor:
    """softshrink(Tensor self, Scalar lambd=0.5) -> Tensor

    Dtypes: float32, float16, bfloat16.
    Emits:  Softshrink.
    """
    return _apply("Softshrink", self, lambd=float(lambd))


@declare_supported([Support(x, *a) for x in _FLOATS for a in ((), (0.2,))])
@register_fx_node_ge_converter(aten.hardshrink.default, source="native_functions.yaml: hardshrink; GE HardShrink")
def hardshrink(self: Tensor, lambd: Number = 0.5, *, meta_outputs: TensorSpec) -> Tensor:
    """hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor

    Dtypes: float32, float16, bfloat16.
    Emits:  HardShrink.
    """
    return _apply("HardShrink", self, lambd=float(lambd))


@declare_supported([Support(x) for x in _FLOATS])
@register_fx_node_ge_converter(
    aten.log_sigmoid_forward.default, source="native_functions.yaml: log_sigmoid_forward; GE LogSigmoid"
)
def log_sigmoid_forward(self: Tensor, *, meta_outputs: list[TensorSpec]) -> tuple[Tensor, Tensor]:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)

    Dtypes: float32, float16, bfloat16.
    Emits:  LogSigmoid; buffer is exp(-abs(self)), which is dropped where nobody reads it.
    """
    (x,), back = carried("Exp", self)
    return _apply("LogSigmoid", self), back(ge.Exp(ge.Neg(ge.Abs(x))))


@declare_supported([Support(x, *a) for x in _FLOATS for a in ((), (2.0, 1.0), (0.5,))])
@register_fx_node_ge_converter(aten.softplus.default, source="native_functions.yaml: softplus; GE SoftplusV2")
def softplus(self: Tensor, beta: Number = 1, threshold: Number = 20, *, meta_outputs: TensorSpec) -> Tensor:
    """softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor

    Dtypes: float32, float16, bfloat16.
    Emits:  SoftplusV2.
    """
    return _apply("SoftplusV2", self, beta=float(beta), threshold=float(threshold))


@declare_supported([Support(f(2, 6)) for f in (F32, F16, BF16)] + [Support(F32(4, 3), 0), Support(F32(2, 4, 3), 1)])
@register_fx_node_ge_converter(aten.glu.default, source="native_functions.yaml: glu; GE GLU")
def glu(self: Tensor, dim: int = -1, *, meta_outputs: TensorSpec) -> Tensor:
    """glu(Tensor self, int dim=-1) -> Tensor

    Shapes: dim is halved.
    Dtypes: float32, float16, bfloat16; computed in float32 and rounded once.
    Emits:  GLU.
    """
    return _apply("GLU", self, dim=dim)


@declare_supported(
    [Support(f(2, 3, 4), f(1, 3, 1)) for f in (F32, F16, BF16)]
    + [Support(F32(2, 3), F32(1, 1)), Support(F32(3), F32(1)), Support(F32(0, 3), F32(1, 3))]
)
@register_fx_node_ge_converter(aten._prelu_kernel.default, source="native_functions.yaml: _prelu_kernel; GE PRelu")
def _prelu_kernel(self: Tensor, weight: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """_prelu_kernel(Tensor self, Tensor weight) -> Tensor

    Shapes: weight has the rank of self and one entry, or one for each channel (axis 1).
    Dtypes: float32, float16, bfloat16.
    Emits:  PRelu.
    """
    return _apply("PRelu", self, weight)


_NAN, _INF = float("nan"), float("inf")
_ODD = [[_NAN, 1.0, _INF], [-_INF, 0.0, -2.0]]


@declare_supported(
    [Support(f(value=_ODD), *a) for f in (F32, F16, BF16) for a in ((), (1.0,), (0.5, 2.0, -3.0), (None, None, -1.0))]
    + [Support(F32()), Support(F32(0, 2))]
)
@register_fx_node_ge_converter(aten.nan_to_num.default, source="native_functions.yaml: nan_to_num; GE NanToNum")
def nan_to_num(
    self: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor

    Dtypes: float32, float16, bfloat16; None is 0 and the largest and the smallest number of the type.
    Emits:  NanToNum.
    """
    limits = torch.finfo(to_torch(self.dtype))
    return _apply(
        "NanToNum", self, nan=0.0 if nan is None else float(nan),
        posinf=limits.max if posinf is None else float(posinf), neginf=limits.min if neginf is None else float(neginf),
    )  # fmt: skip


_SUMS = [Support(f(2, 3), f(3)) for f in (F32, F16, BF16)] + [
    Support(F32(), F32(2)),
    Support(F32(0, 2), F32(2)),
    Support(F32(value=[100.0, -_INF, -_INF]), F32(value=[99.0, 1.0, -_INF])),
]


@declare_supported(_SUMS)
@register_fx_node_ge_converter(aten.logaddexp.default, source="native_functions.yaml: logaddexp; GE LogAddExp")
def logaddexp(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """logaddexp(Tensor self, Tensor other) -> Tensor

    Dtypes: float32, float16, bfloat16.
    Emits:  LogAddExp.
    """
    return _apply("LogAddExp", self, other)


@declare_supported(_SUMS)
@register_fx_node_ge_converter(aten.logaddexp2.default, source="native_functions.yaml: logaddexp2; GE LogAddExp")
def logaddexp2(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """logaddexp2(Tensor self, Tensor other) -> Tensor

    Dtypes: float32, float16, bfloat16.
    Emits:  LogAddExp to the base 2.
    """
    return _apply("LogAddExp", self, other, base=2.0)


@declare_supported(
    [Support(f(4, 5), p, d, 1.0) for f in (F32, F16, BF16) for p, d in ((2, 0), (1, 1), (3.5, -1))]
    + [Support(F32(2, 3, 4), 2, 1, 0.5), Support(F32(2, 3), math.inf, 0, 0.5)]
)
@register_fx_node_ge_converter(aten.renorm.default, source="native_functions.yaml: renorm; GE Renorm")
def renorm(self: Tensor, p: Number, dim: int, maxnorm: Number, *, meta_outputs: TensorSpec) -> Tensor:
    """renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor

    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  Renorm.
    """
    return _apply("Renorm", self, p=float(p), dim=dim, maxnorm=float(maxnorm))


@declare_supported([Support(f(4, 3), f(4, 3)) for f in (F32, F16, BF16)] + [Support(F32(3, 2), F32(3, 2), dim=0)])
@register_fx_node_ge_converter(
    aten.linalg_cross.default, source="native_functions.yaml: linalg_cross; GE Cross, CrossV2"
)
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1, meta_outputs: TensorSpec) -> Tensor:
    """linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor

    Shapes: both equal; operands that broadcast are decomposed.
    Dtypes: floats and integers.
    Emits:  CrossV2; Cross for the types that it lacks, int64 and float64.
    """
    op = "CrossV2" if meta_outputs.dtype.bits < 64 else "Cross"
    return cast(_apply(op, self, other, dim=dim), meta_outputs.dtype)


@declare_supported([Support(x, *a) for x in _FLOATS for a in ((), (0.5,), (2.0,))])
@register_fx_node_ge_converter(aten.celu.default, source="native_functions.yaml: celu; GE CeluV2")
def celu(self: Tensor, alpha: Number = 1.0, *, meta_outputs: TensorSpec) -> Tensor:
    """celu(Tensor self, Scalar alpha=1.0) -> Tensor

    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  CeluV2.
    """
    return _apply("CeluV2", self, alpha=float(alpha))


@declare_supported(
    [Support(f(value=[[1.0, 0.0], [-2.0, 0.0]]), f(2, 2)) for f in (F32, F16, BF16)] + [Support(F32(0, 2), F32(0, 2))]
)
@register_fx_node_ge_converter(aten.heaviside.default, source="native_functions.yaml: heaviside; GE Heaviside")
def heaviside(self: Tensor, values: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """heaviside(Tensor self, Tensor values) -> Tensor

    Shapes: both equal; operands that broadcast are decomposed.
    Dtypes: float32, float16, bfloat16.
    Emits:  Heaviside.
    """
    return _apply("Heaviside", self, values)
