"""Layer, group and root-mean-square normalisation, softmax, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, Support
from ge_converters.emit.compute_types import need_floats
from ge_converters.emit.shapes import filled_constant, shape_operand
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT


# -- layer norm ---------------------------------------------------------------------------------------------------

_LAYER_CASES = [
    *(Support(m(2, 3, 8), [8], m(8), m(8), 1e-5) for m in (F32, F16, BF16)),
    Support(F32(2, 3, 8), [3, 8], F32(3, 8), F32(3, 8), 1e-5),
    Support(F32(2, 3, 8), [8], None, None, 1e-5),
    Support(F32(2, 3, 8), [8], F32(8), None, 1e-3),
    Support(BF16(2, 3, 8), [8], None, None, 1e-5),
    Support(F32(4), [4], F32(4), F32(4), 1e-5),
    Support(F16(2, 8), [8], F32(8), F32(8), 1e-5).only(0),
]


@declare_supported(_LAYER_CASES)
@register_fx_node_ge_converter(
    aten.native_layer_norm.default,
    source="native_functions.yaml: native_layer_norm; GE LayerNormV4",
    takes=Takes("LayerNormV4"),
)
def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes: input [.., *normalized_shape] -> the same, and mean and rstd [.., 1, ..].
    Dtypes: float32, float16, bfloat16; statistics are computed in float32.
    Emits:  LayerNormV4.
    """
    need_floats("LayerNormV4", input, weight, bias)
    sizes = shape_operand(normalized_shape, DataType.DT_INT32)
    if not isinstance(sizes, Tensor):  # chips have a kernel for int32 only
        sizes = ge.Const(sizes, dtype=DataType.DT_INT32)
    y, mean, rstd = ge.LayerNormV4(input, sizes, weight, bias, epsilon=float(eps))
    specs = meta_outputs
    return cast(y, specs[0].dtype), cast(mean, specs[1].dtype), cast(rstd, specs[2].dtype)


def _layer_gradient(make: Any, stats: Any) -> Support:
    return Support(
        make(2, 3, 8), make(2, 3, 8), [8], stats(2, 3, 1), stats(2, 3, 1, low=0.5), stats(8), stats(8), [True] * 3
    )


@declare_supported(
    [
        _layer_gradient(F32, F32),
        # eager adds the gradients of half weights in half precision
        _layer_gradient(F16, F16).within(1e-2, 2e-3),
        _layer_gradient(BF16, BF16).within(3e-2, 2e-2),
        _layer_gradient(BF16, F32).within(3e-2, 3e-2),  # eager's float32 result is a sum rounded to bfloat16 on the way
        Support(F32(2, 3, 8), F32(2, 3, 8), [8], F32(2, 3, 1), F32(2, 3, 1, low=0.5), None, None, [True, False, False]),
        Support(
            F32(2, 3, 8),
            F32(2, 3, 8),
            [3, 8],
            F32(2, 1, 1),
            F32(2, 1, 1, low=0.5),
            F32(3, 8),
            None,
            [True, True, False],
        ),
    ]
)
@register_fx_node_ge_converter(
    aten.native_layer_norm_backward.default,
    source="native_functions.yaml: native_layer_norm_backward; GE LayerNormGradV3",
    takes=Takes("LayerNormGradV3"),
)
def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input, weight and bias, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16; summed in float32.
    Emits:  LayerNormGradV3; a constant of ones stands in for an absent weight.
    """
    need_floats("LayerNormGradV3", grad_out, input, weight)
    gamma = weight if weight is not None else filled_constant(normalized_shape, 1.0, input.dtype)
    results = ge.LayerNormGradV3(grad_out, input, rstd, mean, gamma)
    return _masked(results, output_mask, meta_outputs)


def _masked(results: Sequence[Tensor], mask: Sequence[bool], specs: Any) -> list[Tensor | None]:
    return [cast(r, s.dtype) if wanted and s is not None else None for r, wanted, s in zip(results, mask, specs)]


# -- root mean square norm ----------------------------------------------------------------------------------------


@declare_supported(
    [Support(f(2, 3, 8), [8], f(8), 1e-5) for f in (F32, F16, BF16)]
    + [Support(F32(2, 3, 8), [3, 8], None, None), Support(F32(2, 3, 8), [8], None, 1e-6)]
)
@register_fx_node_ge_converter(
    "torchair._fused_rms_norm.default", source="torchair.oplib.norm_ops; GE RmsNorm", takes=Takes("RmsNorm")
)
@register_fx_node_ge_converter(
    aten._fused_rms_norm.default, source="native_functions.yaml: _fused_rms_norm; GE RmsNorm", takes=Takes("RmsNorm")
)
def _fused_rms_norm(
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    eps: float | None,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor]:
    """Shapes: input [.., *normalized_shape] -> the same, and rstd [.., 1, ..].
    Dtypes: float32, float16, bfloat16; computed in float32, rounded once.
    Emits:  RmsNorm; a constant of ones stands in for an absent weight, eps None is that of float32.
    """
    need_floats("RmsNorm", input, weight)
    epsilon = float(torch.finfo(torch.float32).eps) if eps is None else float(eps)
    gamma = weight if weight is not None else filled_constant(normalized_shape, 1.0, input.dtype)
    y, rstd = ge.RmsNorm(input, gamma, epsilon=epsilon)
    return cast(y, meta_outputs[0].dtype), cast(rstd, meta_outputs[1].dtype)


@register_fx_node_ge_converter(
    "aten._fused_rms_norm_backward.default",
    source="native_functions.yaml: _fused_rms_norm_backward; GE RmsNormGrad",
    takes=Takes("RmsNormGrad"),
)
def _fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[Any],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input and weight, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16; the weight gradient is summed in float32 and rounded once.
    Emits:  RmsNormGrad.
    """
    need_floats("RmsNormGrad", grad_out, input, weight)
    gamma = weight if weight is not None else filled_constant(normalized_shape, 1.0, input.dtype)
    results = ge.RmsNormGrad(grad_out, input, cast(rstd, _F32), gamma)
    return _masked(results, output_mask, meta_outputs)


