"""Order of the nodes: what the option ``topology_sorting_strategy`` chooses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ge_graph.errors import GraphError
from ge_graph.ir import Graph, Node
from ge_graph.passes.base import Pass


def _before(node: Node) -> list[Node]:
    """Nodes that must run before, inputs first, each once."""
    return list(dict.fromkeys([*(t.node for t in node.operands()), *node.control]))


def _kahn(graph: Graph, *, depth_first: bool) -> list[Node]:
    """Emit what is ready: the oldest first (breadth first) or what became ready last (depth first)."""
    missing: dict[Node, int] = {}
    readers: dict[Node, list[Node]] = {n: [] for n in graph.nodes}
    for node in graph.nodes:
        before = _before(node)
        missing[node] = len(before)
        for b in before:
            readers[b].append(node)
    start = [n for n in graph.nodes if not missing[n]]
    ready = deque(reversed(start) if depth_first else start)
    order = []
    while ready:
        node = ready.pop() if depth_first else ready.popleft()
        order.append(node)
        free = []
        for reader in readers[node]:
            missing[reader] -= 1
            if not missing[reader]:
                free.append(reader)
        ready.extend(reversed(free) if depth_first else free)
    return order


def _reverse(graph: Graph, roots: list[Node]) -> list[Node]:
    """Each node as late as its reader allows: walk back from ``roots`` and emit a node after all it needs."""
    done: set[Node] = set()
    opened: set[Node] = set()
    order: list[Node] = []
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
            elif node in opened:
                stack.pop()
                done.add(node)
                order.append(node)
            else:
                opened.add(node)
                waiting = [b for b in _before(node) if b not in done]
                if any(b in opened for b in waiting):
                    return order  # a cycle: the caller sees that nodes are missing
                stack.extend(reversed(waiting))
    return order


def _rdfs(graph: Graph) -> list[Node]:
    sinks = list(dict.fromkeys([*(t.node for t in graph.outputs), *graph.output_control]))
    return _reverse(graph, sinks + graph.nodes)


STRATEGIES: Final[dict[str, Callable[[Graph], list[Node]]]] = {
    "BFS": lambda g: _kahn(g, depth_first=False),
    "DFS": lambda g: _kahn(g, depth_first=True),
    "RDFS": _rdfs,
    "StableRDFS": lambda g: _reverse(g, g.nodes),
}


class SortNodes(Pass):
    """Put the nodes into one of the orders that GE knows; control edges count as data edges do.

    ``BFS``: breadth first. ``DFS``: depth first. ``RDFS``: from the outputs back, each node right before its first
    reader. ``StableRDFS``: the order that is there, nodes moved only as far as the edges ask for. Collectives keep the
    same order on all ranks only if control edges tie them, or with ``StableRDFS``.

    Raises:
        GraphError: GE3050 for another strategy or a graph with a cycle.
    """

    name = "sort_nodes"
    reason = "the order decides the static memory use on the device, and makes dumps comparable"
    place = "after all other passes"

    def __init__(self, strategy: str = "StableRDFS") -> None:
        if strategy not in STRATEGIES:
            raise GraphError("GE3050", f"topology strategy {strategy!r}", next=f"choose one of {', '.join(STRATEGIES)}")
        self._strategy = strategy

    def rewrite(self, graph: Graph) -> list[str]:
        order = STRATEGIES[self._strategy](graph)
        if len(order) != len(graph.nodes):
            stuck = [n.name for n in graph.nodes if n not in set(order)]
            raise GraphError(
                "GE3050",
                f"graph '{graph.name}' has no order: {', '.join(stuck[:5])} wait for each other",
                next="take a control edge or a dependency out",
            )
        if all(a is b for a, b in zip(order, graph.nodes)):
            return []
        graph.nodes[:] = order
        return [f"nodes in {self._strategy} order"]
