"""txt, pbtxt, Python and SSA text."""

from __future__ import annotations

import contextvars
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ge_graph import (
    ArchiveError,
    DataType,
    Graph,
    GraphError,
    Literal,
    Provenance,
    building,
    current_graph,
    printer,
    python_reader,
    python_source,
    serde,
    txt,
)
from ge_graph import attrs as attr_kinds
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.pbtxt import to_pbtxt
from ge_graph.testing import assert_graphs_equal, graphs

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def sample() -> Graph:
    graph = Graph("graph_1")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=("s0", 4), node_name="arg0_1")
        ge.Data(index=1, dtype=DataType.DT_INT64, shape=(), placement="CPU", node_name="arg1_1")
        graph.provenance = Provenance(
            "mm", "aten.mm.default", "mm: f32 = mm(x, w)", "m.0", "/home/a.py:3 in forward", "y = x @ w"
        )
        y = ge.MatMulV2(x, ge.Const(np.ones((4, 4), np.float32), readable=False), transpose_x2=True)
        a, b = ge.SplitD(y, split_dim=1, num_split=2)
        graph.provenance = Provenance("print", "aten.print", "print(mm)", "m.0", "/home/a.py:4 in forward", "print(y)")
        printed = ge.Print([a])
        z = ge.ConcatD([a, b], concat_dim=1, dependencies=[x])
        graph.provenance = None
        z.record_shape(("s0", 4))
        graph.outputs = [z]
    graph.output_control = [printed]
    return graph


def with_subgraph() -> Graph:
    graph = sample()
    inner = Graph("then_graph")
    with building(inner):
        inner.outputs = [ge.Relu(ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=("s0", 4)))]
    x = graph.outputs[0]
    node = graph.add("If", [x, (x,)], {}, [(DataType.DT_FLOAT, None)])
    node.output_counts["output"] = 1
    node.subgraphs["then_branch"] = inner
    graph.outputs = [node.outputs[0]]
    return graph


# --- txt -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@EXAMPLES
@given(graphs(max_nodes=6))
def test_txt_round_trip(graph: Graph) -> None:
    assert_graphs_equal(txt.from_txt(txt.to_txt(graph)), graph)


def test_txt_form() -> None:
    text = txt.to_txt(sample())
    assert text.startswith('name: "graph_1"\n')
    for line in ('  type: "MatMulV2"', '    layout: "ND"', '    device_type: "NPU"', "    dtype: DT_FLOAT"):
        assert line in text.splitlines()


def test_txt_with_subgraphs() -> None:
    graph = with_subgraph()
    text = txt.to_txt(graph)
    assert text.startswith('name: "graph_1"\nversion: 1\ngraph {')
    assert_graphs_equal(txt.from_txt(text), graph)


@pytest.mark.parametrize(("text", "code"), [("op { name: ", "GE5013"), ("hello", "GE5013"), ("", "GE5002")])
def test_broken_txt(text: str, code: str) -> None:
    with pytest.raises(ArchiveError, match=code):
        txt.from_txt(text)


def test_txt_names_the_line() -> None:
    with pytest.raises(ArchiveError, match="3:"):
        txt.from_txt('name: "g"\nop {\n  nome: "x"\n}\n')


# --- pbtxt -----------------------------------------------------------------------------------------------------------


