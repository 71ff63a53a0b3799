"""Where one operator is replaced by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge_graph import attrs as kinds
from ge_graph import builder
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Operand, Shape, Tensor
from ge_graph.passes.chips.bounds import of_type
from ge_graph.passes.rewriter import Rewriter


def _within(inner: DataType, outer: DataType) -> bool:
    """Whether every value of an integer type or bool is one of another."""
    a, b = of_type(inner), of_type(outer)
    return a is not None and b is not None and b[0] <= a[0] and a[1] <= b[1]


class FormContext:
    """New nodes in the place of one.

    Args:
        node: The node that may go.

    Attributes:
        made: The new nodes.
        results: What stands for the outputs of the node, in order.
    """

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.made: list[Node] = []
        self.results: list[Tensor] = []
        self._rewriter, self._node = rewriter, node

    def reads(self, tensor: Tensor) -> bool:
        """Whether somebody reads a tensor of the old node."""
        return not self._rewriter.unread(tensor)

    def add(
        self, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], *outputs: tuple[DataType, Shape | None]
    ) -> tuple[Tensor, ...]:
        """A node with the origin and the scope of the old one; its outputs."""
        made = self._rewriter.before(self._node, op, inputs, attrs, outputs)
        self.made.append(made[0].node)
        return made

    def one(
        self, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr], dtype: DataType, shape: Shape | None
    ) -> Tensor:
        return self.add(op, inputs, attrs, (dtype, shape))[0]

    def constant(self, value: Any, dtype: DataType) -> Tensor:
        array = builder.as_value(value, dtype)
        return self.one("Const", (), {"value": Attr(Kind.TENSOR, array)}, dtype, tuple(array.shape))

    def cast(self, x: Tensor, dtype: DataType) -> Tensor:
        """A tensor in another type; from what it was cast from if that holds no more values than the type."""
        if x.dtype is dtype:
            return x
        source = x.node.inputs[0] if x.node.op == "Cast" else None
        if isinstance(source, Tensor) and _within(source.dtype, x.dtype) and _within(source.dtype, dtype):
            x = source
        made = self.one("Cast", (x,), {"dst_type": kinds.Int(int(dtype))}, dtype, x.known_shape)
        made.format = x.format
        return made

    def bits(self, x: Tensor, dtype: DataType) -> Tensor:
        """The bits of a tensor as another type of equal size."""
        return self.one("Bitcast", (x,), {"type": Attr(Kind.TYPE, dtype)}, dtype, x.known_shape)