# -- group norm ---------------------------------------------------------------------------------------------------


@declare_supported(
    [
        *(Support(m(2, 6, 4, 5), m(6), m(6), 2, 6, 20, 3, 1e-5) for m in (F32, F16, BF16)),
        Support(F32(2, 6, 7), None, None, 2, 6, 7, 2, 1e-4),
        Support(F32(2, 6), F32(6), None, 2, 6, 1, 3, 1e-5),
    ]
)
@register_fx_node_ge_converter(
    aten.native_group_norm.default,
    source="native_functions.yaml: native_group_norm; GE GroupNormV2",
    takes=Takes("GroupNormV2"),
)
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes: input [n, c, ..] -> the same, and mean and rstd [n, group].
    Dtypes: float32, float16, bfloat16; computed in float32.
    Emits:  GroupNormV2; constants stand in for an absent weight or bias.
    """
    need_floats("GroupNormV2", input, weight, bias)
    gamma = weight if weight is not None else filled_constant([C], 1.0, input.dtype)
    beta = bias if bias is not None else filled_constant([C], 0.0, input.dtype)
    results = ge.GroupNormV2(
        input,
        cast(gamma, input.dtype),
        cast(beta, input.dtype),
        num_groups=group,
        data_format="NCHW",
        eps=float(eps),
        is_training=True,
    )
    y, mean, rstd = (cast(r, s.dtype) for r, s in zip(results, meta_outputs))
    return y, mean, rstd


@declare_supported(
    [
        *(
            Support(m(2, 6, 4, 5), m(2, 6, 4, 5), m(2, 3), m(2, 3, low=0.5), m(6), 2, 6, 20, 3, [True, True, True])
            for m in (F32, F16, BF16)
        ),
        Support(F32(2, 6, 7), F32(2, 6, 7), F32(2, 2), F32(2, 2, low=0.5), None, 2, 6, 7, 2, [True, False, False]),
    ]
)
@register_fx_node_ge_converter(
    aten.native_group_norm_backward.default,
    source="native_functions.yaml: native_group_norm_backward; GE GroupNormGrad",
    takes=Takes("GroupNormGrad"),
)
def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input, weight and bias, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16; summed in float32.
    Emits:  GroupNormGrad.
    """
    need_floats("GroupNormGrad", grad_out, input, mean, rstd, weight)
    gamma = weight if weight is not None else filled_constant([C], 1.0, input.dtype)
    results = ge.GroupNormGrad(
        grad_out,
        mean,
        rstd,
        input,
        gamma,
        num_groups=group,
        data_format="NCHW",
        dx_is_require=True,
        dgamma_is_require=True,
        dbeta_is_require=True,
    )
    return _masked(results, output_mask, meta_outputs)


# -- softmax ------------------------------------------------------------------------------------------------------

_SOFTMAX_CASES = [
    *(Support(m(2, 3, 4), -1, False) for m in (F32, F16, BF16, F64)),
    Support(F32(2, 3, 4), 1, False),
    Support(F32(), 0, False),
    Support(F32(0, 3), 1, False),
    Support(F32(value=[[float("-inf")] * 3, [1.0, float("-inf"), 2.0]]), 1, False),
]


