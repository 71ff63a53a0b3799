"""Mixture of experts: gating, routing there and back. Tables of rows follow each operator's own order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.kernels.quant import symmetric
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.errors import refused


def _topk(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest, best first, the lower index first among equals."""
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]


def _experts(index: Tensor, finished: Tensor | None, count: int) -> Tensor:
    """int32 numbers; those of finished rows name expert ``count``, which there is not."""
    experts = index.to(torch.int32)
    return experts if finished is None else experts.masked_fill(finished.unsqueeze(-1), count)


@kernel("MoeGatingTopKSoftmax", source="ops-transformer: moe/moe_gating_top_k_softmax, documentation")
def moe_gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, *, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(y, expert_idx, row_idx); row_idx[i, j] = j * rows + i, and finished rows name expert E."""
    scores = torch.softmax(wide(x), -1)
    index, rows = _topk(scores, k), x.shape[:-1].numel()
    row_idx = torch.arange(rows * k, dtype=torch.int32).reshape(k, rows).t().reshape(index.shape).contiguous()
    return scores.gather(-1, index).to(x.dtype), _experts(index, finished, x.shape[-1]), row_idx


@kernel("MoeGatingTopKSoftmaxV2", source="ops-transformer: moe/moe_gating_top_k_softmax_v2, documentation")
def moe_gating_top_k_softmax_v2(
    x: Tensor,
    finished: Tensor | None = None,
    *,
    k: int,
    renorm: int = 0,
    output_softmax_result_flag: bool = False,
    output_softmax: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, expert_idx, softmax_result); ``renorm`` 1 takes the softmax over the chosen logits."""
    scores = torch.softmax(wide(x), -1)
    index = _topk(wide(x) if renorm else scores, k)
    y = torch.softmax(wide(x).gather(-1, index), -1) if renorm else scores.gather(-1, index)
    return y.to(x.dtype), _experts(index, finished, x.shape[-1]), scores.float()


@kernel("MoeGatingTopK", source="ops-transformer: moe/moe_gating_top_k, documentation and reference")
def moe_gating_top_k(
    x: Tensor,
    bias: Tensor | None = None,
    *,
    k: int,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, expert_idx, out): experts are picked by biased scores, returned with unbiased ones."""
    if norm_type not in (0, 1) or renorm:
        raise refused("MoeGatingTopK", f"norm_type {norm_type}, renorm {renorm}; accepted: norm_type 0, 1 and renorm 0")
    scores = torch.softmax(wide(x), -1) if norm_type == 0 else torch.sigmoid(wide(x))
    ranked = scores if bias is None else scores + wide(bias)
    if group_count > 1:
        grouped = ranked.reshape(ranked.shape[0], group_count, -1)
        rank = grouped.amax(-1) if group_select_mode == 0 else grouped.topk(2, -1).values.sum(-1)
        chosen = torch.zeros_like(rank, dtype=torch.bool).scatter_(1, _topk(rank, k_group), True)
        ranked = grouped.masked_fill(~chosen.unsqueeze(-1), float("-inf")).reshape(ranked.shape)
    index = _topk(ranked, k)
    y = scores.gather(-1, index)
    if norm_type == 1:
        y = y / (y.sum(-1, keepdim=True) + eps)
    return (y * routed_scaling_factor).to(x.dtype), index.to(torch.int32), scores.float()


@kernel("MoeInitRouting", source="ops-transformer: moe/moe_init_routing, documentation")
def moe_init_routing(
    x: Tensor, row_idx: Tensor, expert_idx: Tensor, *, active_num: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(expanded_x, expanded_row_idx, expanded_expert_idx): pairs sorted stably by expert, their rows in that order."""
    rows, k = expert_idx.shape
    experts, order = torch.sort(expert_idx.reshape(-1), stable=True)
    source = row_idx.reshape(-1)[order].long()
    position = torch.empty_like(source).scatter_(0, source, torch.arange(source.numel()))
    count = min(rows, active_num) * k
    return x[source[:count] % rows], position.to(torch.int32), experts.to(torch.int32)


def _ranked_experts(expert_idx: Tensor, first: int, last: int) -> tuple[Tensor, Tensor, int]:
    """(expert of each sorted pair, pair in sorted order, how many are in range); others come last."""
    flat = expert_idx.reshape(-1).long()
    key = torch.where((flat >= first) & (flat < last), flat, torch.full_like(flat, 2**31 - 1))
    experts, order = torch.sort(key, stable=True)
    return experts, order, int((key < 2**31 - 1).sum())


