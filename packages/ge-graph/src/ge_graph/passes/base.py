"""What a pass is: one class, one reason, one place in the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ge_graph.dtypes import DataType
from ge_graph.errors import GraphError
from ge_graph.ir import Graph, Literal, Tensor


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass did.

    Attributes:
        changed: Whether the graph is another one now.
        notes: One line per kind of change, for logs.
    """

    name: str
    changed: bool = False
    notes: tuple[str, ...] = ()


class Pass(ABC):
    """A rewrite that keeps what the graph computes. Running it twice does no more than running it once.

    Attributes:
        name: Identifier in logs, dumps and options.
        place: Where it stands in the order, and why there.
    """

    name: ClassVar[str]
    reason: ClassVar[str]
    place: ClassVar[str]

    @abstractmethod
    def rewrite(self, graph: Graph) -> list[str]:
        """Change one graph in place; one note a kind of change, empty if nothing changed."""

    def run(self, graph: Graph, *, check: bool = False) -> PassResult:
        """Run on a graph and on the graphs in its nodes, which are changed in place.

        Args:
            check: Compare the graph before and after with the claim of the pass, and run it again: for tests, it costs
                more than the pass.

        Raises:
            GraphError: GE3051 if the claim is wrong.
        """
        notes: list[str] = []
        for part in walk(graph):
            before = fingerprint(part) if check else None
            size = len(part.nodes)
            changes = self.rewrite(part)
            changed = fingerprint(part) != before if check else len(part.nodes) != size or bool(changes)
            if changed != bool(changes):
                raise GraphError(
                    "GE3051",
                    f"pass '{self.name}' says changed={bool(changes)}, the graph says changed={changed}",
                    where=f"graph '{part.name}'",
                    next="report this as a bug in the pass",
                )
            if check and (again := self.rewrite(part)):
                raise GraphError(
                    "GE3051",
                    f"pass '{self.name}' changes its own result: {'; '.join(again)}",
                    where=f"graph '{part.name}'",
                    next="report this as a bug in the pass",
                )
            notes.extend(changes)
        return PassResult(self.name, bool(notes), tuple(notes))


def array(operand: Any) -> np.ndarray[Any, Any] | None:
    """The value of a constant, bfloat16 as float32; None for anything else."""
    if not isinstance(operand, Tensor) or operand.node.op != "Const":
        return None
    value = operand.node.attr("value")
    if isinstance(value, Literal) and value.dtype is DataType.DT_BF16:
        wide = value.data.view("<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(value.shape)
    return value if isinstance(value, np.ndarray) else None


def walk(graph: Graph) -> Iterator[Graph]:
    """A graph and all graphs in its nodes, inner ones first; one that several nodes hold comes once."""
    seen: set[int] = set()

    def parts(graph: Graph) -> Iterator[Graph]:
        for holder in [node for node in graph.nodes if node.subgraphs]:
            for inner in holder.subgraphs.values():
                if id(inner) not in seen:
                    seen.add(id(inner))
                    yield from parts(inner)
        yield graph

    yield from parts(graph)


def fingerprint(graph: Graph) -> bytes:
    """Bytes that differ when the graph differs; graphs in nodes are left out."""
    from ge_graph.serde_write import GraphWriter

    return b"".join(GraphWriter(None, provenance=True).graph(graph, graph.name).parts)
