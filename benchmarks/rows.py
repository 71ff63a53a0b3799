"""A line of the result table, and how times are taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measured figure against its target."""

    group: str
    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""
    met: str = ""


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def at_most(group: str, what: str, ours: float, limit: float, *, unit: str, peer: float | None = None) -> Row:
    """A row whose figure, or whose ratio to a peer, must not exceed `limit`."""
    figure = ours if peer is None else ours / peer
    return Row(
        group,
        what,
        f"{_number(ours)} {unit}",
        "" if peer is None else f"{_number(peer)} {unit}",
        "" if peer is None else f"{figure:.2f}",
        f"<= {limit:g}" + ("" if peer is not None else f" {unit}"),
        "yes" if figure <= limit else "NO",
    )


def medians(*calls: Callable[[], Any], repeats: int = 9, warm: int = 2) -> list[float]:
    """Median seconds of each call; the calls take turns, so that a drift of the machine meets all of them."""
    for _ in range(warm):
        for call in calls:
            call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, into in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            into.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]
