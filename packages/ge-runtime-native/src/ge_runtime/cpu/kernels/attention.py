"""Attention: layouts, the meaning of masks and sparse modes, and the training operators.

A GE mask says what is *hidden* (non-zero), the opposite of a torch boolean mask. Modes 2, 3 and 4 are fed a compressed
template whose content follows from the mode, so they are computed from positions. Forms without dropout whose softmax
statistics nobody reads are one call of ATen's fused attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import keep_bits, sum_to, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan
from ge_runtime.cpu.values import listed, traced
from ge_runtime.errors import refused

_SOURCE = "ops-transformer: attention/flash_attention_score, documentation"
_FAR: Final = 2**31 - 1
_ATTENTION_GRAD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_WIDTH: Final = 8  # softmax_max and softmax_sum repeat each value this often


# Layout: the (B, N, S, D) view of a query, key or value with N heads, and the way back.
_LAYOUTS: Final[dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor], Tensor]]]] = {
    "BNSD": (lambda x, n: x, lambda y: y),
    "BSND": (lambda x, n: x.transpose(1, 2), lambda y: y.transpose(1, 2)),
    "BSH": (lambda x, n: x.unflatten(2, (n, -1)).transpose(1, 2), lambda y: y.transpose(1, 2).flatten(2)),
    "SBH": (lambda x, n: x.unflatten(2, (n, -1)).permute(1, 2, 0, 3), lambda y: y.permute(2, 0, 1, 3).flatten(2)),
    "NSD": (lambda x, n: x.unsqueeze(0), lambda y: y.squeeze(0)),
    "SH": (
        lambda x, n: x.unflatten(1, (n, -1)).transpose(0, 1).unsqueeze(0),
        lambda y: y.squeeze(0).transpose(0, 1).flatten(1),
    ),
}


def split_heads(x: Tensor, layout: str, heads: int) -> Tensor:
    """(B, N, S, D) view of a query, key or value."""
    if layout not in _LAYOUTS:
        raise refused("attention", f"input_layout is {layout!r}, accepted: {', '.join(_LAYOUTS)}, TND")
    return _LAYOUTS[layout][0](x, heads)


def join_heads(y: Tensor, layout: str) -> Tensor:
    """(B, N, S, D) back to ``layout``."""
    return _LAYOUTS[layout][1](y) if layout in _LAYOUTS else y


def key_heads(key: Tensor, query: Tensor, layout: str, heads: int) -> int:
    """Number of key heads, from the width of the key beside that of the query."""
    return key.shape[-1] * heads // query.shape[-1] if layout in ("BSH", "SBH", "SH") else heads


@dataclass(frozen=True, slots=True)
class Rule:
    """How scores become probabilities.

    Attributes:
        scale: Factor of Q K^T.
        mode: Sparse mode, 0 to 6.
        before: Keys further than this before the diagonal are hidden (modes 0 and 4).
        after: Keys further than this after the diagonal are hidden (modes 0 and 4).
    """

    scale: float
    mode: int = 0
    before: int = _FAR
    after: int = _FAR


def _positions(rows: int, columns: int) -> Tensor:
    """Key index minus query index."""
    return torch.arange(columns).unsqueeze(0) - torch.arange(rows).unsqueeze(1)


def hidden(rule: Rule, mask: Tensor | None, rows: int, columns: int, prefix: int | None = None) -> Tensor | None:
    """What may not be looked at, True = hidden; None if everything is seen."""
    if mask is None:
        return None
    if rule.mode in (0, 1):
        full = mask if mask.dtype == torch.bool else mask != 0
        full = full[..., :rows, :columns]
        if rule.mode == 1 or (rule.before >= rows - 1 and rule.after >= columns - 1):
            return full
        distance = _positions(rows, columns)
        return full | (distance > rule.after) | (distance < -rule.before)
    distance = _positions(rows, columns)
    if rule.mode == 2:
        return distance > 0
    shifted = distance - (columns - rows)
    if rule.mode == 3:
        return shifted > 0
    if rule.mode == 4:
        return (shifted > rule.after) | (shifted < -rule.before)
    if rule.mode in (5, 6) and prefix is not None:
        return (shifted > 0) & (torch.arange(columns) >= prefix)
    raise refused("attention", f"sparse_mode is {rule.mode}, accepted: 0 to 4, and 5, 6 with prefix")


def mask_rank4(mask: Tensor | None) -> Tensor | None:
    """A mask of shape (Sq, Skv), (B, Sq, Skv) or (B, N, Sq, Skv) as one that broadcasts over (B, N, Sq, Skv)."""
    return mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask


def fused(q: Tensor, k: Tensor, v: Tensor, rule: Rule, mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """softmax(scale * Q K^T + bias, hidden = 0) V of (B, N, S, D) operands in one ATen call."""
    rows, columns = q.shape[2], k.shape[2]
    if not columns:
        return q.new_zeros(*q.shape[:3], v.shape[3])
    # the plain lower triangle, which ATen needs no mask for
    causal = bias is None and mask is not None and (rule.mode == 2 or (rule.mode == 3 and rows == columns))
    hide = None if causal else hidden(rule, mask, rows, columns)
    if bias is None:
        shown = None if hide is None else ~hide
    else:
        shown = bias.to(q.dtype) if hide is None else bias.to(q.dtype).masked_fill(hide, float("-inf"))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=shown, is_causal=causal, scale=rule.scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    if traced(out):  # the program cannot choose: what follows from the query alone
        return out.masked_fill(q.isnan().any(-1, keepdim=True), float("nan"))
    suspicious = bool(((out == 0) | ~out.isfinite()).any())
    if suspicious and not (bool(q.isfinite().all()) and bool(k.isfinite().all())):
        # ATen takes a row of NaN for one that sees nothing and gives 0; of 16 bits it makes NaN of a weight of 0
        return explicit(scores(q, k, rule, mask, bias), v, None, 1.0)[0]
    return out


def for_queries(x: Tensor, heads: int) -> Tensor:
    """Keys or values, widened, with each head as often as query heads read it."""
    return wide(x) if x.shape[1] == heads else wide(x).repeat_interleave(heads // x.shape[1], 1)


def scores(
    q: Tensor, k: Tensor, rule: Rule, mask: Tensor | None, bias: Tensor | None, prefix: int | None = None
) -> Tensor:
    """float32 scores of (B, N, S, D) operands in memory of their own, hidden ones at -inf."""
    s = torch.matmul(wide(q), for_queries(k, q.shape[1]).mT).mul_(rule.scale)
    if bias is not None:
        s = s + bias.to(s.dtype)
    hide = hidden(rule, mask, q.shape[2], k.shape[2], prefix)
    return s if hide is None else s.masked_fill_(hide, float("-inf"))


def _divisor(total: Tensor) -> Tensor:
    """Row sums to divide by: 1 for a row that sees nothing."""
    return torch.where(total == 0, torch.ones_like(total), total)


def explicit(s: Tensor, v: Tensor, keep: Tensor | None, keep_prob: float) -> tuple[Tensor, Tensor, Tensor]:
    """(out, row maximum, row sum of exp(score - maximum)) from float32 scores, which are overwritten.

    A row that sees nothing gives zero.
    """
    top = s.amax(-1, keepdim=True)
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    e = s.sub_(top).exp_()
    total = e.sum(-1, keepdim=True)
    p = e.div_(_divisor(total))
    if keep is not None:
        p = p * keep / keep_prob
    return torch.matmul(p, for_queries(v, s.shape[1])).to(v.dtype), top, total


def _bias(real_shift: Tensor | None, scale: float, pse_type: int) -> Tensor | None:
    """The position term as it is added to scaled scores: type 1 is scaled with them, type 0 is not."""
    if real_shift is None:
        return None
    if pse_type not in (0, 1):
        raise refused("FlashAttentionScore", f"pse_type is {pse_type}, accepted: 0, 1")
    return real_shift if pse_type == 0 else real_shift.float() * scale


@dataclass(frozen=True, slots=True)
class _Block:
    """One sequence, or the whole batch: operands as (B, N, S, D) and where they came from."""

    q: Tensor
    k: Tensor
    v: Tensor
    rows: slice
    columns: slice
    prefix: int | None


def _blocks(
    q: Tensor, k: Tensor, v: Tensor, layout: str, heads: int, ends: Any, kv_ends: Any, prefix: Any
) -> Iterator[_Block]:
    if layout != "TND":
        kv = key_heads(k, q, layout, heads)
        whole = slice(None)
        q4, k4, v4 = split_heads(q, layout, heads), split_heads(k, layout, kv), split_heads(v, layout, kv)
        if prefix is None:
            yield _Block(q4, k4, v4, whole, whole, None)
            return
        for b, count in enumerate(listed(prefix)):
            one = slice(b, b + 1)
            yield _Block(q4[one], k4[one], v4[one], whole, whole, count)
        return
    if ends is None or kv_ends is None:
        raise refused("attention", "layout TND needs actual_seq_qlen and actual_seq_kvlen", "feed both")
    start, kv_start = 0, 0
    counts = None if prefix is None else listed(prefix)
    for i, (end, kv_end) in enumerate(zip(listed(ends), listed(kv_ends))):
        rows, columns = slice(start, end), slice(kv_start, kv_end)
        q4, k4, v4 = (t.transpose(0, 1).unsqueeze(0) for t in (q[rows], k[columns], v[columns]))
        yield _Block(q4, k4, v4, rows, columns, None if counts is None else counts[i])
        start, kv_start = end, kv_end


def _together(parts: list[Tensor], layout: str) -> Tensor:
    """Results of blocks (B, N, S, D) in one tensor: tokens joined for TND, else the batch."""
    if layout == "TND":
        return torch.cat([p.squeeze(0).transpose(0, 1) for p in parts])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_HOST: Final = ("prefix", "actual_seq_qlen", "actual_seq_kvlen")


@kernel("FlashAttentionScore", host=_HOST, ignores=("is_flash", "inner_precise"), source=_SOURCE)
def flash_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real_shift: Tensor | None = None,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    q_start_idx: Any = None,
    kv_start_idx: Any = None,
    *,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _FAR,
    next_tockens: int = _FAR,
    head_num: int,
    input_layout: str,
    sparse_mode: int = 0,
    pse_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention with its row statistics for the gradient.

    Shapes: attention_out as the query with the width of the value; softmax_max and softmax_sum (B, N, Sq, 8), or
        (T, N, 8) for TND; softmax_out is empty.
    Dtypes: attention_out as the query, statistics float32.
    """
    rule = Rule(scale_value, sparse_mode, pre_tockens, next_tockens)
    bias, mask = _bias(real_shift, scale_value, pse_type), mask_rank4(atten_mask)
    outs, tops, totals, used = [], [], [], 0
    for block in _blocks(query, key, value, input_layout, head_num, actual_seq_qlen, actual_seq_kvlen, prefix):
        s = scores(block.q, block.k, rule, mask, bias, block.prefix)
        keep = None
        if drop_mask is not None and keep_prob != 1.0:
            keep = keep_bits(drop_mask.reshape(-1)[used // 8 :], s.shape)
            used += s.numel()
        out, top, total = explicit(s, block.v, keep, keep_prob)
        outs.append(out)
        tops.append(top.expand(*top.shape[:3], _WIDTH))
        totals.append(total.expand(*total.shape[:3], _WIDTH))
    y = _together(outs, input_layout)
    y = y if input_layout == "TND" else join_heads(y, input_layout)
    top, total = _together(tops, input_layout).contiguous(), _together(totals, input_layout).contiguous()
    return top, total, query.new_empty(0), y


def _fused_score(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rule: Rule, heads: int, layout: str
) -> tuple[None, None, None, Tensor]:
    kv = key_heads(key, query, layout, heads)
    q, k, v = split_heads(query, layout, heads), split_heads(key, layout, kv), split_heads(value, layout, kv)
    return None, None, None, join_heads(fused(q, k, v, rule, mask_rank4(mask)), layout)


def _fused_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rule: Rule
) -> tuple[None, None, None, Tensor]:
    """Operands that are (B, N, S, D) as they stand."""
    return None, None, None, fused(query, key, value, rule, mask_rank4(mask))


@plan("FlashAttentionScore")
def _plan_score(ctx: PlanContext) -> Call | None:
    """Without statistics, dropout, position term and lengths it is fused attention."""
    attr = ctx.attr
    if any(ctx.is_read(i) for i in range(3)) or attr("input_layout") == "TND":
        return None
    if any(ctx.fed(p) for p in ("real_shift", "prefix")) or (ctx.fed("drop_mask") and attr("keep_prob", 1.0) != 1.0):
        return None
    attr("pse_type", 1)  # says how a position term is added, of which there is none
    rule = Rule(attr("scale_value", 1.0), attr("sparse_mode", 0), attr("pre_tockens", _FAR), attr("next_tockens", _FAR))
    operands = [ctx.tensor(p) for p in ("query", "key", "value", "atten_mask")]
    heads, layout = attr("head_num"), attr("input_layout")
    if layout == "BNSD":
        return Call(_fused_heads, (*operands, rule))
    return Call(_fused_score, (*operands, rule, heads, layout))


@kernel("FlashAttentionScoreGrad", host=_HOST, ignores=("inner_precise",), source=_SOURCE)
def flash_attention_score_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    pse_shift: Tensor | None = None,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None,
    attention_in: Tensor | None = None,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    q_start_idx: Any = None,
    kv_start_idx: Any = None,
    *,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 65536,
    next_tockens: int = 65536,
    head_num: int,
    input_layout: str,
    sparse_mode: int = 0,
    pse_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dpse); probabilities are rebuilt from the scores and the saved row statistics."""
    if softmax_max is None or softmax_sum is None or attention_in is None:
        raise refused("FlashAttentionScoreGrad", "softmax_max, softmax_sum, attention_in are needed", "feed all three")
    rule = Rule(scale_value, sparse_mode, pre_tockens, next_tockens)
    bias, mask = _bias(pse_shift, scale_value, pse_type), mask_rank4(atten_mask)
    args = (input_layout, head_num, actual_seq_qlen, actual_seq_kvlen, prefix)
    grads: tuple[list[Tensor], ...] = ([], [], [])
    dpse = None if pse_shift is None else torch.zeros(pse_shift.shape)
    used, drops = 0, drop_mask is not None and keep_prob != 1.0
    for i, block in enumerate(_blocks(query, key, value, *args)):
        stats_layout = "TND" if input_layout == "TND" else "BNSD"
        top, total = (
            _statistics(_of_block(t, block, i, stats_layout, head_num, prefix), block)
            for t in (softmax_max, softmax_sum)
        )
        gradient, output = (_of_block(t, block, i, input_layout, head_num, prefix) for t in (dy, attention_in))
        if bias is None and not drops and _has_fused_grad(block, gradient, output):
            for store, g in zip(grads, _fused_grad(block, gradient, output, top, total, rule, mask)):
                store.append(g)
            continue
        s = scores(block.q, block.k, rule, mask, bias, block.prefix)
        p = s.sub_(top).exp_().div_(_divisor(total))
        keep = None
        if drop_mask is not None and drops:
            keep = keep_bits(drop_mask.reshape(-1)[used // 8 :], s.shape) / keep_prob
            used += s.numel()
        dq, dk, dv, ds = _block_grad(block, gradient, output, p, keep, rule.scale)
        for store, g in zip(grads, (dq, dk, dv)):
            store.append(g)
        if dpse is not None and pse_shift is not None:
            dpse += sum_to(ds, pse_shift.shape)
    results = [_together(g, input_layout) for g in grads]
    results = results if input_layout == "TND" else [join_heads(g, input_layout) for g in results]
    shift = query.new_empty(0)
    if dpse is not None and pse_shift is not None:
        shift = (dpse if pse_type == 0 else dpse * scale_value).to(pse_shift.dtype)
    dq, dk, dv = (g.to(t.dtype) for g, t in zip(results, (query, key, value)))
    return dq, dk, dv, shift


def _of_block(x: Tensor, block: _Block, index: int, layout: str, heads: int, prefix: Any) -> Tensor:
    """The part of a tensor in the query's layout, or of (B, N, Sq, D) statistics, that belongs to a block."""
    if layout == "TND":
        return x[block.rows].transpose(0, 1).unsqueeze(0)
    whole = split_heads(x, layout, heads)
    return whole if prefix is None else whole[index : index + 1]


