"""Collectives in the graph: more of them, and their process groups for files that other tools read."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from ge_converters.base.torch_compat import process_group
from tair_export.ranks import current

if TYPE_CHECKING:
    from ge_graph import Graph

_WORLD: Final = "hccl_world_group"


@functools.cache
def patch_for_hcom() -> None:
    """Let dynamo capture the collectives of ``torch.distributed`` that it breaks graphs at.

    By itself torch captures ``all_reduce``, ``all_gather``, ``all_gather_into_tensor``, ``reduce_scatter_tensor`` and
    ``all_to_all_single``. After this call also ``broadcast``, ``all_to_all``, ``send`` and ``recv``, for every backend
    of torch.compile; calling it again does nothing. Forms with ``async_op=True`` break the graph as before.

    Source: ``torch.compiler.substitute_in_graph``, torch's own way to tell what a function does in a graph.
    """
    if not dist.is_available():
        return
    rows: list[tuple[Any, Any]] = [(dist.broadcast, _broadcast), (dist.all_to_all, _all_to_all)]
    if hasattr(_ops, "isend"):
        rows += [(dist.send, _send), (dist.recv, _recv)]
    for original, substitute in rows:
        torch.compiler.substitute_in_graph(original, skip_signature_check=True)(substitute)


def _broadcast(tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None) -> None:
    if async_op:
        raise NotImplementedError(_ASYNC)
    group_or_world = dist.group.WORLD if group is None else group
    root = dist.get_group_rank(group_or_world, src) if group_src is None else group_src
    tensor.copy_(_ops.wait_tensor(_ops.broadcast(tensor, root, group_or_world.group_name)))


def _all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        raise NotImplementedError(_ASYNC)
    group_or_world = dist.group.WORLD if group is None else group
    flat = torch.cat([t.reshape(-1) for t in input_tensor_list])
    received = [t.numel() for t in output_tensor_list]
    sent = [t.numel() for t in input_tensor_list]
    result = _ops.wait_tensor(_ops.all_to_all_single(flat, received, sent, group_or_world.group_name))
    for tensor, part in zip(output_tensor_list, result.split(received)):
        tensor.copy_(part.reshape(tensor.shape))


def _send(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> None:
    group_or_world = dist.group.WORLD if group is None else group
    rank = dist.get_global_rank(group_or_world, group_dst) if dst is None else dst
    _ops.wait_tensor(_ops.isend(tensor, rank, tag, group_or_world.group_name))


def _recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> int:
    group_or_world = dist.group.WORLD if group is None else group
    rank: int = dist.get_global_rank(group_or_world, group_src) if src is None else src
    fixed = torch.empty([int(s) for s in tensor.shape], dtype=tensor.dtype, device=tensor.device)
    tensor.copy_(_ops.wait_tensor(_ops.irecv(fixed, rank, tag, group_or_world.group_name)))
    return rank


_ops: Final = torch.ops._c10d_functional
_ASYNC: Final = "async_op=True inside a compiled function"


def groups_of(graph: Graph) -> dict[str, list[int]]:
    """The communication groups that collectives of a graph name, with the ranks of each.

    A group that torch does not know in this process, such as HCCL's name of the world, has all ranks.
    """
    everyone = list(range(current().count))
    groups: dict[str, list[int]] = {}
    for name in sorted(_names(graph)):
        group = None if name == _WORLD else process_group(name)
        groups[name] = everyone if group is None else list(dist.get_process_group_ranks(group))
    return groups


def _names(graph: Graph) -> set[str]:
    inner = (g for n in graph.nodes for g in n.subgraphs.values())
    own = {str(n.attr("group")) for n in graph.nodes if n.op.startswith("Hcom") and n.attr("group") is not None}
    return own.union(*map(_names, inner))


def groups_of_all_ranks(groups: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The groups in the graphs of all ranks, told to each; every rank has to call this."""
    if not dist.is_available() or not dist.is_initialized():
        return {name: list(ranks) for name, ranks in groups.items()}
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, dict(groups))
    return {name: list(ranks) for each in told for name, ranks in sorted(each.items())}
