"""Graphs inside nodes, against the node around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ge_graph.ir import Graph, Node, Tensor
from ge_graph.rules.base import Scope

_IF: Final = ("If", "_If", "StatelessIf")
_CASE: Final = ("Case", "StatelessCase")
# Run one of their graphs as long as the other says so.
LOOPS: Final = ("While", "_While", "StatelessWhile")
_CALL: Final = ("PartitionedCall", "StatefulPartitionedCall")
_MAPPED: Final = frozenset((*_IF, *_CASE, *LOOPS, *_CALL, "For", "FlowNode"))
_PARENT: Final = "_parent_node_index"


def below_parent(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    """Inputs, outputs and types of inner graphs fit the node."""
    for node in scope.graph.nodes:
        if node.subgraphs:
            yield from ((node, what) for what in _node(node))


def _node(node: Node) -> Iterator[str]:
    fed = [t for entry in node.inputs for t in (entry if isinstance(entry, tuple) else (entry,)) if t is not None]
    indexed = any(_PARENT in n.attrs for g in node.subgraphs.values() for n in g.nodes)
    if node.op not in _MAPPED and not indexed:
        yield f"holds a graph, which GE maps to the node only below {', '.join(sorted(_MAPPED))} (E19999)"
        return
    condition = node.op in _IF or node.op in _CASE
    if condition and fed and fed[0].known_shape is not None and any(d != 1 for d in fed[0].known_shape):
        yield f"chooses by {fed[0]}; GE wants one element (E19999)"
    for slot, inner in node.subgraphs.items():
        inputs = fed[1:] if condition else fed
        yield from (f"subgraph '{slot}' {what}" for what in _inputs(inner, len(inputs), len(fed)))
        if node.op in LOOPS:
            yield from (f"subgraph '{slot}' {what}" for what in _loop(slot, inner, inputs))
        elif node.op != "For":
            yield from (f"subgraph '{slot}' {what}" for what in _outputs(node, inner))


def _inputs(inner: Graph, given: int, fed: int) -> Iterator[str]:
    data = [n for n in inner.nodes if n.op in ("Data", "RefData")]
    marked = [n for n in data if _PARENT in n.attrs]
    if marked and len(marked) != len(data):
        yield f"has {_PARENT} on {len(marked)} of its {len(data)} inputs; GE wants it on all or none (E19999)"
    name, limit = (_PARENT, fed) if marked else ("index", given)
    for node in marked or data:
        at: Any = node.attr(name, 0)
        if not isinstance(at, int) or not 0 <= at < limit:
            yield f"has an input '{node.name}' with {name} {at!r}; the node around feeds {limit} (E19999)"


def _outputs(node: Node, inner: Graph) -> Iterator[str]:
    yield from _pairs(inner, list(node.outputs), "the node around gives", _same)


def _loop(slot: str, inner: Graph, inputs: list[Tensor]) -> Iterator[str]:
    if slot == "cond":
        if len(inner.outputs) != 1:
            yield f"returns {len(inner.outputs)} results; a condition is one (E19999)"
        return
    yield from _pairs(inner, inputs, "the loop carries", _same)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype


def _pairs(inner: Graph, wanted: list[Tensor], whose: str, same: Callable[[Tensor, Tensor], bool]) -> Iterator[str]:
    if len(inner.outputs) != len(wanted):
        yield f"returns {len(inner.outputs)} results, not {len(wanted)} as {whose} (E19999)"
        return
    for k, (got, want) in enumerate(zip(inner.outputs, wanted)):
        if isinstance(got, Tensor) and not same(got, want):
            yield f"returns {got.dtype.name} as result {k}, not {want.dtype.name} as {whose} (E19999)"
