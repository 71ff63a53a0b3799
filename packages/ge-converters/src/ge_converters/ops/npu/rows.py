"""torch_npu's ops that are one GE operator with other names for the same things."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ge_converters.ops.npu.limits import lengths_fit
from ge_converters.ops.npu.mapping import Renamed, register_rows

_REDUCTION: Final = {0: "none", 1: "mean", 2: "sum"}
_LAYOUTS: Final = {"BSND": 1, "BSH": 1, "SBND": 2, "BNSD": 3, "TND": 4}
_FLASH: Final = (
    "query key value real_shift=pse atten_mask prefix actual_seq_qlen actual_seq_kvlen head_num input_layout "
)
_FLASH_GRAD: Final = (
    "query key value dy pse_shift=pse atten_mask softmax_max softmax_sum softmax_in attention_in prefix "
    "actual_seq_qlen actual_seq_kvlen head_num input_layout sparse_mode scale_value "
)
_FLASH_RESULTS: Final = "attention_out softmax_max softmax_sum"
_FLASH_IDLE: Final = "inner_precise gen_mask_parallel sync seed offset numels"  # random numbers are refused anyway
_KV_CACHE: Final = Renamed(
    "KvRmsNormRopeCache",
    "kv gamma cos sin index k_cache ckv_cache k_rope_scale c_kv_scale k_rope_offset c_kv_offset v epsilon cache_mode "
    "is_output_kv",
    copies="k_cache ckv_cache",
)
_CAST: Final = Renamed("Cast", "x=input", dtype="dst_type", idle="dtype input_dtype")
_CAST_BACKWARD: Final = Renamed("Cast", "x=grad", dtype="dst_type", idle="dtype grad_dtype input_dtype")

# torch_npu's op: GE operator, and its ports and attributes by torch's names.
ROWS: Final = {
    # -- normalisation
    "npu_rms_norm": Renamed("RmsNorm", "x=input gamma epsilon"),
    "npu_rms_norm_backward": Renamed("RmsNormGrad", "dy x=input rstd gamma"),
    "npu_add_rms_norm": Renamed("AddRmsNorm", "x1 x2 gamma epsilon"),
    "npu_add_rms_norm_cast": Renamed("AddRmsNormCast", "x1 x2 gamma epsilon"),
    "npu_add_layer_norm": Renamed("AddLayerNorm", "x1 x2 gamma beta epsilon additional_output"),
    "npu_deep_norm": Renamed("DeepNorm", "x gx beta gamma alpha epsilon"),
    "npu_deep_norm_backward": Renamed("DeepNormGrad", "dy x gx gamma mean rstd alpha"),
    "npu_group_norm_silu": Renamed("GroupNormSilu", "x=input gamma=weight beta=bias num_groups=group eps"),
    "npu_layer_norm_eval": Renamed("LayerNormV4", "x=input normalized_shape gamma=weight beta=bias epsilon=eps"),
    "npu_add_rms_norm_v2_functional": Renamed("InplaceAddRmsNorm", "x1 x2 gamma epsilon", "rstd x1 x2", copies="x1 x2"),
    "npu_add_rms_norm_quant": Renamed(
        "AddRmsNormQuant", "x1 x2 gamma scales1 scales2 zero_points1 zero_points2 axis epsilon"
    ),
    # -- activations
    "npu_swiglu": Renamed("SwiGlu", "x=input dim"),
    "npu_swiglu_backward": Renamed("SwiGluGrad", "y_grad=grad_output x=input dim"),
    "npu_clipped_swiglu": Renamed("ClippedSwiglu", "x group_index dim alpha limit bias interleaved"),
    "npu_fast_gelu": Renamed("FastGelu", "x=input"),
    "fast_gelu": Renamed("FastGelu", "x=input"),
    "npu_fast_gelu_backward": Renamed("FastGeluGrad", "dy=grad x=input"),
    "npu_gelu": Renamed("GeluV2", "x=input approximate"),
    "npu_gelu_backward": Renamed("GeluGradV2", "dy=grad_output x=input approximate"),
    "npu_geglu": Renamed("GeGluV2", "x=input dim approximate activate_left"),
    "npu_geglu_grad": Renamed("GeGluGradV2", "dy=grad_output x=input gelu dim approximate activate_left"),
    "npu_silu": Renamed("Swish", "x=input"),
    "npu_silu_backward": Renamed("SwishGrad", "grad=grad_output x=x0 y=x1"),
    # -- rotary embeddings
    "npu_apply_rotary_pos_emb": Renamed(
        "ApplyRotaryPosEmb", "query key cos sin layout rotary_mode", copies="query key", codes={"layout": _LAYOUTS}
    ),
    "npu_kv_rmsnorm_rope_cache": _KV_CACHE,
    "npu_kv_rmsnorm_rope_cache_v2_functional": replace(_KV_CACHE, results="k_rope c_kv k_cache ckv_cache"),
    "npu_interleave_rope": Renamed("InterleaveRope", "x cos sin"),
    # -- softmax and losses
    "npu_scaled_masked_softmax": Renamed("ScaledMaskedSoftmax", "x mask scale fixed_triu_mask"),
    "npu_softmax_cross_entropy_with_logits": Renamed("SoftmaxCrossEntropyWithLogits", "features=input labels", "loss"),
    "l1_loss_backward": Renamed(
        "L1LossGrad", "grads=grad_output predict=input label=target reduction", codes={"reduction": _REDUCTION}
    ),
    "kl_div_backward": Renamed(
        "KlDivLossGrad", "grad=grad_output input target reduction log_target", codes={"reduction": _REDUCTION}
    ),
    # -- element types, sizes
    "npu_dtype_cast": _CAST,
    "_npu_dtype_cast": _CAST,
    "npu_dtype_cast_backward": _CAST_BACKWARD,
    "_npu_dtype_cast_backward": _CAST_BACKWARD,
    "npu_transpose": Renamed("Transpose", "x=input perm", idle="require_contiguous"),
    "npu_reshape": Renamed("Reshape", "x=input shape", idle="can_refresh"),
    # -- writing
    "scatter_update": Renamed("Scatter", "var=input indices updates axis", fixed={"reduce": "update"}, copies="var"),
    "npu_scatter_list": Renamed("ScatterList", "var=input indice=indices updates mask reduce axis", copies="var"),
    "npu_scatter_pa_kv_cache_functional": Renamed(
        "ScatterPaKvCache",
        "key key_cache slot_mapping value value_cache compress_lens compress_seq_offset=compress_seq_offsets seq_lens "
        "cache_mode",
        copies="key_cache value_cache",
    ),
    "npu_scatter_nd_update": Renamed("TensorScatterUpdate", "x=input indices updates"),
    "npu_batch_gather_matmul": Renamed(
        "AddLora", "y=input x weightB=weight_b indices weightA=weight_a layer_idx scale y_offset y_slice_size"
    ),
    # -- products
    "npu_transpose_batchmatmul": Renamed(
        "TransposeBatchMatMul", "x1=input x2=weight bias scale perm_x1 perm_x2 perm_y batch_split_factor"
    ),
    "npu_linear": Renamed("MatMulV2", "x1=input x2=weight bias", fixed={"transpose_x2": True}),
    # -- quantisation
    "npu_anti_quant": Renamed("AscendAntiQuantV2", "x scale offset", dtype="dst_type", idle="dst_dtype src_dtype"),
    "npu_dynamic_quant": Renamed(
        "DynamicQuant", "x=input smooth_scales group_index", dtype="dst_type", idle="dst_type"
    ),
    "npu_dynamic_quant_asymmetric": Renamed(
        "DynamicQuantV2", "x=input smooth_scales group_index", dtype="dst_type", idle="dst_type"
    ),
    "npu_gelu_quant": Renamed("GeluQuant", "x=input input_scale input_offset approximate quant_mode"),
    "npu_quant_matmul": Renamed(
        "QuantBatchMatmulV3", "x1 x2 scale offset bias pertoken_scale", dtype="dtype", idle="output_dtype"
    ),
    "npu_dequant_swiglu_quant": Renamed(
        "DequantSwigluQuant",
        "x weight_scale activation_scale bias quant_scale quant_offset group_index activate_left quant_mode "
        "swiglu_mode clamp_limit glu_alpha glu_bias",
        codes={"quant_mode": {0: "static", 1: "dynamic"}},
    ),
    "npu_dequant_bias": Renamed(
        "DequantBias", "x weight_scale activate_scale=activation_scale bias", dtype="output_dtype", idle="output_dtype"
    ),
    # -- mixture of experts
    "npu_moe_gating_top_k_softmax": Renamed("MoeGatingTopKSoftmax", "x finished k"),
    "npu_moe_gating_top_k_softmax_v2": Renamed("MoeGatingTopKSoftmaxV2", "x finished k renorm output_softmax"),
    "npu_moe_gating_top_k": Renamed(
        "MoeGatingTopK",
        "x bias k k_group group_count group_select_mode renorm norm_type out_flag routed_scaling_factor eps",
    ),
    "npu_moe_init_routing": Renamed("MoeInitRouting", "x row_idx expert_idx active_num"),
    "npu_moe_init_routing_v2": Renamed(
        "MoeInitRoutingV3",
        "x expert_idx scale offset active_num expert_capacity expert_num drop_pad_mode expert_tokens_num_type "
        "expert_tokens_num_flag quant_mode active_expert_range row_idx_type",
    ),
    "npu_moe_finalize_routing": Renamed(
        "MoeFinalizeRoutingV2",
        "expanded_x=expanded_permuted_rows expanded_row_idx=expanded_src_to_dst_row x1=skip1 x2=skip2 bias scales "
        "expert_idx=export_for_source_row drop_pad_mode",
        idle="k",
    ),
    "npu_moe_compute_expert_tokens": Renamed(
        "MoeComputeExpertTokens", "sorted_experts=sorted_expert_for_source_row num_experts=num_expert"
    ),
    # -- attention
    "npu_fusion_attention": Renamed(
        "FlashAttentionScore",
        _FLASH + "scale_value=scale pre_tockens next_tockens sparse_mode",
        _FLASH_RESULTS,
        idle=_FLASH_IDLE,
        limits=lengths_fit,
    ),
    "npu_fusion_attention_v2": Renamed(
        "FlashAttentionScore",
        _FLASH + "scale_value=scale pre_tockens=pre_tokens next_tockens=next_tokens sparse_mode pse_type "
        "q_start_idx kv_start_idx",
        _FLASH_RESULTS,
        idle=_FLASH_IDLE,
        limits=lengths_fit,
    ),
    "npu_fusion_attention_grad": Renamed(
        "FlashAttentionScoreGrad", _FLASH_GRAD + "pre_tockens next_tockens", idle=_FLASH_IDLE
    ),
    # what scaled_dot_product_attention becomes on NPU tensors; its fourth result is empty, then seed and offset
    "npu_fusion_attention_v3": Renamed(
        "FlashAttentionScore",
        _FLASH + "scale_value=scale pre_tockens next_tockens sparse_mode",
        _FLASH_RESULTS + " - - -",
        idle=_FLASH_IDLE,
    ),
    "npu_fusion_attention_grad_v3": Renamed(
        "FlashAttentionScoreGrad", _FLASH_GRAD + "pre_tockens next_tockens", idle=_FLASH_IDLE
    ),
    "npu_fused_infer_attention_score_v2": Renamed(
        "FusedInferAttentionScore",
        "query key value query_rope key_rope pse_shift atten_mask actual_seq_lengths=actual_seq_qlen "
        "actual_seq_lengths_kv=actual_seq_kvlen block_table dequant_scale_query key_antiquant_scale=dequant_scale_key "
        "key_antiquant_offset=dequant_offset_key value_antiquant_scale=dequant_scale_value "
        "value_antiquant_offset=dequant_offset_value key_rope_antiquant_scale=dequant_scale_key_rope "
        "quant_scale2=quant_scale_out quant_offset2=quant_offset_out learnable_sink num_heads=num_query_heads "
        "num_key_value_heads scale=softmax_scale pre_tokens next_tokens input_layout sparse_mode block_size "
        "query_quant_mode key_antiquant_mode=key_quant_mode value_antiquant_mode=value_quant_mode inner_precise "
        "softmax_lse_flag=return_softmax_lse",
        limits=lengths_fit,
    ),
    "npu_prompt_flash_attention": Renamed(
        "PromptFlashAttention",
        "query key value pse_shift atten_mask actual_seq_lengths actual_seq_lengths_kv deq_scale1 quant_scale1 "
        "deq_scale2 quant_scale2 quant_offset2 num_heads scale_value pre_tokens next_tokens input_layout "
        "num_key_value_heads sparse_mode",
        limits=lengths_fit,
    ),
    "npu_incre_flash_attention": Renamed(
        "IncreFlashAttention",
        "query key value pse_shift atten_mask actual_seq_lengths dequant_scale1 quant_scale1 dequant_scale2 "
        "quant_scale2 quant_offset2 antiquant_scale antiquant_offset block_table kv_padding_size num_heads scale_value "
        "input_layout num_key_value_heads block_size inner_precise",
    ),
    "npu_fused_infer_attention_score": Renamed(
        "FusedInferAttentionScore",
        "query key value pse_shift atten_mask actual_seq_lengths actual_seq_lengths_kv dequant_scale1 quant_scale1 "
        "dequant_scale2 quant_scale2 quant_offset2 antiquant_scale antiquant_offset block_table query_padding_size "
        "kv_padding_size key_antiquant_scale key_antiquant_offset value_antiquant_scale value_antiquant_offset "
        "key_shared_prefix value_shared_prefix actual_shared_prefix_len query_rope key_rope key_rope_antiquant_scale "
        "num_heads scale pre_tokens next_tokens input_layout num_key_value_heads sparse_mode inner_precise block_size "
        "antiquant_mode key_antiquant_mode value_antiquant_mode softmax_lse_flag",
        limits=lengths_fit,
    ),
}

register_rows("npu", ROWS, __name__, "torch_npu, documentation of the op; GE's operator")
