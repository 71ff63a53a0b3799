"""A line of the result table, and how times are taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# `make bench` measures real sizes; `python -m benchmarks.run --small` walks through every row with small ones, to see
# on a busy machine that each can be measured. Rows of small sizes never enter the table.
small = False


@dataclass(frozen=True)
class Measurement:
    """One measured figure against its target.

    Attributes:
        group: Group of rows.
        what: What was measured, the same text in every run of it.
        value: The figure of ours, in ``unit``; None if it was not measured, and ``what`` says why.
        unit: Its unit.
        target: What is wanted, ``<= 0.97``; empty for a figure that stands beside another for comparison.
        met: Whether it is so.
        against: The figure of the peer in the same run, None without one.
        ratio: ``value / against``, or its inverse for a speed-up.
        peer: Name of the peer.
    """

    group: str
    what: str
    value: float | None
    unit: str
    target: str = ""
    met: bool | None = None
    against: float | None = None
    ratio: float | None = None
    peer: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        return (
            self.group,
            self.what,
            "-" if self.value is None else f"{_number(self.value)} {self.unit}",
            "" if self.against is None else f"{_number(self.against)} {self.unit}",
            self.peer,
            "" if self.ratio is None else f"{self.ratio:.2f}",
            self.target,
            "" if self.met is None else "yes" if self.met else "NO",
        )


HEADINGS = ("group", "what", "ours", "peer's", "peer", "ratio", "target", "met")


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def at_most(
    group: str,
    what: str,
    ours: float,
    limit: float,
    *,
    unit: str,
    peer: float | None = None,
    name: str = "eager",
    absolute: bool = False,
) -> Measurement:
    """A row whose figure, or whose ratio to a peer, must not exceed `limit`.

    Args:
        absolute: The figure itself is limited, and the peer shows how fast the machine is.
    """
    if peer is None:
        return Measurement(group, what, ours, unit, f"<= {limit:g} {unit}", ours <= limit)
    if absolute:
        return Measurement(group, what, ours, unit, f"<= {limit:g} {unit}", ours <= limit, peer, ours / peer, name)
    return Measurement(group, what, ours, unit, f"<= {limit:g}", ours / peer <= limit, peer, ours / peer, name)


def at_least(group: str, what: str, ours: float, times: float, *, unit: str, peer: float, name: str) -> Measurement:
    """A row that must be so many times faster than a peer."""
    return Measurement(group, what, ours, unit, f">= {times:g} x", peer / ours >= times, peer, peer / ours, name)


def beside(group: str, what: str, ours: float, *, unit: str, peer: float, name: str) -> Measurement:
    """A figure beside a peer's, without a target."""
    return Measurement(group, what, ours, unit, "", None, peer, ours / peer, name)


def medians(
    *calls: Callable[[], Any], repeats: int = 9, warm: int = 2, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each call; the calls take turns, so that a drift of the machine meets all of them.

    Args:
        calls: What to measure.
        repeats: How often.
        warm: How often before that, without looking.
        clock: ``time.process_time`` for work of one thread whose target is a time: other programs do not count.
    """
    for _ in range(warm):
        for call in calls:
            call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(min(repeats, 3) if small else repeats):
        for call, into in zip(calls, times, strict=True):
            start = clock()
            call()
            into.append(clock() - start)
    return [statistics.median(t) for t in times]


def size() -> str:
    """Which size of the models of ``tools.models`` to measure."""
    return "tiny" if small else "full"
