"""Scaled dot product attention as one GE operator, and its gradient."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, Support
from ge_converters.emit.attention import composed_attention, composed_attention_gradient, log_sum, no_dropout
from ge_converters.emit.compute_types import need_floats
from ge_converters.emit.shapes import axis_size, shape_operand
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec, current_graph
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_TEMPLATE: Final = 2048  # side of the compressed mask that sparse modes 2 to 4 demand
_REPEATS: Final = 8  # softmax_max and softmax_sum repeat each value this often
Masks: TypeAlias = "tuple[Tensor | None, Tensor | None, int]"


@lru_cache(maxsize=1)
def _causal_template() -> np.ndarray[Any, Any]:
    return np.triu(np.ones((_TEMPLATE, _TEMPLATE), np.bool_), 1)


def _hidden(seen: Tensor) -> Tensor:
    """GE masks say what is hidden, torch masks what is seen; all layers of a model share one inverted mask."""
    known: dict[Tensor, Tensor] = current_graph().memo.setdefault("inverted masks", {})
    mask = known.get(seen)
    if mask is None:
        mask = known[seen] = ge.LogicalNot(seen)
        mask.record_shape(seen.known_shape)
    return mask


def _number(x: Any, wanted: float) -> bool:
    """Whether an operand is a constant of this one value."""
    if not isinstance(x, Tensor) or x.node.op != "Const":
        return False
    value = x.node.attr("value")
    return isinstance(value, np.ndarray) and value.size == 1 and float(value.reshape(-1)[0]) == wanted


def _seen(mask: Tensor) -> Tensor | None:
    """The boolean mask that torch turned into 0 where it is true and -inf where it is not; None for a real bias."""
    if mask.dtype == DataType.DT_BOOL:
        return mask
    node = mask.node
    if node.op == "Cast" and isinstance(node.inputs[0], Tensor):
        node = node.inputs[0].node
    if node.op != "SelectV2":
        return None
    condition, then, other = node.inputs
    if isinstance(condition, Tensor) and _number(then, 0.0) and _number(other, -math.inf):
        return condition
    return None


def _is_one(x: Tensor, axis: int) -> bool:
    """Whether a size is 1. torch specialises on sizes 1, so this holds for every run of the graph."""
    shape = x.known_shape
    return shape is not None and shape[axis] == 1


def _stretched(mask: Tensor, rank: int, axis: int, size: Any) -> Tensor:
    """``mask`` with an axis of size 1 stretched to ``size``."""
    sizes: list[Any] = [-1] * rank
    sizes[axis] = size
    result: Tensor = ge.BroadcastTo(mask, shape_operand(sizes))
    return result


def _masks(query: Tensor, heads: int, attn_mask: Tensor | None, is_causal: bool, rows: Any) -> Masks:
    """(real_shift, atten_mask, sparse_mode)."""
    if is_causal:
        return None, ge.Const(_causal_template(), readable=False), 2
    if attn_mask is None:
        return None, None, 0
    seen = _seen(attn_mask)
    mask = attn_mask if seen is None else seen
    rank = mask.rank
    if rank not in (2, 3, 4):
        raise Refusal(f"attn_mask has rank {rank}, FlashAttentionScore takes [.., queries, keys] of rank 2 to 4")
    if rank == 3:
        mask = ge.Unsqueeze(mask, axes=[0])
    if seen is not None:
        if _is_one(seen, -2) and rows != 1:
            wide = rows if isinstance(rows, int) else axis_size(query, 2)
            return None, _hidden(_stretched(mask, max(rank, 4) if rank != 2 else 2, -2, wide)), 0
        return None, _hidden(mask), 0
    bias = cast(mask, query.dtype)
    if rank == 2:
        bias = ge.Unsqueeze(bias, axes=[0, 1])
    if heads != 1 and (rank < 4 or _is_one(attn_mask, 1)):
        bias = _stretched(bias, 4, 1, heads)
    return bias, None, 0


def _fits_attributes(spec: TensorSpec) -> bool:
    """Whether head count and width are numbers; GE holds them in attributes."""
    return isinstance(spec.size[1], int) and isinstance(spec.size[3], int)


def _attrs(spec: TensorSpec, scale: float | None, mode: int, dropout_p: float, masked: bool) -> dict[str, Any]:
    """``masked``: whether the user's mask may hide all keys from a row, which inner_precise 2 provides for."""
    no_dropout(dropout_p)
    if scale is None:
        scale = 1.0 / math.sqrt(int(spec.size[3]))
    far = 2**31 - 1
    return {
        "scale_value": float(scale),
        "keep_prob": 1.0,
        "pre_tockens": far,
        "next_tockens": far,
        "head_num": int(spec.size[1]),
        "input_layout": "BNSD",
        "inner_precise": 2 if masked else 0,
        "sparse_mode": mode,
        "pse_type": 0,
    }


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    spec: TensorSpec,
) -> tuple[Tensor, Tensor]:
    """(result, log of the sum of exponentials of the scores) of [b, heads, rows, width] operands."""
    need_floats("FlashAttentionScore", query, key, value)
    if not _fits_attributes(spec):
        return composed_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    heads = int(spec.size[1])
    bias, mask, mode = _masks(query, heads, attn_mask, is_causal, spec.size[2])
    top, total, _, result = ge.FlashAttentionScore(
        query, key, value, bias, None, None, mask, **_attrs(spec, scale, mode, dropout_p, attn_mask is not None)
    )
    first = ge.Const(0, dtype=DataType.DT_INT64)
    last = ge.Const(-1, dtype=DataType.DT_INT64)
    return result, log_sum(ge.GatherV2(top, first, last), ge.GatherV2(total, first, last))


