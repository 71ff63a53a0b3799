"""What GE checks, ignores and overwrites, where that differs from ``ge_graph.verify``."""

from __future__ import annotations

from ge_graph.ir import Graph


def reused_inputs(options: dict[str, str], inputs: int, outputs: int) -> list[tuple[int, int]]:
    """Pairs of an input and the output that has its memory, from ``ge.exec.outputReuseInputMemIndexes``."""
    pairs = []
    for pair in options.get("ge.exec.outputReuseInputMemIndexes", "").split("|"):
        a, comma, b = pair.partition(",")
        if comma and a.strip().isdigit() and b.strip().isdigit():
            pairs.append((int(a), int(b)))
    return pairs


def check_options(options: dict[str, str], level: str) -> None:
    """Refuse option values that GE refuses."""


def check_graph(graph: Graph, options: dict[str, str]) -> None:
    """Refuse what GE refuses."""
