"""What the forms of an operator cost on a chip: the price by which ``ge_graph.passes.FitChip`` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ge_graph.cost import chips, time, work
from ge_graph.cost.sizes import Shapes
from ge_graph.errors import GraphError
from ge_graph.ir import Graph, Node


def price(
    soc: str, sizes: Mapping[str, int] | None = None
) -> Callable[[Graph, Sequence[tuple[Node, str]]], float | None]:
    """Seconds of nodes by the published figures of a chip: measured by nobody, good to order forms.

    Args:
        soc: The chip; of one without figures nothing has a price.
        sizes: Values of symbols, of a graph with open sizes.

    Returns:
        A function of a graph and nodes with the states of their verdicts. It gives None where a node has no estimate:
        a size or a figure that nobody says, AI CPU.
    """
    try:
        figures = chips.figures(soc)
    except GraphError:
        return lambda graph, nodes: None
    known: dict[int, tuple[Graph, Shapes]] = {}

    def seconds(graph: Graph, nodes: Sequence[tuple[Node, str]]) -> float | None:
        if id(graph) not in known:
            known[id(graph)] = (graph, Shapes(graph, sizes))  # the graph too: an id is one object's while it lives
        shapes = known[id(graph)][1]
        total = 0.0
        for node, state in nodes:
            for constant in {t.node for t in node.operands() if shapes.of(t) is None}:
                shapes.add(constant)
            shapes.add(node)
            spent = time.of(work.of(shapes, node), figures, node, unit=state)
            if spent.value is None:
                return None
            total += spent.value
        return total

    return seconds
