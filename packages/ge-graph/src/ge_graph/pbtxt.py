"""The graph as the text of a TensorFlow ``GraphDef``, which TensorBoard and Netron display.

A node has ``op``, inputs (``name``, ``name:1``, control edges ``^name``) and attributes: the GE ones, ``T`` and
``_output_shapes`` (-1 for unknown), and where it comes from (``_fx_name``, ``_fx_target``, ``_module``, ``_source``).
Optional inputs that nothing feeds are listed in ``_unfed_inputs``. Graphs within a node appear as nodes called
``node/slot/...``. Data of constants above 1 KiB is left out. The form is for looking at; ``serde`` and ``txt`` are
for reading back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ge_graph import ports, schema
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Shape, Tensor
from ge_graph.serde_write import tensor_data, text_bytes

# Short name of a GE type to TensorFlow's name; others appear as text.
_TYPE_ROWS: Final = """
f32 DT_FLOAT   f64 DT_DOUBLE   f16 DT_HALF     bf16 DT_BFLOAT16  i8 DT_INT8     i16 DT_INT16      i32 DT_INT32
i64 DT_INT64   u8 DT_UINT8     u16 DT_UINT16   u32 DT_UINT32     u64 DT_UINT64  b8 DT_BOOL        c64 DT_COMPLEX64
c128 DT_COMPLEX128  str DT_STRING  qi8 DT_QINT8  qu8 DT_QUINT8   qi16 DT_QINT16 qu16 DT_QUINT16   qi32 DT_QINT32
res DT_RESOURCE  var DT_VARIANT
"""
_TYPES: Final = dict(zip(_TYPE_ROWS.split()[::2], _TYPE_ROWS.split()[1::2]))
_CONTENT_BYTES: Final = 1024


def to_pbtxt(graph: Graph) -> str:
    """The text; the same graph gives the same text."""
    with schema.at_release(graph.release):
        lines = [line for part in _nodes(graph, "") for line in part]
    lines += ["versions {", "  producer: 1", "}"]
    return "\n".join(lines) + "\n"


def _nodes(graph: Graph, prefix: str) -> Iterator[list[str]]:
    for node in graph.nodes:
        for slot, inner in node.subgraphs.items():
            yield from _nodes(inner, f"{prefix}{node.name}/{slot}/")
        yield _node(node, prefix)
    name = "NetOutput"
    while name in graph:
        name += "_"
    sink = Node(graph, name, "NetOutput", [tuple(graph.outputs)], {})
    sink.control = list(graph.output_control)
    yield _node(sink, prefix)


def _node(node: Node, prefix: str) -> list[str]:
    structure, flat = ports.structure_of(node)
    lines = ["node {", f"  name: {_quoted(prefix + node.name)}", f"  op: {_quoted(node.op)}"]
    lines += [f"  input: {_quoted(prefix + _edge(t))}" for t in flat if t is not None]
    lines += [f"  input: {_quoted('^' + prefix + before.name)}" for before in node.control]
    attrs = {name: _attr(attr, node) for name, attr in node.attrs.items()}
    if node.outputs:
        attrs["_output_shapes"] = [
            "list {",
            *(f"  {line}" for t in node.outputs for line in _shape(t.known_shape)),
            "}",
        ]
        attrs.setdefault("T", _type(node.outputs[0].dtype))
    names = ports.input_names(node.op, structure)
    unfed = [n for n, t in zip(names, flat) if t is None]
    if unfed and not ports.is_fed_from_outside(node):
        attrs["_unfed_inputs"] = _texts(unfed)
    origin = node.provenance
    if origin is not None:
        texts = {
            "_fx_name": origin.fx_name,
            "_fx_target": origin.fx_target,
            "_module": origin.module,
            "_source": origin.source,
            "_code": origin.code,
        }
        attrs.update((name, [f"s: {_quoted(text)}"]) for name, text in texts.items() if text)
    for name in sorted(attrs):
        body = [f"      {line}" for line in attrs[name]]
        lines += ["  attr {", f"    key: {_quoted(name)}", "    value {", *body, "    }", "  }"]
    return [*lines, "}"]


def _edge(tensor: Tensor) -> str:
    return tensor.node.name if tensor.index == 0 else tensor.name


def _shape(shape: Shape | None) -> list[str]:
    if shape is None:
        return ["shape {", "  unknown_rank: true", "}"]
    dims = [-1 if isinstance(d, str) else d for d in shape]
    return ["shape {", *(f"  dim {{ size: {d} }}" for d in dims), "}"]


def _type(dtype: DataType) -> list[str]:
    known = _TYPES.get(dtype.short)
    return [f"type: {known}"] if known else [f"s: {_quoted(dtype.name)}"]


def _texts(values: Any) -> list[str]:
    return ["list {", *(f"  s: {_quoted(v)}" for v in values), "}"]


def _attr(attr: Attr, node: Node) -> list[str]:
    value: Any = attr.value
    if attr.kind is Kind.TENSOR:
        return [] if value is None else _tensor(value, node)
    if attr.kind is Kind.TYPE:
        return _type(DataType(value))
    if attr.kind is Kind.STRING:
        return [f"s: {_quoted(value)}"]
    if attr.kind in (Kind.LIST_LIST_INT, Kind.LIST_LIST_FLOAT):
        return [f"s: {_quoted(str([list(row) for row in value]))}"]
    if attr.kind is Kind.LIST_STRING:
        return _texts(value)
    if attr.kind is Kind.LIST_TYPE:
        if all(v.short in _TYPES for v in value):
            return ["list {", *(f"  type: {_TYPES[v.short]}" for v in value), "}"]
        return _texts([v.name for v in value])
    member = {Kind.INT: "i", Kind.LIST_INT: "i", Kind.FLOAT: "f", Kind.LIST_FLOAT: "f"}.get(attr.kind, "b")
    if isinstance(value, tuple):
        return ["list {", *(f"  {member}: {_number(v)}" for v in value), "}"]
    return [f"{member}: {_number(value)}"]


def _number(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _tensor(value: Any, node: Node) -> list[str]:
    dtype, shape, data = tensor_data(value, f"{node.op} '{node.name}'")
    lines = ["tensor {", f"  dtype: {_TYPES.get(dtype.short, 'DT_INVALID')}", "  tensor_shape {"]
    lines += [f"    dim {{ size: {d} }}" for d in shape]
    lines.append("  }")
    if 0 < data.size <= _CONTENT_BYTES:
        lines.append(f"  tensor_content: {_quoted(np.asarray(data).tobytes())}")
    return [*lines, "}"]


_ESCAPES: Final = {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("'"): "\\'",
    ord("\\"): "\\\\",
}


def _quoted(text: str | bytes) -> str:
    raw = text_bytes(text)
    return '"' + "".join(_ESCAPES.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in raw) + '"'
