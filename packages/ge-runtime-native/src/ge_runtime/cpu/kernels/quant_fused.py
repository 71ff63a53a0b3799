"""Quantisation in one operator with what stands before it: norms, products, gates; and packed signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ge_runtime.cpu.kernels.matmul import group_spans, product
from ge_runtime.cpu.kernels.norm import rms_norm_of_rows
from ge_runtime.cpu.kernels.numerics import FLOAT8, saturate, wide
from ge_runtime.cpu.kernels.quant import symmetric
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import torch_dtype
from ge_runtime.errors import refused

_INT8: Final = 2


@kernel("RmsNormQuant", ignores=("high_precision_mode",), source="ops-nn: norm/rms_norm_quant, documentation")
def rms_norm_quant(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    scale: Tensor,
    offset: Tensor,
    *,
    epsilon: float,
    gemma_mode: bool = False,
    dst_type: int = _INT8,
) -> Tensor:
    """``round((rms_norm(x) * gamma + beta) * scale + offset)``, saturated to int8."""
    if gemma_mode or dst_type != _INT8:
        raise refused("RmsNormQuant", f"gemma_mode, or dst_type {dst_type}", "accepted: dst_type 2 (int8)")
    y, _ = rms_norm_of_rows(x, gamma, epsilon)
    y = y + wide(beta)
    return saturate(y * wide(scale) + offset.float(), torch.int8)


@kernel("FlatQuant", source="ops-nn: quant/flat_quant, documentation")
def flat_quant(
    x: Tensor,
    kronecker_p1: Tensor,
    kronecker_p2: Tensor,
    group_list: Tensor | None = None,
    *,
    clip_ratio: float = 1.0,
    dst_dtype: int = 3,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(int4 values, scale of each slice): ``p1 @ (x @ p2)``, scale = max * clip_ratio / 7."""
    if dst_dtype != 3 or dst_type_max:
        raise refused("FlatQuant", f"dst_dtype {dst_dtype}, dst_type_max {dst_type_max}", "accepted: 3 (int4), 0")
    t = wide(kronecker_p1) @ (wide(x) @ wide(kronecker_p2))
    scale = t.abs().amax((1, 2)) * clip_ratio / 7
    q = torch.where(scale.reshape(-1, 1, 1) > 0, t / scale.reshape(-1, 1, 1), torch.zeros_like(t))
    return torch.round(q).clamp(-8, 7).to(torch.int8), scale


