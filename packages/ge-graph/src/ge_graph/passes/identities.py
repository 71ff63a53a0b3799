"""Arithmetic that changes nothing: times one, plus zero, and what is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects
from ge_graph.passes.layout import replaceable

_INTS: Final = frozenset({DataType.DT_INT8, DataType.DT_UINT8, DataType.DT_INT16, DataType.DT_INT32, DataType.DT_INT64})
_FLOATS: Final = frozenset({DataType.DT_FLOAT16, DataType.DT_BF16, DataType.DT_FLOAT, DataType.DT_DOUBLE})
_BOOL: Final = frozenset({DataType.DT_BOOL})
_MOST: Final = 64  # elements of a constant that is looked at

# Operator to the number that changes nothing, the operands it may be, and the types for which that is exact to the bit:
# -0.0 + 0.0 is 0.0, and a complex infinity times one is not a number.
_RULES: Final[Mapping[str, tuple[int, tuple[int, ...], frozenset[DataType]]]] = {
    "Add": (0, (0, 1), _INTS),
    "Div": (1, (1,), _FLOATS | _INTS),
    "LogicalAnd": (1, (0, 1), _BOOL),
    "LogicalOr": (0, (0, 1), _BOOL),
    "Mul": (1, (0, 1), _FLOATS | _INTS),
    "RealDiv": (1, (1,), _FLOATS),
    "Sub": (0, (1,), _FLOATS | _INTS),
}


# Arithmetic of two tensors that spreads the smaller one itself, by the rules of BroadcastTo.
_SPREADS: Final = frozenset({
    "Add", "Atan2", "Div", "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less", "LessEqual",
    "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mul", "NotEqual", "Pow", "RealDiv", "Sub",
})  # fmt: skip


class DropIdentities(Pass):
    """Read past an operator that changes nothing, bit for bit.

    * x * 1, x / 1, x - 0, x + 0 of integers, x and true: models are full of them, a scale that is one, an offset of a
      cache that is empty. The operand must have the type, the sizes and the format of the result.
    * BroadcastTo in front of arithmetic with a tensor that has all the sizes: every gradient of a sum has it.

    Whatever order or memory hangs on stays.
    """

    name = "drop_identities"
    reason = "a launch and a trip through memory for nothing"
    place = "before join_moves, which then sees moves in a row; leaves dead nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in _RULES or n.op in _SPREADS for n in graph.nodes):
            return []
        effects: Effects | None = None
        outputs = set(graph.outputs)
        mapping: dict[Tensor, Tensor] = {}
        counts: dict[str, int] = {}
        for node in graph.nodes:
            if mapping:
                node.replace_operands(mapping)
            small = _spread(node) if node.op in _SPREADS else None
            kept = _operand(node) if node.op in _RULES else None
            if kept is None and small is None:
                continue
            effects = Effects(graph) if effects is None else effects
            if small is not None and _read_past(node, small, effects):
                counts["BroadcastTo"] = counts.get("BroadcastTo", 0) + 1
            if kept is not None and replaceable(node, kept, effects, outputs):
                mapping[node.outputs[0]] = kept
                counts[node.op] = counts.get(node.op, 0) + 1
        if mapping:
            graph.replace_nodes(mapping)
        return [f"{count} {op} that changed nothing" for op, count in sorted(counts.items())]


def _spread(node: Node) -> int | None:
    """The place of a BroadcastTo whose sizes the other operand has anyway."""
    if len(node.inputs) != 2 or node.outputs[0].known_shape is None:
        return None
    for place in (0, 1):
        large, other = node.inputs[place], node.inputs[1 - place]
        if (
            isinstance(large, Tensor) and isinstance(other, Tensor) and large.node.op == "BroadcastTo"
            and other.known_shape == node.outputs[0].known_shape
        ):  # fmt: skip
            return place
    return None


def _read_past(node: Node, place: int, effects: Effects) -> bool:
    """Read what a BroadcastTo reads."""
    large = node.inputs[place]
    small = large.node.inputs[0] if isinstance(large, Tensor) else None
    if not isinstance(large, Tensor) or not isinstance(small, Tensor) or small.known_shape is None:
        return False
    if effects.pinned(large.node) or small in effects.written or small.format is not large.format:
        return False
    node.inputs[place] = small
    return True


def _operand(node: Node) -> Tensor | None:
    """The operand that a node gives unchanged, if it does."""
    number, places, types = _RULES[node.op]
    result = node.outputs[0]
    if result.dtype not in types or result.known_shape is None or len(node.inputs) != 2:
        return None
    for place in places:
        neutral, other = node.inputs[place], node.inputs[1 - place]
        if (
            isinstance(other, Tensor) and isinstance(neutral, Tensor) and neutral.node.op == "Const"
            and other.dtype is neutral.dtype is result.dtype and other.format is result.format
            and other.known_shape == result.known_shape and _is_all(neutral.node, number)
        ):  # fmt: skip
            return other
    return None


def _is_all(node: Node, number: int) -> bool:
    attr = node.attrs.get("value")
    value: Any = None if attr is None else attr.value
    return isinstance(value, np.ndarray) and 0 < value.size <= _MOST and bool((value == number).all())
