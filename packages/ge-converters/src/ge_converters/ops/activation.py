"""Gradients of activations: one fused GE operator each where one exists that gives eager's result."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I64, Support
from ge_converters.emit.compute_types import carried
from ge_converters.registry import declare_supported, define, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten
Number: TypeAlias = "int | float"


def _two(*rest: Any, low: float = -2.0, high: float = 2.0, doubles: bool = False, **kwargs: Any) -> list[Support]:
    """Gradient and saved tensor of one shape in every float type."""
    kinds = (F32, F16, BF16, F64) if doubles else (F32, F16, BF16)
    made = [Support(m(2, 3), m(2, 3, low=low, high=high), *rest, **kwargs) for m in kinds]
    return [
        *made,
        Support(F32(), F32(low=low, high=high), *rest, **kwargs),
        Support(F32(0, 3), F32(0, 3), *rest, **kwargs),
    ]


def _fused(op: str, x: Tensor, y: Tensor, dtype: DataType, **attrs: Any) -> Tensor:
    """``op`` in a type that it takes; half types that it lacks go through float32, in which eager computes too."""
    (x, y), _ = carried(op, cast(x, dtype), cast(y, dtype))
    return cast(getattr(ge, op)(x, y, **attrs), dtype)


@declare_supported([*_two(), *_two(approximate="tanh")])
@register_fx_node_ge_converter(aten.gelu_backward.default, source="native_functions.yaml: gelu_backward; GE GeluGradV2")
def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none", meta_outputs: TensorSpec) -> Tensor:
    """gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16, bfloat16.
    Emits:  GeluGradV2.
    """
    return _fused("GeluGradV2", grad_output, self, meta_outputs.dtype, approximate=approximate)


@declare_supported(_two())
@register_fx_node_ge_converter(aten.silu_backward.default, source="native_functions.yaml: silu_backward; GE SiluGrad")
def silu_backward(grad_output: Tensor, self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """silu_backward(Tensor grad_output, Tensor self) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16, bfloat16.
    Emits:  SiluGrad.
    """
    return _fused("SiluGrad", grad_output, self, meta_outputs.dtype)


@declare_supported(_two(low=0.1, high=0.9, doubles=True))
@register_fx_node_ge_converter(
    aten.sigmoid_backward.default, source="native_functions.yaml: sigmoid_backward; GE SigmoidGrad"
)
def sigmoid_backward(grad_output: Tensor, output: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16, bfloat16, float64.
    Emits:  SigmoidGrad.
    """
    return _fused("SigmoidGrad", output, grad_output, meta_outputs.dtype)


@declare_supported(_two(low=-0.9, high=0.9, doubles=True))
@register_fx_node_ge_converter(aten.tanh_backward.default, source="native_functions.yaml: tanh_backward; GE TanhGrad")
def tanh_backward(grad_output: Tensor, output: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """tanh_backward(Tensor grad_output, Tensor output) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16, bfloat16, float64.
    Emits:  TanhGrad.
    """
    return _fused("TanhGrad", output, grad_output, meta_outputs.dtype)


@declare_supported(
    [*_two(0, doubles=True), *_two(0.5), Support(I64(2, 3), I64(2, 3), 0), Support(I64(2, 3), I64(2, 3), 2)]
)
@register_fx_node_ge_converter(
    aten.threshold_backward.default,
    source="native_functions.yaml: threshold_backward; GE ReluGrad, LessEqual, SelectV2",
)
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number, *, meta_outputs: TensorSpec) -> Tensor:
    """threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor

    Shapes: all equal.
    Dtypes: floats and integers, kept.
    Emits:  ReluGrad for threshold 0, else LessEqual and SelectV2.
    """
    dtype = meta_outputs.dtype
    if not isinstance(threshold, Tensor) and threshold == 0:
        return _fused("ReluGrad", grad_output, self, dtype)
    (x,), _ = carried("LessEqual", self)
    closed = ge.LessEqual(x, dtype_promote(threshold, target_dtype=x.dtype))
    result: Tensor = ge.SelectV2(closed, dtype_promote(0, target_dtype=dtype), grad_output)
    return result


@declare_supported([*_two(0.1, False, doubles=True), *_two(0.5, True, low=0.1)])
@register_fx_node_ge_converter(
    aten.leaky_relu_backward.default, source="native_functions.yaml: leaky_relu_backward; GE LeakyReluGrad"
)
def leaky_relu_backward(
    grad_output: Tensor, self: Tensor, negative_slope: Number, self_is_result: bool, *, meta_outputs: TensorSpec
) -> Tensor:
    """leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  LeakyReluGrad; whether self is input or result does not matter for a slope >= 0, which torch demands then.
    """
    return _fused("LeakyReluGrad", grad_output, self, meta_outputs.dtype, negative_slope=float(negative_slope))


