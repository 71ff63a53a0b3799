"""Time of an operator: a bound that no run can beat, an estimate, or a measurement.

The bound is the longest of four: the operations at the peak of the cube units, the elements at one instruction each
in the vector units, and the bytes at the rate of the second-level cache; bytes beyond the size of that cache come from
memory, at its rate; of a collective the bytes that cannot stay on the rank, over all of its links at once. The estimate
takes published shares of the peaks, all bytes from memory, the links that lead to the ranks of the group, and adds the
launch. A figure that nobody publishes leaves its part out of the bound, and makes the estimate unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ge_graph.cost import network
from ge_graph.cost.chips import Figures
from ge_graph.cost.work import Work
from ge_graph.ir import Node

CUBE_LIMIT: Final = "_op_aicore_num"
VECTOR_LIMIT: Final = "_op_vectorcore_num"
HOW: Final = ("measured", "estimate", "unknown")


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of a node.

    Attributes:
        bound: No run is shorter, by the published peaks.
        value: Measured or estimated; None if neither is possible.
        how: ``measured``, ``estimate`` or ``unknown``.
        limit: What the bound comes from: ``cube``, ``vector``, ``cache``, ``memory``, ``network``, or "" for no work.
    """

    bound: float
    value: float | None
    how: str
    limit: str

    @property
    def best(self) -> float:
        """The value, or the bound where there is none."""
        return self.bound if self.value is None else self.value


def cores(node: Node, limits: tuple[int, int] = (0, 0)) -> tuple[int | None, int | None]:
    """How many cube and vector cores a node may use: its scope's limit, else the graph's; None for all.

    Args:
        node: The node.
        limits: Limits of the whole graph (option ``ge.aicoreNum``), 0 for none.
    """
    found = []
    for name, whole in zip((CUBE_LIMIT, VECTOR_LIMIT), limits):
        text = str(node.attr(name, "") or "")
        own = int(text) if text.isdecimal() else 0
        found.append(own or whole or None)
    return found[0], found[1]


def of(
    work: Work,
    figures: Figures,
    node: Node,
    *,
    limits: tuple[int, int] = (0, 0),
    unit: str = "aicore",
    measured: float | None = None,
    shares: Mapping[str, float] = {},
) -> Time:
    """The time of a node.

    Args:
        work: What it does.
        figures: The chip.
        node: For the limits of its scope.
        limits: Of the whole graph, as in ``cores``.
        unit: ``aicpu`` if the slow unit runs it: nobody publishes figures of that.
        measured: Seconds that somebody measured for it.
        shares: Calibrated shares and launches in place of the published ones, by the names of ``chip_figures.tsv``.
    """
    if work.unit == "none":
        return Time(0.0, 0.0, "estimate", "")
    cube, vector = cores(node, limits)
    parts: dict[str, float] = {}
    peak = figures.cube_peak(work.dtype, cube) if work.unit == "cube" else None
    if work.least and peak:
        parts["cube"] = work.least / peak
    lanes = figures.vector_peak(work.dtype, vector) if work.unit == "vector" else None
    if work.elements and lanes and unit != "aicpu":
        parts["vector"] = work.elements / lanes
    size, rate, cache = work.bytes, figures.get("memory_rate"), figures.l2_rate(cube, vector)
    if size and cache:
        parts["cache"] = size / cache
    beyond = (size or 0) - (figures.get("l2_size") or 0)
    if rate and beyond > 0:
        parts["memory"] = beyond / rate
    if work.traffic.least and (links := figures.links()):
        parts["network"] = work.traffic.least / links
    limit = max(parts, key=lambda k: parts[k], default="")
    bound = parts.get(limit, 0.0)
    if measured is not None:
        return Time(min(bound, measured), measured, "measured", limit)
    value = None if unit == "aicpu" else _estimate(work, figures, peak, parts.get("vector", 0.0), shares)
    return Time(bound, None if value is None else max(value, bound), "unknown" if value is None else "estimate", limit)


def _estimate(
    work: Work, figures: Figures, peak: float | None, vector: float, shares: Mapping[str, float]
) -> float | None:
    def figure(name: str) -> float | None:
        return shares.get(name, figures.get(name))

    kind = work.unit if work.unit in ("cube", "network") else "vector"
    launch, rate, memory = figure(f"launch_{kind}"), figures.get("memory_rate"), figure("memory_share")
    share = figure("cube_share") if kind == "cube" else 1.0
    if launch is None or not rate or not memory or not share or work.bytes is None:
        return None
    if work.unit == "cube" and (work.flops is None or (work.flops and not peak)):
        return None
    exchange = 0.0
    if work.traffic is not network.NONE:
        link, of_link = figures.link_to(work.traffic.ranks), figure("link_share")
        if work.traffic.usual is None or not link or not of_link:
            return None
        exchange = work.traffic.usual / (link * of_link)
    # An element of a vector operator takes several instructions; how many is only known from measurements.
    several = figure("vector_instructions") or 1.0
    compute = (work.flops or 0) / (peak * share) if kind == "cube" and peak else vector * several
    return max(compute, work.bytes / (rate * memory), exchange) + launch