def _statistics(x: Tensor, block: _Block) -> Tensor:
    """One number for each row of each head; ATen's gradient reads them without asking for their shape."""
    if x.shape[:-1] != block.q.shape[:-1] or not x.shape[-1]:
        raise refused(
            "FlashAttentionScoreGrad",
            f"softmax_max or softmax_sum of a block is {list(x.shape)} beside a query of {list(block.q.shape)}",
            "feed those of the forward operator",
        )
    return x[..., :1]


def _has_fused_grad(block: _Block, dy: Tensor, out: Tensor) -> bool:
    """Whether ATen's gradient of fused attention takes the operands: float32, one shape of heads, dense rows.

    It rounds halves between its steps, which the definition does not.
    """
    q, k, v = block.q, block.k, block.v
    every = (q, k, v, dy, out)
    alike = q.shape[1] == k.shape[1] == v.shape[1] and q.shape[3] == k.shape[3] == v.shape[3]
    alike = alike and q.shape == dy.shape == out.shape and k.shape == v.shape and q.shape[0] == k.shape[0]
    return alike and all(t.dtype == torch.float32 and t.stride(-1) == 1 and t.numel() for t in every)


def _fused_grad(
    block: _Block, dy: Tensor, out: Tensor, top: Tensor, total: Tensor, rule: Rule, mask: Tensor | None
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value in one ATen call, which reads a row's statistics as their log-sum-exp."""
    q, rows, columns = block.q, block.q.shape[2], block.k.shape[2]
    hide = hidden(rule, mask, rows, columns, block.prefix)
    shown = None if hide is None else torch.zeros(hide.shape).masked_fill_(hide, float("-inf"))
    lse = (top + torch.log(_divisor(total))).squeeze(-1)
    grads: tuple[Tensor, ...] = _ATTENTION_GRAD(
        dy, q, block.k, block.v, out, lse, 0.0, False, attn_mask=shown, scale=rule.scale
    )
    return grads


def _block_grad(
    block: _Block, dy: Tensor, out: Tensor, p: Tensor, keep: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of one block; heads of key and value collect what their query heads give."""
    heads, kv = block.q.shape[1], block.k.shape[1]
    k32, v32 = for_queries(block.k, heads), for_queries(block.v, heads)
    dy, out = wide(dy), wide(out)
    dropped = p if keep is None else p * keep
    dv = torch.matmul(dropped.mT, dy)
    dp = torch.matmul(dy, v32.mT)
    dp = dp if keep is None else dp * keep
    ds = p * (dp - (dy * out).sum(-1, keepdim=True))
    dq, dk = torch.matmul(ds, k32) * scale, torch.matmul(ds.mT, wide(block.q)) * scale
    if heads != kv:
        dk, dv = (g.unflatten(1, (kv, -1)).sum(2) for g in (dk, dv))
    return dq, dk, dv, ds


@kernel("AttentionUpdate", source="ops-transformer: attention/attention_update, documentation")
def attention_update(
    lse: Sequence[Tensor], go: Sequence[Tensor], *, update_type: int, sp: int
) -> tuple[Tensor, Tensor]:
    """Merge partial attention results by their log-sum-exp; the second output is the merged one."""
    if update_type not in (0, 1) or sp != len(lse):
        raise refused("AttentionUpdate", f"update_type {update_type}, sp {sp} of {len(lse)} parts; accepted: 0, 1; all")
    parts = torch.stack(list(lse)).float()
    total = torch.logsumexp(parts, 0)
    weights = torch.exp(parts - total).unsqueeze(-1)
    return (torch.stack([g.float() for g in go]) * weights).sum(0).to(go[0].dtype), total


@kernel("RingAttentionUpdate", source="ops-transformer: attention/ring_attention_update, documentation")
def ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    actual_seq_qlen: Tensor | None = None,
    *,
    input_layout: str = "SBH",
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge two partial results of layout SBH (S, B, H) by their maxima and sums (B, N, S, 8)."""
    if input_layout != "SBH":
        raise refused("RingAttentionUpdate", f"input_layout is {input_layout!r}, accepted: SBH")
    top = torch.maximum(prev_softmax_max, cur_softmax_max)
    prev, cur = (
        s * torch.exp(m - top) for s, m in ((prev_softmax_sum, prev_softmax_max), (cur_softmax_sum, cur_softmax_max))
    )
    total = prev + cur
    heads = top.shape[1]

    def weighted(x: Tensor, part: Tensor) -> Tensor:
        share = (part / total)[..., 0].permute(2, 0, 1).unsqueeze(-1)
        return x.float().reshape(*x.shape[:2], heads, -1) * share

    out = weighted(prev_attn_out, prev) + weighted(cur_attn_out, cur)
    return out.reshape(prev_attn_out.shape).to(prev_attn_out.dtype), top, total
