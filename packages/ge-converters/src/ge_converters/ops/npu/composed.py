"""torch_npu's ops that GE says with another operator for each mode, or with several."""

from __future__ import annotations

from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.shapes import filled, shape_operand
from ge_converters.ops.conv import convolution
from ge_converters.ops.indexing import scattered
from ge_converters.ops.npu.mapping import as_declared, emit, npu_op
from ge_converters.registry import register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_MODES: Final = {"half": 0, "interleave": 1}


# -- rotary embeddings ------------------------------------------------------------------------------------------------


def _mode(rotary_mode: str) -> int:
    if rotary_mode not in _MODES:
        raise Refusal(f"argument 'rotary_mode' is {rotary_mode!r}; accepted: {', '.join(_MODES)}")
    return _MODES[rotary_mode]


@npu_op("npu_rotary_mul.default", "RotaryMul, RotaryPositionEmbedding")
def npu_rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None, *, meta_outputs: Any
) -> Any:
    """``input * r1 + R(input) * r2``, R turns halves or pairs, or is a product with ``rotate``.

    Shapes: input [a, b, c, d]; r1 and r2 the same with sizes 1 where they repeat; rotate [d, d].
    Dtypes: float32, float16, bfloat16.
    Emits:  RotaryMul for halves, RotaryPositionEmbedding otherwise.
    """
    mode = _mode(rotary_mode)
    if mode == 0 and rotate is None:
        return as_declared(emit("RotaryMul", {"x": input, "r1": r1, "r2": r2}), meta_outputs)
    operands = {"x": input, "cos": r1, "sin": r2, "rotate": rotate, "mode": mode}
    return as_declared(emit("RotaryPositionEmbedding", operands), meta_outputs)


@npu_op("npu_rotary_mul_backward.default", "RotaryMulGrad, RotaryPositionEmbeddingGrad")
def npu_rotary_mul_backward(
    grad: Tensor, input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", *, meta_outputs: Any
) -> Any:
    """Shapes: gradients of input, r1 and r2, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16; summed in float32.
    Emits:  RotaryMulGrad for halves, RotaryPositionEmbeddingGrad otherwise.
    """
    mode = _mode(rotary_mode)
    if mode == 0:
        return as_declared(emit("RotaryMulGrad", {"x": input, "r1": r1, "r2": r2, "dy": grad}), meta_outputs)
    operands = {"dy": grad, "cos": r1, "sin": r2, "x": input, "mode": mode}
    return as_declared(emit("RotaryPositionEmbeddingGrad", operands), meta_outputs)


# -- normalisation and activations ------------------------------------------------------------------------------------


@npu_op("npu_gemma_rms_norm.default", "RmsNorm")
def npu_gemma_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6, *, meta_outputs: Any) -> Any:
    """RMS norm with the weight ``1 + gamma``.

    Shapes: as npu_rms_norm.
    Dtypes: float32, float16, bfloat16; ``1 + gamma`` is taken in float32.
    Emits:  Adds, RmsNorm.
    """
    scale = ge.Adds(cast(gamma, _D.DT_FLOAT), value=1.0)
    return as_declared(emit("RmsNorm", {"x": input, "gamma": scale, "epsilon": epsilon}), meta_outputs)


@npu_op("npu_gelu_mul.default", "GeluV2")
def npu_gelu_mul(input: Tensor, *, approximate: str = "none", meta_outputs: TensorSpec) -> Any:
    """``gelu(a) * b`` of the halves a, b of the last axis.

    Shapes: [.., 2 d] -> [.., d].
    Dtypes: float32, float16, bfloat16; computed in float32, rounded once.
    Emits:  Split, GeluV2, Mul.
    """
    a, b = ge.Split(-1, cast(input, _D.DT_FLOAT), num_split=2, size_of_y=2)
    (activated,) = emit("GeluV2", {"x": a, "approximate": approximate})
    return cast(ge.Mul(activated, b), meta_outputs.dtype)