@declare_supported(
    [
        *(Support(m(2, 3), 1.0, 1.0, 1.0, False, m(2, 3)) for m in (F32, F16, BF16)),
        Support(F32(2, 3), 1.7, 1.2, 0.5, False, F32(2, 3)),
        Support(F32(2, 3), 1.7, 1.2, 0.5, True, F32(2, 3, low=-0.9)),
    ]
)
@register_fx_node_ge_converter(aten.elu_backward.default, source="native_functions.yaml: elu_backward; GE EluGradV2")
def elu_backward(
    grad_output: Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: Tensor,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16, bfloat16.
    Emits:  EluGradV2.
    """  # noqa: E501
    return _fused(
        "EluGradV2", grad_output, self_or_result, meta_outputs.dtype, alpha=float(alpha), scale=float(scale),
        input_scale=float(input_scale), is_result=is_result,
    )  # fmt: skip


@declare_supported([*_two(1, 20), *_two(2.0, 1.0)])
@register_fx_node_ge_converter(
    aten.softplus_backward.default, source="native_functions.yaml: softplus_backward; GE SoftplusV2Grad"
)
def softplus_backward(
    grad_output: Tensor, self: Tensor, beta: Number, threshold: Number, *, meta_outputs: TensorSpec
) -> Tensor:
    """softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  SoftplusV2Grad.
    """
    return _fused(
        "SoftplusV2Grad", grad_output, self, meta_outputs.dtype, beta=float(beta), threshold=float(threshold)
    )  # fmt: skip


@declare_supported(
    [
        *(Support(m(2, 3), m(2, 6), -1) for m in (F32, F16, BF16, F64)),
        Support(F32(2, 3), F32(4, 3), 0),
    ]
)
@register_fx_node_ge_converter(aten.glu_backward.default, source="native_functions.yaml: glu_backward; GE GLUGrad")
def glu_backward(grad_output: Tensor, self: Tensor, dim: int, *, meta_outputs: TensorSpec) -> Tensor:
    """glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor

    Shapes: grad_output has half the size of self along dim -> shape of self.
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GLUGrad.
    """
    return _fused("GLUGrad", grad_output, self, meta_outputs.dtype, dim=dim)


@declare_supported(_two())
@register_fx_node_ge_converter(aten.mish_backward.default, source="native_functions.yaml: mish_backward; GE MishGrad")
def mish_backward(grad_output: Tensor, self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """mish_backward(Tensor grad_output, Tensor self) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  MishGrad.
    """
    return _fused("MishGrad", grad_output, self, meta_outputs.dtype)


@declare_supported([*_two(-1, 1), *_two(0, 6, high=8.0)])
@register_fx_node_ge_converter(
    aten.hardtanh_backward.default, source="native_functions.yaml: hardtanh_backward; GE HardtanhGrad"
)
def hardtanh_backward(
    grad_output: Tensor, self: Tensor, min_val: Number, max_val: Number, *, meta_outputs: TensorSpec
) -> Tensor:
    """hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor

    Shapes: all equal.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  HardtanhGrad, whose first port is the forward input.
    """
    return _fused(
        "HardtanhGrad", self, grad_output, meta_outputs.dtype, min_val=float(min_val), max_val=float(max_val)
    )  # fmt: skip


def _shrunk_gradient(name: str, op: str) -> None:
    target = getattr(aten, name).default
    first = target._schema.arguments[0].name

    def convert(grad: Tensor, self: Tensor, lambd: Number, *, meta_outputs: TensorSpec) -> Tensor:
        return _fused(op, grad, self, meta_outputs.dtype, lambd=float(lambd))

    def convert_out(grad_out: Tensor, self: Tensor, lambd: Number, *, meta_outputs: TensorSpec) -> Tensor:
        return convert(grad_out, self, lambd, meta_outputs=meta_outputs)

    def convert_output(grad_output: Tensor, self: Tensor, lambd: Number, *, meta_outputs: TensorSpec) -> Tensor:
        return convert(grad_output, self, lambd, meta_outputs=meta_outputs)

    named = {"grad_out": convert_out, "grad_output": convert_output}[first]
    define(target, op, named, _two(0.3), f"Dtypes: float32, float16; bfloat16 through float32.\nEmits:  {op}.")


_shrunk_gradient("softshrink_backward", "SoftShrinkGrad")
_shrunk_gradient("hardshrink_backward", "HardShrinkGrad")


_PLACES = [[-1.5, 0.0, 0.5], [2.0, -0.25, 3.0]]
_BUFFER = [[math.exp(-abs(x)) for x in row] for row in _PLACES]


@declare_supported(
    [
        *(Support(m(2, 3), m(value=_PLACES), m(value=_BUFFER)) for m in (F32, F16, BF16)),
        Support(F32(0, 3), F32(0, 3), F32(0, 3)),
    ]
)
@register_fx_node_ge_converter(
    aten.log_sigmoid_backward.default, source="native_functions.yaml: log_sigmoid_backward; GE LogSigmoidGrad"
)
def log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor

    Shapes: all equal; buffer holds exp(-abs(self)) and is not read.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  LogSigmoidGrad.
    """
    return _fused("LogSigmoidGrad", grad_output, self, meta_outputs.dtype)


@declare_supported(
    [Support(m(2, 3), BOOL(2, 3), 2.0) for m in (F32, F16, BF16, F64)]
    + [Support(m(2, 3), BOOL(2, 3), 1.1111) for m in (F32, I64, BOOL)]
)
@register_fx_node_ge_converter(
    aten.native_dropout_backward.default, source="native_functions.yaml: native_dropout_backward; GE Mul"
)
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float, *, meta_outputs: TensorSpec) -> Tensor:
    """native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor

    Shapes: all equal.
    Dtypes: floats, integers, bool; the mask is bool.
    Emits:  Cast, Mul, Mul; all but float64 is scaled in float32, as in eager.
    """
    inner = grad_output.dtype if grad_output.dtype == DataType.DT_DOUBLE else DataType.DT_FLOAT
    kept = ge.Mul(cast(grad_output, inner), cast(mask, inner))
    return cast(ge.Mul(kept, dtype_promote(scale, target_dtype=inner)), meta_outputs.dtype)
