"""GE's own manners: what it refuses, with its code, and what it does without a word."""

from __future__ import annotations

import numpy as np
import pytest

from ge_emulator import manners
from ge_emulator.refusal import CannRefusal
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph

F32, F16, I32, I64 = DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_INT32, DataType.DT_INT64


def data(graph: Graph, index: int = 0, dtype: DataType = F32, shape=(2, 3), op: str = "Data"):
    return graph.add(op, (), {"index": Attr(Kind.INT, index)}, [(dtype, shape)]).outputs[0]


def relu(graph: Graph, x):
    return graph.add("Relu", [x], {}, [(x.dtype, None)]).outputs[0]


def built() -> Graph:
    graph = Graph("g")
    graph.outputs = [relu(graph, data(graph))]
    return graph


def refused(graph: Graph, code: str, **options: str) -> None:
    with pytest.raises(CannRefusal, match=code):
        manners.check_graph(graph, {k.replace("__", "."): v for k, v in options.items()})


def test_a_good_graph_passes():
    manners.check_graph(built(), {})


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("ge.featureBaseRefreshable", "2", "E10001"),
        ("ge.oo.level", "O2", "E10001"),
        ("ge.oo.constantFolding", "yes", "E10001"),
        ("ge.topoSortingMode", "4", "E10001"),
        ("ge.constLifecycle", "process", "E10001"),
        ("ge.autoTuneMode", "GA", "E10001"),
        ("ge.exec.outputReuseMemIndexes", "0,0", "E19999"),
        ("ge.exec.outputReuseMemIndexes", "a", "E19999"),
        ("ge.graph_key", "a b", "E13026"),
    ],
)
def test_option_values(name, value, code):
    with pytest.raises(CannRefusal, match=code):
        manners.check_options({name: value}, "graph")


def test_unknown_options_and_good_values_pass():
    manners.check_options({"ge.no.such": "x", "ge.oo.level": "O3", "ge.exec.outputReuseMemIndexes": "0,1"}, "graph")


def test_reused_inputs():
    assert manners.reused_inputs({"ge.exec.outputReuseInputMemIndexes": "0,1|broken|1,0"}, 2, 2) == [(0, 1), (1, 0)]
    with pytest.raises(CannRefusal, match="E19999"):
        manners.reused_inputs({"ge.exec.outputReuseInputMemIndexes": "2,0"}, 2, 1)


def test_empty_graph():
    refused(Graph("g"), "E19999")


def test_unlinked_input():
    graph = Graph("g")
    graph.outputs = [graph.add("Relu", [None], {}, [(F32, None)]).outputs[0]]
    refused(graph, "E11019")


def test_unknown_operator_and_type():
    graph = Graph("g")
    graph.outputs = [graph.add("NoSuchOperator", [data(graph)], {}, [(F32, None)]).outputs[0]]
    refused(graph, "EZ3003")
    graph = Graph("g")
    graph.outputs = [
        graph.add("MatMulV2", [data(graph, 0, I64), data(graph, 1, I64), None, None], {}, [(I64, None)]).outputs[0]
    ]
    refused(graph, "EZ3002")


def test_types_that_share_a_variable():
    graph = Graph("g")
    graph.outputs = [graph.add("Add", [data(graph, 0, F32), data(graph, 1, I32)], {}, [(F32, None)]).outputs[0]]
    refused(graph, "EZ9999")


def test_a_written_input_fed_by_a_constant():
    graph = Graph("g")
    x = graph.add("Const", (), {"value": Attr(Kind.TENSOR, np.zeros(3, np.float32))}, [(F32, (3,))]).outputs[0]
    graph.outputs = [graph.add("Assign", [x, data(graph, 0, F32, (3,))], {}, [(F32, None)]).outputs[0]]
    with pytest.raises(CannRefusal, match="E19999.*constant feeds"):
        manners.check_graph(graph, {})


def test_inputs():
    graph = built()
    graph.nodes[0].attrs.clear()
    refused(graph, "E13025")
    graph = Graph("g")
    graph.outputs = [relu(graph, data(graph, op="RefData"))]
    refused(graph, "E13025", ge__exec__graphIOMemAllocMode="ByGE")
    refused(built(), "E19999", ge__inputHintShape="3:[4]")


def test_scopes():
    graph = built()
    graph.nodes[1].attrs["_op_aicore_num"] = Attr(Kind.STRING, "25")
    refused(graph, "E10001")
    graph = built()
    graph.nodes[1].attrs["_user_stream_label"] = Attr(Kind.STRING, "a")
    refused(graph, "E10055", ge__enableSingleStream="true")
    manners.check_graph(graph, {"ge.enableSingleStream": "false"})


def test_gears():
    refused(built(), "E10001", ge__dynamicDims="2", ge__inputShape="x:-1,3")
    manners.check_graph(built(), {"ge.dynamicDims": "2;4", "ge.inputShape": "x:-1,3"})


def test_all_refusals_at_once():
    graph = Graph("g")
    bad = graph.add("NoSuchOperator", [data(graph)], {}, [(F32, None)]).outputs[0]
    graph.outputs = [graph.add("Relu", [None], {}, [(F32, None)]).outputs[0], bad]
    with pytest.raises(CannRefusal) as caught:
        manners.check_graph(graph, {})
    assert "EZ3003" in str(caught.value)
    assert "E11019" in str(caught.value)


def test_what_nothing_needs_is_removed():
    graph = Graph("g")
    x = data(graph, 0, F32, (3,), "RefData")
    graph.add("Assign", [x, data(graph, 1, F32, (3,))], {}, [(F32, None)])
    graph.outputs = [relu(graph, x)]
    manners.rewrite(graph)
    assert [n.op for n in graph.nodes] == ["RefData", "Data", "Relu"]


def test_a_tied_side_effect_stays():
    graph = Graph("g")
    x = data(graph, 0, F32, (3,), "RefData")
    graph.output_control = [graph.add("Assign", [x, data(graph, 1, F32, (3,))], {}, [(F32, None)])]
    graph.outputs = [relu(graph, x)]
    manners.rewrite(graph)
    assert "Assign" in [n.op for n in graph.nodes]


def test_input_indices_with_gaps_become_the_order_of_nodes():
    graph = Graph("g")
    graph.outputs = [relu(graph, data(graph, 5)), relu(graph, data(graph, 2))]
    manners.rewrite(graph)
    assert [n.attr("index") for n in graph.nodes if n.op == "Data"] == [0, 1]


def test_an_attribute_of_another_kind_has_its_default():
    graph = Graph("g")
    x = data(graph)
    node = graph.add("LeakyRelu", [x], {"negative_slope": Attr(Kind.INT, 1)}, [(F32, None)])
    graph.outputs = list(node.outputs)
    manners.rewrite(graph)
    assert node.attrs["negative_slope"] == Attr(Kind.FLOAT, 0.0)


def test_recorded_types_are_overwritten():
    graph = Graph("g")
    node = graph.add("Relu", [data(graph, 0, F16)], {}, [(F32, None)])
    graph.outputs = list(node.outputs)
    manners.rewrite(graph)
    assert node.outputs[0].dtype is F16
