"""Where the nodes of a graph stand on a page: layers from top to bottom, neighbours close to each other.

Linear in nodes and edges, so that a graph of 5,000 nodes is laid out in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ge_graph import Graph, Node

WIDTH: Final = 150
HEIGHT: Final = 34
GAP_X: Final = 24
GAP_Y: Final = 46
_SWEEPS: Final = 4
SOURCES: Final = frozenset(("Data", "RefData", "Const", "Constant", "ConstPlaceHolder"))


@dataclass(frozen=True, slots=True)
class Place:
    """Centre of a node."""

    x: int
    y: int


def layout(graph: Graph) -> dict[Node, Place]:
    """A place for every node; no two overlap, and every edge leads downwards."""
    readers: dict[Node, list[Node]] = {n: [] for n in graph.nodes}
    for node in graph.nodes:
        for before in _before(node):
            readers[before].append(node)
    layers = _layers(graph, readers)
    x: dict[Node, float] = {}
    for row in layers:
        _settle(row, x, {n: [x[b] for b in _pulling(n) if b in x] for n in row})
    for sweep in range(_SWEEPS):
        up = sweep % 2 == 0
        for row in reversed(layers) if up else layers:
            _settle(row, x, {n: [x[b] for b in (_below(n, readers) if up else _pulling(n))] for n in row})
    for row in reversed(layers):  # inputs and constants stand beside what reads them
        _settle(row, x, {n: [x[b] for b in _below(n, readers)] if n.op in SOURCES else [x[n]] for n in row})
    left = min(x.values(), default=0.0)
    step = HEIGHT + GAP_Y
    return {n: Place(round(x[n] - left), depth * step) for depth, row in enumerate(layers) for n in row}


def _before(node: Node) -> Iterator[Node]:
    for tensor in node.operands():
        yield tensor.node
    yield from node.control


def _pulling(node: Node) -> Iterator[Node]:
    """What a node should stand below: operators, not the constants that many share."""
    return (b for b in _before(node) if b.op not in SOURCES)


def _below(node: Node, readers: dict[Node, list[Node]]) -> list[Node]:
    return readers[node][:1] if node.op in SOURCES else readers[node]


def _layers(graph: Graph, readers: dict[Node, list[Node]]) -> list[list[Node]]:
    """Operators below all that they read; inputs and constants right above their first reader."""
    depth: dict[Node, int] = {}
    for node in graph.nodes:  # topological
        depth[node] = max((depth[b] + 1 for b in _before(node)), default=0)
    for node in graph.nodes:
        if node.op in SOURCES and readers[node]:
            depth[node] = min(depth[r] for r in readers[node]) - 1
    found: list[list[Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in graph.nodes:
        found[depth[node]].append(node)
    return found


def _settle(row: Sequence[Node], x: dict[Node, float], near: dict[Node, list[float]]) -> None:
    """Put a layer's nodes at the mean of their neighbours, then push them apart around their common middle."""
    step = WIDTH + GAP_X
    wish = {n: sum(xs) / len(xs) if (xs := near[n]) else x.get(n, 0.0) for n in row}
    order = sorted(row, key=wish.__getitem__)
    at = float("-inf")
    for node in order:
        at = x[node] = max(wish[node], at + step)
    shift = sum(wish[n] - x[n] for n in order) / len(order) if order else 0.0
    for node in order:
        x[node] += shift
