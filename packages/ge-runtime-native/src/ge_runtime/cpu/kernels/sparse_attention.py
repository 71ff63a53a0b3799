"""Attention over chosen tokens: the indexer that chooses them, and the attention that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

_FAR: Final = 2**63 - 1
_LENGTHS: Final = ("actual_seq_lengths_query", "actual_seq_lengths_key")
_KV_LENGTHS: Final = ("actual_seq_lengths_query", "actual_seq_lengths_kv")


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Where the tokens of each sequence stand.

    Attributes:
        query: (start, end) of each in the flattened queries.
        keys: Positions of each one's keys in the flattened keys.
    """

    query: list[tuple[int, int]]
    keys: list[Tensor]

    def __iter__(self) -> Iterator[tuple[int, int, Tensor]]:
        return ((a, b, k) for (a, b), k in zip(self.query, self.keys))


def _spans(op: str, layout: str, x: Tensor, lengths: Any) -> list[tuple[int, int]]:
    """(start, end) in the flattened tokens: running sums for TND, plain lengths for BSND."""
    if layout == "TND":
        if lengths is None:
            raise refused(op, "layout TND needs its lengths", "feed their running sums")
        ends = listed(lengths)
        starts = [0, *ends[:-1]]
        if any(b < a for a, b in zip(starts, ends)) or (ends and ends[-1] > x.shape[0]):
            raise refused(op, f"lengths {ends} are no running sums of {x.shape[0]} tokens")
        return list(zip(starts, ends))
    if layout != "BSND":
        raise refused(op, f"layout is {layout!r}, accepted: BSND, TND, for keys also PA_BSND")
    batch, size = x.shape[:2]
    used = [size] * batch if lengths is None else listed(lengths)
    if len(used) != batch or any(not 0 <= n <= size for n in used):
        raise refused(op, f"lengths {used} of {batch} sequences with {size} tokens")
    return [(b * size, b * size + n) for b, n in enumerate(used)]


