"""The verifier: legal graphs pass, every broken rule is found, all of them at once, at a bearable cost."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ge_graph import DataType, Graph, GraphError, Literal, Provenance, building, verify
from ge_graph import attrs as attr_kinds
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.calling import COUNT_ATTRS
from ge_graph.ir import Node, Tensor

D = DataType
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def legal_graphs(draw) -> Graph:
    """Graphs of the calls that converters make most, over several element types."""
    graph = Graph("generated")
    dtype = draw(st.sampled_from([D.DT_FLOAT, D.DT_FLOAT16, D.DT_BF16, D.DT_INT32, D.DT_INT64]))
    with building(graph):
        pool = [ge.Data(index=i, dtype=dtype, shape=(4, "s0")) for i in range(draw(st.integers(1, 3)))]
        pool[0].node.provenance = Provenance(source="model.py:1 in forward")
        for k in range(draw(st.integers(1, 12))):
            graph.provenance = Provenance(fx_name=f"n{k}", source=f"model.py:{k + 2} in forward")
            a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
            choice = draw(st.integers(0, 6))
            if choice == 0:
                found = [ge.Add(a, b)]
            elif choice == 1:
                found = [ge.Mul(a, 2)]
            elif choice == 2:
                found = [ge.Cast(ge.Cast(a, dst_type=D.DT_FLOAT), dst_type=dtype)]
            elif choice == 3:
                found = [ge.ConcatV2([a, b], 0)]
            elif choice == 4:
                found = ge.SplitV(a, [2, 2], 0, num_split=2)
            elif choice == 5:
                found = [ge.SelectV2(ge.Less(a, b), a, b)]
            else:
                found = [ge.ReduceSum(a, [0], keep_dims=True, dependencies=[b])]
            pool += found
    graph.outputs = [pool[-1], draw(st.sampled_from(pool))]
    return graph


@EXAMPLES
@given(legal_graphs())
def test_legal_graphs_pass(graph):
    verify.verify(graph)
    verify.verify(graph)  # and again, with every signature remembered


def codes(graph: Graph) -> set[str]:
    return {v.code for v in verify.violations(graph)}


# Each mutation breaks one rule of a legal graph; it returns whether it found something to break.


def unknown_operator(graph: Graph, node: Node) -> bool:
    node.op += "Qqq"
    return True


def lost_input(graph: Graph, node: Node) -> bool:
    if node.op in ("Data", "Const"):
        return False
    node.inputs[0] = None
    return True


def extra_port(graph: Graph, node: Node) -> bool:
    node.inputs.append(None)
    return True


def list_for_one(graph: Graph, node: Node) -> bool:
    places = [i for i, e in enumerate(node.inputs) if isinstance(e, Tensor)]
    if places:
        node.inputs[places[0]] = (node.inputs[places[0]],)
    return bool(places)


def string_input(graph: Graph, node: Node) -> bool:
    if node.op not in ("Mul", "Less", "ReduceSum"):
        return False
    stray = graph.add("Data", (None,), {"index": attr_kinds.Int(len(graph.inputs))}, [(D.DT_STRING, None)])
    graph.nodes.remove(stray)
    graph.nodes.insert(0, stray)
    node.inputs[0] = stray.outputs[0]
    return True


def mixed_types(graph: Graph, node: Node) -> bool:
    if node.op != "Add" or node.inputs[0].dtype is D.DT_INT8:
        return False
    stray = graph.add("Data", (None,), {"index": attr_kinds.Int(len(graph.inputs))}, [(D.DT_INT8, None)])
    graph.nodes.remove(stray)
    graph.nodes.insert(0, stray)
    node.inputs[1] = stray.outputs[0]
    return True


def lost_output(graph: Graph, node: Node) -> bool:
    node.outputs = node.outputs[:-1]
    return True


def another_count(graph: Graph, node: Node) -> bool:
    name = "N" if node.op == "ConcatV2" else COUNT_ATTRS.get(node.op, "")
    if name not in node.attrs:
        return False
    node.attrs[name] = attr_kinds.Int(2**31 - 1)
    return True


def foreign_output_type(graph: Graph, node: Node) -> bool:
    if node.op not in ("Add", "Mul", "ConcatV2", "Less"):
        return False
    node.outputs[0].dtype = D.DT_VARIANT
    return True


def wrong_cast(graph: Graph, node: Node) -> bool:
    if node.op != "Cast":
        return False
    node.attrs["dst_type"] = attr_kinds.Int(D.DT_INT8)
    return True


def unknown_attribute(graph: Graph, node: Node) -> bool:
    node.attrs["surprise"] = attr_kinds.Int(1)
    return True


def attribute_of_another_kind(graph: Graph, node: Node) -> bool:
    if "keep_dims" not in node.attrs:
        return False
    node.attrs["keep_dims"] = attr_kinds.Int(1)
    return True


def missing_attribute(graph: Graph, node: Node) -> bool:
    return node.op == "Cast" and node.attrs.pop("dst_type") is not None


def value_of_another_type(graph: Graph, node: Node) -> bool:
    node.attrs["_mark"] = Attr(Kind.INT, 1.5)
    return True


def constant_of_another_type(graph: Graph, node: Node) -> bool:
    if node.op != "Const":
        return False
    node.attrs["value"] = Attr(Kind.TENSOR, np.zeros((), np.complex64))
    return True


def constant_of_another_shape(graph: Graph, node: Node) -> bool:
    if node.op != "Const":
        return False
    node.outputs[0].record_shape((7, 7))
    return True


def constant_with_missing_bytes(graph: Graph, node: Node) -> bool:
    if node.op != "Const":
        return False
    node.attrs["value"] = Attr(Kind.TENSOR, Literal(node.outputs[0].dtype, (9,), np.zeros(3, np.uint8)))
    return True


def same_name_twice(graph: Graph, node: Node) -> bool:
    others = [n for n in graph.nodes if n is not node]
    if others:
        node.name = others[0].name
    return bool(others)


def dangling_edge(graph: Graph, node: Node) -> bool:
    used = any(t.node is node for n in graph.nodes for t in n.operands())
    graph.nodes.remove(node)
    return used


def wrong_order(graph: Graph, node: Node) -> bool:
    read = [t.node for t in node.operands()]
    if not read:
        return False
    graph.nodes.remove(node)
    graph.nodes.insert(graph.nodes.index(read[0]), node)
    return True


def cycle(graph: Graph, node: Node) -> bool:
    if node.op not in ("Add", "Mul"):
        return False
    node.inputs[0] = node.outputs[0]
    return True


def stale_tensor(graph: Graph, node: Node) -> bool:
    if not any(t.node is node for n in graph.nodes for t in n.operands()):
        return False
    node.outputs = [Tensor(node, i, t.dtype) for i, t in enumerate(node.outputs)]
    return True


def control_to_nowhere(graph: Graph, node: Node) -> bool:
    node.control.append(Node(graph, "gone", "Relu", (), {}))
    return True


def control_backwards(graph: Graph, node: Node) -> bool:
    node.control.append(graph.nodes[-1])
    return True


def foreign_graph_output(graph: Graph, node: Node) -> bool:
    other = Graph("other")
    with building(other):
        graph.outputs.append(ge.Const(1))
    return True


def foreign_node(graph: Graph, node: Node) -> bool:
    node.graph = Graph("other")
    return True


def gap_in_data_indices(graph: Graph, node: Node) -> bool:
    if node.op != "Data":
        return False
    node.attrs["index"] = attr_kinds.Int(17)
    return True


MUTATIONS = [
    (unknown_operator, "GE3020"),
    (lost_input, "GE3021"),
    (extra_port, "GE3021"),
    (list_for_one, "GE3021"),
    (string_input, "GE3022"),
    (mixed_types, "GE3022"),
    (lost_output, "GE3023"),
    (another_count, "GE3023"),
    (foreign_output_type, "GE3023"),
    (wrong_cast, "GE3024"),
    (unknown_attribute, "GE3025"),
    (attribute_of_another_kind, "GE3025"),
    (missing_attribute, "GE3025"),
    (value_of_another_type, "GE3027"),
    (constant_of_another_type, "GE3028"),
    (constant_of_another_shape, "GE3028"),
    (constant_with_missing_bytes, "GE3028"),
    (same_name_twice, "GE3029"),
    (dangling_edge, "GE3030"),
    (wrong_order, "GE3030"),
    (cycle, "GE3030"),
    (stale_tensor, "GE3030"),
    (control_to_nowhere, "GE3031"),
    (control_backwards, "GE3031"),
    (foreign_graph_output, "GE3032"),
    (foreign_node, "GE3033"),
    (gap_in_data_indices, "GE3034"),
]


@pytest.mark.parametrize(("mutate", "code"), MUTATIONS, ids=[m.__name__ for m, _ in MUTATIONS])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_each_broken_rule_is_found(mutate, code, data):
    graph = data.draw(legal_graphs())
    verify.verify(graph)
    node = data.draw(st.sampled_from(graph.nodes))
    if mutate is control_backwards and node is graph.nodes[-1]:
        node.control.append(node)
    elif not mutate(graph, node):
        return
    assert code in codes(graph), codes(graph)


@pytest.mark.parametrize(("mutate", "code"), MUTATIONS, ids=[m.__name__ for m, _ in MUTATIONS])
def test_each_mutation_finds_something_to_break(mutate, code):
    """The property above skips nodes that a mutation cannot break; here none may skip all."""
    broken = 0
    for i in range(len(small_graph().nodes)):
        graph = small_graph()
        if mutate(graph, graph.nodes[i]):
            broken += 1
            assert code in codes(graph), graph.nodes
    assert broken


def small_graph() -> Graph:
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=D.DT_FLOAT, shape=(4, 4))
        left, right = ge.SplitV(ge.ConcatV2([x, x], 0), [4, 4], 0, num_split=2)
        y = ge.Add(ge.Mul(left, 2), right)
        z = ge.ReduceSum(ge.Cast(ge.Cast(y, dst_type=D.DT_BF16), dst_type=D.DT_FLOAT), [0])
        graph.outputs = [ge.SelectV2(ge.Less(z, 0.0), z, z)]
    return graph


def test_one_error_names_everything_with_its_source():
    graph = Graph("model")
    with building(graph):
        x = ge.Data(index=0, dtype=D.DT_FLOAT, shape=(4,))
        graph.provenance = Provenance(source="model.py:41 in forward")
        y = ge.Cast(x, dst_type=D.DT_FLOAT16)
        graph.provenance = Provenance(source="model.py:42 in forward")
        z = ge.Relu(y)
        graph.outputs = [z]
    y.node.attrs["dst_type"] = attr_kinds.Int(D.DT_INT8)
    z.node.op = "Rellu"
    with pytest.raises(GraphError) as caught:
        verify.verify(graph)
    error = caught.value
    assert error.code == "GE3010"
    assert [v.code for v in error.violations] == ["GE3024", "GE3020"]
    assert [v.where for v in error.violations] == ["model.py:41 in forward", "model.py:42 in forward"]
    for text in ("model.py:41", "model.py:42", "'Cast'", "did you mean Relu", "breaks 2 rules"):
        assert text in str(error)


def test_subgraphs_are_checked_and_named():
    inner = Graph("body")
    with building(inner):
        a = ge.Data(index=0, dtype=D.DT_FLOAT, shape=())
        inner.outputs = [ge.Relu(a)]
    graph = Graph("outer")
    with building(graph):
        x = ge.Data(index=0, dtype=D.DT_FLOAT, shape=())
        graph.outputs = list(ge.If(ge.Greater(x, 0.0), [x], then_branch=inner, else_branch=inner))
    verify.verify(graph)
    inner.nodes[-1].attrs["mystery"] = attr_kinds.Int(1)
    found = list(verify.violations(graph))
    assert {v.code for v in found} == {"GE3025"}
    assert "If/then_branch/Relu" in found[0].what
    node = graph.outputs[0].node
    del node.subgraphs["else_branch"]
    node.subgraphs["elsewhere"] = graph
    assert {"GE3026"} <= {v.code for v in verify.violations(graph)}


def test_hidden_attributes_are_allowed():
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=D.DT_FLOAT, shape=())
        x.node.attrs["_user_stream_label"] = attr_kinds.Str("s")
    verify.verify(graph)


def test_a_changed_schema_is_seen(monkeypatch):
    graph = Graph()
    with building(graph):
        graph.outputs = [ge.Relu(ge.Data(index=0, dtype=D.DT_FLOAT, shape=()))]
    verify.verify(graph)
    assert verify._legal
    verify._forget("Relu")
    assert not verify._legal
    verify.verify(graph)


@pytest.mark.slow
def test_cost_is_linear_and_small():
    def calls_per_node(count: int) -> float:
        graph = Graph()
        with building(graph):
            x = y = ge.Data(index=0, dtype=D.DT_FLOAT, shape=(4, 4))
            for _ in range(count):
                x = ge.Add(ge.MatMulV2(x, y, transpose_x2=True), 2.0)
        graph.outputs = [x]
        verify.verify(graph)
        calls = Counter()
        sys.setprofile(lambda frame, event, arg: calls.update([event]))
        try:
            verify.verify(graph)
        finally:
            sys.setprofile(None)
        return (calls["call"] + calls["c_call"]) / len(graph.nodes)

    small, large = calls_per_node(500), calls_per_node(4000)
    assert large < 60
    assert large == pytest.approx(small, rel=0.02)