def parse_pbtxt(text: str):
    graph_pb2 = pytest.importorskip("tensorboard.compat.proto.graph_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    return text_format.Parse(text, graph_pb2.GraphDef())


@pytest.mark.slow
@EXAMPLES
@given(graphs(max_nodes=6))
def test_pbtxt_is_a_tensorflow_graph(graph: Graph) -> None:
    message = parse_pbtxt(to_pbtxt(graph))
    assert [n.name for n in message.node] == [*(n.name for n in graph.nodes), "NetOutput"]
    names = {n.name for n in message.node}
    for node in message.node:
        for text in node.input:
            assert text.lstrip("^").partition(":")[0] in names


def test_pbtxt_content() -> None:
    message = parse_pbtxt(to_pbtxt(sample()))
    nodes = {n.name: n for n in message.node}
    matmul = nodes["MatMulV2"]
    assert list(matmul.input) == ["arg0_1", "Const"]
    assert matmul.attr["transpose_x2"].b is True
    assert list(matmul.attr["_unfed_inputs"].list.s) == [b"bias", b"offset_w"]
    assert matmul.attr["_fx_target"].s == b"aten.mm.default"
    assert matmul.attr["_source"].s == b"/home/a.py:3 in forward"
    assert matmul.attr["_output_shapes"].list.shape[0].unknown_rank
    concat = nodes["ConcatD"]
    assert list(concat.input) == ["SplitD", "SplitD:1", "^arg0_1"]
    assert [d.size for d in concat.attr["_output_shapes"].list.shape[0].dim] == [-1, 4]
    assert concat.attr["T"].type == 1
    assert list(nodes["NetOutput"].input) == ["ConcatD", "^Print"]
    const = nodes["Const"].attr["value"].tensor
    assert np.frombuffer(const.tensor_content, np.float32).tolist() == [1.0] * 16


def test_pbtxt_of_every_attribute_kind() -> None:
    graph = Graph("g")
    attrs = {
        "i": attr_kinds.Int(-3),
        "f": attr_kinds.Float(float("inf")),
        "b": attr_kinds.Bool(False),
        "s": attr_kinds.Str('a"\n\\ü'),
        "t": attr_kinds.Type(DataType.DT_BF16),
        "u": attr_kinds.Type(DataType.DT_INT4),
        "li": attr_kinds.ListInt([1, 2]),
        "lf": attr_kinds.ListFloat([0.5]),
        "lb": attr_kinds.ListBool([True]),
        "ls": attr_kinds.ListStr(["a"]),
        "lt": attr_kinds.ListDataType([0]),
        "lu": attr_kinds.ListDataType([29]),
        "ll": attr_kinds.ListListInt([[1], []]),
        "lg": attr_kinds.ListListFloat([[1.5]]),
        "none": Attr(Kind.TENSOR, None),
        "big": Attr(Kind.TENSOR, np.zeros(10_000, np.float32)),
        "odd": Attr(Kind.TENSOR, Literal(DataType.DT_INT4, (2,), np.zeros(1, np.uint8))),
    }
    graph.add("Op", (), attrs, [(DataType.DT_FLOAT, ())])
    node = parse_pbtxt(to_pbtxt(graph)).node[0]
    assert set(attrs) <= set(node.attr)
    assert node.attr["s"].s.decode() == 'a"\n\\ü'
    assert node.attr["t"].type == 14
    assert node.attr["u"].s == b"DT_INT4"
    assert node.attr["big"].tensor.tensor_content == b""


def test_pbtxt_of_graphs_in_nodes() -> None:
    message = parse_pbtxt(to_pbtxt(with_subgraph()))
    names = [n.name for n in message.node]
    assert "If/then_branch/Relu" in names
    assert names.index("If/then_branch/Relu") < names.index("If")


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@EXAMPLES
@given(graphs())
def test_py_rebuilds_the_graph(graph: Graph) -> None:
    again = python_reader.run_py(python_source.to_py(graph))
    assert_graphs_equal(again, graph)
    assert serde.to_bytes(again) == serde.to_bytes(graph)


EXPECTED = """\
# -*- coding: utf-8 -*-
from torch import tensor
from torchair._ge_concrete_graph import ge_apis as ge
from torchair.ge._ge_graph import get_default_ge_graph
from ge_graph.python_source import describe, new_graph, node, raw, restore, start, stored

graph = start(get_default_ge_graph)
arg0_1_0 = ge.Data(index=0, dtype=0, shape=[-1, 4], placement="NPU", node_name="arg0_1")
arg1_1_0 = ge.Data(index=1, dtype=9, shape=[], placement="CPU", node_name="arg1_1")
# File "/home/a.py", line 3, in forward    y = x @ w
## FX Code: mm: f32 = mm(x, w)
Const_0 = ge.Const(1.0, dtype=0, node_name="Const", readable=False)
MatMulV2_0 = ge.MatMulV2(arg0_1_0, Const_0, None, None, transpose_x2=True, node_name="MatMulV2")
[SplitD_0, SplitD_1] = ge.SplitD(MatMulV2_0, split_dim=1, num_split=2, size_of_y=2, node_name="SplitD")
# File "/home/a.py", line 4, in forward    print(y)
## FX Code: print(mm)
Print = ge.Print([SplitD_0], node_name="Print")
ConcatD_0 = ge.ConcatD([SplitD_0, SplitD_1], concat_dim=1, N=2, dependencies=[arg0_1_0], node_name="ConcatD")
"""


def test_py_form() -> None:
    graph = sample()
    graph.node("Const").attrs["value"] = Attr(Kind.TENSOR, np.array(1.0, np.float32))
    graph.node("Const").outputs[0].record_shape(())
    text = python_source.to_py(graph)
    assert text[: len(EXPECTED)] == EXPECTED
    assert text.splitlines()[-1] == "_ = ge.NetOutput([ConcatD_0], dependencies=[Print])"
    assert all(re.match(r'describe\(|restore\("', line) for line in text[len(EXPECTED) :].splitlines()[:-1])


def test_py_by_itself() -> None:
    """Without a graph being built the program makes one; another error of the graph is not swallowed."""

    def run() -> Graph:
        return python_source.start(current_graph)

    alone = contextvars.Context()
    assert alone.run(run) is alone.run(current_graph)
    with building(Graph("g")) as graph:
        assert run() is graph

    def fail() -> Graph:
        raise GraphError("GE3001", "another")

    with pytest.raises(GraphError, match="GE3001"):
        python_source.start(fail)


def test_py_of_what_no_call_makes() -> None:
    graph = with_subgraph()
    x = graph.outputs[0]
    attrs = {
        "value": Attr(Kind.TENSOR, np.zeros((0, 3), np.float16)),
        "if": attr_kinds.Float(float("nan")),
        "_who": attr_kinds.ListDataType([DataType.DT_BF16]),
    }
    odd = graph.add("NobodyKnows", [(x, x), None, x], attrs, [(DataType.DT_INT4, None)] * 2, name="1 odd/näme")
    # another result type than the schema tells
    relu = graph.add("Relu", [x], {}, [(DataType.DT_INT8, None)], name="ge")
    graph.add("Relu", [relu.outputs[0]], {}, [(DataType.DT_INT8, None)])
    graph.add("Print", [(x,)], {}, [], name="if").control.append(graph.node("Print"))
    graph.add("Print", [(x,)], {}, [], name="graph")
    literal = Literal(DataType.DT_BF16, (2,), np.array([1, 2, 3, 4], np.uint8))
    graph.add("Const", (), {"value": Attr(Kind.TENSOR, literal)}, [(DataType.DT_BF16, (2,))])
    graph.add("Const", (), {"value": Attr(Kind.TENSOR, np.array([0.1, -0.0, np.nan]))}, [(DataType.DT_DOUBLE, (3,))])
    graph.outputs = list(odd.outputs)
    again = python_reader.run_py(python_source.to_py(graph))
    assert_graphs_equal(again, graph)
    assert serde.to_bytes(again) == serde.to_bytes(graph)


def test_py_with_large_constants(tmp_path: Path) -> None:
    graph = Graph("g")
    with building(graph):
        big = ge.Const(np.arange(5000, dtype=np.float32))
        graph.outputs = [ge.Add(big, ge.Const(np.ones(5000, np.float32)))]
    path = tmp_path / "dump.py"
    python_source.write_py(graph, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dump.py", "dump.weights"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert len(text) < 3000
    assert serde.to_bytes(python_reader.run_py(text, file=str(path))) == serde.to_bytes(graph)
    (tmp_path / "dump.weights").write_bytes(b"short")
    with pytest.raises(ArchiveError, match="GE5015"):
        python_reader.run_py(text, file=str(path))


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    graph = Graph("g")
    with building(graph):
        ge.Const(np.arange(5000, dtype=np.float32))
    graph.add("Const", (), {"value": Attr(Kind.TENSOR, "no tensor")}, [(DataType.DT_FLOAT, ())])
    with pytest.raises(ArchiveError):
        python_source.write_py(graph, tmp_path / "dump.py")
    assert list(tmp_path.iterdir()) == []


# --- SSA text --------------------------------------------------------------------------------------------------------


def test_ssa_text() -> None:
    assert (
        printer.to_text(with_subgraph())
        == """\
graph graph_1(%arg0_1 f32[s0, 4], %arg1_1 i64[]) {
  %Const f32[4, 4] = Const(value=<float32[4, 4] 1.0, 1.0, 1.0 ...>)  # /home/a.py:3 in forward
  %MatMulV2 f32[?] = MatMulV2(%arg0_1:0, %Const:0, transpose_x2=true)  # /home/a.py:3 in forward
  %SplitD (f32[?], f32[?]) = SplitD(%MatMulV2:0, num_split=2, split_dim=1)  # /home/a.py:3 in forward
  %Print = Print([%SplitD:0])  # /home/a.py:4 in forward
  %ConcatD f32[s0, 4] = ConcatD([%SplitD:0, %SplitD:1], N=2, concat_dim=1, after=[%arg0_1])  # /home/a.py:4 in forward
  %If f32[?] = If(%ConcatD:0, [%ConcatD:0])
    then_branch:
    graph then_graph(%Data f32[s0, 4]) {
      %Relu f32[?] = Relu(%Data:0)
      return %Relu:0
    }
  return %If:0 after %Print
}
"""
    )


@EXAMPLES
@given(graphs())
def test_ssa_text_has_a_line_a_node(graph: Graph) -> None:
    text = printer.to_text(graph)
    for node in graph.nodes:
        if node.op != "Data":
            assert f"%{node.name} " in text
    assert printer.node_text(graph.nodes[-1]) in text or graph.nodes[-1].op == "Data"
