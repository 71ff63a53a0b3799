"""Ops that GE cannot express, with the reason: one row per op.

They stand here so that the message names the op that the user wrote and says what is missing, and so that torch's own
decompositions into prims, which have no GE form either, are not tried.
"""

from __future__ import annotations

from typing import Final

import torch

from ge_converters.registry import define_refusal

_HOST: Final = (
    "compute it on the host before the compiled function, or register a converter with an operator of your own"
)

# Reason, and the ops that it holds for; an op without overload stands for all its functional overloads.
REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "GE has Qr, which gives the factors themselves, no operator for Householder reflectors; use torch.linalg.qr": (
        "geqrf",
    ),
    f"GE has SelfAdjointEig for symmetric matrices, no operator for eigenvalues of general ones; {_HOST}": (
        "linalg_eig",
        "_linalg_eigvals",
    ),
    f"GE has no operator for the LDL factorisation; use torch.linalg.solve, or {_HOST}": (
        "linalg_ldl_factor_ex",
        "linalg_ldl_solve",
    ),
    f"GE has no operator that hashes the bits of a tensor; {_HOST}": ("hash_tensor",),
    "GE has no type of elements with a scale; use fake quantisation, or convert_pt2e, whose programs hold int8 and "
    "scales apart": ("quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel", "dequantize"),
    "GE knows dense tensors only; keep sparse tensors outside the compiled function": (
        "_to_sparse",
        "_spdiags",
        "_convert_indices_from_csr_to_coo",
        "_convert_indices_from_coo_to_csr",
    ),
    f"GE has no operator for derivatives of the incomplete beta function; {_HOST}": ("_dirichlet_grad",),
    "the layout of a packed sequence depends on lengths that are values of a tensor; pass the padded sequence with its "
    "lengths as a mask": ("_pack_padded_sequence",),
    "its int4 weights are packed for kernels of the CPU; use torch.ops.npu.npu_weight_quant_batchmatmul, or "
    "_weight_int8pack_mm": (
        "_convert_weight_to_int4pack_for_cpu",
        "_weight_int4pack_mm_for_cpu",
        "_dyn_quant_pack_4bit_weight",
        "_dyn_quant_matmul_4bit",
    ),
    "GE's products of float8 take other scales than torch's; use torch.ops.npu.npu_quant_matmul": (
        "_scaled_mm",
        "_scaled_mm_v2",
    ),
    "its keys are advanced by an algorithm of its own, and GE's generators have none; call torch.rand or torch.randn": (
        "_philox_uniform",
        "_philox_normal",
    ),
    "GE's FlashAttentionScoreGrad reads the maximum and the sum of each row, of which this operator has only the "
    "logarithm; use scaled_dot_product_attention": ("_scaled_dot_product_fused_attention_overrideable_backward",),
    "the gradient of an interpolation by Lanczos windows has no GE operator; use antialias with bilinear or bicubic": (
        "_upsample_lanczos2d_aa_backward",
    ),
    "GE has HistogramV2, which counts in int32 without weights and gives no edges; use torch.histc, or "
    "torch.bucketize and torch.bincount": (
        "histogram",
        "_histogramdd_bin_edges",
        "_histogramdd_from_bin_cts",
        "_histogramdd_from_bin_tensors",
    ),
}


def _install() -> None:
    for reason, names in REFUSED.items():
        for name in names:
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():  # torch 2.6 lacks some of them
                target = getattr(packet, overload)
                if not target._schema.is_mutable and not any(a.is_out for a in target._schema.arguments):
                    define_refusal(target, reason, module=__name__, source="no GE operator", title=str(target._schema))


_install()
