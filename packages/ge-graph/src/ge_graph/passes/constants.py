"""Constants that stand in the graph more than once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects
from ge_graph.passes.rewriter import Rewriter
from ge_graph.serde_write import tensor_data

_NO_MATTER: Final = frozenset({"value", "_readable_value"})


class MergeConstants(Pass):
    """Keep one of the constants that have the same type, shape, bytes and other attributes.

    Data is compared only where type and shape are the same, so large distinct weights are never read.
    """

    name = "merge_constants"
    reason = "a constant twice is memory twice on the device, and hides equal shape arithmetic"
    place = "early: equal operands are then the same tensor for all that follows"

    def rewrite(self, graph: Graph) -> list[str]:
        groups: dict[Any, list[Node]] = {}
        for node in graph.nodes:
            if node.op == "Const" and "value" in node.attrs and not node.control and len(node.outputs) == 1:
                value = node.attrs["value"].value
                if value is not None:
                    groups.setdefault((str(value.dtype), tuple(value.shape)), []).append(node)
        if all(len(g) == 1 for g in groups.values()):
            return []
        rewriter = Rewriter(graph)
        fixed = _untouchable(graph, rewriter.effects)
        merged = sum(_merge(rewriter, [n for n in g if n not in fixed]) for g in groups.values() if len(g) > 1)
        rewriter.finish()
        return [f"{merged} duplicate constants merged"] if merged else []


def _merge(rewriter: Rewriter, group: list[Node]) -> int:
    """Keep one of those that are equal; how many went."""
    first: dict[Any, Tensor] = {}
    merged = 0
    for node in group:
        dtype, shape, data = tensor_data(node.attrs["value"].value, f"Const '{node.name}'")
        output = node.outputs[0]
        others = tuple(sorted((k, repr(a)) for k, a in node.attrs.items() if k not in _NO_MATTER))
        # arrays that share memory need no look at the bytes, others are compared by value
        content = data.tobytes() if data.nbytes <= 1 << 16 else _Content(data)
        key = (dtype, shape, content, output.dtype, output.known_shape, output.format, others)
        kept = first.setdefault(key, output)
        if kept is not output:
            rewriter.substitute(node, kept)
            merged += 1
    return merged


class _Content:
    """A large array as a dictionary key: hashed by a sample, equal if all bytes are."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data

    def __hash__(self) -> int:
        return hash((self.data.nbytes, self.data[:4096].tobytes(), self.data[-4096:].tobytes()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return NotImplemented
        mine, theirs = self.data, other.data
        if mine.__array_interface__["data"][0] == theirs.__array_interface__["data"][0]:
            return bool(mine.nbytes == theirs.nbytes)
        return bool(np.array_equal(mine, theirs))


def _untouchable(graph: Graph, effects: Effects) -> set[Node]:
    """Constants that are waited for, or that an in-place operator writes."""
    untouchable = set(effects.ordered)
    writing = {op for op in {n.op for n in graph.nodes} if effects.refs(op)}
    for node in graph.nodes if writing else ():
        for source, _ in effects.refs(node.op):
            operand = node.inputs[source] if source < len(node.inputs) else None
            if isinstance(operand, Tensor):
                untouchable.add(operand.node)
    return untouchable
