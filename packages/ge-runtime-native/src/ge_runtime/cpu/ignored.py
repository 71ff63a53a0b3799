"""Ports and attributes that operators have and that say nothing about the values which the engine computes.

What a kernel never reads must stand here or in its ``ignores``; the engine refuses it otherwise (``planner``).
"""

from __future__ import annotations

from typing import Final

# Reason: operator to names.
REASONS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "says whether a further output is wanted; the engine always computes it": {
        "AddLayerNorm": ("additional_output",),
        "InplaceAddLayerNorm": ("additional_output",),
        "KvRmsNormRopeCache": ("is_output_kv",),
        "MoeGatingTopK": ("out_flag",),
        "MoeGatingTopKSoftmaxV2": ("output_softmax_result_flag",),
        "MoeInitRoutingV3": ("expert_tokens_num_flag",),
        "ReduceStdV2": ("is_mean_out",),
        "ReduceVar": ("is_mean_out",),
        "UniqueConsecutive": ("return_idx", "return_counts"),
    },
    "follows from the other operands": {
        "Einsum": ("N",),
        "GeluGrad": ("y",),
        "HcomAllGatherV": ("send_count",),
        "HcomReduceScatterV": ("recv_count",),
        "IndexPutV2": ("indexed_strides",),
        "MaxPool3DGrad": ("orig_y",),
        "MaxPoolGrad": ("x2",),
        "MaxPoolV3Grad": ("orig_output",),
        "SwishGrad": ("y",),
    },
    "is what the forward operator kept for itself; its output is empty here": {
        "BatchNormGrad": ("reserve_space_3",),
        "FlashAttentionScoreGrad": ("softmax_in",),
    },
    "chooses between speed and precision; the engine computes in float32": {
        "FusedMatMul": ("enable_hf32",),
        "GroupedMatmul": ("tuning_config",),
        "GroupedMatmulSwigluQuantV2": ("tuning_config",),
        "MaskedSoftmaxWithRelPosBias": ("inner_precision_mode",),
        "TransposeBatchMatMul": ("enable_hf32",),
    },
    "chooses which random numbers are drawn; the engine's are torch's": {
        "StatelessDropOutGenMask": ("seed1",),
        "StatelessRandomNormalV2": ("alg",),
        "StatelessRandomUniformIntV2": ("alg",),
        "StatelessRandomUniformV2": ("alg",),
    },
    "names memory to be brought near; values do not move": {
        "Cmo": ("src",),
    },
    "has one meaning in the operator's documentation: x is (n, c, ..), statistics are those of x": {
        "GroupNorm": ("data_format", "is_training"),
        "GroupNormGrad": ("data_format",),
        "GroupNormV2": ("data_format", "is_training"),
    },
    "is not applied by the operator: its result is one loss a sequence": {
        "CTCLossV2": ("reduction",),
        "CTCLossV2Grad": ("reduction",),
    },
    "counts only with drop_pad_mode 1, which is refused": {
        "MoeInitRoutingV3": ("expert_capacity",),
    },
}


def names(op: str) -> tuple[str, ...]:
    """What an operator has without influence on the values."""
    return tuple(name for ops in REASONS.values() for name in ops.get(op, ()))
