"""A product and an exchange between processes in one operator, and tokens that go to their experts and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from ge_runtime.cpu.groups import group_of
from ge_runtime.cpu.kernels import collectives
from ge_runtime.cpu.kernels.matmul import product, turned
from ge_runtime.cpu.kernels.numerics import unpack_quant_parameter, wide
from ge_runtime.cpu.kernels.quant import symmetric
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.errors import refused

_TRIPLE: Final = 128  # int32 entries that a row of assist_info_for_combine has


def _sum_only(op: str, reduce_op: str) -> None:
    if reduce_op != "sum":
        raise refused(op, f"reduce_op is {reduce_op!r}, accepted: sum")


@kernel(
    "MatmulAllReduce", acts=True, ignores=("comm_turn", "comm_mode"), source="ops-transformer: mc2/matmul_all_reduce"
)
def matmul_all_reduce(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    x3: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    dequant_scale: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    comm_quant_scale_1: Tensor | None = None,
    comm_quant_scale_2: Tensor | None = None,
    *,
    group: str,
    reduce_op: str = "sum",
    is_trans_a: bool = False,
    is_trans_b: bool = False,
    antiquant_group_size: int = 0,
) -> Tensor:
    """Sum over the ranks of ``x1 @ W + bias + x3``; W is x2, or ``(x2 + offset) * scale`` of an int8 one.

    int8 times int8 is multiplied by ``dequant_scale`` and the rows' ``pertoken_scale``, its int32 bias added before.
    """
    op = "MatmulAllReduce"
    _sum_only(op, reduce_op)
    if comm_quant_scale_1 is not None or comm_quant_scale_2 is not None or antiquant_group_size:
        raise refused(op, "quantised communication, or scales of groups", "leave them out")
    a, b = turned(x1, is_trans_a), turned(x2, is_trans_b)
    if x1.dtype == torch.int8:
        if dequant_scale is None:
            raise refused(op, "int8 operands need dequant_scale", "feed it")
        acc = product(a, b)
        acc = (acc if bias is None else acc + bias).float() * unpack_quant_parameter(dequant_scale)[0].reshape(-1)
        y = acc if pertoken_scale is None else acc * pertoken_scale.unsqueeze(-1)
        to = torch.bfloat16 if dequant_scale.dtype == torch.bfloat16 else torch.float16
    else:
        if dequant_scale is not None or pertoken_scale is not None:
            raise refused(op, "dequant_scale or pertoken_scale with float rows", "leave them out")
        w, to = wide(b).float(), x1.dtype
        if antiquant_scale is not None:
            w = (w if antiquant_offset is None else w + wide(antiquant_offset)) * wide(antiquant_scale)
        elif not b.is_floating_point():
            raise refused(op, "an int8 weight needs antiquant_scale", "feed it")
        y = wide(a) @ w
        y = y if bias is None else y + wide(bias)
    y = y if x3 is None else y + wide(x3)
    return collectives.all_reduce(y, reduction="sum", group=group).to(to)


@kernel(
    "AllGatherMatmul",
    acts=True,
    ignores=("comm_turn", "is_gather_out"),
    source="ops-transformer: mc2/all_gather_matmul, documentation",
)
def all_gather_matmul(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    *,
    group: str,
    is_trans_a: bool = False,
    is_trans_b: bool = False,
    gather_index: int = 0,
    rank_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """(gather_out @ x2 + bias, gather_out): the rows of all ranks one after the other."""
    if is_trans_a or gather_index:
        raise refused("AllGatherMatmul", "is_trans_a, or gather_index 1", "leave them at their defaults")
    gathered = collectives.all_gather(x1, rank_size=rank_size or collectives.group_size(group), group=group)
    return product(gathered, turned(x2, is_trans_b), bias), gathered


@kernel("MatmulReduceScatter", acts=True, ignores=("comm_turn",), source="ops-transformer: mc2/matmul_reduce_scatter")
def matmul_reduce_scatter(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    *,
    group: str,
    reduce_op: str = "sum",
    is_trans_a: bool = False,
    is_trans_b: bool = False,
    rank_size: int = 0,
) -> Tensor:
    """This rank's block of rows of the sum over the ranks of ``x1 @ x2 + bias``."""
    _sum_only("MatmulReduceScatter", reduce_op)
    a, b = (wide(turned(t, flag)) for t, flag in ((x1, is_trans_a), (x2, is_trans_b)))
    y = a @ b if bias is None else a @ b + wide(bias)
    size = rank_size or collectives.group_size(group)
    return collectives.reduce_scatter(y, reduction="sum", group=group, rank_size=size).to(x1.dtype)


