"""torch_npu's quantisation with a choice of modes, feed-forward blocks and products of groups of rows."""

from __future__ import annotations

from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.shapes import shape_operand
from ge_converters.ops.npu.limits import groups_fit
from ge_converters.ops.npu.mapping import as_declared, emit, given, npu_op, refuse_others
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_QUANTISED: Final = {_D.DT_INT8: "torch.qint8", _D.DT_UINT8: "torch.quint8", _D.DT_INT32: "torch.qint32"}
_COUNTS: Final = 1
_MATMUL: Final = "npu.npu_grouped_matmul.default"
_FFN: Final = "npu.npu_ffn.default"


@npu_op("npu_quantize.default", "Quantize, AscendQuantV2")
def npu_quantize(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: Any,
    axis: int = 1,
    div_mode: bool = True,
    *,
    meta_outputs: TensorSpec,
) -> Any:
    """``input / scales + zero_points``, or ``input * scales + zero_points`` without ``div_mode``, rounded to even.

    Shapes: scales and zero_points [n] along ``axis``, or of one element -> as input.
    Dtypes: float32, float16, bfloat16 -> int8, with ``div_mode`` also uint8, int32. Eight int4 in an int32 are refused.
    Emits:  Quantize with ``div_mode``, AscendQuantV2 without.
    """
    wanted = meta_outputs.dtype
    if div_mode:
        if wanted not in _QUANTISED:
            raise Refusal(f"argument 'dtype' gives {wanted.name}; GE operator Quantize knows int8, uint8 and int32")
        operands = {"x": input, "scales": scales, "zero_points": zero_points, "dtype": _QUANTISED[wanted], "axis": axis}
        return as_declared(emit("Quantize", operands), meta_outputs)
    if wanted != _D.DT_INT8:
        raise Refusal(f"argument 'dtype' gives {wanted.name}; without div_mode GE operator AscendQuantV2 gives int8")
    operands = {
        "x": input,
        "scale": scales,
        "offset": zero_points,
        "round_mode": "round",
        "dst_type": wanted,
        "axis": -2 if axis == -2 else -1,
    }
    return as_declared(emit("AscendQuantV2", operands), meta_outputs)


# -- groups of rows ---------------------------------------------------------------------------------------------------


def _ends(group_list: Any, kind: int | None) -> Any:
    """Running ends of the groups, which is what GE's GroupedMatmul reads."""
    if group_list is None:
        return None
    if kind not in (None, 0, _COUNTS):
        raise Refusal(f"argument 'group_list_type' is {kind}; pass running ends (0) or counts (1)")
    if isinstance(group_list, list):
        listed = shape_operand(group_list)
        group_list = listed if isinstance(listed, Tensor) else ge.Const(listed, dtype=_D.DT_INT64)
    ends = cast(group_list, _D.DT_INT64)
    return ge.Cumsum(ends, 0) if kind == _COUNTS else ends


@npu_op("npu_grouped_matmul.default", "GroupedMatmul")
@npu_op("npu_grouped_matmul.List", "GroupedMatmul")
def npu_grouped_matmul(*args: Any, meta_outputs: Any, **keywords: Any) -> Any:
    """One product a group: of the lists pair by pair, or of ranges of rows of x.

    Shapes: x [rows, k], weight [groups, k, n] or a list of [k, n]; group_list [groups], running ends or counts.
    Dtypes: float32, float16, bfloat16; int8 with scales, those of single tokens [rows] in a list of one.
    Emits:  GroupedMatmul, after Cumsum if group_list holds counts.
    Errors: refused with inputs of activations or packed types: GE's operator of this name has no port.
    """
    values = given(_MATMUL, args, keywords)
    known = "x weight bias scale offset antiquant_scale antiquant_offset group_list split_item group_type act_type"
    beside = {"per_token_scale", "group_list_type", "output_dtype", "tuning_config"}
    refuse_others(_MATMUL, values, {*known.split(), *beside}, "GroupedMatmul")
    operands = {port: values.get(port) for port in known.split()}
    if values.get("group_list_type") in (None, 0) and len(values["x"]) == 1:
        groups_fit("group_list", values.get("group_list"), values["x"][0])
    operands["group_list"] = _ends(values.get("group_list"), values.get("group_list_type"))
    operands["split_item"] = values.get("split_item") or 0
    operands["act_type"] = values.get("act_type") or None
    tokens = values.get("per_token_scale")
    if isinstance(tokens, list) and len(tokens) > 1:
        raise Refusal(f"argument 'per_token_scale' is a list of {len(tokens)}; GE operator GroupedMatmul has one port")
    operands["per_token_scale"] = tokens[0] if isinstance(tokens, list) and tokens else tokens or None
    if values.get("group_type") is None:
        operands["group_type"] = -1 if operands["group_list"] is None else 0
    x, wanted = values["x"][0], meta_outputs[0].dtype
    if wanted != x.dtype:
        operands["dtype"] = {_D.DT_FLOAT16: 0, _D.DT_BF16: 1, _D.DT_INT8: 2}.get(wanted)
    return as_declared(emit("GroupedMatmul", operands, len(meta_outputs)), meta_outputs)


