"""Process groups by the names that collectives of a graph have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ge_converters.base.torch_compat import group_names, process_group
from ge_graph.errors import ConfigError

__all__ = ["get_group_name_and_record"]


def get_group_name_and_record(tag: str, ranklist: Sequence[int], group_size: int) -> str:
    """The name of the process group of these ranks, as collectives in a graph call it.

    Args:
        tag: Tag that torch gave the group, empty for most.
        ranklist: Global ranks.
        group_size: Their number.

    Errors: ConfigError GE1011 if this process has no such group.
    """
    for group in _groups():
        if sorted(dist.get_process_group_ranks(group)) == sorted(ranklist) and group_size == len(ranklist):
            return str(group.group_name)
    raise ConfigError(
        "GE1011",
        f"there is no process group of the ranks {list(ranklist)} (tag {tag!r}, size {group_size})",
        next="make it with torch.distributed.new_group before compiling",
    )


def _groups() -> list[Any]:
    if not dist.is_available() or not dist.is_initialized():
        return []
    return [g for g in map(process_group, group_names()) if g is not None]
