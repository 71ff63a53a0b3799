"""torch_npu's ops that are refused, with the reason: one row per op, or one reason for several of a kind."""

from __future__ import annotations

from typing import Final

from ge_converters.registry import define_refusal

_UNSAID: Final = "what it computes is not documented, so that nothing proves a converter; "
_OPEN: Final = "the CPU engine has no kernel for its GE operator yet, so nothing proves a converter; "

_EAGER: Final = "call it in eager mode, between graphs"
_SYNC: Final = (
    "it is a step of torch_npu's own SyncBatchNorm, whose statistics are exchanged between two graphs; use "
    "torch.nn.BatchNorm, or call the layer in eager mode"
)

_WRITES: Final = "it updates the tensors of argument 'out', which its schema does not mark as written; "

# What several ops have in common: the reason, and their names.
KINDS: Final = {
    "it is about memory and its layout, not about values; a graph plans its memory itself, " + _EAGER: (
        "empty_with_format empty_with_swapped_memory get_npu_format get_storage_size npu_change_data_ptr "
        "npu_view_copy unsafe_empty_with_format"
    ),
    "it asks for sizes or for the bytes of one launch, numbers of the device's own planning; call the operator whose "
    "name it begins with": (
        "_npu_fused_infer_attention_score_infer_output _npu_fused_infer_attention_score_v2_infer_output "
        "_npu_fusion_attention_grad_v3_get_max_workspace _npu_fusion_attention_grad_v3_infer_output "
        "_npu_fusion_attention_v3_get_max_workspace _npu_fusion_attention_v3_infer_output"
    ),
    "it reads or sets a state of the device, which no tensor carries; " + _EAGER: (
        "npu_alloc_float_status npu_clear_float_status npu_get_float_status print_npugraph_tensor save_npugraph_tensor "
        "save_npugraph_tensor.tensor_list set_op_timeout_ms obfuscation_calculate obfuscation_finalize "
        "obfuscation_initialize"
    ),
    "it writes argument 'out', for which AOTAutograd knows no functional form; use the overload without 'out'": (
        "npu_fused_infer_attention_score.out "
        "npu_fused_infer_attention_score_v2.out npu_fusion_attention_grad_v3.out npu_fusion_attention_v3.out "
        "_quantize_per_channel_impl.out _quantize_per_tensor_impl.out"
    ),
    _WRITES + "use torch.optim, whose steps are compiled": (
        "npu_apply_adam npu_apply_adam.out npu_apply_adam_w.out npu_bert_apply_adam npu_bert_apply_adam.out"
    ),
    _UNSAID + _EAGER: (
        "_amp_foreach_non_finite_check _npu_silent_check _npu_silent_check_v2 _npu_silent_check_v3 "
        "_npu_matmul_abft_verify attention_worker_scheduler_ ffn_worker_scheduler_"
    ),
    _UNSAID + "use torch.softmax": ("npu_attn_softmax_ npu_attn_softmax_backward_"),
    "its random numbers are the device's own, and nothing proves a converter; use torch.nn.functional.dropout, "
    "torch.rand or torch.empty_like(x).exponential_()": (
        "_dropout_with_byte_mask dropout_with_byte_mask _npu_dropout _npu_dropout_gen_mask.Tensor npu_dropout_gen_mask "
        "npu_dropout_with_add_softmax npu_dropout_with_add_softmax_backward npu_random_choice_with_mask "
        "npu_sim_exponential_"
    ),
    "it is a step of the device's own kernel of a recurrent layer; torch.nn.LSTM, GRU and their cells are compiled "
    "without it": (
        "_gru_npu _gru_npu_backward _lstm_npu _lstm_npu_backward npu_gru npu_gru_backward npu_lstm npu_lstm_backward "
        "npu_lstm_cell npu_lstm_cell_backward npu_lstm_data npu_lstm_data_backward"
    ),
    "it is attention of the first chips, whose kernel draws its own dropout; use "
    "torch.nn.functional.scaled_dot_product_attention": (
        "npu_fused_attention_layernorm_qkv_fwd npu_fused_attention_qkv_grad npu_fused_attention_score "
        "npu_fused_attention_score_backward npu_fused_attention_score_fwd npu_fused_attention_score_grad "
        "npu_multi_head_attention npu_multi_head_attention_backward"
    ),
    _OPEN + "use torchvision's operators, or call it in eager mode": (
        "npu_batch_nms npu_ciou_backward npu_deformable_conv2d npu_grid_assign_positive "
        "npu_nms_rotated npu_nms_with_mask npu_rotated_box_decode npu_rotated_box_encode "
        "npu_rotated_iou npu_rotated_overlaps npu_sub_sample npu_yolo_boxes_encode"
    ),
    _OPEN + _EAGER: ("npu_ifmr npu_normalize_batch npu_stride_add npu_weight_quant_preprocess"),
    "its mask of what a process holds is packed in bits in an order that is not documented; use "
    "torch.nn.functional.linear and cross_entropy": (
        "npu_fused_linear_online_max_sum npu_fused_linear_cross_entropy_loss_with_max_sum_backward"
    ),
    "a gradient of a gradient is not compiled; " + _EAGER: "matmul_double_backward",
    "its argument 'rstd' is a variance to the operator that torch_npu calls; use torch.nn.LayerNorm": (
        "npu_layernorm_grad"
    ),
    _OPEN + "run the training step in eager mode": (
        "npu_block_sparse_attention_backward npu_dense_lightning_indexer_grad_kl_loss "
        "npu_dense_lightning_indexer_softmax_lse npu_fused_floyd_attention npu_fused_floyd_attention_backward "
        "npu_lightning_indexer_grad npu_mhc_pre npu_mhc_pre_backward npu_mhc_sinkhorn_backward "
        "npu_nsa_compress_attention npu_nsa_compress_attention_infer npu_nsa_select_attention "
        "npu_nsa_select_attention_grad npu_nsa_select_attention_infer npu_quant_fusion_attention "
        "npu_quant_fusion_attention_backward npu_sparse_flash_attention_grad stft_backward "
    ),
    _OPEN + "use npu_swiglu and npu_dynamic_quant or npu_dynamic_mx_quant": ("npu_swiglu_group_quant "),
}

