"""Attention out of single products, for sizes that the attributes of the fused operator cannot hold."""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.shapes import axis_size, places, shape_operand
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


def _with_heads_of(query: Tensor, x: Tensor) -> Tensor:
    """Key or value with each head repeated for the query heads that share it (grouped-query attention)."""
    heads, own = query.known_shape, x.known_shape
    if heads is not None and own is not None and heads[1] == own[1]:
        return x
    count, rows, width = (axis_size(x, i) for i in (1, 2, 3))
    group = ge.FloorDiv(axis_size(query, 1), count)
    wide = ge.BroadcastTo(ge.Unsqueeze(x, axes=[2]), shape_operand([axis_size(x, 0), count, group, rows, width]))
    result: Tensor = ge.Reshape(wide, shape_operand([0, -1, rows, width]))
    return result


def _summed_heads(gradient: Tensor, x: Tensor, query: Tensor) -> Tensor:
    """The gradient of key or value from that of its repeated heads."""
    heads, own = query.known_shape, x.known_shape
    if heads is not None and own is not None and heads[1] == own[1]:
        return gradient
    count, rows, width = (axis_size(x, i) for i in (1, 2, 3))
    apart = ge.Reshape(gradient, shape_operand([axis_size(x, 0), count, -1, rows, width]))
    result: Tensor = ge.ReduceSum(apart, [2], keep_dims=False)
    return result


def log_sum(top: Tensor, total: Tensor) -> Tensor:
    """Row maximum + log(row sum). A row that sees no key has sum 0, any other at least 1: eager gives it 0 here."""
    result: Tensor = ge.Add(top, ge.Log(ge.Maximum(total, ge.Const(1.0, dtype=_F32))))
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
    """(result, log of the sum of exponentials) in float32 of [b, heads, rows, width] operands, heads may be grouped."""
    no_dropout(dropout_p)
    key, value = _with_heads_of(query, key), _with_heads_of(query, value)
    scores, _ = _scores(query, key, attn_mask, is_causal, scale)
    top = ge.ReduceMax(scores, [-1], keep_dims=True)
    if attn_mask is not None:  # a row that sees no key gives zeros, where a softmax of -inf alone is NaN
        nothing = ge.Const(-math.inf, dtype=_F32)
        top = ge.SelectV2(ge.Equal(top, nothing), ge.Const(0.0, dtype=_F32), top)
    share = ge.Exp(ge.Sub(scores, top))
    total = ge.ReduceSum(share, [-1], keep_dims=True)
    weights = ge.Div(share, ge.Maximum(total, ge.Const(1.0, dtype=_F32)))
    result = ge.BatchMatMulV2(weights, cast(value, _F32))
    return result, ge.Squeeze(log_sum(top, total), axis=[-1])


def composed_attention_gradient(
    grad: Tensor, saved: Saved, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value in float32; ``saved`` is (query, key, value, result, logsumexp)."""
    no_dropout(dropout_p)
    query, narrow_key, narrow_value, out, logsumexp = saved
    key, value = _with_heads_of(query, narrow_key), _with_heads_of(query, narrow_value)
    scores, factor = _scores(query, key, attn_mask, is_causal, scale)
    probability = ge.Exp(ge.Sub(scores, ge.Unsqueeze(cast(logsumexp, _F32), axes=[-1])))
    dy = cast(grad, _F32)
    share = ge.ReduceSum(ge.Mul(dy, cast(out, _F32)), [-1], keep_dims=True)
    inner = ge.Sub(ge.BatchMatMulV2(dy, cast(value, _F32), adj_x2=True), share)
    change = ge.Mul(ge.Mul(probability, inner), factor)
    dq = ge.BatchMatMulV2(change, cast(key, _F32))
    dk = ge.BatchMatMulV2(change, cast(query, _F32), adj_x1=True)
    dv = ge.BatchMatMulV2(probability, dy, adj_x1=True)
    return dq, _summed_heads(dk, narrow_key, query), _summed_heads(dv, narrow_value, query)
