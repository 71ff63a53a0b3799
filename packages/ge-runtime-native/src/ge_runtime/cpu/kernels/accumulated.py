"""Products added to what is there already, quantisation with the largest magnitude, matrices of hyper-connections."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.matmul import group_spans
from ge_runtime.cpu.kernels.numerics import FLOAT8, wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import torch_dtype
from ge_runtime.errors import refused

_BLOCK: Final = 32


def _scale(op: str, value: Tensor | None, group: int = 0, count: int = 1) -> Tensor | float:
    """The one scale of a product, or of one of several."""
    if value is None:
        return 1.0
    if value.numel() not in (1, count):
        raise refused(op, f"a scale {list(value.shape)} for {count} products", "accepted: one, or one for each")
    return wide(value).reshape(-1)[group if value.numel() > 1 else 0]


@kernel("GroupedMatmulAdd", host=("group_list",), updates=("y",), source="ops-transformer: gmm/grouped_matmul_add")
def grouped_matmul_add(
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    y: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int = 0,
) -> Tensor:
    """``y[g] += x[rows of g].T @ weight[rows of g]``; x (K, M), weight (K, N), y (groups, M, N) or (groups * M, N)."""
    op = "GroupedMatmulAdd"
    if not transpose_x or transpose_weight or group_type != 2 or group_list_type not in (0, 1):
        raise refused(
            op,
            f"transpose_x {transpose_x}, transpose_weight {transpose_weight}, group_type {group_type}, "
            f"group_list_type {group_list_type}",
            "accepted: True, False, 2; 0 and 1",
        )
    spans = list(group_spans(group_list, group_list_type))
    if any(end > x.shape[0] for _, _, end in spans):
        raise refused(op, f"groups of {spans[-1][2]} rows, x has {x.shape[0]}")
    flat = y.view(len(group_list), -1, weight.shape[-1])
    for group, start, end in spans:
        flat[group] += wide(x[start:end]).T @ wide(weight[start:end])
    return y


@kernel("QuantBatchMatmulInplaceAdd", updates=("y",), source="ops-nn: matmul/quant_batch_matmul_inplace_add")
def quant_batch_matmul_inplace_add(
    x1: Tensor,
    x2: Tensor,
    x2_scale: Tensor,
    y: Tensor,
    x1_scale: Tensor | None = None,
    *,
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    group_size: int = 0,
) -> Tensor:
    """``y += (x1 @ x2) * x1_scale * x2_scale`` of 8-bit floats, with one scale for each operand."""
    op = "QuantBatchMatmulInplaceAdd"
    if group_size or x1.dtype not in FLOAT8 or x2.dtype not in FLOAT8:
        raise refused(op, f"{x1.dtype} and {x2.dtype}, group_size {group_size}", "accepted: 8-bit floats, 0")
    a, b = (x.mT if turned else x for x, turned in ((wide(x1), transpose_x1), (wide(x2), transpose_x2)))
    y += a @ b * _scale(op, x1_scale) * _scale(op, x2_scale)
    return y


@kernel(
    "QuantGroupedMatmulInplaceAdd",
    host=("group_list",),
    updates=("y",),
    source="ops-transformer: gmm/quant_grouped_matmul_inplace_add",
)
def quant_grouped_matmul_inplace_add(
    x1: Tensor,
    x2: Tensor,
    scale2: Tensor,
    group_list: Tensor,
    y: Tensor,
    scale1: Tensor | None = None,
    *,
    group_list_type: int = 0,
    group_size: int = 0,
) -> Tensor:
    """``y[g] += x1[rows of g].T @ x2[rows of g] * scale1[g] * scale2[g]``; x1 (K, M), x2 (K, N), y (groups, M, N)."""
    op = "QuantGroupedMatmulInplaceAdd"
    if group_size or x1.dtype not in FLOAT8 or x2.dtype not in FLOAT8:
        raise refused(op, f"{x1.dtype} and {x2.dtype}, group_size {group_size}", "accepted: 8-bit floats, 0")
    count = len(group_list)
    for group, start, end in group_spans(group_list, group_list_type):
        scale = _scale(op, scale1, group, count) * _scale(op, scale2, group, count)
        y[group] += wide(x1[start:end]).T @ wide(x2[start:end]) * scale
    return y


@kernel("QuantMax", source="ops-nn: quant/quant_max, documentation")
def quant_max(x: Tensor, scale: Tensor, *, round_mode: str = "rint", dst_type: int = 35) -> tuple[Tensor, Tensor]:
    """(``x * scale`` as an 8-bit float, the largest magnitude of x)."""
    if round_mode != "rint" or dst_type not in (35, 36):
        raise refused(
            "QuantMax",
            f"round_mode is {round_mode!r}, dst_type {dst_type}",
            "accepted: rint; 35 (float8_e5m2), 36 (float8_e4m3fn)",
        )
    dtype = torch_dtype(dst_type)
    limit = torch.finfo(dtype).max
    return (wide(x) * scale).clamp(-limit, limit).to(dtype), x.abs().amax().reshape(1)


@kernel("AntiMxQuant", source="ops-nn: quant/anti_mx_quant, documentation")
def anti_mx_quant(x: Tensor, mxscale: Tensor, *, axis: int = -1, dst_type: int = 27) -> Tensor:
    """Each 32 elements of the last axis times their power of two; mxscale (.., pairs of blocks, 2)."""
    if x.dtype not in FLOAT8 or axis not in (-1, x.dim() - 1):
        raise refused("AntiMxQuant", f"{x.dtype} along axis {axis}", "accepted: 8-bit floats, along the last axis")
    scale = mxscale.float().flatten(-2).repeat_interleave(_BLOCK, -1)[..., : x.shape[-1]]
    return (x.float() * scale).to(torch_dtype(dst_type))


@kernel("MhcSinkhorn", source="ops-transformer: mhc/mhc_sinkhorn, documentation")
def mhc_sinkhorn(
    h_res: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices whose rows and columns have nearly the sum 1; of the steps on the way nothing is kept."""
    if out_flag:
        raise refused("MhcSinkhorn", f"out_flag is {out_flag}", "accepted: 0")
    if not 1 <= num_iters <= 100:  # the documentation's limits; a graph's number alone must not hold the host
        raise refused("MhcSinkhorn", f"num_iters is {num_iters}", "accepted: 1 to 100")
    y = h_res.softmax(-1) + eps
    y = y / (y.sum(-2, keepdim=True) + eps)
    for _ in range(num_iters - 1):
        y = y / (y.sum(-1, keepdim=True) + eps)
        y = y / (y.sum(-2, keepdim=True) + eps)
    return y, y.new_empty(0), y.new_empty(0)
