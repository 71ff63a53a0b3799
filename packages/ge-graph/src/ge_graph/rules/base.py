"""What rules get and what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeAlias

from ge_graph import schema
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.schema import OpSchema


class Scope:
    """What graph rules share about one graph.

    Attributes:
        root: Whether it is the graph that is handed over, not one inside a node.
        position: Identity of a node to its place.
    """

    def __init__(self, graph: Graph, *, root: bool = True) -> None:
        self.graph = graph
        self.root = root
        self.position = {id(n): i for i, n in enumerate(graph.nodes)}

    @cached_property
    def writes(self) -> list[tuple[Node, str, Tensor]]:
        """Nodes that update an input in place, with the port and the tensor fed to it."""
        writing = {op for op in {n.op for n in self.graph.nodes} if in_place_ports(op)}
        return [
            (node, port, entry)
            for node in self.graph.nodes
            if node.op in writing
            for at, port in in_place_ports(node.op)
            if at < len(node.inputs) and isinstance(entry := node.inputs[at], Tensor)
        ]


def in_place_ports(op: str) -> tuple[tuple[int, str], ...]:
    """Position and name of the inputs that an output is named after."""
    row = schema.get(op)
    return () if row is None else tuple((at, row.inputs[at].name) for at, _ in row.in_place)


Check: TypeAlias = "Callable[[Node, OpSchema], Iterable[str]]"
GraphCheck: TypeAlias = "Callable[[Scope], Iterable[tuple[Node | None, str]]]"
