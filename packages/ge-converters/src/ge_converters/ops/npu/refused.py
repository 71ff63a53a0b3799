"""torch_npu's ops that clients call in compiled code and that are refused, with the reason: one row per op."""

from __future__ import annotations

from typing import Final

from ge_converters.registry import define_refusal

_INPLACE: Final = "it writes its argument and returns it, which AOTAutograd cannot make functional; "
_OPEN: Final = "the CPU engine has no kernel for its GE operator yet, so nothing proves a converter; "

_EAGER: Final = "call it in eager mode, between graphs"
_SYNC: Final = (
    "it is a step of torch_npu's own SyncBatchNorm, whose statistics are exchanged between two graphs; use "
    "torch.nn.BatchNorm, or call the layer in eager mode"
)

_SCATTER: Final = (
    "the CPU engine quantises along the default axis of its GE operator alone, torch_npu's default is another one, so "
    "nothing proves a converter; use npu_quantize and a write into the cache"
)

# Op: what is missing, and where to go instead.
REFUSED: Final = {
    "_npu_fused_infer_attention_score_get_max_workspace": "it asks for the bytes that one launch needs, a number of "
    "the device's own planning; a graph plans its memory itself, call npu_fused_infer_attention_score",
    "_npu_fused_infer_attention_score_v2_get_max_workspace": "it asks for the bytes that one launch needs, a number of "
    "the device's own planning; a graph plans its memory itself, call npu_fused_infer_attention_score_v2",
    "npu_dynamic_dual_level_mx_quant": "its result is float4, two in a byte in an order that is not documented; use "
    "npu_dynamic_mx_quant with an 8-bit float",
    "npu_dual_level_quant_matmul": "its operands are float4, two in a byte in an order that is not documented; use "
    "npu_quant_matmul",
    "npu_apply_adam_w": "it updates the tensors of argument 'out', which its schema does not mark as written; use "
    "torch.optim.AdamW",
    "npu_moe_init_routing_quant": "its documentation takes the row of a pair modulo the number of rows, of an order "
    "that sorts pairs row by row; the two exclude each other. Use npu_moe_init_routing_v2 with quant_mode",
    "npu_top_k_top_p_sample": "its documentation sums probabilities from the least one and keeps a sum below top_p, "
    "and elsewhere drops it; use npu_top_k_top_p and torch.multinomial",
    "npu_format_cast_.acl_format": _INPLACE + "use npu_format_cast",
    "npu_format_cast_": _INPLACE + "use npu_format_cast",
    "npu_scatter_pa_cache.value": _INPLACE + "use npu_scatter_pa_kv_cache",
    "npu_sparse_lightning_indexer_grad_kl_loss": _OPEN + "run the training step in eager mode",
    "npu_block_sparse_attention": _OPEN + "use npu_sparse_flash_attention",
    "npu_deformable_conv2dbk": _OPEN + "run the training step in eager mode",
    "npu_matmul_compress_dequant": _OPEN + "use npu_quant_matmul",
    "npu_hans_encode.out": "it writes argument 'out', which is a list its schema does not mark; call it in eager mode",
    "npu_hans_decode.out": _INPLACE + "call it in eager mode",
    "npu_add_quant_gmm_": _INPLACE + "add the result of npu_grouped_matmul",
    "npu_grouped_matmul_add_": _INPLACE + "add the result of npu_grouped_matmul",
    "npu_add_quant_matmul_": _INPLACE + "add the result of npu_quant_matmul",
    "npu_alltoallv_gmm": _OPEN + "use torch.distributed.all_to_all_single and npu_grouped_matmul",
    "npu_gmm_alltoallv": _OPEN + "use npu_grouped_matmul and torch.distributed.all_to_all_single",
    "npu_all_gather_quant_mm": _OPEN + "use npu_all_gather_base_mm",
    "npu_quant_mm_reduce_scatter": _OPEN + "use npu_mm_reduce_scatter_base",
    "npu_gather_pa_kv_cache": _OPEN + "use torch.index_select",
    "npu_moe_token_permute_with_routing_map": _OPEN + "use npu_moe_token_permute",
    "npu_moe_token_permute_with_routing_map_grad": _OPEN + "use npu_moe_token_permute",
    "_npu_moe_token_unpermute_with_routing_map": _OPEN + "use npu_moe_token_unpermute",
    "npu_moe_token_unpermute_with_routing_map_grad": _OPEN + "use npu_moe_token_unpermute",
    "npu_confusion_transpose": _OPEN + "use permute and reshape",
    "_npu_distribute_barrier": _OPEN + "call torch.distributed.barrier outside of the graph",
    "_npu_rms_norm_backward_quant": _OPEN + "quantise the gradient of npu_rms_norm with npu_quantize",
    "attention_worker_scheduler": _OPEN + _EAGER,
    "ffn_worker_scheduler": _OPEN + _EAGER,
    "batch_norm_reduce": _SYNC,
    "batch_norm_gather_stats_update": _SYNC,
    "npu_add_quant_gmm": _OPEN + "add the result of npu_grouped_matmul",
    "npu_add_quant_matmul": _OPEN + "add the result of npu_quant_matmul",
    "npu_all_to_all_matmul": _OPEN + "use torch.distributed.all_to_all_single and torch.matmul",
    "npu_all_to_all_quant_matmul": _OPEN + "use torch.distributed.all_to_all_single and npu_quant_matmul",
    "npu_matmul_all_to_all": _OPEN + "use torch.matmul and torch.distributed.all_to_all_single",
    "npu_quant_matmul_all_to_all": _OPEN + "use npu_quant_matmul and torch.distributed.all_to_all_single",
    "npu_alltoallv_quant_gmm": _OPEN + "use torch.distributed.all_to_all_single and npu_grouped_matmul",
    "npu_quant_gmm_alltoallv": _OPEN + "use npu_grouped_matmul and torch.distributed.all_to_all_single",
    "npu_anti_mx_quant": _OPEN + "multiply the values by their scales",
    "npu_attention_to_ffn": _OPEN + _EAGER,
    "npu_ffn_to_attention": _OPEN + _EAGER,
    "npu_attention_worker_combine": _OPEN + _EAGER,
    "npu_ffn_worker_batching": _OPEN + _EAGER,
    "npu_dequant_rope_quant_kvcache": _OPEN + "use npu_rotary_mul, npu_quantize and a write into the cache",
    "npu_rope_quant_kvcache": _OPEN + "use npu_rotary_mul, npu_quantize and a write into the cache",
    "npu_qkv_rms_norm_rope_cache": _OPEN + "use npu_rms_norm, npu_rotary_mul and npu_scatter_pa_kv_cache",
    "npu_qkv_rms_norm_rope_cache_functional": _OPEN + "use npu_rms_norm, npu_rotary_mul and npu_scatter_pa_kv_cache",
    "npu_fused_causal_conv1d": _OPEN + "use torch.nn.functional.conv1d on the padded sequence",
    "npu_fused_causal_conv1d_v2": _OPEN + "use torch.nn.functional.conv1d on the padded sequence",
    "npu_masked_causal_conv1d": _OPEN + "use torch.nn.functional.conv1d on the padded and masked sequence",
    "npu_grouped_dynamic_block_quant": _OPEN + "call npu_dynamic_block_quant for each group",
    "npu_moe_distribute_combine_add_rms_norm": _OPEN + "use npu_moe_distribute_combine_v2 and npu_add_rms_norm",
    "npu_moe_update_expert": _OPEN + "look the experts up with torch.index_select",
    "npu_quant_conv2d": "of its scales GE takes the packed form alone, and its documentation leaves the layout of the "
    "result open; use torch.nn.functional.conv2d on the dequantised weight",
    "npu_quant_max": _OPEN + "use npu_quantize and torch.amax",
    "npu_rotate_quant": _OPEN + "use torch.matmul and npu_dynamic_quant",
    "npu_quant_scatter": _SCATTER,
    "npu_quant_scatter_": _SCATTER,
}


def full_name(op: str) -> str:
    """``npu.name.overload`` of a row."""
    return f"npu.{op}" + ("" if "." in op else ".default")


for _name, _reason in REFUSED.items():
    define_refusal(full_name(_name), _reason, module=__name__, source="torch_npu, documentation of the op")