@npu_op("npu_ffn.default", "FFN")
def npu_ffn(*args: Any, meta_outputs: TensorSpec, **keywords: Any) -> Any:
    """``activation(x @ weight1 + bias1) @ weight2 + bias2``, of ranges of rows with a weight each if there are experts.

    Shapes: x [.., k]; weights [k, n], [n, m], or with a leading axis of experts; biases [n], [m] likewise.
    Dtypes: float16, bfloat16; with scales int8.
    Emits:  FFN.
    """
    values = given(_FFN, args, keywords)
    ports = (
        "x weight1 weight2 bias1 bias2 scale offset deq_scale1 deq_scale2 antiquant_scale1 antiquant_scale2 "
        "antiquant_offset1 antiquant_offset2 activation"
    )
    refuse_others(
        _FFN,
        values,
        {*ports.split(), "expert_tokens", "expert_tokens_index", "inner_precise", "output_dtype"},
        "FFN",
    )
    counts, ends = values.get("expert_tokens"), values.get("expert_tokens_index")
    if counts is not None and ends is not None:
        raise Refusal("expert_tokens and expert_tokens_index are both given; pass one of them")
    operands = {port: values.get(port) for port in ports.split()}
    operands["expert_tokens"] = counts if ends is None else ends
    operands["tokens_index_flag"] = ends is not None
    if meta_outputs.dtype != values["x"].dtype:
        operands["output_dtype"] = {_D.DT_FLOAT16: 0, _D.DT_BF16: 1}.get(meta_outputs.dtype)
    return as_declared(emit("FFN", operands), meta_outputs)


# -- tokens to experts and back ---------------------------------------------------------------------------------------


def _order(keys: Tensor) -> Tensor:
    """Positions that sort the keys, equal ones in their order."""
    return ge.Sort(keys, axis=0, descending=False, stable=True)[1]


def _columns(x: Tensor) -> Tensor:
    return ge.GatherV2(ge.Shape(x, dtype=_D.DT_INT64), [1], 0)


def _shape(*parts: Any) -> Tensor:
    """A shape of numbers and one-element tensors."""
    return ge.ConcatV2(
        [p if isinstance(p, Tensor) else ge.Const([p], dtype=_D.DT_INT64) for p in parts], 0, N=len(parts)
    )


@npu_op("npu_moe_token_permute.default", "Sort, GatherV2")
def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False, *, meta_outputs: Any
) -> Any:
    """Each token once for each of its experts, sorted by expert; and where each of these copies went.

    Shapes: tokens [t, h], indices [t, k] or [t] -> [t k, h], [t k].
    Dtypes: float32, float16, bfloat16; indices int32, int64.
    Emits:  Sort twice, FloorDiv, GatherV2.
    """
    if padded_mode or num_out_tokens:
        raise Refusal("padded_mode and num_out_tokens are served at their defaults only; slice the result instead")
    order = _order(cast(ge.Reshape(indices, [-1]), _D.DT_INT32))
    source = order if indices.rank == 1 else ge.FloorDiv(order, cast(_columns(indices), _D.DT_INT32))
    return [ge.GatherV2(tokens, source, 0), cast(_order(order), meta_outputs[1].dtype)]


