"""torch_npu's ops of serving code that are one GE operator with other names: quantisation, chosen tokens, experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from ge_converters.ops.npu.mapping import Renamed, register_rows

# torch_npu's number of an element type: that of torch's own list, or from 290 on one of its own.
_INT8: Final = {1: 2}
_FLOAT8: Final = {23: 35, 291: 35, 24: 36, 292: 36}
_MX: Final = {"dst_type": _FLOAT8}
_LIMITS: Final = "sparse_mode pre_tokens next_tokens "
_INDEXER: Final = (
    "query key weights actual_seq_lengths_query actual_seq_lengths_key block_table layout_query layout_key "
    "sparse_count " + _LIMITS
)
_CHOSEN: Final = (
    "query key value sparse_indices scale_value block_table actual_seq_lengths_query actual_seq_lengths_kv "
    "sparse_block_size layout_query layout_kv attention_mode " + _LIMITS
)
_PROLOG: Final = (
    "token_x weight_dq weight_uq_qr weight_uk weight_dkv_kr rmsnorm_gamma_cq rmsnorm_gamma_ckv rope_sin rope_cos "
    "cache_index kv_cache kr_cache dequant_scale_x dequant_scale_w_dq dequant_scale_w_uq_qr dequant_scale_w_dkv_kr "
    "quant_scale_ckv quant_scale_ckr smooth_scales_cq rmsnorm_epsilon_cq rmsnorm_epsilon_ckv cache_mode "
)
_PROLOG_3: Final = Renamed(
    "MlaPrologV3",
    _PROLOG + "actual_seq_len k_nope_clip_alpha query_norm_flag weight_quant_mode kv_cache_quant_mode query_quant_mode "
    "ckvkr_repo_mode quant_scale_repo_mode tile_size qc_qr_scale kc_scale",
    "query query_rope dequant_scale_q_nope query_norm dequant_scale_q_norm",
)
_DELTA: Final = Renamed(
    "RecurrentGatedDeltaRule",
    "query key value beta state actual_seq_lengths ssm_state_indices num_accepted_tokens g gk scale_value=scale",
    "out",
)
_EXPERTS: Final = (
    "group_ep ep_world_size ep_rank_id moe_expert_num group_tp tp_world_size tp_rank_id expert_shard_type "
    "shared_expert_num shared_expert_rank_num global_bs "
)
_DISPATCH: Final = "x expert_ids scales x_active_mask expert_scales quant_mode expert_token_nums_type " + _EXPERTS
_COMBINE: Final = (
    "expand_x expert_ids ep_send_counts expert_scales tp_send_counts x_active_mask expand_scales comm_quant_mode "
    + _EXPERTS
)
_SPECIAL: Final = "comm_alg zero_expert_num copy_expert_num const_expert_num "

# torch_npu's op: GE operator, and its ports and attributes by torch's names.
ROWS: Final = {
    # -- quantisation
    "npu_dynamic_mx_quant": Renamed(
        "DynamicMxQuant",
        "x=input axis round_mode dst_type blocksize=block_size scale_alg dst_type_max max_low_bound",
        codes=_MX,
    ),
    "npu_dynamic_mx_quant_with_dual_axis": Renamed(
        "DynamicMxQuantWithDualAxis", "x=input round_mode dst_type scale_alg dst_type_max", codes=_MX
    ),
    "npu_grouped_dynamic_mx_quant": Renamed(
        "GroupedDynamicMxQuant", "x group_index round_mode dst_type blocksize scale_alg dst_type_max", codes=_MX
    ),
    "npu_dynamic_block_mx_quant": Renamed(
        "DynamicBlockMxQuant", "x=input round_mode dst_type scale_alg dst_type_max", codes=_MX
    ),
    "npu_rms_norm_dynamic_mx_quant": Renamed(
        "RmsNormDynamicMxQuant",
        "x gamma beta epsilon scale_alg round_mode dst_type",
        fixed={"output_rstd": True},
        codes=_MX,
    ),
    "npu_add_rms_norm_dynamic_mx_quant": Renamed(
        "AddRmsNormDynamicMxQuant",
        "x1 x2 gamma beta epsilon scale_alg round_mode dst_type",
        fixed={"output_rstd": True},
        codes=_MX,
    ),
    "npu_swiglu_mx_quant": Renamed(
        "SwigluMxQuant",
        "x group_index activate_dim activate_left swiglu_mode clamp_limit glu_alpha glu_bias group_mode axis dst_type "
        "round_mode scale_alg max_dtype_value",
        codes=_MX,
    ),
    "npu_dynamic_block_quant": Renamed(
        "DynamicBlockQuant",
        "x min_scale round_mode dst_type row_block_size col_block_size dst_type_max",
        codes={"dst_type": _INT8 | _FLOAT8},
    ),
    "npu_add_rms_norm_dynamic_quant": Renamed(
        "AddRmsNormDynamicQuant", "x1 x2 gamma smooth_scale1 smooth_scale2 beta epsilon output_mask"
    ),
    "npu_rms_norm_quant": Renamed("RmsNormQuant", "x gamma beta scale offset epsilon"),
    "npu_group_quant": Renamed(
        "GroupQuant",
        "x scale group_index offset dst_type=dst_dtype",
        codes={"dst_dtype": {None: 2, torch.int8: 2}},
    ),
    "npu_trans_quant_param": Renamed("TransQuantParamV2", "scale offset round_mode"),
    "npu_sign_bits_unpack": Renamed("SignBitsUnpack", "x=input size", dtype="dtype", idle="dtype"),
    # -- products
    "npu_fused_matmul": Renamed("FusedMatMul", "x1 x2 bias x3 fused_op_type"),
    "npu_quant_matmul_dequant": Renamed(
        "QuantMatmulDequant",
        "x quantized_weight weight_scale bias x_scale x_offset smooth_scale x_quant_mode=quant_mode",
    ),
    "npu_quant_grouped_matmul_dequant": Renamed(
        "QuantGroupedMatmulDequant",
        "x quantized_weight weight_scale group_list bias x_scale x_offset smooth_scale x_quant_mode=quant_mode",
    ),
    "npu_grouped_matmul_finalize_routing": Renamed(
        "GroupedMatmulFinalizeRouting",
        "x w group_list scale bias offset pertoken_scale shared_input logit row_index shared_input_weight "
        "shared_input_offset output_bs group_list_type",
        idle="dtype tuning_config",
    ),
    "npu_grouped_matmul_swiglu_quant": Renamed(
        "GroupedMatmulSwigluQuant",
        "x weight group_list weight_scale x_scale",
        fixed={"is_enable_weight_assistance_matrix": False},
    ),
    "npu_grouped_matmul_swiglu_quant_v2": Renamed(
        "GroupedMatmulSwigluQuantV2",
        "x weight weight_scale x_scale group_list smooth_scale weight_assist_matrix bias dequant_mode quant_mode "
        "group_list_type tuning_config",
    ),
    "npu_transpose_quant_batchmatmul": Renamed(
        "TransposeQuantBatchMatMul",
        "x1 x2 bias x1_scale x2_scale perm_x1 perm_x2 perm_y batch_split_factor",
        dtype="dtype",
        idle="dtype",
    ),
    # -- chosen tokens, states, latent attention
    "npu_lightning_indexer": Renamed("LightningIndexer", _INDEXER + "return_values=return_value"),
    "npu_quant_lightning_indexer": Renamed(
        "QuantLightningIndexer",
        _INDEXER + "query_dequant_scale key_dequant_scale query_quant_mode key_quant_mode",
    ),
    "npu_sparse_flash_attention": Renamed(
        "SparseFlashAttention", _CHOSEN + "query_rope key_rope sinks return_softmax_lse"
    ),
    "npu_kv_quant_sparse_flash_attention": Renamed(
        "KvQuantSparseFlashAttention",
        _CHOSEN + "key_dequant_scale value_dequant_scale key_quant_mode value_quant_mode quant_scale_repo_mode "
        "tile_size rope_head_dim",
    ),
    "npu_chunk_gated_delta_rule": Renamed(
        "ChunkGatedDeltaRule", "query key value beta initial_state actual_seq_lengths g scale_value=scale"
    ),
    "npu_recurrent_gated_delta_rule": _DELTA,
    "npu_recurrent_gated_delta_rule_functional": replace(_DELTA, results="out state", copies="state"),
    "npu_masked_softmax_with_rel_pos_bias": Renamed(
        "MaskedSoftmaxWithRelPosBias", "x atten_mask relative_pos_bias scale_value inner_precision_mode"
    ),
    "npu_mla_prolog": Renamed("MlaProlog", _PROLOG, copies="kv_cache kr_cache"),
    "npu_mla_prolog_v2": Renamed("MlaPrologV2", _PROLOG, copies="kv_cache kr_cache"),
    "npu_mla_prolog_v3": _PROLOG_3,
    "npu_mla_prolog_v3_functional": replace(
        _PROLOG_3,
        results=_PROLOG_3.results + " kv_cache kr_cache",
        copies="kv_cache kr_cache",
    ),
    # -- experts and exchange
    "npu_moe_re_routing": Renamed(
        "MoeReRouting", "tokens expert_token_num_per_rank per_token_scales expert_token_num_type idx_type"
    ),
    "npu_moe_distribute_dispatch": Renamed("MoeDistributeDispatch", _DISPATCH),
    "npu_moe_distribute_dispatch_v2": Renamed(
        "MoeDistributeDispatchV2", _DISPATCH + _SPECIAL + "elastic_info performance_info"
    ),
    "npu_moe_distribute_combine": Renamed(
        "MoeDistributeCombine",
        _COMBINE + "expand_idx activation_scale weight_scale group_list out_dtype group_list_type",
    ),
    "npu_moe_distribute_combine_v2": Renamed(
        "MoeDistributeCombineV2",
        _COMBINE + _SPECIAL + "assist_info_for_combine shared_expert_x elastic_info ori_x const_expert_alpha_1 "
        "const_expert_alpha_2 const_expert_v performance_info",
    ),
    "npu_mm_all_reduce_base": Renamed(
        "MatmulAllReduce",
        "x1 x2 group=hcom reduce_op bias antiquant_scale antiquant_offset x3 dequant_scale pertoken_scale "
        "comm_quant_scale_1 comm_quant_scale_2 antiquant_group_size comm_turn",
        idle="comm_mode",
    ),
    "npu_all_gather_base_mm": Renamed(
        "AllGatherMatmul",
        "x1=input x2 bias group=hcom rank_size=world_size gather_index is_gather_out=gather_output comm_turn",
        idle="comm_mode",
    ),
    "npu_mm_reduce_scatter_base": Renamed(
        "MatmulReduceScatter",
        "x1=input x2 bias group=hcom rank_size=world_size reduce_op comm_turn",
        idle="comm_mode",
    ),
}

register_rows("npu", ROWS, __name__, "torch_npu, documentation of the op; GE's operator")
