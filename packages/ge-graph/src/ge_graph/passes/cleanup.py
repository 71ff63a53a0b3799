"""Nodes that nobody needs."""

from __future__ import annotations

from ge_graph.ir import Graph
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects


class DropDeadNodes(Pass):
    """Remove nodes from which no output, no side effect and no control edge follows.

    Graph inputs stay: the caller feeds them by index. So do prints, collectives and whatever writes a graph input.
    """

    name = "drop_dead_nodes"
    reason = "every operator costs a launch on the device; conversion leaves some that nobody reads"
    place = "last of the rewriting passes: the others make nodes dead"

    def rewrite(self, graph: Graph) -> list[str]:
        effects = Effects(graph)
        live = effects.live(graph)
        dead = [n for n in graph.nodes if n not in live]
        if not dead:
            return []
        graph.remove(dead)
        return [f"{len(dead)} dead nodes removed"]