@npu_op("npu_moe_token_permute_grad.default", "GatherV2, ReduceSum")
def npu_moe_token_permute_grad(
    tokens: Tensor,
    grad_permuted_tokens: Tensor,
    indices: Tensor,
    sorted_indices: Tensor,
    padded_mode: bool = False,
    *,
    meta_outputs: TensorSpec,
) -> Any:
    """Shapes: as tokens.
    Dtypes: float32, float16, bfloat16; summed in float32.
    Emits:  GatherV2, Reshape, ReduceSum.
    """
    if padded_mode:
        raise Refusal("argument 'padded_mode' is True; the documentation knows False only")
    rows = cast(ge.GatherV2(grad_permuted_tokens, sorted_indices, 0), _D.DT_FLOAT)
    choices = 1 if indices.rank == 1 else _columns(indices)  # how many experts a token goes to
    shaped = ge.Reshape(rows, _shape(-1, choices, _columns(tokens)))
    return cast(ge.ReduceSum(shaped, [1], keep_dims=False), meta_outputs.dtype)


@npu_op("npu_moe_token_unpermute.default", "GatherV2, ReduceSum")
def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
    *,
    meta_outputs: TensorSpec,
) -> Any:
    """The way back from npu_moe_token_permute: the copies of a token, weighted by ``probs`` and added.

    Shapes: permuted_tokens [t k, h], sorted_indices [t k], probs [t, k] -> [t, h].
    Dtypes: float32, float16, bfloat16; computed in float32.
    Emits:  GatherV2, Mul, ReduceSum.
    """
    if padded_mode or restore_shape is not None:
        raise Refusal("padded_mode and restore_shape are served at their defaults only")
    rows = ge.GatherV2(permuted_tokens, sorted_indices, 0)
    if probs is None:
        return cast(rows, meta_outputs.dtype)
    weights = ge.Unsqueeze(cast(probs, _D.DT_FLOAT), axes=[-1])
    shaped = ge.Reshape(cast(rows, _D.DT_FLOAT), _shape(-1, _columns(probs), _columns(permuted_tokens)))
    return cast(ge.ReduceSum(ge.Mul(shaped, weights), [1], keep_dims=False), meta_outputs.dtype)


@npu_op("npu_moe_token_unpermute_grad.default", "GatherV2, ReduceSum")
def npu_moe_token_unpermute_grad(
    permuted_tokens: Tensor,
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
    *,
    meta_outputs: Any,
) -> Any:
    """Shapes: gradients of permuted_tokens and of probs, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16; computed in float32.
    Emits:  Mul, Reshape, GatherV2, ReduceSum; the order is inverted by Sort.
    """
    if padded_mode or restore_shape is not None:
        raise Refusal("padded_mode and restore_shape are served at their defaults only")
    back = _order(cast(sorted_indices, _D.DT_INT32))
    grad = cast(grad_unpermuted_tokens, _D.DT_FLOAT)
    if probs is None:
        return [cast(ge.GatherV2(grad, back, 0), meta_outputs[0].dtype), None]
    wide = ge.Unsqueeze(grad, axes=[1])
    weighted = ge.Mul(wide, ge.Unsqueeze(cast(probs, _D.DT_FLOAT), axes=[-1]))
    flat = ge.Reshape(weighted, _shape(-1, _columns(permuted_tokens)))
    rows = cast(ge.GatherV2(permuted_tokens, sorted_indices, 0), _D.DT_FLOAT)
    shaped = ge.Reshape(rows, _shape(-1, _columns(probs), _columns(permuted_tokens)))
    of_probs = ge.ReduceSum(ge.Mul(shaped, wide), [2], keep_dims=False)
    return [cast(ge.GatherV2(flat, back, 0), meta_outputs[0].dtype), cast(of_probs, meta_outputs[1].dtype)]
