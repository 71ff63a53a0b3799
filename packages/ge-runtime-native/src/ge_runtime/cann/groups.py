"""Process groups that graphs name, as communicators of HCCL made without torch."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ge_graph.errors import EngineError
from ge_graph.ir import Node
from ge_runtime import errors
from ge_runtime.cann import library
from ge_runtime.cann.meeting import Meeting, NotMet, meeting
from ge_runtime.cann.session import OpenGroup, Session, check, open_session

_LIMITS: Final = {"HCCL_CONNECT_TIMEOUT": (120, 7200), "HCCL_EXEC_TIMEOUT": (1, 17340)}
"""Seconds that HCCL takes: for a communicator until all ranks are there, for one collective."""


@contextlib.contextmanager
def opened_groups(groups: Mapping[str, Sequence[int]], seconds: float) -> Iterator[None]:
    """Inside, the groups of a graph exist: those that are not open already are made, by HCCL's root information.

    Every process of the job has to come, with the same groups as far as it belongs to them.

    Args:
        groups: Name to its ranks, in order.
        seconds: How long one process waits for another, here and in each collective, within what HCCL takes. The
            variables HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT count instead where they are set.

    Errors: EngineError GE4011 if the processes do not find each other, GE4010 and GE4020 if HCCL is not there or
    refuses.
    """
    if not groups:
        yield
        return
    with _limits(seconds):
        session = open_session({})
        made = _make(session, groups, seconds)
        try:
            yield
        finally:
            _close(session, made)


@contextlib.contextmanager
def _limits(seconds: float) -> Iterator[None]:
    """HCCL reads these when it makes a communicator and has no other way to be told."""
    given = {name: str(min(max(math.ceil(seconds), least), most)) for name, (least, most) in _LIMITS.items()}
    ours = {name: value for name, value in given.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _make(session: Session, groups: Mapping[str, Sequence[int]], seconds: float) -> list[str]:
    """Open what is not open; the names of what was opened."""
    made: list[str] = []
    # in one order on all processes, so that none waits for one that waits for it
    wanted = sorted(groups.items(), key=lambda pair: (tuple(pair[1]), pair[0]))
    failure: Exception | None = None
    try:
        with meeting(seconds) as met:
            met.everybody("comes")
            try:
                for at, (name, ranks) in enumerate(wanted):
                    if name not in session.groups or session.groups[name].ranks != tuple(ranks):
                        before = sum(tuple(r) == tuple(ranks) for _, r in wanted[:at])
                        session.groups[name] = _opened(met, name, tuple(ranks), before)
                        made.append(name)
            except (EngineError, NotMet) as error:
                failure = error
            told = met.everybody("opened", str(failure or "").encode()[:4000])
        if failure is not None:
            raise failure
        for rank, text in enumerate(told):
            if text:
                raise NotMet(f"rank {rank}: {text.decode(errors='replace')}")
    except NotMet as error:
        _close(session, made)
        raise errors.no_group(wanted[0][0], f"it cannot be made: {failure or error}", _NEXT) from None
    except BaseException:
        _close(session, made)
        raise
    return made


_NEXT: Final = (
    "start as many processes as saved the model, each with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun "
    "sets them, and a device of its own (LOCAL_RANK, or ASCEND_DEVICE_ID)"
)


def _opened(met: Meeting, name: str, ranks: tuple[int, ...], before: int) -> OpenGroup:
    """One communicator; ``before`` counts those of the same ranks."""
    if met.rank not in ranks or max(ranks) >= met.count:
        raise errors.no_group(name, f"it is of ranks {list(ranks)}, this process is rank {met.rank} of {met.count}")
    native = library.native()
    info = ctypes.create_string_buffer(library.ROOT_BYTES)
    key = f"root/{'.'.join(map(str, ranks))}/{before}"
    if met.rank == ranks[0]:
        check(native.gec_group_root(info))
        met.tell(key, info.raw)
    else:
        got = met.ask(key, ranks[0])
        if len(got) != library.ROOT_BYTES:
            raise NotMet(f"rank {ranks[0]} told {len(got)} bytes of root information, {library.ROOT_BYTES} are due")
        info.raw = got
    handle, called = ctypes.c_void_p(), ctypes.create_string_buffer(library.NAME_BYTES)
    check(native.gec_group_open(len(ranks), info, ranks.index(met.rank), ctypes.byref(handle), called))
    return OpenGroup(ranks, called.value.decode(), handle.value or 0)


def _close(session: Session, names: Sequence[str]) -> None:
    for name in names:
        group = session.groups.pop(name)
        if not session.ended:
            check(library.native().gec_group_close(group.handle))


def communicators(session: Session, nodes: Sequence[Node]) -> dict[str, str]:
    """HCCL's names of the groups that collectives name.

    Errors: EngineError GE4011 with every collective whose group is not open here.
    """
    found: dict[str, str] = {}
    unknown: list[Node] = []
    for node in nodes:
        name = str(node.attr("group"))
        if name in found:
            continue
        if name in session.groups:
            found[name] = session.groups[name].communicator
        else:
            unknown.append(node)
    if unknown:
        raise errors.groups_unknown("cann", unknown)
    return found
