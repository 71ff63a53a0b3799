"""Every writer, reader, printer and comparison does with a field of a node what its row says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ge_graph import Graph, Node, building, serde
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Provenance
from ge_graph.node_fields import NODE_FIELDS, NodeField
from ge_graph.pbtxt import to_pbtxt
from ge_graph.printer import to_text
from ge_graph.python_reader import run_py
from ge_graph.python_source import to_py
from ge_graph.testing import graph_differences
from ge_graph.txt import to_txt

F32 = DataType.DT_FLOAT
FORMS: dict[str, Callable[[Graph], str]] = {"text": to_text, "txt": to_txt, "pbtxt": to_pbtxt, "py": to_py}


def example() -> tuple[Graph, Node]:
    """Two inputs, a Split, a branch, and a product; the fields of one node are changed."""
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=F32, shape=(2, 2), node_name="x")
        y = ge.Data(index=1, dtype=F32, shape=(2, 2), node_name="y")
        a, b = ge.SplitV(x, [1, 1], 0, num_split=2, size_of_y=2, node_name="parts")
        m = ge.MatMulV2(x, y, node_name="m")
        graph.outputs = [m, a, b]
    inner = Graph("then")
    with building(inner):
        z = ge.Data(index=0, dtype=F32, shape=(2, 2), node_name="z")
        inner.outputs = [ge.Abs(z)]
    branch = graph.add("PartitionedCall", [(x,)], {}, [(F32, (2, 2))], name="branch")
    branch.subgraphs["f"] = inner
    branch.output_counts = {"output": 1}
    graph.outputs.append(branch.outputs[0])
    return graph, m.node


def _subgraph(graph: Graph, node: Node) -> None:
    inner = graph.node("branch").subgraphs["f"]
    inner.rename(inner.nodes[-1], "other")


def _counts(graph: Graph, node: Node) -> None:
    graph.node("branch").output_counts = {"outputs": 1}


CHANGES: dict[str, Callable[[Graph, Node], Any]] = {
    "name": lambda g, n: g.rename(n, "other"),
    "op": lambda g, n: setattr(n, "op", "MatMul"),
    "inputs": lambda g, n: n.inputs.__setitem__(1, n.inputs[0]),
    "attrs": lambda g, n: n.attrs.__setitem__("transpose_x2", Attr(Kind.BOOL, True)),
    "outputs": lambda g, n: n.outputs[0].record_shape((2, "s0")),
    "output_counts": _counts,
    "control": lambda g, n: n.control.append(g.node("parts")),
    "provenance": lambda g, n: setattr(
        n, "provenance", Provenance("mm", "aten.mm", "", "model", "file.py:3 in f", "x")
    ),
    "subgraphs": _subgraph,
}


def test_each_field_of_a_node_has_a_row_and_a_change() -> None:
    assert tuple(f.name for f in NODE_FIELDS) == Node.__slots__
    assert CHANGES.keys() == {f.name for f in NODE_FIELDS if f.written}


@pytest.mark.parametrize("field", [f for f in NODE_FIELDS if f.written], ids=lambda f: f.name)
def test_a_change_is_seen_where_the_row_says(field: NodeField) -> None:
    (before, _), (after, node) = example(), example()
    assert not graph_differences(after, before)
    CHANGES[field.name](after, node)
    assert graph_differences(after, before), "equality"
    assert (serde.to_bytes(after) != serde.to_bytes(before)) == field.written, "bytes"
    assert {name for name, form in FORMS.items() if form(after) != form(before)} == field.shown


@pytest.mark.parametrize("field", [f for f in NODE_FIELDS if f.written], ids=lambda f: f.name)
def test_what_is_written_comes_back(field: NodeField) -> None:
    graph, node = example()
    CHANGES[field.name](graph, node)
    assert not graph_differences(serde.from_bytes(serde.to_bytes(graph)), graph)
    assert not graph_differences(run_py(to_py(graph)), graph)