def attention_gradient(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    spec: TensorSpec,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value. exp(score - logsumexp) is the probability, so the row sum fed is one."""
    need_floats("FlashAttentionScoreGrad", grad, query, key, value)
    if not _fits_attributes(spec):
        saved = (query, key, value, out, logsumexp)
        return composed_attention_gradient(grad, saved, attn_mask, dropout_p, is_causal, scale)
    heads = int(spec.size[1])
    bias, mask, mode = _masks(query, heads, attn_mask, is_causal, spec.size[2])
    top = ge.BroadcastTo(ge.Unsqueeze(cast(logsumexp, _F32), axes=[-1]), [-1, -1, -1, _REPEATS])
    dq, dk, dv, _ = ge.FlashAttentionScoreGrad(
        query,
        key,
        value,
        grad,
        bias,
        None,
        None,
        mask,
        top,
        ge.OnesLike(top),
        None,
        out,
        **_attrs(spec, scale, mode, dropout_p, attn_mask is not None),
    )
    return dq, dk, dv


def _qkv(make: Any, keys: int = 5) -> tuple[Any, Any, Any]:
    return make(2, 4, 5, 8), make(2, 4, keys, 8), make(2, 4, keys, 8)


_HALF = {F16: (2e-3, 1e-3), BF16: (1.6e-2, 4e-3)}
_CASES = [
    Support(*_qkv(F32)),
    # Eager rounds the probabilities of halves; forms that read the statistics, or have symbolic sizes, keep float32.
    *(Support(*_qkv(m)).within(*_HALF[m]) for m in (F16, BF16)),
    *(Support(*_qkv(m)).within(*_HALF[m]).only(0) for m in (F16, BF16)),
    Support(*_qkv(F32), 0.0, True),
    Support(*_qkv(BF16), 0.0, True).within(*_HALF[BF16]).only(0),
    Support(*_qkv(F32, 7), 0.0, True),
    Support(*_qkv(F32), scale=0.3),
    Support(*_qkv(F32, 7), attn_mask=F32(5, 7)),
    Support(*_qkv(F32, 7), attn_mask=F32(2, 4, 5, 7)),
    Support(*_qkv(F32, 7), attn_mask=F32(2, 1, 5, 7), scale=0.3),
    Support(*_qkv(F32, 7), attn_mask=F32(1, 1, 5, 7)),
    Support(*_qkv(F16, 7), attn_mask=F16(2, 1, 5, 7)).within(*_HALF[F16]),
    Support(F32(1, 1, 5, 8), F32(1, 1, 5, 8), F32(1, 1, 5, 8), attn_mask=F32(5, 5)),
]


@declare_supported(_CASES)
@register_fx_node_ge_converter(
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    source="native_functions.yaml: _scaled_dot_product_flash_attention_for_cpu; GE FlashAttentionScore",
)
def _scaled_dot_product_flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor]:
    """Shapes: query [b, heads, rows, width]; key, value [b, key heads, columns, width] -> query's shape; [b, heads, rows].
    Dtypes: float32, float16, bfloat16; attn_mask bool or of the query's type.
    Emits:  FlashAttentionScore. A mask that torch made out of a boolean one goes in as that, inverted; a bias as
            real_shift; is_causal as sparse mode 2 with its template.
            If the number of heads or the head width is symbolic, the products and the softmax one by one.
    Errors: refused for dropout.
    """  # noqa: E501
    spec = meta_outputs[0]
    result, lse = attention(query, key, value, attn_mask, dropout_p, is_causal, scale, spec)
    return cast(result, spec.dtype), cast(lse, meta_outputs[1].dtype)


def _saved(make: Any, keys: int = 5) -> tuple[Any, ...]:
    return make(2, 4, 5, 8), *_qkv(make, keys), make(2, 4, 5, 8), F32(2, 4, 5, low=2.0, high=4.0)


@declare_supported(
    [
        Support(*_saved(F32), 0.0, False),
        Support(*_saved(F16), 0.0, False).within(2e-3, 2e-3),
        Support(*_saved(BF16), 0.0, False).within(1.6e-2, 1e-2),
        Support(*_saved(F32), 0.0, True),
        Support(*_saved(F32, 7), 0.0, False, attn_mask=F32(2, 1, 5, 7), scale=0.3),
    ]
)
@register_fx_node_ge_converter(
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    source="native_functions.yaml: _scaled_dot_product_flash_attention_for_cpu_backward; GE FlashAttentionScoreGrad",
)
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, ...]:
    """Shapes: gradients of query, key and value, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16.
    Emits:  FlashAttentionScoreGrad; logsumexp stands for the row maxima, with row sums of one.
    """
    made = attention_gradient(
        grad_out, query, key, value, out, logsumexp, attn_mask, dropout_p, is_causal, scale, meta_outputs[0]
    )
    return tuple(cast(g, s.dtype) for g, s in zip(made, meta_outputs))


@register_fx_node_ge_converter(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    source="native_functions.yaml: _scaled_dot_product_fused_attention_overrideable; GE FlashAttentionScore",
)
def _scaled_dot_product_fused_attention_overrideable(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    meta_outputs: Any,
) -> tuple[Any, ...]:
    """What scaled_dot_product_attention is on a device of its own. Only the first two results are produced.

    Shapes: as _scaled_dot_product_flash_attention_for_cpu.
    Dtypes: float32, float16, bfloat16.
    Emits:  FlashAttentionScore.
    """
    spec = meta_outputs[0]
    result, lse = attention(query, key, value, attn_bias, dropout_p, is_causal, scale, spec)
    return cast(result, spec.dtype), cast(lse, meta_outputs[1].dtype), *[None] * 7
