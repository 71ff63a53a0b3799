"""Layers of a server that end in a cache: heads normed, turned and written into pages; the step of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.norm import rms_norm_of_rows
from ge_runtime.cpu.kernels.numerics import saturate, wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.errors import refused

_TILES: Final = "PA_NZ"


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding by halves."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _stored(value: Tensor, scale: Tensor | None, offset: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What a cache of that type holds: rounded after a division by the scale, if it holds bytes."""
    if scale is None:
        return value.to(dtype)
    value = value / scale.float()
    value = value if offset is None else value + offset.float()
    return value.to(dtype) if dtype.is_floating_point else saturate(value, dtype)


@kernel(
    "QkvRmsNormRopeCache",
    updates=("q_out", "k_cache", "v_cache"),
    ignores=("is_output_qkv",),
    source="ops-transformer: posembedding/qkv_rms_norm_rope_cache, documentation",
)
def qkv_rms_norm_rope_cache(
    qkv: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    k_offset: Tensor | None = None,
    v_offset: Tensor | None = None,
    *,
    qkv_size: Sequence[int],
    head_nums: Sequence[int],
    epsilon: float = 1e-6,
    cache_mode: str = _TILES,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(q_out, k_cache, v_cache, q, k, v): query and key heads normed and turned; key and value into tiles of pages.

    qkv (rows, heads * D), caches (pages, Nk * D / width, page, width) with a width of 16, of 32 for bytes. A negative
    slot of ``index`` writes nothing.
    """
    op = "QkvRmsNormRopeCache"
    if cache_mode != _TILES:
        raise refused(op, f"cache_mode is {cache_mode!r}", f"accepted: {_TILES}")
    size, counts = qkv_size[-1], list(head_nums)
    if sum(counts) * size != qkv.shape[-1]:
        raise refused(op, f"head_nums {counts} of size {size}, qkv has {qkv.shape[-1]} columns")
    q, k, v = wide(qkv).view(qkv.shape[0], sum(counts), size).split(counts, 1)
    angles = wide(cos).unsqueeze(1), wide(sin).unsqueeze(1)
    normed = (rms_norm_of_rows(x, gamma.float(), epsilon)[0] for x, gamma in ((q, q_gamma), (k, k_gamma)))
    q, k = (_turned(x, *angles) for x in normed)
    rows = torch.nonzero(index >= 0).squeeze(-1)
    slots = index.long()[rows]
    for value, cache, scale, offset in ((k, k_cache, k_scale, k_offset), (v, v_cache, v_scale, v_offset)):
        page, width = cache.shape[2:]
        tiles = _stored(value, scale, offset, cache.dtype).flatten(1).unflatten(1, (-1, width))
        cache[slots // page, :, slots % page] = tiles[rows]
    before = [x.flatten(1).to(qkv.dtype) for x in (q, k, v)]
    q_out.copy_(before[0])
    return q_out, k_cache, v_cache, before[0], before[1], before[2]


@kernel(
    "AdvanceStep",
    updates=("input_tokens", "input_positions", "seq_lens", "slot_mapping"),
    source="ops-nn: index/advance_step, documentation",
)
def advance_step(
    input_tokens: Tensor,
    sampled_token_ids: Tensor,
    input_positions: Tensor,
    seq_lens: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    spec_token: Tensor | None = None,
    accepted_num: Tensor | None = None,
    *,
    num_seqs: int,
    num_queries: int,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The next step of sequences in pages: their new token, its position, one row more, and the slot of its row."""
    op = "AdvanceStep"
    if spec_token is not None or accepted_num is not None:
        raise refused(op, "spec_token and accepted_num, of steps that guess ahead", "leave them out")
    if input_tokens.shape[0] != num_seqs or num_queries > num_seqs:
        raise refused(op, f"{num_queries} queries of {num_seqs} sequences, input_tokens has {input_tokens.shape[0]}")
    place = seq_lens[:num_queries].clone()
    page = block_tables.gather(1, (place // block_size).unsqueeze(1)).squeeze(1)
    input_tokens[:num_queries] = sampled_token_ids.reshape(-1)[:num_queries]
    input_positions[:num_queries] = place
    seq_lens[:num_queries] = place + 1
    slot_mapping[:num_queries] = page * block_size + place % block_size
    return input_tokens, input_positions, seq_lens, slot_mapping
