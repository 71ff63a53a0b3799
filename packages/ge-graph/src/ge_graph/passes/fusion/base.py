"""What rules of fusion ask of operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.rewriter import Rewriter

FLOATS = frozenset({DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_BF16})


def number(operand: Any) -> float | None:
    """The value of a constant of one element."""
    value = array(operand)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def factors(node: Node) -> Iterable[tuple[Any, Any]]:
    """The two operands of a node, in both orders."""
    a, b = node.inputs[0], node.inputs[1]
    return ((a, b), (b, a))


def last_axis(axis: Any, rank: int) -> bool:
    """Whether an axis, as an attribute gives it, is the last one."""
    return bool(axis in (-1, rank - 1))


def rank_of(tensor: Tensor) -> int:
    """The number of axes, -1 if it is not known."""
    return -1 if tensor.known_shape is None else len(tensor.known_shape)


def uncast(rewriter: Rewriter, tensor: Any) -> Any:
    """What a Cast between float types read; fused operators compute in float32 anyway."""
    node = rewriter.inner(tensor, "Cast")
    source = node.inputs[0] if node is not None else None
    return source if isinstance(source, Tensor) and source.dtype in FLOATS else tensor
