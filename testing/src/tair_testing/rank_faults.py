"""Ranks that fail each other, each with the error that all others get: in time, with rank, collective and line.

Three ranks, of which rank 1 is at fault. With gloo on the host or with hccl on devices.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from ge_graph import Graph
from tair_debug.observer import GraphId, Silent, observing
from tair_testing.compiling import compiled
from tair_testing.ranks import Cases, backend, device, shared_folder

RANKS = 3
SECONDS = 5  # that a rank waits for another in a collective
_LIMIT = 4 * SECONDS  # seconds within which every rank has its error: the wait, and what the others say of themselves
_ABOUT = {"gloo": "GE4005", "hccl": "GE4020"}
_LATER = "EZ9999"  # a device fails after the call, so torch_npu tells it if nobody waits for collectives

case = CASES = Cases()
ON_DEVICES = ("hangs_unwaited",)
"""Cases of hccl alone."""


def _group(*, waits: bool = True) -> Any:
    """All ranks, with the short wait. With hccl it begins with ``_hurry``, and graphs are waited for, or not."""
    os.environ["TORCH_HCCL_BLOCKING_WAIT"] = str(int(waits))
    patient = backend() == "hccl"  # whose watchdog ends the process after the group's time
    group = dist.new_group(list(range(RANKS)), timeout=timedelta(seconds=300 if patient else SECONDS))
    dist.barrier()
    return group


def _hurry() -> None:
    """From now on hccl waits as long as a group of gloo does."""
    os.environ["HCCL_EXEC_TIMEOUT"] = str(SECONDS)


def _x(rows: int = 3) -> torch.Tensor:
    return torch.ones(rows, 4, device=device())


def _run(net: Callable[[torch.Tensor], torch.Tensor], rows: int = 3) -> torch.Tensor:
    return net(_x(rows)).cpu()


class _Compiled(Silent):
    """When the last graph was compiled, which takes its time."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        self.at = time.monotonic()


def _told(run: Callable[[], Any], about: str = "") -> str:
    """The error of a run, which has its code and comes in time."""
    seen = _Compiled()
    try:
        with observing(seen):
            run()
    except RuntimeError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert time.monotonic() - seen.at < _LIMIT, "too late"
    assert (about or _ABOUT[backend()]) in text, text
    return text


def _line(fn: Callable[..., Any], text: str) -> str:
    """File and line of a function at which a text stands."""
    lines, first = inspect.getsourcelines(fn)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}"


def _names(text: str, *parts: str) -> str:
    for part in parts:
        assert part in text, (part, text)
    return text


def _sums_then_gathers(group: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = fc.all_reduce(x, "sum", group)
        return fc.all_gather_tensor(y * 2, 0, group)

    return f


def _gathers_then_sums(group: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = fc.all_gather_tensor(x, 0, group)
        return fc.all_reduce(y * 2, "sum", group)

    return f


SUM = {"gloo": "HcomAllReduce", "hccl": "all-reduce"}
GATHER = {"gloo": "HcomAllGather", "hccl": "all-gather"}


@case()
def killed() -> str | None:
    """SIGKILL while it waits in a collective of the second step."""
    group = _group()
    f, rank = _sums_then_gathers(group), dist.get_rank()
    net = compiled(f, dynamic=False)
    assert _run(net)[0, 0] == 2 * RANKS
    _hurry()
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if rank == 0:
        time.sleep(1.5)
    text = _told(lambda: _run(net))
    # a rank that has met the same end already is named with it
    assert re.search(r"rank (\d, )*1(, \d)* did not come", text), text
    return _names(text, SUM[backend()], _line(f, "all_reduce"))


@case(True)
@case(False, name="hangs_unwaited")
def hangs(waits: bool) -> str | None:
    """It comes to the first step and not to the second."""
    group, over = _group(waits=waits), shared_folder() / "over"
    f, rank = _sums_then_gathers(group), dist.get_rank()
    net = compiled(f, dynamic=False)
    assert _run(net)[0, 0] == 2 * RANKS
    _hurry()
    if rank == 1:
        while len(list(shared_folder().glob("over*"))) < RANKS - 1:
            time.sleep(0.1)
        return None
    try:
        text = _told(lambda: _run(net), "" if waits else _LATER)
    finally:
        over.with_name(f"over{rank}").touch()
    missing = "rank 1 did not come" if waits else "rank 1 does not call it"
    return _names(text, SUM[backend()], _line(f, "all_reduce"), missing)


@case()
def other_order() -> str:
    """It compiles the same collectives in another order."""
    group = _group()
    kinds = [_sums_then_gathers, _gathers_then_sums, _sums_then_gathers]
    f = kinds[dist.get_rank()](group)
    text = _told(lambda: _run(compiled(f, dynamic=False)))
    mine = (GATHER if dist.get_rank() == 1 else SUM)[backend()]
    return _names(text, mine, _line(f, "y = "), "rank 0" if dist.get_rank() == 1 else "rank 1")


@case()
def other_shape() -> str:
    """It compiles for another number of rows."""
    group = _group()
    f = _sums_then_gathers(group)
    text = _told(lambda: _run(compiled(f, dynamic=False), 5 if dist.get_rank() == 1 else 3))
    return _names(text, SUM[backend()], _line(f, "y = "), "rank 0" if dist.get_rank() == 1 else "rank 1")