# -- tokens to their experts and back ---------------------------------------------------------------------------------


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: str) -> Tensor:
    """Blocks of rows to and from each rank; one rank keeps its own."""
    if len(sent) == 1:
        return rows.clone()
    y = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(y, rows.contiguous(), received, sent, group=group_of(group))
    return y


def _pairs(expert_ids: Tensor, active: Tensor | None, experts: int) -> tuple[Tensor, Tensor]:
    """(pairs ``token * K + k`` sorted by expert, tokens of each expert); idle tokens and special experts stay out."""
    ids = expert_ids.long()
    on = (ids >= 0) & (ids < experts)
    if active is not None:
        on = on & (active if active.dim() == 2 else active.unsqueeze(-1))
    flat = torch.where(on, ids, torch.full_like(ids, experts)).reshape(-1)
    order = torch.sort(flat, stable=True).indices[: int(on.sum())]
    return order, torch.bincount(flat, minlength=experts + 1)[:experts]


def _expert_major(blocks: Tensor) -> Tensor:
    """Rows that came by (rank, expert) in the order (expert, rank); ``blocks`` (ranks, experts) counts them."""
    ends = blocks.reshape(-1).cumsum(0).reshape(blocks.shape)
    spans = [torch.arange(int(e - n), int(e)) for e, n in zip(ends.t().reshape(-1), blocks.t().reshape(-1))]
    return torch.cat(spans)


def _check_world(op: str, world: int, experts: int, tp: int, shard: int, shared_ranks: int) -> int:
    """How many experts a rank has."""
    if tp > 1 or shard or shared_ranks:
        raise refused(op, "a tensor-parallel group or ranks for shared experts", "leave tp_* and shared_expert_* out")
    if world < 1 or experts % world:
        raise refused(op, f"{experts} experts do not divide among {world} ranks")
    return experts // world


