"""Collectives between processes, by torch.distributed in the process group that the node names.

Every kernel makes new memory; an operand is never written, although torch.distributed's own functions do that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from ge_graph.dtypes import DataType
from ge_runtime import errors
from ge_runtime.cpu.groups import entered, group_of
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import torch_dtype

_REDUCTIONS = ("sum", "prod", "max", "min")
_FUSION: Final[dict[str, Any]] = {"acts": True, "ignores": ("fusion", "fusion_id")}


def group_size(name: str) -> int:
    """Processes of a group."""
    return int(group_of(name).size())


def _brought(op: str, name: str, *xs: torch.Tensor, how: str = "") -> Any:
    """The group, to which all ranks have to bring the same operator with as many elements of the same types."""
    elements = ", ".join(f"{x.numel()} {str(x.dtype)[6:]}" for x in xs)
    return entered(name, f"{op}{f'({how})' if how else ''} of {elements}")


def _sized(op: str, name: str, rank_size: int, x: torch.Tensor, how: str = "") -> Any:
    group = _brought(op, name, x, how=how)
    if rank_size != group.size():
        raise errors.refused(op, f"rank_size is {rank_size}, the group '{name}' has {group.size()} ranks")
    return group


def _reduction(op: str, name: str) -> Any:
    if name not in _REDUCTIONS:
        raise errors.refused(op, f"reduction is {name!r}, known are {', '.join(_REDUCTIONS)}")
    return getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(name, name.upper()))


def _own(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _rows(op: str, x: torch.Tensor, count: int) -> int:
    """Rows of each of ``count`` equal blocks along dim 0."""
    if x.dim() == 0 or x.shape[0] % count:
        raise errors.refused(op, f"{list(x.shape)} has no {count} equal blocks along dim 0")
    return x.shape[0] // count


@kernel("HcomAllReduce", **_FUSION, source="REG_OP(HcomAllReduce)")
def all_reduce(x: torch.Tensor, *, reduction: str, group: str) -> torch.Tensor:
    """Reduction over all ranks."""
    y = _own(x)
    operation = _reduction("HcomAllReduce", reduction)
    dist.all_reduce(y, operation, group=_brought("HcomAllReduce", group, x, how=reduction))
    return y


@kernel("HcomReduce", **_FUSION, source="REG_OP(HcomReduce)")
def reduce(x: torch.Tensor, *, root_rank: int, reduction: str, group: str) -> torch.Tensor:
    """Reduction over all ranks on the root; on the others, where GE leaves it open, x."""
    y, operation = _own(x), _reduction("HcomReduce", reduction)
    process_group = _brought("HcomReduce", group, x, how=f"{reduction}, to rank {root_rank}")
    dist.reduce(y, op=operation, group=process_group, group_dst=root_rank)
    return y if process_group.rank() == root_rank else _own(x)


@kernel("HcomAllGather", **_FUSION, source="REG_OP(HcomAllGather): along dim 0, in rank order")
def all_gather(x: torch.Tensor, *, rank_size: int, group: str) -> torch.Tensor:
    """The parts of all ranks, one after the other."""
    if x.dim() == 0:
        raise errors.refused("HcomAllGather", "x is a scalar, which has no dim 0 to gather along")
    process_group = _sized("HcomAllGather", group, rank_size, x)
    y = x.new_empty((x.shape[0] * rank_size, *x.shape[1:]))
    dist.all_gather_into_tensor(y, x.contiguous(), group=process_group)
    return y


@kernel("HcomReduceScatter", **_FUSION, source="REG_OP(HcomReduceScatter): blocks along dim 0")
def reduce_scatter(x: torch.Tensor, *, reduction: str, group: str, rank_size: int) -> torch.Tensor:
    """This rank's block of the reduction."""
    operation = _reduction("HcomReduceScatter", reduction)
    process_group = _sized("HcomReduceScatter", group, rank_size, x, how=reduction)
    y = x.new_empty((_rows("HcomReduceScatter", x, rank_size), *x.shape[1:]))
    dist.reduce_scatter_tensor(y, _own(x), operation, group=process_group)
    return y


@kernel("HcomBroadcast", **_FUSION, source="REG_OP(HcomBroadcast): root_rank counts in the group")
def broadcast(x: list[torch.Tensor], *, root_rank: int, group: str) -> tuple[torch.Tensor, ...]:
    """Every tensor of the root."""
    ys, process_group = tuple(map(_own, x)), _brought("HcomBroadcast", group, *x, how=f"from rank {root_rank}")
    for y in ys:
        dist.broadcast(y, group=process_group, group_src=root_rank)
    return ys


@kernel("HcomAllToAll", acts=True, source="REG_OP(HcomAllToAll): equal blocks along dim 0")
def all_to_all(x: torch.Tensor, *, group: str) -> torch.Tensor:
    """Block j goes to rank j."""
    process_group = group_of(group)
    rows = [_rows("HcomAllToAll", x, process_group.size())] * process_group.size()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(y, x.contiguous(), rows, rows, group=process_group)
    return y


