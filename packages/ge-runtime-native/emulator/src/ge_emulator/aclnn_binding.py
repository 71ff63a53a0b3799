"""Which port or attribute of a GE operator each argument of an operator function (``aclnn*``) stands for.

Most functions have the operator's own names, written otherwise: ``actualSeqLengthsOptional`` is ``actual_seq_lengths``,
``varRef`` is input and output ``var``. What names do not say, the row of the table says.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ge_graph.attrs import Kind
from ge_graph.dtypes import DataType
from ge_graph.schema import OpSchema, PortSchema

# How a core computes, and what follows from the rest.
NOT_PASSED: Final = ("cubeMathType", "innerPrecise", "buffer", "streamMode", "tuningConfigOptional")
TENSORS: Final = ("t", "tl")
_ENDINGS: Final = ("optional", "ref", "out")
# A packed or signed partner of a type, where a function takes it and the operator's port does not.
_SAME_BITS: Final = {
    DataType.DT_INT32: (DataType.DT_INT4, DataType.DT_UINT32),
    DataType.DT_INT64: (DataType.DT_UINT64,),
    DataType.DT_UINT8: (DataType.DT_FLOAT8_E8M0, DataType.DT_INT8),
}


def says_nothing(name: str) -> bool:
    """Whether an argument has no influence on values; its name begins with ``_`` where only this function has it so."""
    return name in NOT_PASSED or name.startswith("_")


class Argument(NamedTuple):
    """An argument of a function: name, kind (see ``trampolines``), whether the function writes it."""

    name: str
    kind: str
    written: bool


class Binding(NamedTuple):
    """A function's arguments by the parts of an operator.

    Attributes:
        inputs: For each input port an argument's name, ``None`` where nothing is fed.
        attrs: Values by attribute, as in the row.
        outputs: For each output port the argument that is written, ``None`` where nobody wants it.
        wanted: By output port the argument that says whether a call wants it.
        unused: Arguments that have no part; a call that gives one is refused.
    """

    inputs: tuple[str | None, ...]
    attrs: Mapping[str, ast.expr]
    outputs: tuple[str | None, ...]
    wanted: Mapping[str, str]
    unused: tuple[str, ...]


def key(name: str) -> str:
    """A name without its manner of writing: no case, no underscores, no ``Optional``, ``Ref``, ``Out``."""
    made = name.lower().replace("_", "").replace("tocken", "token").replace("deqscale", "dequantscale")
    while True:
        shorter = next((made[: -len(e)] for e in _ENDINGS if made.endswith(e) and len(made) > len(e)), None)
        if shorter is None:
            return made
        made = shorter


def bind(
    op: OpSchema, arguments: Sequence[Argument], operands: Sequence[ast.expr], keywords: Mapping[str, ast.expr]
) -> Binding:
    """Give every argument its part: operands by position, keywords by name, and the rest where ``...`` stands.

    Args:
        operands: Arguments in port order; one ``...`` instead binds by name what no keyword names.
    """
    by_name = any(isinstance(o, ast.Constant) and o.value is ... for o in operands)
    inputs: dict[str, str | None] = {}
    attrs: dict[str, ast.expr] = {}
    outputs: dict[str, str | None] = {}
    wanted: dict[str, str] = {}
    if not by_name:
        inputs = {p.name: o.id if isinstance(o, ast.Name) else None for p, o in zip(op.inputs, operands)}
        outputs = dict(zip([p.name for p in op.outputs], [a.name for a in arguments if a.written]))
    kinds = {a.name: a for a in arguments}
    for name, value in keywords.items():
        argument = kinds.get(value.id) if isinstance(value, ast.Name) else None
        none = isinstance(value, ast.Constant) and value.value is None
        if op.attr(name) is not None:
            attrs[name] = value
            continue
        if op.input(name) is not None:
            inputs[name] = None if none else argument.name if argument else None
        if op.output(name) is not None and argument is not None and argument.kind == "b":
            wanted[name] = argument.name
        elif op.output(name) is not None and (none or (argument is not None and argument.written)):
            outputs[name] = None if none or argument is None else argument.name
    if by_name:
        _by_name(op, arguments, inputs, attrs, outputs)
    used = {*inputs.values(), *outputs.values()}
    used |= {n.id for v in attrs.values() for n in ast.walk(v) if isinstance(n, ast.Name)}
    return Binding(
        tuple(inputs.get(p.name) for p in op.inputs),
        attrs,
        tuple(outputs.get(p.name) for p in op.outputs),
        wanted,
        tuple(a.name for a in arguments if a.name not in used and not says_nothing(a.name)),
    )


def _by_name(
    op: OpSchema,
    arguments: Sequence[Argument],
    inputs: dict[str, str | None],
    attrs: dict[str, ast.expr],
    outputs: dict[str, str | None],
) -> None:
    taken = {*inputs.values(), *outputs.values(), *(v.id for v in attrs.values() if isinstance(v, ast.Name))}
    ports, values, results = ({key(p.name): p.name for p in part} for part in (op.inputs, op.attrs, op.outputs))
    for argument in arguments:
        if argument.name in taken or says_nothing(argument.name):
            continue
        short = key(argument.name)
        if argument.written:
            if short in results:
                outputs.setdefault(results[short], argument.name)
            if short in ports and (short not in results or argument.name.lower().endswith("ref")):
                inputs.setdefault(ports[short], argument.name)
        elif short in ports:
            inputs.setdefault(ports[short], argument.name)
        elif short in values and argument.kind not in TENSORS:
            attrs.setdefault(values[short], ast.Name(argument.name))


def fed_type(port: PortSchema, given: DataType) -> DataType:
    """The type under which a port takes a tensor: its own, or one of the same bits that the port has instead."""
    if given in port.domain:
        return given
    return next((d for d in _SAME_BITS.get(given, ()) if d in port.domain), given)


def array_type(port: PortSchema, kind: str) -> DataType:
    """The type of the tensor that an array of a function becomes."""
    wanted = {"ia": DataType.DT_INT64, "fa": DataType.DT_FLOAT, "sl": DataType.DT_FLOAT, "ba": DataType.DT_BOOL}.get(
        kind, DataType.DT_INT64
    )
    return wanted if wanted in port.domain else port.dtypes[0]


def attribute(kind: Kind, value: Any) -> Any:
    """A value as an attribute of that kind has it."""
    if kind is Kind.BOOL:
        return bool(value)
    if kind in (Kind.INT, Kind.TYPE) and isinstance(value, (bool, int)):
        return int(value)
    if kind is Kind.FLOAT and isinstance(value, (bool, int, float)):
        return float(value)
    return value
