"""Ports on the wire: names of the flat inputs and outputs of a node, and the way back to one entry per port.

The IR keeps one entry per schema port; GE keeps a flat list whose parts are called ``x``, or ``x0``, ``x1`` … where the
port is dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from ge_graph import schema
from ge_graph.ir import Node, Tensor

FED: Final = -1
UNFED: Final = -2

# One number per port: FED, UNFED, or how many tensors a dynamic port has.
Structure: TypeAlias = "tuple[int, ...]"

# Graph inputs have a port in the headers that nothing in the graph ever feeds.
PLACEHOLDERS: Final = frozenset({"Data", "RefData", "Variable"})


def is_fed_from_outside(node: Node) -> bool:
    """Whether the node is a graph input."""
    return node.op in PLACEHOLDERS and (node.inputs == [None] or all(i is None or i == () for i in node.inputs))


def structure_of(node: Node) -> tuple[Structure, list[Tensor | None]]:
    """The structure of a node's inputs, and the inputs flattened."""
    flat: list[Tensor | None] = []
    structure = []
    for entry in node.inputs:
        if entry.__class__ is Tensor:
            flat.append(entry)
            structure.append(FED)
        elif entry is None:
            flat.append(None)
            structure.append(UNFED)
        else:
            flat.extend(entry)
            structure.append(len(entry))
    return tuple(structure), flat


def input_names(op: str, structure: Structure) -> list[str]:
    """Names of the flat inputs; ``x0``, ``x1`` … for ports that no schema names."""
    op_schema = schema.get(op)
    ports = [p.name for p in op_schema.inputs] if op_schema else []
    names = []
    for at, size in enumerate(structure):
        port = ports[at] if at < len(ports) else f"x{at}"
        if size < 0:
            names.append(port)
        else:
            names.extend(f"{port}{part}" for part in range(size))
    return names


def group_inputs(op: str, names: Sequence[str], unfed: Sequence[bool]) -> Structure:
    """The structure that the names tell; one port an entry if they do not fit the schema."""
    plain = tuple(UNFED if u else FED for u in unfed)
    if op in PLACEHOLDERS and all(unfed):
        return (UNFED,)
    op_schema = schema.get(op)
    if op_schema is None:
        return plain
    structure, at = [], 0
    for port in op_schema.inputs:
        if port.kind == "dynamic":
            size = 0
            while at < len(names) and names[at] == f"{port.name}{size}":
                at, size = at + 1, size + 1
            structure.append(size)
        elif at < len(names) and names[at] == port.name:
            structure.append(plain[at])
            at += 1
        else:
            structure.append(UNFED)
    return tuple(structure) if at == len(names) else plain


def positional_names(op: str, count: int) -> list[str]:
    """Names for a file that gives none: by position, all that is left over to the one dynamic port."""
    op_schema = schema.get(op)
    if op_schema is None:
        return [f"x{i}" for i in range(count)]
    dynamic = [i for i, p in enumerate(op_schema.inputs) if p.kind == "dynamic"]
    if len(dynamic) != 1:
        return [op_schema.inputs[i].name if i < len(op_schema.inputs) else f"x{i}" for i in range(count)]
    extra = max(count - len(op_schema.inputs) + 1, 0)
    return input_names(op, tuple(extra if i == dynamic[0] else FED for i in range(len(op_schema.inputs))))[:count]


def output_names(op: str, count: int, counts: dict[str, int]) -> list[str]:
    """Names of the flat outputs; ``y0``, ``y1`` … for outputs that no schema names."""
    op_schema = schema.get(op)
    names: list[str] = []
    for port in op_schema.outputs if op_schema else ():
        if port.kind == "dynamic":
            names.extend(f"{port.name}{i}" for i in range(counts.get(port.name, 0)))
        else:
            names.append(port.name)
    names = names[:count]
    return names + [f"y{i}" for i in range(len(names), count)]


def group_outputs(op: str, names: Sequence[str]) -> dict[str, int]:
    """How many tensors each dynamic output port has, told from the names."""
    op_schema = schema.get(op)
    counts: dict[str, int] = {}
    at = 0
    for port in op_schema.outputs if op_schema else ():
        if port.kind != "dynamic":
            at += 1
            continue
        size = 0
        while at < len(names) and names[at] == f"{port.name}{size}":
            at, size = at + 1, size + 1
        counts[port.name] = size
    return counts