@kernel(
    "HcomAllToAllV",
    acts=True,
    host=("send_counts", "send_displacements", "recv_counts", "recv_displacements"),
    source="REG_OP(HcomAllToAllV): counts and displacements in elements of the flattened tensor",
)
def all_to_all_v(
    send_data: torch.Tensor,
    send_counts: Sequence[int],
    send_displacements: Sequence[int],
    recv_counts: Sequence[int],
    recv_displacements: Sequence[int],
    *,
    group: str,
) -> torch.Tensor:
    """As many elements as told from and to each rank."""
    process_group = group_of(group)
    for name, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
        if len(counts) != process_group.size():
            raise errors.refused("HcomAllToAllV", f"{len(counts)} {name} for {process_group.size()} ranks")
    flat = send_data.reshape(-1)
    sent = torch.cat([flat[d : d + c] for d, c in zip(send_displacements, send_counts)])
    received = sent.new_empty(sum(recv_counts))
    dist.all_to_all_single(received, sent, list(recv_counts), list(send_counts), group=process_group)
    parts = received.split(list(recv_counts))
    y = received.new_empty(max((d + c for d, c in zip(recv_displacements, recv_counts)), default=0))
    for start, part in zip(recv_displacements, parts):
        y[start : start + part.numel()] = part
    row = max(send_data[:1].numel(), 1) if send_data.shape[0] else math.prod(send_data.shape[1:])
    return y.reshape(y.numel() // row if row else 0, *send_data.shape[1:])


# --- blocks of different sizes, in rows ------------------------------------------------------------------------------


def _packed(op: str, counts: Sequence[int], displacements: Sequence[int] | None) -> None:
    """Refuse blocks that do not lie one after the other."""
    packed = [sum(counts[:i]) for i in range(len(counts))]
    if displacements is not None and list(displacements) != packed:
        raise errors.refused(op, f"displacements are {list(displacements)}, accepted: {packed}")


@kernel(
    "HcomAllGatherV",
    acts=True,
    host=("send_count", "recv_counts", "recv_displacements"),
    source="REG_OP(HcomAllGatherV): rank i gives recv_counts[i] rows",
)
def all_gather_v(
    x: torch.Tensor, send_count: Any, recv_counts: Sequence[int], recv_displacements: Any = None, *, group: str
) -> torch.Tensor:
    """The parts of all ranks, one after the other."""
    process_group, most = group_of(group), max(recv_counts)
    ranks = process_group.size()
    if len(recv_counts) != ranks or recv_counts[process_group.rank()] != x.shape[0]:
        what = f"recv_counts are {list(recv_counts)} for {ranks} ranks and {x.shape[0]} own rows"
        raise errors.refused("HcomAllGatherV", what)
    _packed("HcomAllGatherV", recv_counts, recv_displacements)
    padded = x.new_zeros((most, *x.shape[1:]))
    padded[: x.shape[0]] = x
    parts = [torch.empty_like(padded) for _ in recv_counts]
    dist.all_gather(parts, padded, group=process_group)
    return torch.cat([part[:count] for part, count in zip(parts, recv_counts)])


@kernel(
    "HcomReduceScatterV",
    acts=True,
    host=("recv_count", "send_counts", "send_displacements"),
    source="REG_OP(HcomReduceScatterV): rank i keeps send_counts[i] rows",
)
def reduce_scatter_v(
    x: torch.Tensor,
    recv_count: Any,
    send_counts: Sequence[int],
    send_displacements: Any = None,
    *,
    reduction: str,
    group: str,
) -> torch.Tensor:
    """This rank's rows of the reduction."""
    process_group, y = group_of(group), _own(x)
    if len(send_counts) != process_group.size() or sum(send_counts) != x.shape[0]:
        what = f"send_counts are {list(send_counts)} for {process_group.size()} ranks and {x.shape[0]} rows"
        raise errors.refused("HcomReduceScatterV", what)
    _packed("HcomReduceScatterV", send_counts, send_displacements)
    dist.all_reduce(y, _reduction("HcomReduceScatterV", reduction), group=process_group)
    return _own(y.split(list(send_counts))[process_group.rank()])


# --- between two ranks -----------------------------------------------------------------------------------------------


@kernel("HcomSend", acts=True, source="REG_OP(HcomSend): to dest_rank of the group, under sr_tag")
def send(x: torch.Tensor, *, group: str, sr_tag: int, dest_rank: int) -> None:
    """Hand x to another rank."""
    dist.send(x.contiguous(), group=group_of(group), tag=sr_tag, group_dst=dest_rank)


@kernel("HcomReceive", acts=True, source="REG_OP(HcomReceive): from src_rank of the group, under sr_tag")
def receive(*, group: str, sr_tag: int, src_rank: int, shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    """What another rank sent."""
    y = torch.empty(tuple(shape), dtype=torch_dtype(DataType(dtype)))
    dist.recv(y, group=group_of(group), tag=sr_tag, group_src=src_rank)
    return y
