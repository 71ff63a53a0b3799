"""Calls of the operators of serving code, each with its formula."""

from __future__ import annotations

from typing import Any

import torch
from npu_formulas import BF16, F16, F32, HALVES, RANDOM, Case, call, rand
from npu_serving_formulas import (
    E4,
    add_rms_norm_dynamic_mx_quant,
    add_rms_norm_dynamic_quant,
    any_dequant_swiglu_quant,
    any_grouped_matmul,
    any_weight_quant_batchmatmul,
    chunk_gated_delta_rule,
    combine,
    convert_weight_to_int4pack,
    dispatch,
    dispatch_v2,
    dynamic_block_mx_quant,
    dynamic_block_quant,
    dynamic_mx_quant,
    dynamic_mx_quant_with_dual_axis,
    format_cast,
    fused_matmul,
    gather_backward,
    group_quant,
    grouped_dynamic_mx_quant,
    grouped_matmul_finalize_routing,
    grouped_matmul_swiglu_quant,
    grouped_matmul_swiglu_quant_v2,
    ints,
    kronecker_quant,
    kv_quant_sparse_flash_attention,
    lightning_indexer,
    masked_softmax_with_rel_pos_bias,
    mla_prolog,
    mla_prolog_v2,
    mla_prolog_v3,
    mla_prolog_v3_functional,
    moe_re_routing,
    mrope,
    quant_grouped_matmul_dequant,
    quant_lightning_indexer,
    quant_matmul_dequant,
    quant_matmul_reduce_sum,
    recurrent_gated_delta_rule,
    recurrent_in_place,
    rms_norm_dynamic_mx_quant,
    rms_norm_quant,
    sign_bits_unpack,
    sparse_flash_attention,
    swiglu_mx_quant,
    top_k_top_p,
    trans_quant_param,
    transpose_quant_batchmatmul,
)
from torch import Tensor