def _dispatch(
    op: str,
    x: Tensor,
    expert_ids: Tensor,
    scales: Tensor | None,
    active: Tensor | None,
    expert_scales: Tensor | None,
    group: str,
    world: int,
    experts: int,
    quant: int,
    global_bs: int,
    counted: int,
    rank: int,
) -> tuple[Tensor, ...]:
    """(expand_x, dynamic_scales, (rank, token, k) of each row, tokens of each expert, running sums, expand_scales)."""
    local, (tokens, k) = experts // world, expert_ids.shape
    if quant not in (0, 2) or counted not in (0, 1):
        raise refused(op, f"quant_mode {quant}, expert_token_nums_type {counted}", "accepted: 0, 2; 0, 1")
    order, counts = _pairs(expert_ids, active, experts)
    rows, row_scales = x[order // k], torch.ones(len(order))
    if quant:
        smooth = None if scales is None else wide(scales)[expert_ids.reshape(-1)[order].long()]
        rows, row_scales = symmetric(wide(rows) if smooth is None else wide(rows) * smooth, torch.int8)
    elif scales is not None:
        raise refused(op, "scales without quant_mode 2", "leave them out")
    weights = torch.zeros(len(order)) if expert_scales is None else expert_scales.reshape(-1)[order].float()
    origin = torch.stack((torch.full_like(order, rank), order // k, order % k), -1).to(torch.int32)
    sent = counts.reshape(world, local)
    came = _exchange(sent, [1] * world, [1] * world, group)  # (ranks, own experts)
    outgoing, incoming = sent.sum(1).tolist(), came.sum(1).tolist()
    size = (global_bs or tokens * world) * min(local, k)
    at, padded = _expert_major(came), []
    if len(at) > size:
        raise refused(op, f"{len(at)} rows came, the result has {size}", "give the right global_bs")
    for part in (rows, row_scales, origin, weights):
        moved = _exchange(part, outgoing, incoming, group)[at]
        padded.append(torch.cat((moved, moved.new_zeros(size - len(at), *moved.shape[1:]))))
    sums = came.t().reshape(-1).cumsum(0).to(torch.int32)
    each = came.sum(0)
    return padded[0], padded[1], padded[2], each if counted else each.cumsum(0), sums, padded[3]


def _dispatching(op: str, told: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Tokens to the ranks of their experts; rows by expert, by rank they came from, by token, then zeros.

    ``told`` makes the third result, which the way back needs, of the expert numbers and (rank, token, k) of each row.
    """

    def run(
        x: Tensor,
        expert_ids: Tensor,
        scales: Tensor | None = None,
        x_active_mask: Tensor | None = None,
        expert_scales: Tensor | None = None,
        elastic_info: Tensor | None = None,
        performance_info: Tensor | None = None,
        *,
        group_ep: str,
        ep_world_size: int,
        ep_rank_id: int,
        moe_expert_num: int,
        group_tp: str = "",
        tp_world_size: int = 0,
        expert_shard_type: int = 0,
        shared_expert_rank_num: int = 0,
        quant_mode: int = 0,
        global_bs: int = 0,
        expert_token_nums_type: int = 1,
        const_expert_num: int = 0,
        y_dtype: int = 28,
    ) -> tuple[Tensor, ...]:
        if group_tp or const_expert_num or y_dtype != 28 or not x.is_floating_point():
            raise refused(op, "group_tp, constant experts, y_dtype or packed rows", "leave them out")
        _check_world(op, ep_world_size, moe_expert_num, tp_world_size, expert_shard_type, shared_expert_rank_num)
        rows, scale, origin, nums, sums, weights = _dispatch(
            op,
            x,
            expert_ids,
            scales,
            x_active_mask,
            expert_scales,
            group_ep,
            ep_world_size,
            moe_expert_num,
            quant_mode,
            global_bs,
            expert_token_nums_type,
            ep_rank_id,
        )
        return rows, scale, told(expert_ids, origin), nums, sums, torch.zeros(1, dtype=torch.int32), weights

    return run


def _earlier(expert_ids: Tensor, origin: Tensor) -> Tensor:
    """expand_idx (tokens * K): how many pairs before one go to the same expert."""
    same = expert_ids.reshape(-1, 1) == expert_ids.reshape(1, -1)
    return torch.tril(same, -1).sum(1).to(torch.int32)


def _assist(expert_ids: Tensor, origin: Tensor) -> Tensor:
    """assist_info_for_combine: a row of it begins with (rank, token, k) of the row."""
    assist = torch.zeros(origin.shape[0], _TRIPLE, dtype=torch.int32)
    assist[:, :3] = origin
    return assist.reshape(-1)


_DISPATCH: Final = "ops-transformer: mc2/moe_distribute_dispatch, documentation"
moe_distribute_dispatch = _dispatching("MoeDistributeDispatch", _earlier)
rows(
    {"MoeDistributeDispatch": moe_distribute_dispatch},
    acts=True,
    ignores=("tp_rank_id", "shared_expert_num"),
    source=_DISPATCH,
)
rows(
    {
        "MoeDistributeDispatchV2": _dispatching("MoeDistributeDispatchV2", _assist),
    },
    acts=True,
    source=_DISPATCH,
    ignores=("tp_rank_id", "shared_expert_num", "comm_alg", "zero_expert_num", "copy_expert_num", "performance_info"),
)


def _combine(
    op: str,
    expand_x: Tensor,
    expert_ids: Tensor,
    sums: Tensor,
    expert_scales: Tensor,
    active: Tensor | None,
    group: str,
    world: int,
    experts: int,
) -> Tensor:
    """float32 sums (tokens, H) of what the experts made of each token, weighted."""
    local, (tokens, k) = experts // world, expert_ids.shape
    ends = sums.reshape(-1)[: world * local].long()
    came = torch.diff(ends, prepend=ends.new_zeros(1)).reshape(local, world).t()  # (ranks, own experts)
    order, counts = _pairs(expert_ids, active, experts)
    at = _expert_major(came)
    if len(at) > expand_x.shape[0]:
        raise refused(op, f"ep_send_counts names {len(at)} rows, expand_x has {expand_x.shape[0]}")
    by_rank = torch.empty(len(at), *expand_x.shape[1:], dtype=expand_x.dtype)
    by_rank[at] = expand_x[: len(at)]
    sent = counts.reshape(world, local).sum(1).tolist()
    back = _exchange(by_rank, came.sum(1).tolist(), sent, group)
    y = torch.zeros(tokens, expand_x.shape[-1])
    y.index_add_(0, order // k, wide(back).float() * expert_scales.float().reshape(-1)[order].unsqueeze(-1))
    return y


_COMBINE: Final = "ops-transformer: mc2/moe_distribute_combine, documentation"
_NOT_NEEDED: Final = (
    "ep_rank_id",
    "tp_rank_id",
    "shared_expert_num",
    "global_bs",
    "expand_scales",
    "tp_send_counts",
)


@kernel("MoeDistributeCombine", acts=True, ignores=(*_NOT_NEEDED, "expand_idx"), source=_COMBINE)
@kernel(
    "MoeDistributeCombineV2",
    acts=True,
    source=_COMBINE,
    ignores=(*_NOT_NEEDED, "assist_info_for_combine", "comm_alg", "performance_info"),
)
def moe_distribute_combine(
    expand_x: Tensor,
    expert_ids: Tensor,
    assist_info_for_combine: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    tp_send_counts: Tensor | None = None,
    x_active_mask: Tensor | None = None,
    activation_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    group_list: Tensor | None = None,
    expand_scales: Tensor | None = None,
    shared_expert_x: Tensor | None = None,
    elastic_info: Tensor | None = None,
    ori_x: Tensor | None = None,
    const_expert_alpha_1: Tensor | None = None,
    const_expert_alpha_2: Tensor | None = None,
    const_expert_v: Tensor | None = None,
    performance_info: Tensor | None = None,
    *,
    group_ep: str,
    ep_world_size: int,
    moe_expert_num: int,
    group_tp: str = "",
    tp_world_size: int = 0,
    expert_shard_type: int = 0,
    shared_expert_rank_num: int = 0,
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
) -> Tensor:
    """``sum_k expert_scales[t, k] * (row of token t at its expert k)``, (tokens, H).

    ``shared_expert_x`` is added as it is, copying experts give ``ori_x``, zero ones 0.
    """
    op = "MoeDistributeCombine"
    if group_tp or const_expert_num:
        raise refused(op, "group_tp, or constant experts", "leave them out")
    _check_world(op, ep_world_size, moe_expert_num, tp_world_size, expert_shard_type, shared_expert_rank_num)
    y = _combine(
        op, expand_x, expert_ids, ep_send_counts, expert_scales, x_active_mask, group_ep, ep_world_size, moe_expert_num
    )
    if copy_expert_num:
        if ori_x is None:
            raise refused(op, "copying experts need ori_x", "feed it")
        first = moe_expert_num + zero_expert_num
        copied = (expert_ids >= first) & (expert_ids < first + copy_expert_num)
        y = y + (expert_scales.float() * copied).sum(1, keepdim=True) * wide(ori_x)
    y = y if shared_expert_x is None else y + wide(shared_expert_x).reshape(y.shape)
    return y.to(expand_x.dtype)
