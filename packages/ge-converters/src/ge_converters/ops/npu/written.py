"""torch_npu's ops that write what they are given, or add to it, and their forms that do not.

What AOTAutograd makes functional comes with copies of the written arguments (``lowering.higher_order``); a converter
gives the new values behind the results, or GE's operator names them as it names its operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.compute_types import carrier
from ge_converters.ops.npu.mapping import Renamed, as_declared, emit, npu_op, register_rows
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge

# torch_npu's number of an element type to GE's.
_FLOAT8: Final = {23: 35, 291: 35, 24: 36, 292: 36}
_FLOATS: Final = {5: 1, 6: 0, 15: 27}


def _of_eight_bits(values: Mapping[str, Any]) -> None:
    if values.get("src_type", 292) not in _FLOAT8:
        raise Refusal(f"argument 'src_type' is {values['src_type']}; the engine knows {sorted(_FLOAT8)}, 8-bit floats")


_PRODUCTS: Final = {
    "npu_grouped_matmul_add": Renamed(
        "GroupedMatmulAdd",
        "y=input x weight group_list transpose_x transpose_weight group_type group_list_type",
    ),
    "npu_add_quant_gmm": Renamed(
        "QuantGroupedMatmulInplaceAdd", "y=input x1 x2 scale2=x2_scale group_list scale1=x1_scale group_list_type"
    ),
    "npu_add_quant_matmul": Renamed("QuantBatchMatmulInplaceAdd", "y=input x1 x2 x2_scale x1_scale"),
}
_SCATTER: Final = Renamed(
    "QuantUpdateScatter",
    "var=input indices updates quant_scales quant_zero_points axis quant_axis reduce round_mode",
    idle="dst_type",
    fixed={"reciprocal_scale": False},
)

_LAYER: Final = (
    "qkv q_gamma k_gamma cos sin index q_out k_cache v_cache k_scale v_scale k_offset v_offset qkv_size "
    "head_nums epsilon cache_mode is_output_qkv"
)
_WRITTEN: Final = "q_out k_cache v_cache"
_HEADS: Final = "q_out_before_quant k_out_before_quant v_out_before_quant"
_LAYERS: Final = {
    "npu_qkv_rms_norm_rope_cache": Renamed(
        "QkvRmsNormRopeCache", _LAYER, f"{_HEADS} {_WRITTEN}", dict.fromkeys(_HEADS.split(), "is_output_qkv")
    ),
}
_LAYERS["npu_qkv_rms_norm_rope_cache_functional"] = replace(_LAYERS["npu_qkv_rms_norm_rope_cache"], copies=_WRITTEN)
# torch_npu's op: GE operator, and its ports and attributes by torch's names.
ROWS: Final = {
    **{op: replace(row, copies="y") for op, row in _PRODUCTS.items()},
    **{f"{op}_": row for op, row in _PRODUCTS.items()},
    **_LAYERS,
    "npu_quant_scatter": replace(_SCATTER, copies="var"),
    "npu_quant_scatter_": _SCATTER,
    "npu_quant_max": Renamed("QuantMax", "x scale round_mode dst_type=dst_dtype", codes={"dst_dtype": _FLOAT8}),
    "npu_anti_mx_quant": Renamed(
        "AntiMxQuant", "x mxscale axis dst_type", idle="src_type", codes={"dst_type": _FLOATS}, limits=_of_eight_bits
    ),
    "npu_grouped_dynamic_block_quant": Renamed(
        "GroupedDynamicBlockQuant",
        "x group_list min_scale round_mode dst_type row_block_size col_block_size group_list_type dst_type_max",
        codes={"dst_type": _FLOAT8},
    ),
    "npu_swiglu_mx_quant_with_dual_axis": Renamed(
        "SwigluMxQuantWithDualAxis",
        "x group_index activate_left round_mode scale_alg dst_type max_dtype_value=dst_type_max",
        codes={"dst_type": _FLOAT8},
    ),
    "_npu_swiglu_backward_mx_quant_with_dual_axis": Renamed(
        "SwigluBackwardMxQuantWithDualAxis",
        "x y_grad group_index activate_left round_mode scale_alg dst_dtype=dst_type max_dtype_value=dst_type_max",
        codes={"dst_type": _FLOAT8},
    ),
    "npu_mhc_sinkhorn": Renamed("MhcSinkhorn", "h_res=x eps num_iters out_flag", codes={"out_flag": {0: 0}}),
    "npu_moe_token_permute_with_routing_map_grad": Renamed(
        "MoeTokenPermuteWithRoutingMapGrad",
        "permuted_token_output_grad=permuted_token_out_grad permuted_probs_output_grad_optional=probs_grad "
        "sorted_indices routing_map_optional=routing_map num_experts=experts_num tokens_num padded_mode=drop_and_pad",
    ),
    "npu_masked_fill_range": Renamed("MaskedFillRange", "x=input start end value axis"),
    "npu_anchor_response_flags": Renamed(
        "AnchorResponseFlags", "gt_bboxes=input featmap_size strides=stride num_base_anchors"
    ),
    "npu_ps_roi_pooling_backward": Renamed(
        "PSROIPoolingGradV2D", "x=output_grad rois spatial_scale output_dim group_size input_size"
    ),
}

register_rows("npu", ROWS, __name__, "torch_npu, documentation of the op; GE's operator")


@npu_op("npu_advance_step_flashattn.default", "AdvanceStep")
def npu_advance_step_flashattn(
    input_tokens: Tensor,
    sampled_token_ids: Tensor,
    input_positions: Tensor,
    seq_lens: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    num_seqs: int,
    num_queries: int,
    block_size: int,
    *,
    spec_token: Tensor | None = None,
    accepted_num: Tensor | None = None,
) -> list[Tensor]:
    """A scheduler's step: new tokens, their positions, lengths one more, and slots in pages.

    Shapes: input_tokens, input_positions, seq_lens, slot_mapping [sequences]; block_tables [sequences, pages].
    Dtypes: int64.
    Emits:  AdvanceStep.
    """
    for name, value in (("spec_token", spec_token), ("accepted_num", accepted_num)):
        if value is not None:
            raise Refusal(f"argument '{name}' is a tensor; leave it out, or call the op in eager mode")
    operands = {
        "input_tokens": input_tokens,
        "sampled_token_ids": sampled_token_ids,
        "input_positions": input_positions,
        "seq_lens": seq_lens,
        "slot_mapping": slot_mapping,
        "block_tables": block_tables,
        "num_seqs": num_seqs,
        "num_queries": num_queries,
        "block_size": block_size,
    }
    return emit("AdvanceStep", operands)


@npu_op("batch_norm_reduce.default", "BNTrainingReduce")
def batch_norm_reduce(input: Tensor, eps: float, *, meta_outputs: Any) -> Any:
    """Sum and sum of squares of each channel; ``eps`` is for the step behind it.

    Shapes: input [n, c, h, w] -> [c] twice.
    Dtypes: float32, float16; bfloat16 through float32. The results are float32.
    Emits:  BNTrainingReduce.
    """
    x = cast(input, carrier("BNTrainingReduce", input.dtype))
    return as_declared(emit("BNTrainingReduce", {"x": x}), meta_outputs)


@npu_op("one_.default", "OnesLike")
def one_(input: Tensor, *, meta_outputs: TensorSpec) -> list[Tensor]:
    """Shapes: any.
    Dtypes: all.
    Emits:  OnesLike.
    """
    (ones,) = emit("OnesLike", {"x": input})
    return [ones, ones]


@npu_op("copy_memory_.default", "BroadcastTo, Cast")
def copy_memory_(input: Tensor, src: Tensor, non_blocking: bool = False, *, meta_outputs: TensorSpec) -> list[Tensor]:
    """As npu_dtype_cast_.

    Shapes: src broadcasts to input.
    Dtypes: all.
    Emits:  Cast, BroadcastTo.
    """
    return npu_dtype_cast_(input, src, meta_outputs=meta_outputs)


@npu_op("npu_dtype_cast_.default", "BroadcastTo, Cast")
def npu_dtype_cast_(input: Tensor, src: Tensor, *, meta_outputs: TensorSpec) -> list[Tensor]:
    """The values of ``src`` in the type and sizes of ``input``.

    Shapes: src broadcasts to input.
    Dtypes: all.
    Emits:  Cast, BroadcastTo.
    """
    value = cast(src, input.dtype)
    if src.known_shape is None or src.known_shape != input.known_shape:
        value = ge.BroadcastTo(value, ge.Shape(input))
    return [value, value]


@npu_op("npu_format_cast_.acl_format", "none")
@npu_op("npu_format_cast_.default", "none")
def npu_format_cast_(input: Tensor, *args: Any, meta_outputs: TensorSpec, **_: Any) -> list[Tensor]:
    """The same values, as ``npu_format_cast``: in a graph GE chooses how a tensor is stored.

    Shapes: kept.
    Dtypes: all.
    Emits:  nothing.
    """
    return [input, input]