@npu_op("npu_group_norm_swish.default", "GroupNormSilu, GroupNormV2")
def npu_group_norm_swish(
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
    *,
    meta_outputs: Any,
) -> Any:
    """``y * sigmoid(swish_scale * y)`` of the group norm y; mean and 1 / deviation of each group.

    Shapes: input [n, c, ..] -> the same, [n, groups] twice.
    Dtypes: float32, float16, bfloat16.
    Emits:  GroupNormSilu if swish_scale is 1; a different scale is refused.
    """
    if swish_scale not in (None, 1, 1.0):
        raise Refusal(
            f"argument 'swish_scale' is {swish_scale}; GE operator GroupNormSilu knows 1, use group_norm and mul"
        )
    operands = {
        "x": input,
        "gamma": weight,
        "beta": bias,
        "num_groups": num_groups,
        "eps": 1e-5 if eps is None else eps,
    }
    return as_declared(emit("GroupNormSilu", operands), meta_outputs)


# -- layout, products, windows ----------------------------------------------------------------------------------------


@npu_op("npu_format_cast.default", "none")
@npu_op("npu_format_cast.Tensor", "none")
@npu_op("_npu_format_cast.aclnn", "none")
@npu_op("_npu_format_cast.input_dtype", "none")
@npu_op("_npu_format_cast.default", "none")
def npu_format_cast(input: Tensor, *args: Any, meta_outputs: TensorSpec, **_: Any) -> Any:
    """The same values: a format says how a device stores a tensor, and in a graph GE chooses that itself.

    Shapes: kept.
    Dtypes: all; a form that packs the values in another type is refused.
    Emits:  nothing.
    """
    if meta_outputs.dtype != input.dtype:
        raise Refusal(
            f"the cast packs {input.dtype.name} as {meta_outputs.dtype.name}; pack the tensor before the graph"
        )
    return input


@npu_op("npu_bmmV2.default", "BatchMatMulV2")
def npu_bmm_v2(input: Tensor, mat2: Tensor, output_sizes: Any, *, meta_outputs: TensorSpec) -> Any:
    """Shapes: input [.., n, k], mat2 [.., k, m] -> [.., n, m]; ``output_sizes`` must be empty.
    Dtypes: float32, float16, bfloat16, int32.
    Emits:  BatchMatMulV2.
    """
    if output_sizes:
        raise Refusal(f"argument 'output_sizes' is {output_sizes!r}; leave it empty and sum or reshape the product")
    return as_declared(emit("BatchMatMulV2", {"x1": input, "x2": mat2}), meta_outputs)


@npu_op("npu_linear_backward.default", "MatMulV2")
def npu_linear_backward(grad: Tensor, input: Tensor, weight: Tensor, *, meta_outputs: Any) -> Any:
    """Shapes: grad [n, m], input [n, k], weight [m, k] -> [n, k], [m, k].
    Dtypes: float32, float16, bfloat16.
    Emits:  MatMulV2 twice.
    """
    of_input = emit("MatMulV2", {"x1": grad, "x2": weight})
    of_weight = emit("MatMulV2", {"x1": grad, "x2": input, "transpose_x1": True})
    return as_declared(of_input + of_weight, meta_outputs)


register_fx_node_ge_converter(
    {"npu.npu_conv2d.default": (), "npu.npu_convolution.default": ()},
    source="torch_npu, documentation of npu_conv2d; GE Conv2D, Conv3D",
    fixed={"transposed": False, "output_padding": 0},
)(convolution)
register_fx_node_ge_converter(
    {"npu.npu_convolution_transpose.default": ()},
    source="torch_npu, documentation of npu_convolution_transpose; GE Conv2DTranspose, Conv3DTranspose",
    fixed={"transposed": True},
)(convolution)


# -- attention in parts -----------------------------------------------------------------------------------------------


@npu_op("npu_attention_update.default", "AttentionUpdate")
def npu_attention_update(lse: list[Tensor], local_out: list[Tensor], update_type: int, *, meta_outputs: Any) -> Any:
    """Puts together what parts of the keys gave: weights from the logarithms of their sums.

    Shapes: lists of [n] and of [n, d] -> [n, d] and [n].
    Dtypes: float32, float16, bfloat16; lse float32.
    Emits:  AttentionUpdate.
    """
    operands = {"lse": lse, "go": local_out, "update_type": update_type, "sp": len(lse)}
    return as_declared(emit("AttentionUpdate", operands), meta_outputs)


