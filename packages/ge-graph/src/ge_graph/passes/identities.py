"""Arithmetic that changes nothing: times one, plus zero, and what is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.rewriter import Rewriter

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


class DropIdentities(Pass):
    """Read past an operator that gives its operand, bit for bit: x * 1, x / 1, x - 0, x + 0 of integers, x and true.

    Models are full of them: a scale that is one, an offset of a cache that is empty. The operand must have the type,
    the sizes and the format of the result; whatever order or memory hangs on stays.
    """

    name = "drop_identities"
    reason = "a launch and a trip through memory for nothing"
    place = "before join_moves, which then sees moves in a row; leaves dead nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in _RULES for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        counts: Counter[str] = Counter()
        for node in rewriter.walk(_RULES):
            kept = _operand(node)
            if kept is not None and rewriter.replaceable(node, kept):
                rewriter.substitute(node, kept)
                counts[node.op] += 1
        rewriter.finish()
        return [f"{count} {op} that changed nothing" for op, count in sorted(counts.items())]


def _operand(node: Node) -> Tensor | None:
    """The operand that a node gives unchanged, if it does."""
    number, places, types = _RULES[node.op]
    result = node.outputs[0]
    if result.dtype not in types or result.known_shape is None or len(node.inputs) != 2:
        return None
    for place in places:
        neutral, other = node.inputs[place], node.inputs[1 - place]
        if (
            isinstance(other, Tensor)
            and isinstance(neutral, Tensor)
            and neutral.node.op == "Const"
            and other.dtype is neutral.dtype is result.dtype
            and other.format is result.format
            and other.known_shape == result.known_shape
            and _is_all(neutral.node, number)
        ):
            return other
    return None


def _is_all(node: Node, number: int) -> bool:
    attr = node.attrs.get("value")
    value: Any = None if attr is None else attr.value
    return isinstance(value, np.ndarray) and 0 < value.size <= _MOST and bool((value == number).all())
