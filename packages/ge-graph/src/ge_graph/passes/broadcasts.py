"""Broadcasts: as late as can be, and not at all where arithmetic spreads its operands by itself."""

from __future__ import annotations

from typing import Final

from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects
from ge_graph.passes.rewriter import Rewriter

# Arithmetic of two tensors that spreads the smaller one itself, by the rules of BroadcastTo.
_PAIRS: Final = frozenset(
    {
        "Add",
        "Atan2",
        "Div",
        "DivNoNan",
        "Equal",
        "FloorDiv",
        "FloorMod",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "LogicalAnd",
        "LogicalOr",
        "Maximum",
        "Minimum",
        "Mul",
        "NotEqual",
        "Pow",
        "RealDiv",
        "Sub",
    }
)
# Arithmetic of one tensor, element by element.
_SINGLES: Final = frozenset(
    {
        "Abs",
        "Cast",
        "Ceil",
        "Cos",
        "Exp",
        "Expm1",
        "Floor",
        "IsNan",
        "Log",
        "Log1p",
        "LogicalNot",
        "Neg",
        "Reciprocal",
        "Relu",
        "Rsqrt",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sqrt",
        "Square",
        "Tanh",
    }
)
_ARITHMETIC: Final = _PAIRS | _SINGLES


class SpreadLate(Pass):
    """Compute with what a BroadcastTo reads.

    * Arithmetic with a tensor that has all the sizes anyway reads past the BroadcastTo.
    * Arithmetic of one tensor, or with a number, comes before the BroadcastTo, if nobody else reads that.

    Every gradient of a sum or a mean begins with one. A node stays where order or memory hangs on it.
    """

    name = "spread_late"
    reason = "a mean's gradient is one number; spread first, all that follows computes it a million times"
    place = "after merge_constants, so that readers are counted; before join_moves; leaves dead nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        wide = {t for n in graph.nodes if n.op == "BroadcastTo" for t in n.outputs}
        if not wide or not any(not wide.isdisjoint(n.inputs) for n in graph.nodes if n.op in _ARITHMETIC):
            return []
        rewriter = Rewriter(graph)
        effects = rewriter.effects
        past = late = 0
        for node in rewriter.walk(_ARITHMETIC):
            spread = _spread(node, effects)
            if spread is None:
                continue
            place, large, small = spread
            if len(node.inputs) == 2 and _has_all_sizes(node, 1 - place):
                rewriter.feed(node, {place: small})
                past += 1
            elif effects.pinned(node) or rewriter.returned(large) or not _alone(node, 1 - place):
                continue
            elif len(rewriter.readers(large)) == 1:
                rewriter.substitute(node, _swap(rewriter, node, place, large, small))
                late += 1
        rewriter.finish()
        notes = [f"{past} BroadcastTo that arithmetic does itself"] if past else []
        return [*notes, f"{late} BroadcastTo after arithmetic"] if late else notes


def _spread(node: Node, effects: Effects) -> tuple[int, Tensor, Tensor] | None:
    """The place of an operand that a BroadcastTo made and that can be had without, the operand, and what it spreads."""
    if not 1 <= len(node.inputs) <= 2 or len(node.outputs) != 1 or node.outputs[0].known_shape is None:
        return None
    for place, large in enumerate(node.inputs):
        if not isinstance(large, Tensor) or large.node.op != "BroadcastTo" or effects.pinned(large.node):
            continue
        small = large.node.inputs[0]
        if (
            isinstance(small, Tensor)
            and small.known_shape is not None
            and small not in effects.written
            and small.format is large.format is node.outputs[0].format
        ):
            return place, large, small
    return None


def _has_all_sizes(node: Node, place: int) -> bool:
    other = node.inputs[place]
    return isinstance(other, Tensor) and other.known_shape == node.outputs[0].known_shape


def _alone(node: Node, place: int) -> bool:
    """Whether the other operand is a number, or there is none."""
    if len(node.inputs) == 1:
        return True
    other = node.inputs[place]
    return isinstance(other, Tensor) and other.known_shape == () and other.node.op == "Const"


def _swap(rewriter: Rewriter, node: Node, place: int, large: Tensor, small: Tensor) -> Tensor:
    """The same arithmetic of the small tensor, and a BroadcastTo of its result."""
    result, inputs = node.outputs[0], list(node.inputs)
    inputs[place] = small
    first = rewriter.like(result, node.op, inputs, dict(node.attrs), small.known_shape)
    onto = [first, large.node.inputs[1]]
    return rewriter.like(result, "BroadcastTo", onto, dict(large.node.attrs), result.known_shape)