@register_fx_node_ge_converter(
    {aten._softmax.default: _SOFTMAX_CASES},
    source="native_functions.yaml: _softmax; GE SoftmaxV2",
    fixed={"op": "SoftmaxV2"},
)
@register_fx_node_ge_converter(
    {aten._log_softmax.default: _SOFTMAX_CASES},
    source="native_functions.yaml: _log_softmax; GE LogSoftmaxV2",
    fixed={"op": "LogSoftmaxV2"},
)
def softmax(self: Tensor, dim: int, half_to_float: bool, *, op: str, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: kept.
    Dtypes: float32, float16, bfloat16, float64; with half_to_float the result is float32.
    Emits:  SoftmaxV2, LogSoftmaxV2.
    """
    x = cast(self, _F32) if half_to_float else self
    return cast(getattr(ge, op)(x, axes=[dim]), meta_outputs.dtype)


_SOFTMAX_GRADIENT_CASES = [
    *(
        Support(m(2, 3, 4), m(2, 3, 4, low=0.1, high=0.4), -1, t)
        for m, t in ((F32, torch.float32), (F16, torch.float16), (BF16, torch.bfloat16), (F64, torch.float64))
    ),
    Support(F32(2, 3, 4), F32(2, 3, 4, low=0.1, high=0.4), 1, torch.float32),
]


@declare_supported(_SOFTMAX_GRADIENT_CASES)
@register_fx_node_ge_converter(
    aten._softmax_backward_data.default, source="native_functions.yaml: _softmax_backward_data; GE SoftmaxGrad"
)
def _softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: all equal.
    Dtypes: float32, float16, bfloat16; float64 as Mul, ReduceSum, Sub, Mul.
    Emits:  SoftmaxGrad.
    """
    if grad_output.dtype == DataType.DT_DOUBLE:
        total = ge.ReduceSum(ge.Mul(grad_output, output), [dim], keep_dims=True)
        return cast(ge.Mul(ge.Sub(grad_output, total), output), meta_outputs.dtype)
    result: Tensor = ge.SoftmaxGrad(output, cast(grad_output, output.dtype), axes=[dim])
    return cast(result, meta_outputs.dtype)


@declare_supported(_SOFTMAX_GRADIENT_CASES)
@register_fx_node_ge_converter(
    aten._log_softmax_backward_data.default,
    source="native_functions.yaml: _log_softmax_backward_data; GE LogSoftmaxGrad",
)
def _log_softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: all equal.
    Dtypes: float32, float16, bfloat16; float64 as Exp, ReduceSum, Mul, Sub.
    Emits:  LogSoftmaxGrad.
    """
    if grad_output.dtype == DataType.DT_DOUBLE:
        total = ge.ReduceSum(grad_output, [dim], keep_dims=True)
        return cast(ge.Sub(grad_output, ge.Mul(ge.Exp(output), total)), meta_outputs.dtype)
    result: Tensor = ge.LogSoftmaxGrad(cast(grad_output, output.dtype), output, axis=[dim])
    return cast(result, meta_outputs.dtype)


# -- norms of vectors ---------------------------------------------------------------------------------------------

# The orders that GE writes for infinities.
_INFINITE: Final = {math.inf: 2147483647.0, -math.inf: -2147483648.0}


def _kept_type(self: Any, *_: Any, dtype: Any = None, **__: Any) -> bool:
    """No other type is asked for than that of self."""
    return dtype in (None, self.dtype)


_ORDERS: Final = (2, 1, 0, 3, 0.5, math.inf, -math.inf, -1)


@register_fx_node_ge_converter(
    {
        aten.linalg_vector_norm.default: [
            *(Support(m(2, 3, 4), p) for m in (F32, F16, BF16) for p in _ORDERS),
            *(
                Support(F32(2, 3, 4), p, d, k)
                for p in _ORDERS
                for d, k in (([1], False), ([0, -1], True), (None, True))
            ),
            Support(F32()),
            Support(F32(2, 0), 2, [1]),
            Support(F32(value=[float("nan"), 1.0]), math.inf),
        ],
        aten.norm.ScalarOpt_dim: [Support(F32(2, 3, 4), p, [1], k) for p in (2, 1, 3, None) for k in (False, True)],
        aten.norm.Scalar: [*(Support(F32(2, 3, 4), p) for p in (2, 1, 3)), Support(F32(2, 3))],
    },
    source="native_functions.yaml: linalg_vector_norm, norm; GE LpNormV2",
    takes=Takes("LpNormV2", _kept_type),
    names={"p": "ord"},
)
def linalg_vector_norm(
    self: Tensor, ord: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self without dim, or with ones there; no dim means all.
    Dtypes: float32, float16, bfloat16; summed in float32 and rounded once. Other types are decomposed.
    Emits:  LpNormV2.
    """
    axes = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    p = 2.0 if ord is None else float(ord)
    result: Tensor = ge.LpNormV2(self, p=_INFINITE.get(p, p), axes=axes, keepdim=keepdim, epsilon=0.0)
    return result
