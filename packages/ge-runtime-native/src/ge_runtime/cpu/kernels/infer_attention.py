"""Attention for inference: full sequences, one step with a cache, and the operator that serves both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.attention import Rule, for_queries, fused, join_heads, scores, split_heads
from ge_runtime.cpu.kernels.kv_cache import Cache, Quantised
from ge_runtime.cpu.kernels.numerics import saturate, wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

_FAR: Final = 2**31 - 1
_LENGTHS: Final = ("actual_seq_lengths", "actual_seq_lengths_kv", "query_padding_size", "kv_padding_size")
_TEMPLATES: Final = (2, 3, 4)  # sparse modes whose mask is a template and says nothing itself


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one inference attention is asked for beside query, key and value."""

    op: str
    rule: Rule
    mask: Tensor | None = None
    pse: Tensor | None = None
    sink: Tensor | None = None
    want_lse: bool = False


def _mask4(op: str, mask: Tensor | None, rows: int, batch: int) -> Tensor | None:
    """(Sq, Skv), (B, Sq, Skv), (B, Skv) of one step, (B, 1, Sq, Skv) as one that broadcasts over (B, N, Sq, Skv)."""
    if mask is None:
        return None
    if mask.dim() == 3:
        mask = mask.unsqueeze(1)
    elif mask.dim() == 2 and rows == 1 and mask.shape[0] != 1:
        mask = mask[:, None, None, :]
    if mask.dim() == 4 and mask.shape[0] not in (1, batch):
        raise refused(op, f"atten_mask {list(mask.shape)} does not fit {batch} sequences", "give one mask each, or one")
    return mask


def _one(x: Tensor | None, b: int) -> Tensor | None:
    """The part of a mask or position term that belongs to batch entry ``b``."""
    return x[b : b + 1] if x is not None and x.dim() == 4 and x.shape[0] > 1 else x


