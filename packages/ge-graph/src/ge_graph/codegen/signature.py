"""The Python signature of an operator, as text: shared by ``ops.pyi`` and by modules made from headers."""

from __future__ import annotations

import math
from typing import Any, Final

from ge_graph.attrs import Attr, Kind
from ge_graph.calling import counts_itself, parameter_names
from ge_graph.dtypes import DataType
from ge_graph.schema import AttrSchema, OpSchema, PortSchema

_TYPES: Final = {
    Kind.INT: "int",
    Kind.FLOAT: "float",
    Kind.BOOL: "bool",
    Kind.STRING: "str | bytes",
    Kind.TYPE: "DataType | int",
    Kind.TENSOR: "Any",
    Kind.LIST_INT: "Sequence[int]",
    Kind.LIST_FLOAT: "Sequence[float]",
    Kind.LIST_BOOL: "Sequence[bool]",
    Kind.LIST_STRING: "Sequence[str | bytes]",
    Kind.LIST_TYPE: "Sequence[DataType | int]",
    Kind.LIST_LIST_INT: "Sequence[Sequence[int]]",
    Kind.LIST_LIST_FLOAT: "Sequence[Sequence[float]]",
}


def parameters(op: OpSchema) -> list[str]:
    """One text a parameter, ``*`` included: inputs in schema order, then keyword-only attributes and options."""
    ports, attributes = parameter_names(op)
    by_name = {a.name: a for a in op.attrs}
    last_needed = max((i for i, p in enumerate(op.inputs) if p.kind == "required"), default=-1)
    positional = [_input(name, op.inputs[i], i > last_needed) for name, i in ports.items()]
    counted = counts_itself(op)
    keywords = [_attribute(name, by_name[attr], counted and attr == "N") for name, attr in attributes.items()]
    keywords += [_size(op, p) for p in op.outputs if p.kind == "dynamic"]
    keywords += [f"{s}: {'Graph' if kind == 'required' else 'Sequence[Graph]'}" for s, kind in op.subgraphs.items()]
    keywords += ["dependencies: Sequence[Tensor] = ()", "node_name: str | None = None"]
    return [*positional, "*", *keywords]


def result(op: OpSchema) -> str:
    parts = ["list[Tensor]" if p.kind == "dynamic" else "Tensor" for p in op.outputs]
    if not parts:
        return "Node"
    return parts[0] if len(parts) == 1 else f"tuple[{', '.join(parts)}]"


def domains(op: OpSchema) -> str:
    """Ports and their element types on one line, as the first line of a docstring."""
    known = "; ".join(f"{name}: {_short(dtypes)}" for name, dtypes in op.typevars.items())
    known += "".join(f"; {name}: promoted {', '.join(of)}" for name, of in op.promotions.items())
    inputs = ", ".join(_port(p) for p in op.inputs) or "nothing"
    outputs = ", ".join(_port(p) for p in op.outputs) or "nothing"
    return f"{inputs} -> {outputs}{f' with {known}' if known else ''}."


def _port(port: PortSchema) -> str:
    mark = {"optional": "?", "dynamic": "*"}.get(port.kind, "")
    return f"{port.name}{mark} {port.typevar or _short(port.dtypes)}"


def _short(dtypes: tuple[DataType, ...]) -> str:
    return "|".join(d.short for d in dtypes)


def _input(name: str, port: PortSchema, may_default: bool) -> str:
    if port.kind == "dynamic":
        return f"{name}: Sequence[TensorLike]" + (" = ()" if may_default else "")
    if port.kind == "optional":
        return f"{name}: TensorLike | None" + (" = None" if may_default else "")
    return f"{name}: TensorLike"


def _attribute(name: str, attr: AttrSchema, counted: bool) -> str:
    if counted or (not attr.required and attr.default is None):
        return f"{name}: {_TYPES[attr.kind]} | None = None"
    if attr.default is None:
        return f"{name}: {_TYPES[attr.kind]}"
    return f"{name}: {_TYPES[attr.kind]} = {literal(attr.default)}"


def _size(op: OpSchema, port: PortSchema) -> str:
    twin = op.input(port.name)
    known = twin is not None and twin.kind == "dynamic"
    lists = [p for p in op.inputs if p.kind == "dynamic"]
    known = known or (len(lists) >= 1 and lists[0].domain == port.domain) or bool(op.subgraphs)
    known = known or any(a.name in ("num", "num_split") for a in op.attrs)
    return f"size_of_{port.name}: int | None = None" if known else f"size_of_{port.name}: int"


def literal(attr: Attr) -> str:
    """A default as Python source."""
    if attr.kind is Kind.TYPE:
        return f"DataType.{attr.value.name}"
    if attr.kind is Kind.LIST_TYPE:
        return "(" + "".join(f"DataType.{v.name}, " for v in attr.value).strip() + ")"
    return _plain(attr.value)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return ascii(value)
