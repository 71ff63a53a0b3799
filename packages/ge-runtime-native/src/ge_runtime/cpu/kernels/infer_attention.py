"""Attention for inference: full sequences, one step with a cache, and the operator that serves both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.attention import Rule, fused, join_heads, scores, split_heads
from ge_runtime.cpu.kernels.numerics import ints, refuse, saturate
from ge_runtime.cpu.registry import kernel

_FAR: Final = 2**31 - 1
_LENGTHS: Final = ("actual_seq_lengths", "actual_seq_lengths_kv", "query_padding_size", "kv_padding_size")


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one inference attention is asked for, port tensors already in (B, N, S, D) or as their cache."""

    rule: Rule
    mask: Tensor | None
    pse: Tensor | None
    want_lse: bool


def _mask4(mask: Tensor | None, rows: int) -> Tensor | None:
    """(Sq, Skv), (B, Sq, Skv), (B, Skv) of one step, (B, 1, Sq, Skv) as one that broadcasts over (B, N, Sq, Skv)."""
    if mask is None or mask.dim() == 4:
        return mask
    if mask.dim() == 3:
        return mask.unsqueeze(1)
    return mask[:, None, None, :] if rows == 1 and mask.shape[0] != 1 else mask


def _one(x: Tensor | None, b: int) -> Tensor | None:
    """The part of a mask or position term that belongs to batch entry ``b``."""
    return x[b : b + 1] if x is not None and x.dim() == 4 and x.shape[0] > 1 else x


