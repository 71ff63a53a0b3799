"""Collectives in the graph: their process groups, for files that other tools read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from ge_converters.torch_compat import process_group
from tair_export.ranks import current

if TYPE_CHECKING:
    from ge_graph import Graph

_WORLD: Final = "hccl_world_group"


def patch_for_hcom() -> None:
    """Nothing: torch >= 2.6 traces collectives by itself. Kept because scripts for torch 2.1 call it."""


def groups_of(graph: Graph) -> dict[str, list[int]]:
    """The communication groups that collectives of a graph name, with the ranks of each.

    A group that torch does not know in this process, such as HCCL's name of the world, has all ranks.
    """
    everyone = list(range(current().count))
    found: dict[str, list[int]] = {}
    for name in sorted(_names(graph)):
        group = None if name == _WORLD else process_group(name)
        found[name] = everyone if group is None else list(dist.get_process_group_ranks(group))
    return found


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
