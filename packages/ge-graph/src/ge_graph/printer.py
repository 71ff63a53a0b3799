"""The graph as readable text, one node per line in SSA form: for goldens, errors and bug reports.

::

    graph graph_1(%x f32[s0, 64], %w f32[64, 8]) {
      %MatMulV2 f32[s0, 8] = MatMulV2(%x:0, %w:0, transpose_x2=true)  # model.py:41 in forward
      return %MatMulV2:0
    }

Attributes that have the schema's default are left out, large constants are abbreviated.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ge_graph import escape, schema
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType, Format
from ge_graph.ir import Graph, Literal, Node, Operand, Tensor

_INLINE_ITEMS: Final = 8


def to_text(graph: Graph) -> str:
    """The text of a graph, with a newline at the end."""
    return "".join(f"{escape.line(line, len(line))}\n" for line in _graph_lines(graph, ""))


def node_text(node: Node) -> str:
    line = _node_line(node)
    return escape.line(line, len(line))


def _graph_lines(graph: Graph, indent: str) -> list[str]:
    inputs = graph.inputs
    head = ", ".join(f"%{n.name} {_type(n.outputs[0])}" for n in inputs if n.outputs)
    attrs = "".join(f" {k}={_value(a)}" for k, a in sorted(graph.attrs.items()))
    lines = [f"{indent}graph {graph.name}({head}){attrs} {{"]
    known = set(inputs)
    for node in graph.nodes:
        if node in known and node.op == "Data" and not _shown_attrs(node, skip=("index", "_placement")):
            continue
        lines.append(f"{indent}  {_node_line(node)}")
        for slot, inner in node.subgraphs.items():
            lines.append(f"{indent}    {slot}:")
            lines += _graph_lines(inner, indent + "    ")
    results = ", ".join(_edge(t) for t in graph.outputs)
    after = f" after {', '.join(f'%{n.name}' for n in graph.output_control)}" if graph.output_control else ""
    lines += [f"{indent}  return {results}{after}".rstrip(), f"{indent}}}"]
    return lines


def _node_line(node: Node) -> str:
    arguments = [_operand(e) for e in _trimmed(node.inputs)]
    arguments += [f"{k}={_value(a)}" for k, a in _shown_attrs(node)]
    if node.control:
        arguments.append(f"after=[{', '.join(f'%{n.name}' for n in node.control)}]")
    if len(node.outputs) == 1:
        types = f" {_type(node.outputs[0])}"
    else:
        types = f" ({', '.join(_type(t) for t in node.outputs)})" if node.outputs else ""
    where = node.provenance.source if node.provenance else ""
    return f"%{node.name}{types} = {node.op}({', '.join(arguments)})" + (f"  # {where}" if where else "")


def _trimmed(inputs: list[Operand]) -> list[Operand]:
    end = len(inputs)
    while end and inputs[end - 1] is None:
        end -= 1
    return inputs[:end]


def _shown_attrs(node: Node, skip: tuple[str, ...] = ()) -> list[tuple[str, Attr]]:
    with schema.at_release(node.graph.release):
        row = schema.get(node.op)
    defaults = {a.name: a.default for a in row.attrs} if row else {}
    skip = (*skip, "_readable_value")
    return [(k, a) for k, a in sorted(node.attrs.items()) if k not in skip and not _is_default(a, defaults.get(k))]


def _is_default(attr: Attr, default: Attr | None) -> bool:
    return default is not None and attr.kind is not Kind.TENSOR and attr == default


def _edge(tensor: Tensor) -> str:
    return f"%{tensor.name}"


def _operand(entry: Operand) -> str:
    if entry is None:
        return "None"
    return f"[{', '.join(map(_edge, entry))}]" if isinstance(entry, tuple) else _edge(entry)


def _type(tensor: Tensor) -> str:
    shape = tensor.known_shape
    dims = "?" if shape is None else ", ".join(map(str, shape))
    layout = "" if tensor.format is Format.FORMAT_ND else f":{tensor.format.layout}"
    return f"{tensor.dtype.short}[{dims}]{layout}"


def _value(attr: Attr) -> str:
    if attr.kind is Kind.TENSOR:
        return _tensor(attr.value)
    return _plain(attr.value)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, DataType):
        return value.short
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _tensor(value: Any) -> str:
    if isinstance(value, Literal):
        return f"<{value.dtype.short}[{', '.join(map(str, value.shape))}]>"
    if not isinstance(value, np.ndarray):
        return "none" if value is None else f"<{type(value).__name__}>"
    if value.size <= _INLINE_ITEMS:
        return str(value.tolist()).lower() if value.dtype == bool else str(value.tolist())
    first = ", ".join(map(str, value.reshape(-1)[:3].tolist()))
    return f"<{value.dtype}[{', '.join(map(str, value.shape))}] {first} ...>"