def _attend(
    q: Tensor, k: Tensor, v: Tensor, s: _Setting, mask: Tensor | None, pse: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows, columns = q.shape[2], k.shape[2]
    pse = None if pse is None else pse[..., :rows, :columns]
    if mask is not None and s.rule.mode in (0, 1):
        if mask.shape[-1] < columns or (mask.shape[-2] < rows and mask.shape[-2] != 1):
            raise refused(s.op, f"atten_mask {list(mask.shape)} is smaller than {rows} queries x {columns} keys")
        mask = mask[..., :rows, :columns]
    if s.sink is not None:
        return _with_sink(q, k, v, s, mask, pse), q.new_zeros(0)
    out = fused(q, k, v, s.rule, mask, pse)
    if not s.want_lse:
        return out, out.new_zeros(0)
    if not columns:
        return out, torch.full((*q.shape[:3], 1), float("inf"))
    return out, torch.logsumexp(scores(q, k, s.rule, mask, pse), -1, keepdim=True).float()


def _with_sink(q: Tensor, k: Tensor, v: Tensor, s: _Setting, mask: Tensor | None, pse: Tensor | None) -> Tensor:
    """One more score a query head, as it is, joins the softmax and has no value."""
    extra = wide(s.sink).reshape(1, -1, 1, 1)  # type: ignore[arg-type]
    given = scores(q, k, s.rule, mask, pse)
    joined = torch.cat((given, extra.expand(*given.shape[:3], 1).to(given.dtype)), -1)
    p = torch.softmax(joined, -1)[..., :-1]
    return torch.matmul(p, for_queries(v, q.shape[1])).to(v.dtype)


def _lengths(op: str, name: str, value: Any, batch: int, most: int) -> list[int] | None:
    """A length a sequence: as given, one for all, or the first of more than enough."""
    if value is None:
        return None
    lengths = listed(value)
    if len(lengths) == 1:
        lengths = lengths * batch
    if len(lengths) < batch:
        raise refused(op, f"{name} holds {len(lengths)} lengths for {batch} sequences", "give one, or one each")
    wrong = [n for n in lengths[:batch] if not 0 <= n <= most]
    if wrong:
        raise refused(op, f"{name} holds {wrong[0]}, the sequences have 0 to {most} tokens")
    return lengths[:batch]


def _ends(op: str, name: str, value: Any, tokens: int) -> list[tuple[int, int]]:
    """(start, end) of each packed sequence out of the running sums of their lengths."""
    if value is None:
        raise refused(op, f"layout TND needs {name}", "feed the running sums of the lengths")
    ends = listed(value)
    starts = [0, *ends[:-1]]
    if any(end < start for start, end in zip(starts, ends)) or (ends and not 0 <= ends[-1] <= tokens):
        raise refused(op, f"{name} is {ends} for {tokens} tokens", "give running sums: they never fall, none is larger")
    return list(zip(starts, ends))


def _quantised(out: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    """int8 of an attention result (B, N, S, D) when an output scale is fed: round(x * scale + offset)."""
    if scale is None:
        return out
    n, d = out.shape[1], out.shape[3]
    factor, shift = (None if t is None else t.float() for t in (scale, offset))
    factor, shift = (t if t is None or t.numel() == 1 else t.reshape(1, n, 1, d) for t in (factor, shift))
    y = out.float() * factor  # type: ignore[operator]
    return saturate(y if shift is None else y + shift, torch.int8)


def _refuse_fed(op: str, **ports: Any) -> None:
    fed = [name for name, value in ports.items() if value is not None]
    if fed:
        raise refused(op, f"input {', '.join(fed)} is fed; this quantised or shared-prefix form is not computed")


_DOC: Final = "ops-transformer: attention, documentation; torch_npu, npu_fused_infer_attention_score_v2"


@kernel("PromptFlashAttention", host=_LENGTHS[:2], ignores=("inner_precise",), source=_DOC)
def prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    deq_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    *,
    num_heads: int,
    scale_value: float = 1.0,
    pre_tokens: int = 214748647,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
) -> Tensor:
    """Attention of whole sequences. Layout pairs such as BNSD_BSND name the layout of the result last."""
    op = "PromptFlashAttention"
    _refuse_fed(op, deq_scale1=deq_scale1, quant_scale1=quant_scale1, deq_scale2=deq_scale2)
    setting = _Setting(op, Rule(scale_value, sparse_mode, pre_tokens, next_tokens), atten_mask, pse_shift)
    kv = num_key_value_heads or num_heads
    return _attention(
        query,
        Cache(op, [key], kv),
        Cache(op, [value], kv),
        setting,
        num_heads,
        input_layout,
        actual_seq_lengths,
        actual_seq_lengths_kv,
        out_scale=quant_scale2,
        out_offset=quant_offset2,
    )[0]


def _attention(
    query: Tensor,
    key: Cache,
    value: Cache,
    s: _Setting,
    heads: int,
    layout: str,
    lengths: Any,
    kv_lengths: Any,
    *,
    rope: Tensor | None = None,
    key_rope: Cache | None = None,
    kv_padding: Any = None,
    out_scale: Tensor | None = None,
    out_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All layouts, lists and caches; (attention_out, softmax_lse)."""
    read, _, write = layout.partition("_")
    write = write or read
    if s.rule.mode in _TEMPLATES and s.mask is None:
        raise refused(s.op, f"sparse_mode is {s.rule.mode} and atten_mask is not fed", "feed its template")
    if read in ("TND", "NTD"):
        if s.pse is not None or kv_padding is not None or (s.mask is not None and s.rule.mode not in _TEMPLATES):
            raise refused(
                s.op, f"layout {layout} with pse_shift, kv_padding_size or a full mask", "pack without, or use BNSD"
            )
        out, lse = _tokens(query, key, value, s, read, lengths, kv_lengths, rope, key_rope)
        y = _quantised(out.unsqueeze(0), out_scale, out_offset).squeeze(0)  # (N, T, D)
        return y if write == "NTD" else y.transpose(0, 1), lse.transpose(0, 1) if s.want_lse else torch.zeros(1)
    q = split_heads(query, read, heads)
    q = q if rope is None else torch.cat((q, split_heads(rope, read, heads)), -1)
    batch, rows = q.shape[0], q.shape[2]
    s = _for_rows(s, rows, batch, rope is not None)
    q_used = _lengths(s.op, "actual_seq_lengths", lengths, batch, rows)
    if key.table is None and len(key.parts) == 1 and kv_lengths is None and q_used is None and kv_padding is None:
        k, v = key.whole(read), value.whole(read)
        k = k if key_rope is None else torch.cat((k, key_rope.whole(read)), -1)
        out, lse = _attend(q, k, v, s, s.mask, s.pse)
    else:
        out, lse = _per_batch(q, key, value, key_rope, s, read, q_used, kv_lengths, kv_padding)
    y = _quantised(out, out_scale, out_offset)
    return y.permute(1, 0, 2, 3) if write == "NBSD" else join_heads(y, write), lse if s.want_lse else torch.zeros(1)


def _for_rows(s: _Setting, rows: int, batch: int, has_rope: bool) -> _Setting:
    """With one query row and no rope part the sparse mode has no effect: the mask says all."""
    rule, mask = s.rule, s.mask
    if rows == 1 and not has_rope:
        if mask is not None and rule.mode in _TEMPLATES and mask.shape[-2:] == (2048, 2048):
            if rule.mode != 3:
                raise refused(s.op, f"sparse_mode {rule.mode} with one query row", "leave it 0, give a mask (B, Skv)")
            mask = None  # the last row sees every key
        rule = Rule(rule.scale, 1)
    mask = mask if rule.mode in _TEMPLATES else _mask4(s.op, mask, rows, batch)
    return _Setting(s.op, rule, mask, s.pse, s.sink, s.want_lse)


def _per_batch(
    q: Tensor,
    key: Cache,
    value: Cache,
    key_rope: Cache | None,
    s: _Setting,
    layout: str,
    q_used: list[int] | None,
    kv_lengths: Any,
    kv_padding: Any,
) -> tuple[Tensor, Tensor]:
    """Every batch entry with its own lengths; query rows after the valid ones are zero."""
    outs, stats, rows, batch = [], [], q.shape[2], q.shape[0]
    most = key.longest(layout)
    if key.table is not None and kv_lengths is None:
        raise refused(s.op, "block_table needs the lengths of the keys", "feed actual_seq_lengths_kv")
    kv_used = _lengths(s.op, "actual_seq_lengths_kv", kv_lengths, batch, most)
    pad = 0 if kv_padding is None else listed(kv_padding)[0]
    for b in range(batch):
        used = rows if q_used is None else q_used[b]
        length = key.length(layout, b) if kv_used is None else kv_used[b]
        k, v = key.entry(layout, b, length, pad), value.entry(layout, b, length, pad)
        k = k if key_rope is None else torch.cat((k, key_rope.entry(layout, b, length, pad)), -1)
        out, lse = _attend(q[b : b + 1, :, :used], k, v, s, _one(s.mask, b), _one(s.pse, b))
        if used < rows:
            out = torch.nn.functional.pad(out, (0, 0, 0, rows - used))
            lse = torch.nn.functional.pad(lse, (0, 0, 0, rows - used)) if s.want_lse else lse
        outs.append(out)
        stats.append(lse)
    return torch.cat(outs), torch.cat(stats)


def _tokens(
    query: Tensor,
    key: Cache,
    value: Cache,
    s: _Setting,
    layout: str,
    lengths: Any,
    kv_lengths: Any,
    rope: Tensor | None,
    key_rope: Cache | None,
) -> tuple[Tensor, Tensor]:
    """Packed sequences: lengths are running sums, but those of the keys plain numbers if the keys come in pages."""
    q = query if rope is None else torch.cat((query, rope), -1)
    q = q.transpose(0, 1) if layout == "TND" else q  # (N, T, D)
    spans = _ends(s.op, "actual_seq_lengths", lengths, q.shape[1])
    if key.table is None:
        kv_spans = _ends(s.op, "actual_seq_lengths_kv", kv_lengths, key.longest(layout))
        if len(kv_spans) != len(spans):
            raise refused(s.op, f"{len(spans)} sequences of queries, {len(kv_spans)} of keys", "give as many of both")
    else:
        if kv_lengths is None:
            raise refused(s.op, "block_table needs the lengths of the keys", "feed actual_seq_lengths_kv")
        counts = _lengths(s.op, "actual_seq_lengths_kv", kv_lengths, len(spans), key.longest(layout)) or []
        kv_spans = [(0, n) for n in counts]
    out, lse = q.new_zeros(q.shape[0], q.shape[1], value.width(layout)), torch.zeros(q.shape[0], q.shape[1], 1)
    out = out.to(value.dtype)
    for b, ((start, end), (kv_start, kv_end)) in enumerate(zip(spans, kv_spans)):
        if start == end:
            continue
        k, v = key.tokens(layout, b, kv_start, kv_end), value.tokens(layout, b, kv_start, kv_end)
        k = k if key_rope is None else torch.cat((k, key_rope.tokens(layout, b, kv_start, kv_end)), -1)
        part, stat = _attend(q[:, start:end].unsqueeze(0), k, v, s, s.mask, None)
        out[:, start:end] = part[0]
        if s.want_lse:
            lse[:, start:end] = stat[0]
    return out, lse


def _both(scale: Tensor | None, offset: Tensor | None, mode: int, which: int) -> Quantised | None:
    """Entry ``which`` of scales that hold those of key and value."""
    return None if scale is None else Quantised(scale[which], None if offset is None else offset[which], mode)


@kernel("IncreFlashAttention", host=("actual_seq_lengths", "kv_padding_size"), ignores=("inner_precise",), source=_DOC)
def incre_flash_attention(
    query: Tensor,
    key: Sequence[Tensor],
    value: Sequence[Tensor],
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Any = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    kv_padding_size: Any = None,
    *,
    num_heads: int,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
) -> Tensor:
    """One query row a batch entry against dense, listed or paged keys."""
    op = "IncreFlashAttention"
    _refuse_fed(op, dequant_scale1=dequant_scale1, quant_scale1=quant_scale1, dequant_scale2=dequant_scale2)
    kv = num_key_value_heads or num_heads
    k, v = (
        Cache(op, list(parts), kv, block_table, block_size, _both(antiquant_scale, antiquant_offset, 0, i), query.dtype)
        for i, parts in enumerate((key, value))
    )
    return _attention(
        query,
        k,
        v,
        _Setting(op, Rule(scale_value, 1), atten_mask, pse_shift),
        num_heads,
        input_layout,
        None,
        actual_seq_lengths,
        kv_padding=kv_padding_size,
        out_scale=quant_scale2,
        out_offset=quant_offset2,
    )[0]


@kernel("FusedInferAttentionScore", host=_LENGTHS, ignores=("inner_precise",), source=_DOC)
def fused_infer_attention_score(
    query: Tensor,
    key: Sequence[Tensor],
    value: Sequence[Tensor],
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    dequant_scale1: Any = None,
    quant_scale1: Any = None,
    dequant_scale2: Any = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    query_padding_size: Any = None,
    kv_padding_size: Any = None,
    key_antiquant_scale: Any = None,
    key_antiquant_offset: Any = None,
    value_antiquant_scale: Any = None,
    value_antiquant_offset: Any = None,
    key_shared_prefix: Any = None,
    value_shared_prefix: Any = None,
    actual_shared_prefix_len: Any = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    key_rope_antiquant_scale: Any = None,
    dequant_scale_query: Any = None,
    learnable_sink: Any = None,
    q_start_idx: Any = None,
    kv_start_idx: Any = None,
    *,
    num_heads: int,
    scale: float = 1.0,
    pre_tokens: int = _FAR,
    next_tokens: int = _FAR,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """(attention_out, softmax_lse) of a prompt or of one step; with one query row the sparse modes have no effect.

    Shapes: query by ``input_layout``, the layout of the result after ``_`` in it; keys likewise, or a list of one a
        sequence, or with ``block_table`` (sequences, pages) a cache of pages: (pages, page, N D), (pages, N, page, D),
        or NZ (pages, N, D / x, page, x). Lengths are plain numbers; in TND running sums, those of pages excepted.
    """
    op = "FusedInferAttentionScore"
    _refuse_fed(
        op,
        dequant_scale1=dequant_scale1,
        quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2,
        key_shared_prefix=key_shared_prefix,
        value_shared_prefix=value_shared_prefix,
        actual_shared_prefix_len=actual_shared_prefix_len,
        key_rope_antiquant_scale=key_rope_antiquant_scale,
        dequant_scale_query=dequant_scale_query,
        query_padding_size=query_padding_size,
        q_start_idx=q_start_idx,
        kv_start_idx=kv_start_idx,
    )
    if (query_rope is None) != (key_rope is None):
        raise refused(op, "one of query_rope and key_rope is fed", "feed both, or none")
    if learnable_sink is not None and softmax_lse_flag:
        raise refused(op, "softmax_lse with learnable_sink: the definition does not say whether the sink counts in it")
    kv = num_key_value_heads or num_heads
    given = (
        (key_antiquant_scale, key_antiquant_offset, key_antiquant_mode),
        (value_antiquant_scale, value_antiquant_offset, value_antiquant_mode),
    )
    sides = []
    for which, (parts, (factor, shift, mode)) in enumerate(zip((key, value), given)):
        how = _both(antiquant_scale, antiquant_offset, antiquant_mode, which)
        how = how if factor is None else Quantised(factor, shift, mode)
        sides.append(Cache(op, list(parts), kv, block_table, block_size, how, query.dtype))
    key_rope_side = None if key_rope is None else Cache(op, [key_rope], kv, block_table, block_size)
    setting = _Setting(
        op, Rule(scale, sparse_mode, pre_tokens, next_tokens), atten_mask, pse_shift, learnable_sink, softmax_lse_flag
    )
    return _attention(
        query,
        sides[0],
        sides[1],
        setting,
        num_heads,
        input_layout,
        actual_seq_lengths,
        actual_seq_lengths_kv,
        rope=query_rope,
        key_rope=key_rope_side,
        kv_padding=kv_padding_size,
        out_scale=quant_scale2,
        out_offset=quant_offset2,
    )
