"""Numbers that follow from known sizes: what is left of a graph gives the same, and what is not known stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_graph import Graph, Tensor, building, passes
from ge_graph import ops as ge
from ge_graph.dtypes import DataType
from ge_graph.ir import Node
from ge_graph.passes import FoldSizes

LONG = DataType.DT_INT64
_PAIRS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Maximum": np.maximum, "FloorDiv": np.floor_divide}


def step(node: Node, shape: tuple[int, ...], values: list[np.ndarray]) -> Any:
    """What GE's documentation says of each operator."""
    if node.op == "Shape":
        return np.asarray(shape)
    if node.op in ("Gather", "GatherV2"):
        return np.take(values[0], values[1], axis=0)
    if node.op == "ConcatV2":
        return np.concatenate(values[:-1], axis=int(values[-1]))
    if node.op == "Pack":
        return np.stack(values, axis=node.attr("axis", 0))
    if node.op == "Slice":
        begin, count = int(values[1][0]), int(values[2][0])
        return values[0][begin:] if count == -1 else values[0][begin : begin + count]
    if node.op == "ReduceProd":
        return np.prod(values[0], axis=0, keepdims=node.attr("keep_dims", False))
    if node.op == "Unsqueeze":
        return np.expand_dims(values[0], node.attr("axes"))
    if node.op == "Squeeze":
        return np.squeeze(values[0])
    if node.op == "Cast":
        return values[0].astype(np.int64)
    return _PAIRS[node.op](*values)


def evaluate(graph: Graph, shape: tuple[int, ...]) -> list[list[int]]:
    values: dict[Tensor, Any] = {}
    for node in graph.nodes:
        if node.op == "Data":
            continue
        given = [values[t] for t in node.operands() if t in values]
        made = node.attr("value") if node.op == "Const" else step(node, shape, given)
        values[node.outputs[0]] = np.asarray(made)
    return [values[t].tolist() for t in graph.outputs]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=2, max_size=4)))
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=shape, node_name="x")
        lists = [ge.Shape(x, dtype=int(LONG))]
        numbers: list[Any] = []
        for _ in range(draw(st.integers(1, 8))):
            whole = draw(st.sampled_from(lists))
            kind = draw(
                st.sampled_from(["Gather", "GatherV2", "Slice", "ReduceProd", "pair", "Pack", "ConcatV2", "one"])
            )
            if kind == "Slice":
                lists.append(ge.Slice(lists[0], [draw(st.integers(0, 1))], [draw(st.sampled_from([-1, 1]))]))
            elif kind == "ReduceProd":
                numbers.append(ge.ReduceProd(whole, [0]))
            elif kind == "ConcatV2":
                lists.append(ge.ConcatV2([whole, lists[0]], 0, N=2))
            elif kind == "pair" and numbers:
                op = draw(st.sampled_from(sorted(_PAIRS)))
                b = ge.Const(draw(st.integers(1, 5)), dtype=LONG)
                numbers.append(getattr(ge, op)(draw(st.sampled_from(numbers)), b))
            elif kind == "Pack" and numbers:
                lists.append(ge.Pack([draw(st.sampled_from(numbers)) for _ in range(2)], N=2))
            elif kind == "one" and numbers:
                numbers.append(ge.Squeeze(ge.Unsqueeze(draw(st.sampled_from(numbers)), axes=[0]), axis=[0]))
            elif kind == "Gather":
                numbers.append(ge.Gather(lists[0], ge.Const(draw(st.integers(0, 1)), dtype=LONG)))
            else:
                numbers.append(ge.GatherV2(lists[0], ge.Const(draw(st.integers(0, 1)), dtype=LONG), 0))
        graph.outputs = [*lists, *numbers]
    return graph, shape


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(graphs())
def test_what_is_left_gives_the_same(drawn: Any) -> None:
    graph, shape = drawn
    before = evaluate(graph, shape)
    assert FoldSizes().run(graph, check=True).changed
    assert evaluate(graph, shape) == before
    passes.DropDeadNodes().run(graph)
    assert {n.op for n in graph.nodes} == {"Data", "Const"}


def spread(*, shape: tuple[Any, ...], to: tuple[int, ...]) -> Graph:
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=shape, node_name="x")
        like = ge.Data(index=1, dtype=DataType.DT_FLOAT, shape=to, node_name="like")
        made = ge.BroadcastTo(ge.Abs(x), ge.Shape(like, dtype=int(LONG)))
        made.node.inputs[0].record_shape(shape)
        graph.outputs = [ge.Relu(made)]
    return graph


@pytest.mark.parametrize(
    ("shape", "to", "stays"), [((2, 3), (2, 3), False), ((1, 3), (2, 3), True), (("s0", 3), (2, 3), True)]
)
def test_nothing_is_spread_to_the_sizes_it_has(shape: Any, to: Any, stays: bool) -> None:
    graph = spread(shape=shape, to=to)
    FoldSizes().run(graph, check=True)
    assert ("BroadcastTo" in {n.op for n in graph.nodes}) == stays


def test_a_size_that_is_a_symbol_is_read_in_the_graph() -> None:
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=("s0", 3), node_name="x")
        graph.outputs = [ge.Gather(ge.Shape(x, dtype=int(LONG)), ge.Const(0, dtype=LONG))]
    assert not FoldSizes().run(graph, check=True).changed


def test_what_others_wait_for_stays() -> None:
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2, 3), node_name="x")
        shape = ge.Shape(x, dtype=int(LONG))
        after = ge.Relu(x)
        after.node.control.append(shape.node)
        graph.outputs = [after]
    assert not FoldSizes().run(graph, check=True).changed


def test_what_no_type_holds_is_not_computed() -> None:
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2**40, 2**40), node_name="x")
        graph.outputs = [ge.ReduceProd(ge.Shape(x, dtype=int(LONG)), [0])]
    FoldSizes().run(graph, check=True)
    assert [n.op for n in graph.nodes if n.op != "Const"] == ["Data", "ReduceProd"]
