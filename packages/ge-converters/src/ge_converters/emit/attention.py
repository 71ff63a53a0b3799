"""Attention out of single products, for sizes that the attributes of the fused operator cannot hold."""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.shapes import axis_size, places
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
Saved: TypeAlias = "tuple[Tensor, Tensor, Tensor, Tensor, Tensor]"


def no_dropout(dropout_p: float) -> None:
    """Refuse dropout inside attention."""
    if dropout_p:
        raise Refusal(
            f"dropout_p={dropout_p}: the random mask of fused attention is not torch's; "
            "use dropout_p=0 or the unfused form (torch.nn.attention.sdpa_kernel(SDPBackend.MATH))"
        )


def _factor(query: Tensor, scale: float | None) -> Tensor:
    if scale is not None:
        return ge.Const(scale, dtype=_F32)
    result: Tensor = ge.Rsqrt(cast(axis_size(query, 3), _F32))
    return result


def _scores(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(float32 scores, factor of the products)."""
    factor = _factor(query, scale)
    scores: Tensor = ge.Mul(ge.BatchMatMulV2(cast(query, _F32), cast(key, _F32), adj_x2=True), factor)
    hidden = None
    if is_causal:
        hidden = ge.Greater(places(axis_size(key, 2), 1), places(axis_size(query, 2), 0))
    elif attn_mask is not None and attn_mask.dtype == DataType.DT_BOOL:
        hidden = ge.LogicalNot(attn_mask)
    elif attn_mask is not None:
        scores = ge.Add(scores, cast(attn_mask, _F32))
    if hidden is not None:
        scores = ge.SelectV2(hidden, ge.Const(-math.inf, dtype=_F32), scores)
    return scores, factor


def composed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """(result, log of the sum of exponentials) in float32 of [b, heads, rows, width] operands, heads equal."""
    no_dropout(dropout_p)
    scores, _ = _scores(query, key, attn_mask, is_causal, scale)
    result = ge.BatchMatMulV2(ge.SoftmaxV2(scores, axes=[-1]), cast(value, _F32))
    top = ge.ReduceMax(scores, [-1], keep_dims=True)
    total = ge.ReduceSum(ge.Exp(ge.Sub(scores, top)), [-1], keep_dims=False)
    lse = ge.Add(ge.Squeeze(top, axis=[-1]), ge.Log(total))
    return result, lse


def composed_attention_gradient(
    grad: Tensor, saved: Saved, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value in float32; ``saved`` is (query, key, value, result, logsumexp)."""
    no_dropout(dropout_p)
    query, key, value, out, logsumexp = saved
    scores, factor = _scores(query, key, attn_mask, is_causal, scale)
    probability = ge.Exp(ge.Sub(scores, ge.Unsqueeze(cast(logsumexp, _F32), axes=[-1])))
    dy = cast(grad, _F32)
    share = ge.ReduceSum(ge.Mul(dy, cast(out, _F32)), [-1], keep_dims=True)
    inner = ge.Sub(ge.BatchMatMulV2(dy, cast(value, _F32), adj_x2=True), share)
    change = ge.Mul(ge.Mul(probability, inner), factor)
    dq = ge.BatchMatMulV2(change, cast(key, _F32))
    dk = ge.BatchMatMulV2(change, cast(query, _F32), adj_x1=True)
    dv = ge.BatchMatMulV2(probability, dy, adj_x1=True)
    return dq, dk, dv