def _sequences(
    op: str,
    query: Tensor,
    key: Tensor,
    layout_query: str,
    layout_key: str,
    lengths: Any,
    kv_lengths: Any,
    table: Tensor | None,
    mode: int,
    before: int,
    after: int,
) -> tuple[_Sequences, bool]:
    """The sequences, and whether a query sees up to its own place only, counted from the end."""
    if mode not in (0, 3) or before != _FAR or after != _FAR:
        raise refused(op, f"sparse_mode {mode}, pre_tokens {before}, next_tokens {after}", "accepted: 0, 3; no limits")
    rows = _spans(op, layout_query, query, lengths)
    if layout_key != "PA_BSND":
        if table is not None:
            raise refused(op, f"block_table with layout {layout_key}", "accepted with PA_BSND")
        keys = [torch.arange(a, b) for a, b in _spans(op, layout_key, key, kv_lengths)]
    else:
        if table is None or kv_lengths is None:
            raise refused(op, "layout PA_BSND needs block_table and the lengths of the keys", "feed both")
        keys, page = [], key.shape[1]
        for b, n in enumerate(listed(kv_lengths)):
            pages = table[b, : -(-n // page)].long()
            if pages.numel() * page < n or ((pages < 0) | (pages >= key.shape[0])).any():
                raise refused(op, f"block_table row {b} does not name {n} tokens of {key.shape[0]} pages")
            keys.append((pages.unsqueeze(1) * page + torch.arange(page)).flatten()[:n])
    if len(keys) != len(rows):
        raise refused(op, f"{len(rows)} sequences of queries, {len(keys)} of keys")
    return _Sequences(rows, keys), mode == 3


def _flat(x: Tensor, layout: str) -> Tensor:
    """Tokens in one axis: (T, N, D)."""
    return x if layout == "TND" else x.flatten(0, 1)


def _index(
    seqs: _Sequences, q: Tensor, k: Tensor, w: Tensor, key_scale: Tensor | None, count: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """(positions, scores) (T, 1, count): ``sum_n w_n relu(q_n . k)``, the best first, -1 and -inf last."""
    best = torch.full((q.shape[0], 1, count), -1, dtype=torch.int32)
    values = torch.full((q.shape[0], 1, count), float("-inf"))
    for start, end, at in seqs:
        keys = wide(k[at, 0]).float()
        near = torch.relu(torch.einsum("tnd,sd->tns", wide(q[start:end]).float(), keys))
        score = (near * w[start:end, :, None]).sum(1)
        score = score if key_scale is None else score * key_scale[at].float()
        rows, columns = score.shape
        if causal:
            late = torch.arange(columns) > torch.arange(rows).unsqueeze(1) + columns - rows
            score = score.masked_fill(late, float("-inf"))
        order = torch.sort(score, dim=-1, descending=True, stable=True)
        take = min(count, columns)
        top_scores, at_ = order.values[:, :take], order.indices[:, :take].to(torch.int32)
        best[start:end, 0, :take] = torch.where(top_scores == float("-inf"), torch.full_like(at_, -1), at_)
        values[start:end, 0, :take] = top_scores
    return best, values


def _like(y: Tensor, query: Tensor, layout: str) -> Tensor:
    return y if layout == "TND" else y.unflatten(0, tuple(query.shape[:2]))


@kernel("LightningIndexer", host=_LENGTHS, source="ops-transformer: attention/lightning_indexer, documentation")
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Any = None,
    actual_seq_lengths_key: Any = None,
    block_table: Tensor | None = None,
    *,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _FAR,
    next_tokens: int = _FAR,
    return_values: bool = False,
) -> tuple[Tensor, Tensor]:
    """(sparse_indices, sparse_values): the keys that score best for each query, best first, -1 after the last."""
    op = "LightningIndexer"
    seqs, causal = _sequences(
        op,
        query,
        key,
        layout_query,
        layout_key,
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        block_table,
        sparse_mode,
        pre_tokens,
        next_tokens,
    )
    q, k = _flat(query, layout_query), _flat(key, layout_key)
    w = wide(weights).reshape(q.shape[0], -1).float()
    indices, values = _index(seqs, q, k, w, None, sparse_count, causal)
    shown = values.to(query.dtype) if return_values else torch.zeros(values.shape, dtype=query.dtype)
    return _like(indices, query, layout_query), _like(shown, query, layout_query)


@kernel(
    "QuantLightningIndexer",
    host=_LENGTHS,
    ignores=("key_stride0", "key_dequant_scale_stride0"),
    source="ops-transformer: attention/quant_lightning_indexer, documentation",
)
def quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    actual_seq_lengths_query: Any = None,
    actual_seq_lengths_key: Any = None,
    block_table: Tensor | None = None,
    *,
    query_quant_mode: int,
    key_quant_mode: int,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _FAR,
    next_tokens: int = _FAR,
) -> Tensor:
    """LightningIndexer of quantised operands: ``k_scale sum_n (w q_scale)_n relu(q_n . k)``."""
    op = "QuantLightningIndexer"
    if query_quant_mode or key_quant_mode:
        raise refused(op, f"quant modes {query_quant_mode}, {key_quant_mode}, accepted: 0")
    seqs, causal = _sequences(
        op,
        query,
        key,
        layout_query,
        layout_key,
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        block_table,
        sparse_mode,
        pre_tokens,
        next_tokens,
    )
    q, k = _flat(query, layout_query).float(), _flat(key, layout_key).float()
    w = wide(weights).float().reshape(q.shape[0], -1) * wide(query_dequant_scale).float().reshape(q.shape[0], -1)
    indices, _ = _index(seqs, q, k, w, wide(key_dequant_scale).reshape(-1), sparse_count, causal)
    return _like(indices, query, layout_query)


def _attend(
    seqs: _Sequences,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    scale: float,
    size: int,
    causal: bool,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, maxima, sums) of float32 (T, N, D) queries over the blocks of ``size`` tokens that ``chosen`` names."""
    heads, kv = q.shape[1], k.shape[1]
    out = torch.zeros(q.shape[0], heads, v.shape[2])
    top, total = torch.zeros(q.shape[0], heads), torch.zeros(q.shape[0], heads)
    for start, end, at in seqs:
        for row in range(start, end):
            last = len(at) - (end - start) + (row - start) + 1 if causal else len(at)
            for n in range(kv):
                blocks = chosen[row, n].long()
                ended = (blocks < 0).nonzero()
                blocks = blocks[: int(ended[0])] if len(ended) else blocks
                tokens = (blocks.unsqueeze(1) * size + torch.arange(size)).flatten()
                tokens = at[tokens[tokens < last]]
                if not len(tokens):
                    continue
                group = slice(n * (heads // kv), (n + 1) * (heads // kv))
                s = q[row, group] @ k[tokens, n].T * scale
                most = s.amax(-1) if sinks is None else torch.maximum(s.amax(-1), sinks[group].float())
                e = torch.exp(s - most.unsqueeze(-1))
                count = e.sum(-1) if sinks is None else e.sum(-1) + torch.exp(sinks[group].float() - most)
                out[row, group] = (e / count.unsqueeze(-1)) @ v[tokens, n]
                top[row, group], total[row, group] = most, count
    return out, top, total


def _statistics(x: Tensor, query: Tensor, layout: str, kv: int) -> Tensor:
    """(T, N) as (Nkv, T, N / Nkv), or (B, Nkv, S, N / Nkv)."""
    grouped = x.unflatten(1, (kv, -1))
    if layout == "TND":
        return grouped.transpose(0, 1).contiguous()
    return grouped.unflatten(0, tuple(query.shape[:2])).transpose(1, 2).contiguous()


@kernel(
    "SparseFlashAttention",
    host=_KV_LENGTHS,
    ignores=("return_softmax_lse",),
    source="ops-transformer: attention/sparse_flash_attention, documentation",
)
def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Any = None,
    actual_seq_lengths_kv: Any = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale_value: float,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _FAR,
    next_tokens: int = _FAR,
    attention_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(attention_out, softmax_max, softmax_sum) over the tokens that ``sparse_indices`` names for each query."""
    op = "SparseFlashAttention"
    if attention_mode not in (0, 2) or (query_rope is None) != (key_rope is None):
        raise refused(op, f"attention_mode {attention_mode}, or one of two rope parts", "accepted: 0, 2; both, none")
    seqs, causal = _sequences(
        op,
        query,
        key,
        layout_query,
        layout_kv,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        block_table,
        sparse_mode,
        pre_tokens,
        next_tokens,
    )
    q, k, v = (wide(_flat(t, la)) for t, la in ((query, layout_query), (key, layout_kv), (value, layout_kv)))
    if query_rope is not None and key_rope is not None:
        q = torch.cat((q, wide(_flat(query_rope, layout_query))), -1)
        k = torch.cat((k, wide(_flat(key_rope, layout_kv))), -1)
    chosen = _flat(sparse_indices, layout_query)
    out, top, total = _attend(seqs, q, k, v, chosen, scale_value, sparse_block_size, causal, sinks)
    stats = [_statistics(x, query, layout_query, k.shape[1]) for x in (top, total)]
    return _like(out.to(query.dtype), query, layout_query), stats[0], stats[1]


@kernel("KvQuantSparseFlashAttention", host=_KV_LENGTHS, source="ops-transformer: kv_quant_sparse_flash_attention")
def kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    key_dequant_scale: Tensor | None = None,
    value_dequant_scale: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Any = None,
    actual_seq_lengths_kv: Any = None,
    *,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _FAR,
    next_tokens: int = _FAR,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
) -> Tensor:
    """SparseFlashAttention over rows that hold int8 values, then the rope part, then a float32 scale a tile.

    Shapes: query (.., N, D + rope) -> (.., N, D); key (.., 1, D + 2 rope + 4 D / tile) bytes, value the same memory.
    """
    op = "KvQuantSparseFlashAttention"
    fed = key_dequant_scale is not None or value_dequant_scale is not None
    if (key_quant_mode, value_quant_mode, attention_mode, quant_scale_repo_mode) != (2, 2, 2, 1) or fed:
        raise refused(op, "scales beside the cache, or other modes", "accepted: quant modes 2, attention 2, repo 1")
    if key.dtype != torch.int8 or not torch.equal(key, value):
        raise refused(op, "key and value are two tensors, or not int8", "feed the same int8 cache twice")
    seqs, causal = _sequences(
        op,
        query,
        key,
        layout_query,
        layout_kv,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        block_table,
        sparse_mode,
        pre_tokens,
        next_tokens,
    )
    width = query.shape[-1] - rope_head_dim
    rows = _flat(key, layout_kv).contiguous()
    scales = rows[..., width + 2 * rope_head_dim :].contiguous().view(torch.float32)
    nope = rows[..., :width].float() * scales[..., : width // tile_size].repeat_interleave(tile_size, -1)
    rope = rows[..., width : width + 2 * rope_head_dim].contiguous().view(query.dtype)
    k = torch.cat((nope, wide(rope)), -1)
    q, chosen = wide(_flat(query, layout_query)), _flat(sparse_indices, layout_query)
    out, _, _ = _attend(seqs, q, k, nope, chosen, scale_value, sparse_block_size, causal, None)
    return _like(out.to(query.dtype), query, layout_query)
