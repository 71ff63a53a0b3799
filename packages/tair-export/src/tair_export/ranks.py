"""Which of several processes this one is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """Number of this process and of all."""

    index: int
    count: int

    @property
    def alone(self) -> bool:
        """Whether files carry no rank in their names."""
        return self.count < 2

    @property
    def suffix(self) -> str:
        """What file names end in: empty, or the rank."""
        return "" if self.alone else str(self.index)

    @property
    def folder(self) -> str:
        """Folder of this rank's own files: empty, or ``rank_<r>``."""
        return "" if self.alone else f"rank_{self.index}"


def current() -> Rank:
    """The rank in torch's default process group, else in the environment (RANK, WORLD_SIZE), else the only one.

    torch is asked only if somebody has imported it.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(int(distributed.get_rank()), int(distributed.get_world_size()))
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
        return Rank(int(rank), int(world))
    return Rank(0, 1)