def _attend(
    q: Tensor, k: Tensor, v: Tensor, s: _Setting, mask: Tensor | None, pse: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows, columns = q.shape[2], k.shape[2]
    pse = None if pse is None else pse[..., :rows, :columns]
    if mask is not None and s.rule.mode in (0, 1):
        mask = mask[..., :rows, :columns]
    out = fused(q, k, v, s.rule, mask, pse)
    if not s.want_lse:
        return out, out.new_zeros(0)
    if not columns:
        return out, torch.full((*q.shape[:3], 1), float("inf"))
    return out, torch.logsumexp(scores(q, k, s.rule, mask, pse), -1, keepdim=True).float()


def _per_batch(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    rows: list[int] | None,
    spans: list[tuple[int, int]],
    s: _Setting,
) -> tuple[Tensor, Tensor]:
    """Every batch entry with its own lengths; query rows behind the valid ones are zero."""
    outs, stats = [], []
    total = q.shape[2]
    for b in range(q.shape[0]):
        used = total if rows is None else rows[b]
        begin, end = spans[b]
        out, lse = _attend(
            q[b : b + 1, :, :used],
            keys[b][:, :, begin:end],
            values[b][:, :, begin:end],
            s,
            _one(s.mask, b),
            _one(s.pse, b),
        )
        if used < total:
            out = torch.nn.functional.pad(out, (0, 0, 0, total - used))
            lse = torch.nn.functional.pad(lse, (0, 0, 0, total - used)) if s.want_lse else lse
        outs.append(out)
        stats.append(lse)
    return torch.cat(outs), torch.cat(stats)


def _lengths(value: Any, batch: int) -> list[int] | None:
    if value is None:
        return None
    found = ints(value)
    return found * batch if len(found) == 1 else found


def _paged(cache: Tensor, table: Tensor, length: int, block: int, heads: int, b: int) -> Tensor:
    """The first ``length`` tokens of batch entry ``b`` out of a paged cache, as (1, N, S, D)."""
    blocks = table[b, : -(-length // block)].long()
    part = cache[blocks]
    if part.dim() == 3:  # (blocks, block_size, H)
        flat = part.reshape(-1, part.shape[-1])[:length]
        return flat.reshape(1, length, heads, -1).transpose(1, 2)
    return part.transpose(1, 2).reshape(-1, part.shape[1], part.shape[3])[:length].transpose(0, 1).unsqueeze(0)


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
        raise refuse(op, f"input {', '.join(fed)} is fed; this quantised or shared-prefix form is not computed")


@kernel(
    "PromptFlashAttention",
    host=("actual_seq_lengths", "actual_seq_lengths_kv"),
    ignores=("inner_precise",),
    source="ops-transformer: attention/prompt_flash_attention, documentation",
)
def prompt_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, pse_shift: Tensor | None = None, atten_mask: Tensor | None = None,
    actual_seq_lengths: Any = None, actual_seq_lengths_kv: Any = None, deq_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None, deq_scale2: Tensor | None = None, quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None, *, num_heads: int, scale_value: float = 1.0, pre_tokens: int = 214748647,
    next_tokens: int = 0, input_layout: str = "BSH", num_key_value_heads: int = 0, sparse_mode: int = 0,
) -> Tensor:  # fmt: skip
    """Attention of whole sequences. Layout pairs such as BNSD_BSND name the layout of the result behind."""
    _refuse_fed("PromptFlashAttention", deq_scale1=deq_scale1, quant_scale1=quant_scale1, deq_scale2=deq_scale2)
    return _dense(
        query, [key], [value], pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv,
        Rule(scale_value, sparse_mode, pre_tokens, next_tokens), num_heads, num_key_value_heads, input_layout, False,
        quant_scale2, quant_offset2,
    )[0]  # fmt: skip


def _dense(
    query: Tensor, key: Sequence[Tensor], value: Sequence[Tensor], pse: Tensor | None, mask: Tensor | None,
    lengths: Any, kv_lengths: Any, rule: Rule, heads: int, kv_heads: int, layout: str, want_lse: bool,
    scale: Tensor | None, offset: Tensor | None, table: Tensor | None = None, block: int = 0, kv_padding: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All layouts, lists and caches; (attention_out, softmax_lse)."""
    read, _, write = layout.partition("_")
    write = write or read
    if read == "TND":
        return _tokens(query, key[0], value[0], mask, lengths, kv_lengths, rule, want_lse)
    q = split_heads(query, read, heads)
    batch, rows = q.shape[0], q.shape[2]
    setting = _Setting(rule, _mask4(mask, rows), pse, want_lse)
    kv = kv_heads or heads
    kv_list = _lengths(kv_lengths, batch)
    if table is None and len(key) == 1 and kv_list is None and lengths is None:
        k, v = split_heads(key[0], read, kv), split_heads(value[0], read, kv)
        out, lse = _attend(q, k, v, setting, setting.mask, setting.pse)
    else:
        keys, values = _caches(key, value, read, kv, batch, kv_list, table, block)
        full = [k.shape[2] for k in keys]
        used = full if kv_list is None else kv_list
        spans = [(0, n) for n in used]
        if kv_padding is not None:
            pad = ints(kv_padding)[0]
            spans = [(max(s - pad - n, 0), s - pad) if s - pad - n >= 0 else (0, 0) for s, n in zip(full, used)]
        out, lse = _per_batch(q, keys, values, _lengths(lengths, batch), spans, setting)
    out = join_heads(_quantised(out, scale, offset), write)
    return out, lse if want_lse else torch.zeros(1)


def _caches(
    key: Sequence[Tensor], value: Sequence[Tensor], layout: str, heads: int, batch: int, lengths: list[int] | None,
    table: Tensor | None, block: int,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Keys and values a batch entry as (1, N, S, D): rows of one tensor, entries of a list, pages of a cache."""
    if table is not None:
        if lengths is None:
            raise refuse("attention", "block_table needs actual_seq_lengths_kv", "feed the lengths")
        return tuple(  # type: ignore[return-value]
            [_paged(c, table, n, block or c.shape[-2 if c.dim() == 4 else 1], heads, b) for b, n in enumerate(lengths)]
            for c in (key[0], value[0])
        )
    sides = []
    for parts in (key, value):
        split = [split_heads(p, layout, heads) for p in parts]
        sides.append([split[0][b : b + 1] for b in range(batch)] if len(split) == 1 else split)
    return sides[0], sides[1]


def _tokens(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Any,
    kv_lengths: Any,
    rule: Rule,
    want_lse: bool,
) -> tuple[Tensor, Tensor]:
    """Packed sequences (T, N, D) whose lengths are running sums."""
    if lengths is None or kv_lengths is None:
        raise refuse("attention", "layout TND needs both length operands", "feed running sums of the lengths")
    setting = _Setting(rule, None, None, want_lse)
    outs, stats, start, kv_start = [], [], 0, 0
    for end, kv_end in zip(ints(lengths), ints(kv_lengths)):
        q, k, v = (
            t.transpose(0, 1).unsqueeze(0) for t in (query[start:end], key[kv_start:kv_end], value[kv_start:kv_end])
        )
        out, lse = _attend(q, k, v, setting, mask, None)
        outs.append(out.squeeze(0).transpose(0, 1))
        stats.append(lse.squeeze(0).transpose(0, 1) if want_lse else lse)
        start, kv_start = end, kv_end
    return torch.cat(outs), torch.cat(stats) if want_lse else torch.zeros(1)


def _antiquant(
    parts: Sequence[Tensor], scale: Tensor | None, offset: Tensor | None, which: int, like: Tensor
) -> list[Tensor]:
    """An int8 cache widened: ``(x + offset) * scale``, entry ``which`` of operands that hold key and value."""
    if scale is None:
        return list(parts)
    factor, shift = scale[which].float(), None if offset is None else offset[which].float()

    def widen(x: Tensor) -> Tensor:
        x32 = x.float()
        return ((x32 if shift is None else x32 + shift) * factor).to(like.dtype)

    return [widen(p) for p in parts]


@kernel(
    "IncreFlashAttention",
    host=("actual_seq_lengths", "kv_padding_size"),
    ignores=("inner_precise",),
    source="ops-transformer: attention/incre_flash_attention, documentation",
)
def incre_flash_attention(
    query: Tensor, key: Sequence[Tensor], value: Sequence[Tensor], pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None, actual_seq_lengths: Any = None, dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None, dequant_scale2: Tensor | None = None, quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None, antiquant_scale: Tensor | None = None, antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None, kv_padding_size: Any = None, *, num_heads: int, scale_value: float = 1.0,
    input_layout: str = "BSH", num_key_value_heads: int = 0, block_size: int = 0,
) -> Tensor:  # fmt: skip
    """One query row a batch entry against dense, listed or paged keys."""
    _refuse_fed(
        "IncreFlashAttention", dequant_scale1=dequant_scale1, quant_scale1=quant_scale1, dequant_scale2=dequant_scale2
    )
    keys = _antiquant(key, antiquant_scale, antiquant_offset, 0, query)
    values = _antiquant(value, antiquant_scale, antiquant_offset, 1, query)
    return _dense(
        query, keys, values, pse_shift, atten_mask, None, actual_seq_lengths, Rule(scale_value, 1), num_heads,
        num_key_value_heads, input_layout, False, quant_scale2, quant_offset2, block_table, block_size, kv_padding_size,
    )[0]  # fmt: skip


@kernel(
    "FusedInferAttentionScore", host=_LENGTHS,
    ignores=("inner_precise", "antiquant_mode", "key_antiquant_mode", "value_antiquant_mode"),
    source="ops-transformer: attention/fused_infer_attention_score, documentation",
)  # fmt: skip
def fused_infer_attention_score(
    query: Tensor, key: Sequence[Tensor], value: Sequence[Tensor], pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None, actual_seq_lengths: Any = None, actual_seq_lengths_kv: Any = None,
    dequant_scale1: Any = None, quant_scale1: Any = None, dequant_scale2: Any = None,
    quant_scale2: Tensor | None = None, quant_offset2: Tensor | None = None, antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None, block_table: Tensor | None = None, query_padding_size: Any = None,
    kv_padding_size: Any = None, key_antiquant_scale: Any = None, key_antiquant_offset: Any = None,
    value_antiquant_scale: Any = None, value_antiquant_offset: Any = None, key_shared_prefix: Any = None,
    value_shared_prefix: Any = None, actual_shared_prefix_len: Any = None, query_rope: Tensor | None = None,
    key_rope: Tensor | None = None, key_rope_antiquant_scale: Any = None, dequant_scale_query: Any = None,
    learnable_sink: Any = None, q_start_idx: Any = None, kv_start_idx: Any = None, *, num_heads: int,
    scale: float = 1.0, pre_tokens: int = _FAR, next_tokens: int = _FAR, input_layout: str = "BSH",
    num_key_value_heads: int = 0, sparse_mode: int = 0, block_size: int = 0, softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(attention_out, softmax_lse) of a prompt or of one step; with one query row the sparse modes have no effect."""
    _refuse_fed(
        "FusedInferAttentionScore", dequant_scale1=dequant_scale1, quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2, key_antiquant_scale=key_antiquant_scale,
        value_antiquant_scale=value_antiquant_scale, key_shared_prefix=key_shared_prefix,
        value_shared_prefix=value_shared_prefix, key_rope_antiquant_scale=key_rope_antiquant_scale,
        dequant_scale_query=dequant_scale_query, learnable_sink=learnable_sink, query_padding_size=query_padding_size,
    )  # fmt: skip
    if query_rope is not None and key_rope is not None:
        query = torch.cat((query, query_rope), -1)
        key = [torch.cat((k, key_rope), -1) for k in key]
    keys = _antiquant(key, antiquant_scale, antiquant_offset, 0, query)
    values = _antiquant(value, antiquant_scale, antiquant_offset, 1, query)
    read = input_layout.partition("_")[0]
    rows = {"BSH": 1, "BSND": 1, "BNSD": 2, "NSD": 1, "SH": 0}.get(read)
    rule = Rule(scale, sparse_mode, pre_tokens, next_tokens)
    if rows is not None and query.shape[rows] == 1:
        rule = Rule(scale, 1)
    return _dense(
        query, keys, values, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, rule, num_heads,
        num_key_value_heads, input_layout, softmax_lse_flag, quant_scale2, quant_offset2, block_table, block_size,
        kv_padding_size,
    )  # fmt: skip