@npu_op("npu_softmax_cross_entropy_with_logits_backward.default", "SoftmaxCrossEntropyWithLogits")
def npu_softmax_cross_entropy_with_logits_backward(
    grad: Tensor, input: Tensor, labels: Tensor, *, meta_outputs: TensorSpec
) -> Any:
    """Shapes: grad [n], input and labels [n, c] -> [n, c].
    Dtypes: float32, float16, bfloat16.
    Emits:  SoftmaxCrossEntropyWithLogits for softmax(input) - labels, Unsqueeze, Mul.
    """
    _, slope = emit("SoftmaxCrossEntropyWithLogits", {"features": input, "labels": labels})
    return cast(arithmetic("Mul", slope, ge.Unsqueeze(grad, axes=[-1]), slope.dtype), meta_outputs.dtype)


@npu_op("npu_cross_entropy_loss.default", "LogSoftmaxV2, NLLLoss")
def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
    *,
    meta_outputs: Any,
) -> Any:
    """The first two results; the documentation calls the others not enabled.

    Shapes: input [n, c], target [n] -> [1], or [n] without reduction; [n, c].
    Dtypes: float32, float16, bfloat16.
    Emits:  LogSoftmaxV2, NLLLoss.
    """
    if label_smoothing or lse_square_scale_for_zloss or return_zloss:
        raise Refusal("label_smoothing, lse_square_scale_for_zloss and return_zloss are served at their defaults only")
    logs = ge.LogSoftmaxV2(cast(input, _D.DT_FLOAT), axes=[-1])
    operands = {"x": logs, "target": target, "reduction": reduction, "ignore_index": ignore_index}
    loss, _ = emit("NLLLoss", {**operands, "weight": None if weight is None else cast(weight, _D.DT_FLOAT)})
    if reduction != "none":
        loss = ge.Reshape(loss, shape_operand([1]))
    return [cast(loss, meta_outputs[0].dtype), cast(logs, meta_outputs[1].dtype), None, None]


# -- gradients and sums of products ------------------------------------------------------------------------------------


@npu_op("npu_gather_backward.default", "Fill, ScatterElements")
def npu_gather_backward(
    grad: Tensor, self_size: Any, dim: int, index: Tensor, sparse_grad: bool, *, meta_outputs: TensorSpec
) -> Tensor:
    """What torch_npu has in place of the gradient of ``gather``: each element is added where it was taken.

    Shapes: index as grad; the result has self_size.
    Dtypes: of grad.
    Emits:  Fill, ScatterElements.
    """
    if sparse_grad:
        raise Refusal("argument 'sparse_grad' is True; GE has no sparse tensors")
    zeros = filled(self_size, 0, grad.dtype)
    zeros.record_shape(tuple(d if isinstance(d, int) else str(d) for d in meta_outputs.size))
    return scattered(zeros, dim, index, grad, "add")


@npu_op("npu_quant_matmul_reduce_sum.default", "QuantMatmulReduceSum")
def npu_quant_matmul_reduce_sum(
    x1: Tensor, x2: Tensor, *, x1_scale: Tensor | None = None, x2_scale: Tensor | None = None, meta_outputs: TensorSpec
) -> Any:
    """The sum over the batch of ``(x1[b] @ x2[b]) * x1_scale[b] * x2_scale``.

    Shapes: x1 [b, m, k]; x2 [b, k, n]; x1_scale [b, m]; x2_scale [n]; the result [m, n].
    Dtypes: int8 operands, scales float32 and bfloat16; the result bfloat16.
    Emits:  QuantMatmulReduceSum.
    """
    operands = {"x1": x1, "x2": x2, "dims": [0], "x1_scale": x1_scale, "x2_scale": x2_scale}
    return as_declared(emit("QuantMatmulReduceSum", {**operands, "dtype": int(meta_outputs.dtype)}), meta_outputs)
