"""What operator and converter files that older tools generated name: ``IrDef`` describes an operator, ``ge_op`` adds a
node of it, ``GraphDef`` is a place to add operators to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ge_graph import DataType, Tensor, schema
from ge_graph.attrs import Attr
from ge_graph.ops import custom_op
from torchair.oplib.converter_forms.op_builder import Desc, OpList

__all__ = ["GraphDef", "IrDef", "TensorDef", "ge_op"]


class IrDef:
    """The ports and attributes of an operator, collected call by call.

    Example:
        >>> ir = IrDef("Scale").input("x", "DT_FLOAT, DT_FLOAT16").attr("factor", ge.attr.Float(1.0))  # doctest: +SKIP
        >>> ir = ir.output("y", "DT_FLOAT, DT_FLOAT16")  # doctest: +SKIP
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self._row: dict[str, Any] = {"op": op, "in": [], "out": [], "attr": [], "source": "IrDef"}

    def _port(self, side: str, name: str, mark: str, dtypes: str) -> IrDef:
        self._row[side].append(f"{name}{mark} {_short_names(dtypes)}")
        return self

    def input(self, name: str, dtypes: str) -> IrDef:
        return self._port("in", name, "", dtypes)

    def optional_input(self, name: str, dtypes: str) -> IrDef:
        return self._port("in", name, "?", dtypes)

    def dynamic_input(self, name: str, dtypes: str) -> IrDef:
        """Add an input that takes a list of tensors."""
        return self._port("in", name, "*", dtypes)

    def output(self, name: str, dtypes: str) -> IrDef:
        return self._port("out", name, "", dtypes)

    def dynamic_output(self, name: str, dtypes: str) -> IrDef:
        """Add an output that is a list of tensors."""
        return self._port("out", name, "*", dtypes)

    def attr(self, name: str, default: Attr) -> IrDef:
        value = list(default.value) if isinstance(default.value, tuple) else default.value
        self._row["attr"].append([name, default.kind.value, value])
        return self

    def required_attr(self, name: str, kind: Any) -> IrDef:
        """Add an attribute without a default; ``kind`` is a constructor such as ``ge.attr.Int``."""
        made = kind.__name__ if callable(kind) else str(kind)
        self._row["attr"].append([name, {"Str": "String", "DataType": "Type"}.get(made, made)])
        return self

    def register(self) -> None:
        """Make the operator known to ``ge_graph`` if it is not."""
        if schema.get(self.op) is None:
            schema.register_schema(self._row)


def _short_names(dtypes: str) -> str:
    return ",".join(DataType[name.strip()].short for name in dtypes.split(",") if name.strip())


def ge_op(
    *,
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Attr] | None = None,
    outputs: Sequence[str | tuple[str, int]] | None = None,
    dependencies: Sequence[Tensor] = (),
    ir: IrDef | None = None,
    node_name: str | None = None,
) -> Any:
    """Add a node; see ``ge_graph.ops.custom_op``. One output comes back alone, several as a list.

    Args:
        op_type: Operator type.
        inputs: Port name to tensor, list of tensors or None.
        attrs: Attribute name to typed value.
        outputs: Output names, ``(name, count)`` for dynamic ones.
        dependencies: Tensors whose producers must run first.
        ir: Definition of the operator, for one that ``ge_graph`` does not know.
        node_name: Name of the node.

    Errors: GraphError as for any ``ge`` call.
    """
    if ir is not None:
        ir.register()
    made = custom_op(op_type, inputs=inputs, attrs=attrs or {}, outputs=outputs, node_name=node_name)
    first = made
    while isinstance(first, (list, tuple)):
        first = first[0]
    node = first.node if isinstance(first, Tensor) else first
    node.control += [t.node for t in dependencies if t.node not in node.control]
    return made


class GraphDef:
    """A graph as a place to add operators to: ``graph.op.add()``."""

    def __init__(self) -> None:
        self.op = OpList()


class TensorDef:
    """A constant's data and description, as older files name it in annotations."""

    def __init__(self) -> None:
        self.desc = Desc()
        self.data = b""
