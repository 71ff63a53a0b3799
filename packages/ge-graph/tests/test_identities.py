"""What gives its operand bit for bit is read past; what only looks like it stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge_graph import Graph, building
from ge_graph import ops as ge
from ge_graph.dtypes import DataType
from ge_graph.passes import DropIdentities

F32, I64, BOOL, C64 = DataType.DT_FLOAT, DataType.DT_INT64, DataType.DT_BOOL, DataType.DT_COMPLEX64
_NUMPY = {F32: np.float32, I64: np.int64, BOOL: np.bool_, C64: np.complex64}


def graph_of(
    op: str, dtype: DataType, number: Any, *, first: bool = False, size: Any = (), direct: bool = False
) -> Graph:
    """``op`` of an inner tensor and a constant."""
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=dtype, shape=(2, 3), node_name="x")
        inner = x if direct else ge.SelectV2(ge.Const(np.array(True)), x, x)
        inner.record_shape((2, 3))
        constant = ge.Const(np.full(size, number, _NUMPY[dtype]))
        made = getattr(ge, op)(*((constant, inner) if first else (inner, constant)))
        made.record_shape(tuple(np.broadcast_shapes((2, 3), size)))
        graph.outputs = [made]
    return graph


KEPT = [("Mul", F32, 1), ("RealDiv", F32, 1), ("Sub", F32, 0), ("Add", I64, 0), ("LogicalAnd", BOOL, True)]


@pytest.mark.parametrize(("op", "dtype", "number"), KEPT)
def test_the_operand_is_read_instead(op: str, dtype: DataType, number: Any) -> None:
    graph = graph_of(op, dtype, number)
    assert DropIdentities().run(graph, check=True).changed
    assert graph.outputs[0].node.op == "SelectV2"


@pytest.mark.parametrize("how", [{"first": True}, {"size": (1, 3)}])
def test_either_place_and_any_size_that_spreads_nothing(how: Any) -> None:
    graph = graph_of("Mul", F32, 1, **how)
    DropIdentities().run(graph, check=True)
    assert graph.outputs[0].node.op == "SelectV2"


@pytest.mark.parametrize(
    ("op", "dtype", "number", "how"),
    [
        ("Add", F32, 0, {}),  # -0.0 + 0.0 is 0.0
        ("Mul", C64, 1, {}),  # an infinity times one is not a number
        ("Mul", F32, 2, {}),
        ("Sub", F32, 0, {"first": True}),  # 0 - x
        ("RealDiv", F32, 1, {"first": True}),  # 1 / x
        ("Mul", F32, 1, {"size": (4, 2, 3)}),  # spreads x
        ("Mul", F32, 1, {"direct": True}),  # an input would be returned as it is
        ("LogicalOr", BOOL, True, {}),
    ],
)
def test_what_is_another_value_stays(op: str, dtype: DataType, number: Any, how: Any) -> None:
    graph = graph_of(op, dtype, number, **how)
    assert not DropIdentities().run(graph, check=True).changed
    assert graph.outputs[0].node.op == op