def _swiglu_groups(
    op: str,
    x: Tensor,
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    kind: int,
) -> tuple[Tensor, Tensor]:
    """(y int8, y_scale): ``(x_g @ w_g) * x_scale * weight_scale``, silu of the first half times the second."""
    if x.dtype != torch.int8 or weights[0].dtype != torch.int8 or kind not in (0, 1):
        raise refused(op, f"{x.dtype} rows, {weights[0].dtype} weights, group_list_type {kind}", "accepted: int8; 0, 1")
    width = weights[0].shape[-1]
    y, y_scale = torch.zeros(x.shape[0], width // 2, dtype=torch.int8), torch.zeros(x.shape[0])
    for g, start, end in group_spans(group_list, kind):
        acc = product(x[start:end], weights[g]).float()
        acc = acc * wide(scales[g]).reshape(1, -1) * x_scale[start:end].reshape(-1, 1)
        a, b = acc.chunk(2, -1)
        y[start:end], y_scale[start:end] = symmetric(functional.silu(a) * b, torch.int8)
    return y, y_scale


@kernel(
    "GroupedMatmulSwigluQuant",
    ignores=("is_enable_weight_assistance_matrix",),
    source="ops-transformer: gmm/grouped_matmul_swiglu_quant, documentation",
)
def grouped_matmul_swiglu_quant(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    weight_assistance_matrix: Tensor | None,
    group_list: Tensor,
) -> tuple[Tensor, Tensor]:
    """(y, y_scale) of int8 rows and weights (groups, K, N); rows end at ``group_list``, those after are zero."""
    op = "GroupedMatmulSwigluQuant"
    if weight_assistance_matrix is not None:
        raise refused(op, "weight_assistance_matrix belongs to int4 weights", "leave it out")
    return _swiglu_groups(op, x, list(weight), list(weight_scale), x_scale, group_list, 0)


@kernel("GroupedMatmulSwigluQuantV2", source="ops-transformer: gmm/grouped_matmul_swiglu_quant_v2, documentation")
def grouped_matmul_swiglu_quant_v2(
    x: Tensor,
    x_scale: Tensor,
    group_list: Tensor,
    weight: Sequence[Tensor],
    weight_scale: Sequence[Tensor],
    weight_assist_matrix: Sequence[Tensor] = (),
    bias: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    *,
    transpose_weight: bool = False,
    group_list_type: int = 0,
) -> tuple[Tensor, Tensor]:
    """As the first version, of one stacked weight or of a list of them."""
    op = "GroupedMatmulSwigluQuantV2"
    if len(weight_assist_matrix) or bias is not None or smooth_scale is not None:
        raise refused(op, "weight_assist_matrix, bias or smooth_scale", "leave them out")
    weights = list(weight[0]) if len(weight) == 1 else list(weight)
    scales = list(weight_scale[0]) if len(weight_scale) == 1 else list(weight_scale)
    weights = [w.mT for w in weights] if transpose_weight else weights
    return _swiglu_groups(op, x, weights, scales, x_scale, group_list, group_list_type)


@kernel("TransposeQuantBatchMatMul", source="ops-nn: matmul/transpose_quant_batch_mat_mul, documentation")
def transpose_quant_batch_matmul(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    *,
    dtype: int,
    group_size: int = 0,
    perm_x1: Sequence[int] = (1, 0, 2),
    perm_x2: Sequence[int] = (0, 1, 2),
    perm_y: Sequence[int] = (1, 0, 2),
    batch_split_factor: int = 1,
) -> Tensor:
    """``(x1 @ x2) * x1_scale (rows) * x2_scale (columns)`` of 8-bit floats, batch by batch."""
    op = "TransposeQuantBatchMatMul"
    fine = x1.dtype in FLOAT8 and x2.dtype in FLOAT8 and x1_scale is not None and x2_scale is not None
    if not fine or bias is not None or group_size or batch_split_factor != 1:
        raise refused(op, "accepted: float8 operands with float32 scales of rows and columns, no bias, no groups")
    a, b = wide(x1).permute(tuple(perm_x1)), wide(x2).permute(tuple(perm_x2))
    rows, columns = wide(x1_scale), wide(x2_scale)  # type: ignore[arg-type]
    if rows.dtype != torch.float32 or rows.dim() != 1 or columns.dim() != 1:
        raise refused(op, "scales of blocks", "accepted: float32 (M) and (N)")
    y = (a @ b) * rows.reshape(1, -1, 1) * columns
    return y.permute(tuple(perm_y)).to(torch_dtype(dtype))


@kernel("SignBitsUnpack", source="torch_npu: npu_sign_bits_unpack, documentation")
def sign_bits_unpack(x: Tensor, *, size: int, dtype: int) -> Tensor:
    """Each bit as 1 or -1, the lowest of a byte first: (size, 8 n / size)."""
    if x.numel() * 8 % max(size, 1):
        raise refused("SignBitsUnpack", f"{x.numel() * 8} bits do not divide by size {size}")
    bits = (x.reshape(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return (bits.to(torch.int8) * 2 - 1).reshape(size, -1).to(torch_dtype(dtype))


@kernel("SignBitsPack", source="torch_npu: npu_sign_bits_pack, documentation")
def sign_bits_pack(x: Tensor, *, size: int) -> Tensor:
    """A bit for each element that is not negative, the lowest of a byte first: (size, ceil(n / 8) / size)."""
    count = -(-x.numel() // 8)
    if size < 1 or count % size:
        raise refused("SignBitsPack", f"{count} bytes do not divide by size {size}")
    bits = torch.nn.functional.pad((x.reshape(-1) >= 0).to(torch.uint8), (0, count * 8 - x.numel())).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8).view(size, -1)
