"""Process groups that graphs name: found, made for a graph that was loaded, and asked after a collective has failed."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from ge_graph import escape
from ge_runtime import errors
from ge_runtime.cpu import torch_compat

_WORLD: Final = "hccl_world_group"
_SECONDS: Final = 3.0  # that a rank whose collective has failed waits for the others to say where they stand
_LONGEST: Final = 300  # characters that one rank is believed to say

_lives: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()

finders: list[Callable[[str], Any]] = []
"""Who knows process groups besides torch.distributed; asked first, None means unknown."""


def group_of(name: str) -> Any:
    """The process group of that name.

    Raises:
        EngineError: GE4011 if there is none.
    """
    for find in finders:
        if (process_group := find(name)) is not None:
            return process_group
    if not dist.is_available() or not dist.is_initialized():
        raise errors.no_group(name, "torch.distributed is not initialised in this process")
    if name == _WORLD:
        return dist.group.WORLD
    try:
        return torch_compat.process_group(name)
    except (RuntimeError, ValueError, KeyError):
        raise errors.no_group(name, "torch.distributed knows no process group of that name") from None


@contextlib.contextmanager
def opened_groups(groups: Mapping[str, Sequence[int]], seconds: float, backend: str = "gloo") -> Iterator[None]:
    """Inside, the groups of a graph exist: those that torch.distributed does not have are made.

    Every process of a group has to come. Processes find each other as torchrun says, by RANK, WORLD_SIZE, MASTER_ADDR
    and MASTER_PORT, where torch.distributed is not initialised already.

    Args:
        groups: Name to its ranks, in order.
        seconds: How long one process waits for another, here and in each collective.
        backend: Of torch.distributed, for what is made.

    Errors: EngineError GE4011 if the processes do not find each other.
    """
    if not dist.is_available():
        raise errors.no_group(_WORLD, "this torch has no torch.distributed")
    found: dict[str, Any] = {}
    find, own = found.get, not dist.is_initialized()
    try:
        _make_groups(groups, timedelta(seconds=seconds), backend, found)
        finders.append(find)
        yield
    finally:
        if find in finders:
            finders.remove(find)
        if own and dist.is_initialized():
            dist.destroy_process_group()


def _make_groups(groups: Mapping[str, Sequence[int]], timeout: timedelta, backend: str, found: dict[str, Any]) -> None:
    name = _WORLD
    try:
        if not dist.is_initialized():
            alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
            dist.init_process_group(backend, timeout=timeout, **alone)
        everyone = tuple(range(dist.get_world_size()))
        # in one order on all processes, so that none waits for one that waits for it
        for name, ranks in sorted(groups.items(), key=lambda pair: (tuple(pair[1]), pair[0])):
            if tuple(ranks) == everyone:
                found[name] = dist.group.WORLD
            elif _ranks_of(name) != tuple(ranks):
                found[name] = dist.new_group(
                    list(ranks), timeout=timeout, backend=backend, use_local_synchronization=True
                )
    except (RuntimeError, ValueError) as error:
        raise errors.no_group(name, f"it cannot be made: {error}") from error


def _ranks_of(name: str) -> tuple[int, ...] | None:
    """Ranks of the group that torch calls so; None if it knows none."""
    try:
        return tuple(dist.get_process_group_ranks(torch_compat.process_group(name)))
    except (RuntimeError, ValueError, KeyError):
        return None


def entered(name: str, what: str) -> Any:
    """The group of a collective, once it is clear that no rank there already brings something else to it.

    gloo ends a process that gets more bytes than it waits for. So each rank tells what it brings, by the store that
    torch.distributed met in, before it looks at what the others tell: of two that differ, the later one sees it. Ranks
    that are at another collective of the group, and those that run it in eager mode, are not compared.

    Args:
        name: Of the group.
        what: Operator, type and sizes, equal on all ranks.

    Raises:
        EngineError: GE4011 if there is no such group.
        RuntimeError: If a rank brings something else.
    """
    group = group_of(name)
    if not isinstance(group, dist.ProcessGroup) or group.size() < 2 or dist.get_backend(group) != "gloo":
        return group  # what hccl and others do themselves
    keys = {rank: f"torchair_brings/{group.group_name}/{rank}" for rank in dist.get_process_group_ranks(group)}
    try:
        store, own = torch_compat.default_store(), keys.pop(dist.get_rank())
        if group not in _lives:  # the store may know what a group of this name brought that has been destroyed since
            _lives[group] = store.add(f"{own}/lives", 1)
        here = f"{_lives[group]}.{torch_compat.collectives_so_far(group)} "
        store.set(own, here + what)
        told = _told(store, keys)
    except (RuntimeError, ValueError):  # the process that kept the store has ended, which is no fault of this group
        return group
    for rank, text in told.items():
        if text.startswith(here) and text != here + what:
            raise RuntimeError(f"rank {rank} brings {escape.line(text[len(here) :][:_LONGEST])}, this rank {what}")
    return group


def _told(store: Any, keys: Mapping[int, str]) -> dict[int, str]:
    """What ranks have told, without waiting for any."""
    names = list(keys.values())
    if not store.check(names):
        keys = {rank: key for rank, key in keys.items() if store.check([key])}
        names = list(keys.values())
    texts = store.multi_get(names) if names and store.has_extended_api() else map(store.get, names)
    return {rank: text.decode(errors="replace") for rank, text in zip(keys, texts)}


def others_say(name: str, where: str) -> str:
    """Tell the other ranks of a group where this one stands after its collective has failed, and what they tell.

    Ranks tell it by the store that torch.distributed met in, so the group itself may be broken.

    Args:
        name: Of the group.
        where: Operator and the user's line.

    Returns:
        A sentence for each other rank; empty if there is nobody to ask.
    """
    try:
        group = group_of(name)
        store, me = torch_compat.default_store(), dist.get_rank()
        keys = {rank: f"torchair_failed/{group.group_name}/{rank}" for rank in dist.get_process_group_ranks(group)}
        store.set(keys.pop(me), where)
    except Exception:  # noqa: BLE001  (no store, or the process that kept it has ended: the first error is what counts)
        return ""
    told: dict[int, str] = {}
    end = time.monotonic() + _SECONDS
    with contextlib.suppress(Exception):  # as above
        while len(told) < len(keys) and time.monotonic() < end:
            for rank, key in keys.items():
                if rank not in told and store.check([key]):
                    told[rank] = escape.line(store.get(key).decode(errors="replace")[:_LONGEST])
            time.sleep(0.05)
    said = [f"rank {rank} failed in {there if there != where else 'the same'}" for rank, there in told.items()]
    silent = [str(rank) for rank in keys if rank not in told]
    if silent:
        said.append(f"rank {', '.join(silent)} did not come: ended, hangs, or is elsewhere")
    return f"; this is rank {me}; {'; '.join(said)}" if said else ""