# Op: what is missing, and where to go instead.
REFUSED: Final = {
    **{op: reason for reason, ops in KINDS.items() for op in ops.split()},
    "_npu_fused_infer_attention_score_get_max_workspace": "it asks for the bytes that one launch needs, a number of "
    "the device's own planning; a graph plans its memory itself, call npu_fused_infer_attention_score",
    "_npu_fused_infer_attention_score_v2_get_max_workspace": "it asks for the bytes that one launch needs, a number of "
    "the device's own planning; a graph plans its memory itself, call npu_fused_infer_attention_score_v2",
    "npu_dynamic_dual_level_mx_quant": "its result is float4, two in a byte in an order that is not documented; use "
    "npu_dynamic_mx_quant with an 8-bit float",
    "npu_dual_level_quant_matmul": "its operands are float4, two in a byte in an order that is not documented; use "
    "npu_quant_matmul",
    "npu_apply_adam_w": _WRITES + "use torch.optim.AdamW",
    "npu_moe_init_routing_quant": "its documentation takes the row of a pair modulo the number of rows, of an order "
    "that sorts pairs row by row; the two exclude each other. Use npu_moe_init_routing_v2 with quant_mode",
    "npu_top_k_top_p_sample": "its documentation sums probabilities from the least one and keeps a sum below top_p, "
    "and elsewhere drops it; use npu_top_k_top_p and torch.multinomial",
    "npu_sparse_lightning_indexer_grad_kl_loss": _OPEN + "run the training step in eager mode",
    "npu_nsa_compress_infer.cache": _OPEN + _EAGER,
    "npu_scatter_pa_cache.value": "torch takes its cache for an output that is only written, and drops what it held; "
    "use npu_scatter_pa_kv_cache",
    "npu_block_sparse_attention": _OPEN + "use npu_sparse_flash_attention",
    "npu_deformable_conv2dbk": _OPEN + "run the training step in eager mode",
    "npu_matmul_compress_dequant": _OPEN + "use npu_quant_matmul",
    "npu_hans_encode.out": "it writes argument 'out', which is a list its schema does not mark; call it in eager mode",
    "npu_hans_decode.out": _UNSAID + "call it in eager mode",
    "npu_alltoallv_gmm": _OPEN + "use torch.distributed.all_to_all_single and npu_grouped_matmul",
    "npu_gmm_alltoallv": _OPEN + "use npu_grouped_matmul and torch.distributed.all_to_all_single",
    "npu_all_gather_quant_mm": _OPEN + "use npu_all_gather_base_mm",
    "npu_quant_mm_reduce_scatter": _OPEN + "use npu_mm_reduce_scatter_base",
    "_npu_distribute_barrier": _OPEN + "call torch.distributed.barrier outside of the graph",
    "_npu_rms_norm_backward_quant": _OPEN + "quantise the gradient of npu_rms_norm with npu_quantize",
    "attention_worker_scheduler": _OPEN + _EAGER,
    "ffn_worker_scheduler": _OPEN + _EAGER,
    "batch_norm_gather_stats_update": _SYNC,
    "npu_all_to_all_matmul": _OPEN + "use torch.distributed.all_to_all_single and torch.matmul",
    "npu_all_to_all_quant_matmul": _OPEN + "use torch.distributed.all_to_all_single and npu_quant_matmul",
    "npu_matmul_all_to_all": _OPEN + "use torch.matmul and torch.distributed.all_to_all_single",
    "npu_quant_matmul_all_to_all": _OPEN + "use npu_quant_matmul and torch.distributed.all_to_all_single",
    "npu_alltoallv_quant_gmm": _OPEN + "use torch.distributed.all_to_all_single and npu_grouped_matmul",
    "npu_quant_gmm_alltoallv": _OPEN + "use npu_grouped_matmul and torch.distributed.all_to_all_single",
    "npu_attention_to_ffn": _OPEN + _EAGER,
    "npu_ffn_to_attention": _OPEN + _EAGER,
    "npu_attention_worker_combine": _OPEN + _EAGER,
    "npu_ffn_worker_batching": _OPEN + _EAGER,
    "npu_dequant_rope_quant_kvcache": _OPEN + "use npu_rotary_mul, npu_quantize and a write into the cache",
    "npu_rope_quant_kvcache": _OPEN + "use npu_rotary_mul, npu_quantize and a write into the cache",
    "npu_fused_causal_conv1d": _OPEN + "use torch.nn.functional.conv1d on the padded sequence",
    "npu_fused_causal_conv1d_v2": _OPEN + "use torch.nn.functional.conv1d on the padded sequence",
    "npu_moe_distribute_combine_add_rms_norm": _OPEN + "use npu_moe_distribute_combine_v2 and npu_add_rms_norm",
    "npu_quant_conv2d": "of its scales GE takes the packed form alone, and its documentation leaves the layout of the "
    "result open; use torch.nn.functional.conv2d on the dequantised weight",
}


def full_name(op: str) -> str:
    """``npu.name.overload`` of a row."""
    return f"npu.{op}" + ("" if "." in op else ".default")


for _name, _reason in REFUSED.items():
    define_refusal(full_name(_name), _reason, module=__name__, source="torch_npu, documentation of the op")
