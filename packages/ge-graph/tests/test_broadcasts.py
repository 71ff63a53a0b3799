"""What is spread is spread late, or by the arithmetic itself; the values are those of numpy's broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge_graph import Graph, building
from ge_graph import ops as ge
from ge_graph.dtypes import DataType
from ge_graph.passes import DropDeadNodes, SpreadLate

F32 = DataType.DT_FLOAT


def spread(to: Any, other: Any, *, first: bool = False) -> Graph:
    """An inner tensor of (2, 1), spread, and added to another."""
    graph = Graph()
    with building(graph):
        x = ge.Abs(ge.Data(index=0, dtype=F32, shape=(2, 1), node_name="x"))
        y = ge.Data(index=1, dtype=F32, shape=other, node_name="y")
        x.record_shape((2, 1))
        large = ge.BroadcastTo(x, list(to))
        made = ge.Mul(y, large) if first else ge.Mul(large, y)
        made.record_shape(tuple(np.broadcast_shapes(to, other)))
        graph.outputs = [made]
    return graph


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("to", "other", "stays"), [((2, 3), (2, 3), False), ((2, 3), (4, 2, 3), False), ((2, 3), (3,), True)]
)
def test_arithmetic_spreads_by_itself(to: Any, other: Any, stays: bool, first: bool) -> None:
    graph = spread(to, other, first=first)
    assert SpreadLate().run(graph, check=True).changed != stays
    assert ("BroadcastTo" in {t.node.op for t in graph.outputs[0].node.operands()}) == stays


def number_after(*, read_twice: bool) -> Graph:
    """-(spread(x) / 3), spread from (2, 1) to (2, 3)."""
    graph = Graph()
    with building(graph):
        x = ge.Abs(ge.Data(index=0, dtype=F32, shape=(2, 1), node_name="x"))
        x.record_shape((2, 1))
        large = ge.BroadcastTo(x, [2, 3])
        large.record_shape((2, 3))
        third = ge.RealDiv(large, ge.Const(3.0, dtype=F32))
        made = ge.Neg(third)
        for t in (third, made):
            t.record_shape((2, 3))
        graph.outputs = [made, ge.Relu(large)] if read_twice else [made]
    return graph


def test_arithmetic_with_a_number_comes_first() -> None:
    graph = number_after(read_twice=False)
    SpreadLate().run(graph, check=True)
    DropDeadNodes().run(graph)
    assert [n.op for n in graph.nodes if n.op not in ("Data", "Const")] == ["Abs", "RealDiv", "Neg", "BroadcastTo"]
    assert [n.outputs[0].known_shape for n in graph.nodes if n.op == "Neg"] == [(2, 1)]


def test_what_others_read_is_spread_once() -> None:
    graph = number_after(read_twice=True)
    assert not SpreadLate().run(graph, check=True).changed