@kernel("MoeInitRoutingV3", source="ops-transformer: moe/moe_init_routing_v3, documentation")
def moe_init_routing_v3(
    x: Tensor,
    expert_idx: Tensor,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(expanded_x, expanded_row_idx, expert counts, expanded_scale) without capacity; quant_mode -1 or 1.

    Pairs are row-major: pair ``i * K + k`` belongs to row i. Rows after the available ones are zero, their place -1.
    """
    if drop_pad_mode or quant_mode not in (-1, 1) or expert_tokens_num_type not in (0, 1):
        raise refused("MoeInitRoutingV3", "accepted: drop_pad_mode 0, quant_mode -1, 1, expert_tokens_num_type 0, 1")
    k = expert_idx.shape[1]
    first, last = list(active_expert_range) or [0, expert_num if expert_num > 0 else 2**31 - 1]
    experts, order, valid = _ranked_experts(expert_idx, first, last)
    total = order.numel()
    length = total if active_num <= 0 else min(active_num, total)
    available = min(valid, length)
    picked = order[:available]
    rows = x[picked // k]
    expanded_scale = torch.zeros(length)
    if quant_mode == 1:
        factor = None if scale is None else wide(scale)[(experts[:available] - first) if scale.shape[0] > 1 else 0]
        rows, row_scale = symmetric(wide(rows) if factor is None else wide(rows) * factor, torch.int8)
        expanded_scale[:available] = row_scale
    elif scale is not None:
        expanded_scale[:available] = scale[picked // k].float()
    out = rows.new_zeros(length, x.shape[1])
    out[:available] = rows
    places = order.clone()
    if row_idx_type == 0:
        places = torch.full_like(order, -1).scatter_(0, picked, torch.arange(available))
    counts = torch.bincount(experts[:valid] - first, minlength=last - first if last < 2**31 - 1 else 0)
    counts = counts.cumsum(0) if expert_tokens_num_type == 0 else counts
    return out, places.to(torch.int32), counts, expanded_scale


@kernel("MoeFinalizeRoutingV2", source="ops-transformer: moe/moe_finalize_routing_v2, documentation and reference")
def moe_finalize_routing_v2(
    expanded_x: Tensor,
    expanded_row_idx: Tensor,
    x1: Tensor | None = None,
    x2: Tensor | None = None,
    bias: Tensor | None = None,
    scales: Tensor | None = None,
    expert_idx: Tensor | None = None,
    *,
    drop_pad_mode: int = 0,
) -> Tensor:
    """MoeFinalizeRouting with optional parts; modes 2 and 3 read the index table row-major, -1 is a zero row."""
    flat = wide(expanded_x).reshape(-1, expanded_x.shape[-1])
    index = expanded_row_idx.reshape(-1).long()
    k = 1 if scales is None else scales.shape[1]
    rows = index.numel() // k
    table = index.reshape(rows, k) if drop_pad_mode in (2, 3) else index.reshape(k, rows).t()
    present = (table >= 0) & (table < flat.shape[0])
    parts = flat[table.clamp(0, max(flat.shape[0] - 1, 0))] * present.unsqueeze(-1)
    if bias is not None and expert_idx is not None:
        parts = parts + wide(bias)[expert_idx.long()]
    y = (parts if scales is None else parts * wide(scales).unsqueeze(-1)).sum(1)
    for extra in (x1, x2):
        y = y if extra is None else y + wide(extra)
    return y.to(expanded_x.dtype)


rows(
    {
        # weighted sum of the experts' rows; the index table is k-major, scales and experts row-major
        "MoeFinalizeRouting": lambda expanded_x, x1, x2, bias, scales, row_idx, expert_idx: moe_finalize_routing_v2(
            expanded_x, row_idx, x1, x2, bias, scales, expert_idx
        ),
        # entry e: how many of the sorted experts are at most e
        "MoeComputeExpertTokens": lambda sorted_experts, *, num_experts: torch.searchsorted(
            sorted_experts, torch.arange(num_experts, dtype=sorted_experts.dtype), right=True
        ).to(torch.int32),
    },
    source="ops-transformer: moe, documentation and kernel",
)


@kernel("MoeReRouting", source="ops-transformer: moe/moe_re_routing, documentation")
def moe_re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    per_token_scales: Tensor | None = None,
    *,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks (rank, expert) to expert-major order; (tokens, scales, source row of each row, tokens of each expert)."""
    if expert_token_num_type != 1 or idx_type != 0:
        raise refused("MoeReRouting", "accepted: expert_token_num_type 1, idx_type 0")
    counts = expert_token_num_per_rank.long()
    starts = (counts.reshape(-1).cumsum(0) - counts.reshape(-1)).reshape(counts.shape)
    blocks = [
        torch.arange(int(starts[r, e]), int(starts[r, e] + counts[r, e]))
        for e in range(counts.shape[1])
        for r in range(counts.shape[0])
    ]
    order = torch.cat(blocks)
    scales = torch.zeros(tokens.shape[0]) if per_token_scales is None else per_token_scales[order]
    total = counts.sum(0).to(expert_token_num_per_rank.dtype)
    return tokens[order], scales, order.to(torch.int32), total


def _into_pages(cache: Tensor, data: Tensor, slots: Tensor) -> None:
    """Tokens into a paged cache (blocks, block_size, H, D) at their slots; slots out of range are skipped."""
    at, size = slots.reshape(-1).long(), cache.shape[1]
    keep = (at >= 0) & (at < cache.shape[0] * size)
    cache[at[keep] // size, at[keep] % size] = data.reshape(-1, *cache.shape[2:])[keep]


@kernel(
    "ScatterPaKvCache",
    updates=("key_cache", "value_cache"),
    source="ops-transformer: attention/scatter_pa_kv_cache, kernel",
)
def scatter_pa_kv_cache(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    value: Tensor,
    value_cache: Tensor,
    compress_lens: Tensor | None = None,
    compress_seq_offset: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    cache_mode: str = "Norm",
    scatter_mode: str = "None",
) -> tuple[Tensor, Tensor]:
    """Write tokens of keys and values into their paged caches."""
    op = "ScatterPaKvCache"
    if cache_mode != "Norm" or scatter_mode != "None":
        raise refused(op, f"cache_mode {cache_mode!r}, scatter_mode {scatter_mode!r}; accepted: Norm, None")
    for data, cache in ((key, key_cache), (value, value_cache)):
        if data.dim():
            _into_pages(cache, data, slot_mapping)
    return key_cache, value_cache


@kernel("ScatterPaCache", updates=("key_cache",), source="ops-transformer: attention/scatter_pa_cache, documentation")
def scatter_pa_cache(
    key: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    compress_lens: Tensor | None = None,
    compress_seq_offset: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    cache_mode: str = "Norm",
) -> Tensor:
    """ScatterPaKvCache of one cache."""
    if cache_mode != "Norm":
        raise refused("ScatterPaCache", f"cache_mode {cache_mode!r}; accepted: Norm")
    _into_pages(key_cache, key, slot_mapping)
    return key_cache


@kernel(
    "MoeTokenPermuteWithRoutingMapGrad",
    ignores=("num_experts",),
    source="ops-transformer: moe/moe_token_permute_with_routing_map_grad, documentation",
)
def moe_token_permute_with_routing_map_grad(
    permuted_token_output_grad: Tensor,
    permuted_probs_output_grad_optional: Tensor | None,
    sorted_indices: Tensor,
    routing_map_optional: Tensor | None = None,
    *,
    tokens_num: int,
    padded_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """(gradient of the tokens, gradient of the weights): each token gets the sum of what its copies got."""
    op, grad = "MoeTokenPermuteWithRoutingMapGrad", permuted_token_output_grad
    if routing_map_optional is None or routing_map_optional.shape[0] != tokens_num:
        raise refused(op, f"no routing_map of {tokens_num} tokens", "feed the map of the forward pass")
    chosen, places = routing_map_optional.bool(), sorted_indices.long()
    tokens = torch.zeros(tokens_num, grad.shape[1], dtype=torch.float32)
    given = torch.zeros(chosen.shape[1], tokens_num)  # by expert, as the copies stand
    weights = permuted_probs_output_grad_optional
    if padded_mode:
        tokens.index_add_(0, places, wide(grad))
        if weights is not None:
            given.scatter_(1, places.view(chosen.shape[1], -1), wide(weights).view(chosen.shape[1], -1))
    else:
        tokens.index_add_(0, torch.nonzero(chosen)[:, 0], wide(grad)[places])
        if weights is not None:
            given[chosen.T] = wide(weights)
    return tokens.to(grad.dtype), given.T.to(grad.dtype if weights is None else weights.dtype)