def _cases() -> list[Case]:
    half = {"dtypes": HALVES}
    one = {"dtypes": (BF16,), "dynamic": False}

    def x(d: torch.dtype, *shape: int) -> Tensor:
        return rand(*shape).to(d) * 3

    def chosen(d: torch.dtype) -> Any:
        places = torch.stack([torch.randperm(6, generator=RANDOM)[:4] for _ in range(4)]).reshape(2, 2, 1, 4)
        places[1, 1, 0, 3] = -1
        tensors = (x(d, 2, 2, 3, 16), x(d, 2, 6, 1, 16))
        return (*tensors, tensors[1], places.to(torch.int32), 0.25)

    def states(d: torch.dtype) -> dict[str, Any]:
        g = -torch.rand(5, 4, generator=RANDOM)
        return {
            "beta": torch.rand(5, 4, generator=RANDOM).to(d),
            "g": g,
            "scale": 0.5,
            "actual_seq_lengths": torch.tensor([2, 3], dtype=torch.int32),
        }

    def qkv(d: torch.dtype) -> tuple[Tensor, ...]:
        return rand(5, 2, 8).to(d), rand(5, 2, 8).to(d) * 0.3, rand(5, 4, 6).to(d)

    def prolog(d: torch.dtype) -> list[Tensor]:
        weights = [rand(*s).to(d) * 0.3 for s in ((16, 12), (12, 2 * (8 + 4)), (2, 8, 16), (16, 16 + 4))]
        gammas = [rand(12).to(d), rand(16).to(d)]
        angles = [rand(3, 4).to(d), rand(3, 4).to(d)]
        return [rand(3, 16).to(d), *weights, *gammas, *angles]

    def caches(d: torch.dtype) -> list[Tensor]:
        return [rand(2, 4, 1, 16).to(d), rand(2, 4, 1, 4).to(d)]

    slots = torch.tensor([5, 0, 2])
    experts = torch.tensor([[0, 2], [1, 2], [3, 0]], dtype=torch.int32)
    ep = ("", 1, 0, 4)
    counts = torch.tensor([2, 3, 5, 6], dtype=torch.int32)
    scales = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.1, 0.9]])

    def quantised(k: int = 8, n: int = 6) -> tuple[Tensor, Tensor]:
        return ints(-9, 9, 7, k, dtype=torch.int8), ints(-9, 9, 2, k, n, dtype=torch.int8)

    def swiglu() -> dict[str, Any]:
        return {
            "weight_scale": torch.rand(2, 8, generator=RANDOM),
            "activation_scale": torch.rand(7, 1, generator=RANDOM),
            "quant_scale": torch.rand(2, 4, generator=RANDOM) + 0.5,
            "quant_mode": 1,
            "group_index": torch.tensor([2, 3]),
        }

    def indexer(d: torch.dtype) -> tuple[Tensor, ...]:
        return x(d, 2, 3, 4, 8), x(d, 2, 6, 1, 8), rand(2, 3, 4).to(d)

    def kv_rows(d: torch.dtype) -> tuple[Any, ...]:
        nope, rope = ints(-99, 99, 2, 6, 1, 32, dtype=torch.int8), rand(2, 6, 1, 8).to(d)
        scale = torch.rand(2, 6, 1, 2, generator=RANDOM) / 50
        row = torch.cat((nope, rope.view(torch.int8), scale.view(torch.int8)), -1)
        return rand(2, 2, 3, 40).to(d), row, row.clone(), chosen(d)[3], 0.25, 2, 2

    mx, ranks = "npu_dynamic_mx_quant", torch.tensor([5, 1, 20], dtype=torch.int32)
    return [
        Case(mx, dynamic_mx_quant, lambda d: call(x(d, 3, 70), dst_type=292), **half),
        Case(mx, dynamic_mx_quant, lambda d: call(x(d, 40, 3), axis=0, dst_type=23), tag="rows", **half),
        Case(mx + "_with_dual_axis", dynamic_mx_quant_with_dual_axis, lambda d: call(x(d, 66, 33), dst_type=24), **one),
        Case(
            "npu_grouped_dynamic_mx_quant",
            grouped_dynamic_mx_quant,
            lambda d: call(x(d, 80, 3), torch.tensor([40, 80], dtype=torch.int32)),
            **one,
        ),
        Case("npu_dynamic_block_mx_quant", dynamic_block_mx_quant, lambda d: call(x(d, 40, 70), dst_type=292), **one),
        Case(
            "npu_rms_norm_dynamic_mx_quant",
            rms_norm_dynamic_mx_quant,
            lambda d: call(x(d, 3, 64), x(d, 64), dst_type=291),
            (F16,),
            outputs=(1, 2),
            dynamic=False,
        ),
        Case(
            "npu_add_rms_norm_dynamic_mx_quant",
            add_rms_norm_dynamic_mx_quant,
            lambda d: call(x(d, 3, 64), x(d, 3, 64), x(d, 64), dst_type=291),
            (F16,),
            outputs=(1, 2),
            dynamic=False,
        ),
        Case("npu_swiglu_mx_quant", swiglu_mx_quant, lambda d: call(x(d, 3, 64), dst_type=292), **one),
        Case("npu_dynamic_block_quant", dynamic_block_quant, lambda d: call(x(d, 5, 200), row_block_size=2), **one),
        Case(
            "npu_dynamic_block_quant",
            dynamic_block_quant,
            lambda d: call(x(d, 5, 200), dst_type=24, min_scale=1e3),
            tag="float8",
            **one,
        ),
        Case(
            "npu_add_rms_norm_dynamic_quant",
            add_rms_norm_dynamic_quant,
            lambda d: call(x(d, 3, 8), x(d, 3, 8), x(d, 8), smooth_scale1=rand(8).to(d), smooth_scale2=rand(8).to(d)),
            (F16,),
        ),
        Case(
            "npu_rms_norm_quant",
            rms_norm_quant,
            lambda d: call(
                x(d, 3, 8), x(d, 8), x(d, 8), torch.tensor([9.0]).to(d), torch.tensor([3], dtype=torch.int8)
            ),
            (F16,),
        ),
        Case("npu_trans_quant_param", trans_quant_param, lambda d: call(rand(6), rand(6) * 300), (F32,), dynamic=False),
        Case(
            "npu_sign_bits_unpack",
            sign_bits_unpack,
            lambda d: call(torch.tensor([159, 15, 7], dtype=torch.uint8), 2, d),
            (F32, F16),
            dynamic=False,
        ),
        Case("npu_convert_weight_to_int4pack", convert_weight_to_int4pack, lambda d: call(ints(-8, 8, 6, 16)), (F32,)),
        Case(
            "npu_weight_quant_batchmatmul",
            any_weight_quant_batchmatmul,
            lambda d: call(x(d, 3, 6), convert_weight_to_int4pack(ints(-8, 8, 6, 16)), rand(16).to(d), rand(16).to(d)),
            HALVES,
            tag="packs",
            dynamic=False,
        ),
        Case("npu_kronecker_quant", kronecker_quant, lambda d: call(x(d, 3, 4, 8), x(d, 4, 4), x(d, 8, 8), 0.9), **one),
        Case("npu_fused_matmul", fused_matmul, lambda d: call(x(d, 3, 4), x(d, 4, 5), fused_op_type="relu"), HALVES),
        Case(
            "npu_fused_matmul",
            fused_matmul,
            lambda d: call(x(d, 3, 4), x(d, 4, 5), x3=x(d, 3, 5), fused_op_type="add"),
            HALVES,
            tag="add",
        ),
        Case(
            "npu_quant_grouped_matmul_dequant",
            quant_grouped_matmul_dequant,
            lambda d: call(x(d, 7, 8), ints(-9, 9, 2, 6, 8, dtype=torch.int8), rand(2, 6), torch.tensor([3, 7])),
            (F16,),
            dynamic=False,
        ),
        Case(
            "npu_group_quant",
            group_quant,
            lambda d: call(x(d, 7, 8), rand(2, 8) * 20, torch.tensor([3, 7]), offset=torch.tensor([2.0])),
            (F32,),
        ),
        Case(
            "npu_quant_matmul_dequant",
            quant_matmul_dequant,
            lambda d: call(x(d, 7, 8), ints(-9, 9, 6, 8, dtype=torch.int8), rand(6)),
            (F16,),
            dynamic=False,
        ),
        Case(
            "npu_quant_matmul_reduce_sum",
            quant_matmul_reduce_sum,
            lambda d: call(
                ints(-9, 9, 3, 5, 8, dtype=torch.int8),
                ints(-9, 9, 3, 8, 6, dtype=torch.int8),
                x1_scale=rand(3, 5).abs(),
                x2_scale=rand(6).to(BF16),
            ),
            (BF16,),
            dynamic=False,
        ),
        Case(
            "npu_masked_softmax_with_rel_pos_bias",
            masked_softmax_with_rel_pos_bias,
            lambda d: call(x(d, 2, 3, 2, 5, 5), rand(3, 5, 5).to(d), rand(2, 5, 5).to(d), 0.5),
            (F32, *HALVES),
            dynamic=False,
        ),
        Case(
            "npu_gather_backward",
            gather_backward,
            lambda d: call(x(d, 3, 2), [3, 4], 1, torch.tensor([[0, 0], [3, 1], [2, 2]]), False),
            (F32, *HALVES),
        ),
        Case(
            "npu_grouped_matmul",
            any_grouped_matmul,
            lambda d: call(
                [quantised()[0]],
                [quantised()[1]],
                scale=[rand(2, 6).to(BF16)],
                per_token_scale=[rand(7)],
                group_list=torch.tensor([3, 4]),
                group_list_type=1,
                split_item=3,
                group_type=0,
                output_dtype=15,
            ),
            (BF16,),
            tag="scales of tokens",
            dynamic=False,
        ),
        Case(
            "npu_grouped_matmul_finalize_routing",
            grouped_matmul_finalize_routing,
            lambda d: call(
                *quantised(),
                torch.tensor([3, 4]),
                scale=rand(2, 6),
                pertoken_scale=rand(7),
                shared_input=rand(2, 6).to(BF16),
                logit=rand(7),
                row_index=torch.tensor([0, 3, 1, 1, 2, 0, 3]),
                shared_input_offset=1,
                output_bs=4,
            ),
            (F32,),
            dynamic=False,
        ),
        Case(
            "npu_grouped_matmul_swiglu_quant",
            grouped_matmul_swiglu_quant,
            lambda d: call(*quantised(), torch.tensor([3, 7]), rand(2, 6), rand(7)),
            (F32,),
            outputs=(0, 1),
            dynamic=False,
        ),
        Case(
            "npu_grouped_matmul_swiglu_quant_v2",
            grouped_matmul_swiglu_quant_v2,
            lambda d: call(quantised()[0], [quantised()[1]], [rand(2, 6)], rand(7), torch.tensor([3, 7])),
            (F32,),
            dynamic=False,
        ),
        Case(
            "npu_transpose_quant_batchmatmul",
            transpose_quant_batchmatmul,
            lambda d: call(
                x(d, 3, 2, 8).to(E4),
                x(d, 2, 8, 6).to(E4),
                15,
                x1_scale=rand(3),
                x2_scale=rand(6),
                perm_x1=[1, 0, 2],
                perm_x2=[0, 1, 2],
                perm_y=[1, 0, 2],
            ),
            (F32,),
            dynamic=False,
        ),
        Case(
            "npu_dequant_swiglu_quant",
            any_dequant_swiglu_quant,
            lambda d: call(ints(-99, 99, 7, 8), **swiglu()),
            (F32,),
            tag="groups",
            dynamic=False,
        ),
        Case(
            "npu_dequant_swiglu_quant",
            any_dequant_swiglu_quant,
            lambda d: call(ints(-9, 9, 7, 8), swiglu_mode=1, **swiglu()),
            (F32,),
            tag="clamped",
            dynamic=False,
        ),
        Case(
            "npu_mrope",
            mrope,
            lambda d: call(
                ints(0, 9, 5, dtype=torch.int64),
                x(d, 5, 24),
                x(d, 5, 12),
                rand(9, 8).to(d),
                12,
                rotary_mode="interleave",
            ),
            dynamic=False,
        ),
        Case(
            "npu_mrope",
            mrope,
            lambda d: call(
                ints(0, 9, 3, 5, dtype=torch.int64),
                x(d, 5, 24),
                x(d, 5, 12),
                rand(9, 12).to(d),
                12,
                mrope_section=[1, 2, 3],
            ),
            tag="sections",
            dynamic=False,
        ),
        Case(
            "npu_top_k_top_p",
            top_k_top_p,
            lambda d: call(x(d, 3, 20), torch.tensor([0.3, 0.9, 1.0]).to(d), ranks),
            dynamic=False,
        ),
        Case("npu_top_k_top_p", top_k_top_p, lambda d: call(x(d, 3, 20), torch.tensor([0.3, 0.9, 1.0]).to(d)), tag="p"),
        Case(
            "npu_lightning_indexer",
            lightning_indexer,
            lambda d: call(*indexer(d), sparse_count=5, return_value=True),
            HALVES,
            dynamic=False,
        ),
        Case(
            "npu_lightning_indexer",
            lightning_indexer,
            lambda d: call(
                x(d, 5, 4, 8),
                x(d, 4, 4, 1, 8),
                rand(5, 4).to(d),
                sparse_count=4,
                layout_query="TND",
                layout_key="PA_BSND",
                block_table=torch.tensor([[3, 1], [0, 2]], dtype=torch.int32),
                sparse_mode=0,
                return_value=True,
                actual_seq_lengths_query=torch.tensor([2, 5], dtype=torch.int32),
                actual_seq_lengths_key=torch.tensor([3, 6], dtype=torch.int32),
            ),
            (BF16,),
            tag="pages",
            dynamic=False,
        ),
        Case(
            "npu_quant_lightning_indexer",
            quant_lightning_indexer,
            lambda d: call(
                ints(-99, 99, 2, 3, 4, 8, dtype=torch.int8),
                ints(-99, 99, 2, 6, 1, 8, dtype=torch.int8),
                rand(2, 3, 4).to(d),
                torch.rand(2, 3, 4, generator=RANDOM).to(d),
                torch.rand(2, 6, 1, generator=RANDOM).to(d),
                0,
                0,
                sparse_count=4,
            ),
            (F16,),
            dynamic=False,
        ),
        Case(
            "npu_sparse_flash_attention",
            sparse_flash_attention,
            lambda d: call(*chosen(d)),
            HALVES,
            outputs=(0,),
            dynamic=False,
        ),
        Case(
            "npu_sparse_flash_attention",
            sparse_flash_attention,
            lambda d: call(
                *chosen(d),
                query_rope=x(d, 2, 2, 3, 4),
                key_rope=x(d, 2, 6, 1, 4),
                sinks=rand(3),
                sparse_mode=0,
                attention_mode=2,
            ),
            (BF16,),
            outputs=(0,),
            tag="rope and sinks",
            dynamic=False,
        ),
        Case(
            "npu_kv_quant_sparse_flash_attention",
            kv_quant_sparse_flash_attention,
            lambda d: call(*kv_rows(d), attention_mode=2, tile_size=16, rope_head_dim=8),
            (BF16,),
            dynamic=False,
        ),
        Case(
            "npu_chunk_gated_delta_rule",
            chunk_gated_delta_rule,
            lambda d: call(*qkv(d), initial_state=rand(2, 4, 6, 8).to(d), **states(d)),
            **one,
        ),
        Case(
            "npu_recurrent_gated_delta_rule_functional",
            recurrent_gated_delta_rule,
            lambda d: call(
                *qkv(d),
                rand(6, 4, 6, 8).to(d),
                ssm_state_indices=torch.tensor([4, 1, 0, 5, 3], dtype=torch.int32),
                num_accepted_tokens=torch.tensor([2, 1], dtype=torch.int32),
                gk=-torch.rand(5, 4, 8, generator=RANDOM),
                **states(d),
            ),
            **one,
        ),
        Case(
            "npu_recurrent_gated_delta_rule",
            recurrent_in_place,
            lambda d: call(
                *qkv(d),
                rand(6, 4, 6, 8).to(d),
                ssm_state_indices=torch.tensor([4, 1, 0, 5, 3], dtype=torch.int32),
                **states(d),
            ),
            **one,
        ),
        Case(
            "npu_mla_prolog",
            lambda *args, **_: mla_prolog(*args)[:4],
            lambda d: call(*prolog(d), slots, *caches(d)),
            (BF16,),
            dynamic=False,
        ),
        Case(
            "npu_mla_prolog_v2",
            mla_prolog_v2,
            lambda d: call(*prolog(d), slots, *caches(d)),
            (BF16,),
            outputs=(0, 1, 2, 3),
            dynamic=False,
        ),
        Case(
            "npu_mla_prolog_v3_functional",
            mla_prolog_v3_functional,
            lambda d: call(
                *prolog(d), *caches(d), cache_index=slots, query_norm_flag=True, qc_qr_scale=0.5, kc_scale=2.0
            ),
            (BF16,),
            outputs=(0, 1, 3, 5, 6),
            dynamic=False,
        ),
        Case(
            "npu_mla_prolog_v3",
            mla_prolog_v3,
            lambda d: call(*prolog(d), *caches(d), cache_index=slots),
            (BF16,),
            outputs=(0, 1),
            dynamic=False,
        ),
        Case(
            "npu_moe_re_routing",
            moe_re_routing,
            lambda d: call(x(d, 9, 4), torch.tensor([[2, 0, 1], [1, 3, 2]]), per_token_scales=rand(9)),
            HALVES,
            dynamic=False,
        ),
        Case(
            "npu_moe_distribute_dispatch",
            dispatch,
            lambda d: call(x(d, 3, 8), experts, *ep, quant_mode=2),
            HALVES,
            outputs=(0, 1, 3, 4),
            dynamic=False,
        ),
        Case(
            "npu_moe_distribute_dispatch_v2",
            dispatch_v2,
            lambda d: call(x(d, 3, 8), experts, *ep, x_active_mask=torch.tensor([True, True, False])),
            HALVES,
            outputs=(0, 1, 3, 4),
            dynamic=False,
        ),
        Case(
            "npu_moe_distribute_combine",
            combine,
            lambda d: call(x(d, 6, 8), experts, torch.zeros(6, dtype=torch.int32), counts, scales, *ep),
            HALVES,
            dynamic=False,
        ),
        Case(
            "npu_moe_distribute_combine_v2",
            combine,
            lambda d: call(
                x(d, 6, 8),
                torch.tensor([[0, 4], [1, 2], [3, 0]], dtype=torch.int32),
                torch.zeros(768, dtype=torch.int32),
                torch.tensor([2, 3, 4, 5], dtype=torch.int32),
                scales,
                *ep,
                ori_x=x(d, 3, 8),
                copy_expert_num=1,
                shared_expert_x=x(d, 3, 8),
            ),
            HALVES,
            dynamic=False,
        ),
        Case("npu_format_cast", format_cast, lambda d: call(x(d, 3, 8), 29)),
        Case("npu_format_cast.Tensor", format_cast, lambda d: call(x(d, 3, 8), x(d, 3, 8))),
        Case("_npu_format_cast.aclnn", format_cast, lambda d: call(x(d, 3, 8), 29, 0)),
        Case("_npu_format_cast.input_dtype", format_cast, lambda d: call(x(d, 3, 8), 29, 0, 0)),
    ]


CASES = _cases()
