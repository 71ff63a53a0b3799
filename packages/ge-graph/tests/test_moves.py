"""Moves in a row become one and give the same bits, whoever else reads what lies between."""

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
from ge_graph.passes import JoinMoves
from ge_graph.verify import verify

_TYPES = {
    DataType.DT_BOOL: np.bool_,
    DataType.DT_INT8: np.int8,
    DataType.DT_UINT8: np.uint8,
    DataType.DT_INT16: np.int16,
    DataType.DT_INT32: np.int32,
    DataType.DT_INT64: np.int64,
    DataType.DT_FLOAT16: np.float16,
    DataType.DT_FLOAT: np.float32,
    DataType.DT_DOUBLE: np.float64,
}
SHAPE = (2, 3, 1, 4)


def step(node: Node, x: np.ndarray, *more: Any) -> np.ndarray:
    """What GE says of each move."""
    if node.op == "Cast":
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(_TYPES[node.outputs[0].dtype])
    if node.op == "Transpose":
        return x.transpose(more[0].tolist())
    if node.op == "Reshape":
        return x.reshape(more[0].tolist())
    if node.op == "Unsqueeze":
        return np.expand_dims(x, tuple(node.attr("axes")))
    assert node.op == "Squeeze"
    return x.squeeze(tuple(node.attr("axis")) or None)


def evaluate(graph: Graph, fed: np.ndarray) -> list[np.ndarray]:
    values: dict[Tensor, np.ndarray] = {}
    for node in graph.nodes:
        if node.op in ("Data", "Const"):
            values[node.outputs[0]] = fed if node.op == "Data" else node.attr("value")
        else:
            values[node.outputs[0]] = step(node, *[values[t] for t in node.operands()])
    return [values[t] for t in graph.outputs]


def fed(dtype: DataType) -> np.ndarray:
    rng = np.random.default_rng(1)
    kind = _TYPES[dtype]
    if np.issubdtype(kind, np.floating):
        numbers = rng.standard_normal(SHAPE) * 10.0 ** rng.integers(-8, 8, SHAPE)
        numbers.reshape(-1)[:4] = (np.nan, np.inf, -0.0, -np.inf)
        with np.errstate(over="ignore"):
            return numbers.astype(kind)
    return rng.integers(0, 2**63, SHAPE, np.uint64).astype(kind)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Graph, DataType]:
    graph = Graph()
    dtype = draw(st.sampled_from(sorted(_TYPES)))
    with building(graph):
        values = [ge.Data(index=0, dtype=dtype, shape=SHAPE, node_name="x")]
        shapes = [SHAPE]
        for _ in range(draw(st.integers(1, 9))):
            at = draw(st.sampled_from([len(values) - 1] * 4 + list(range(len(values)))))
            x, shape = values[at], shapes[at]
            op = draw(st.sampled_from(["Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze"]))
            ones = [i for i, d in enumerate(shape) if d == 1]
            if op == "Cast":
                made = ge.Cast(x, dst_type=draw(st.sampled_from(sorted(_TYPES))))
            elif op == "Transpose":
                perm = draw(st.permutations(range(len(shape))))
                made, shape = ge.Transpose(x, perm), tuple(shape[i] for i in perm)
            elif op == "Reshape":
                shape = draw(st.sampled_from([(24,), (2, 12), (1, 4, 6), (2, 3, 4), SHAPE]))
                made = ge.Reshape(x, list(shape))
            elif op == "Unsqueeze" and len(shape) < 7:
                axis = draw(st.integers(-len(shape) - 1, len(shape)))
                made = ge.Unsqueeze(x, axes=[axis])
                shape = np.expand_dims(np.empty(shape), axis).shape
            elif op == "Squeeze" and ones:
                axis = draw(st.sampled_from(ones + [i - len(shape) for i in ones]))
                made = ge.Squeeze(x, axis=[axis])
                shape = np.empty(shape).squeeze(axis).shape
            else:
                continue
            made.record_shape(shape)
            values.append(made)
            shapes.append(shape)
        graph.outputs[:] = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return graph, dtype


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(chains(), st.booleans())
def test_values_stay_to_the_bit(drawn: tuple[Graph, DataType], alone: bool) -> None:
    graph, dtype = drawn
    x = fed(dtype)
    before = evaluate(graph, x)
    passes.run(graph, [JoinMoves()] if alone else passes.DEFAULT, check=True)
    verify(graph)
    for a, b in zip(before, evaluate(graph, x), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
            a, b = np.nan_to_num(a, nan=1.0), np.nan_to_num(b, nan=1.0)
        assert a.tobytes() == b.tobytes()


def moved(make: Any, dtype: DataType = DataType.DT_FLOAT) -> list[tuple[str, Any]]:
    """Operators that are left of a chain, with what they do."""
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=dtype, shape=(2, 3, 4), node_name="x")
        graph.outputs.append(make(x))
    passes.run(graph, check=True)
    verify(graph)
    left = [n for n in graph.nodes if n.op not in ("Data", "Const")]
    return [
        (n.op, n.attr("axes") or (n.inputs[1].node.attr("value").tolist() if len(n.inputs) > 1 else n.outputs[0].dtype))
        for n in left
    ]


def test_joined() -> None:
    assert moved(lambda x: ge.Transpose(ge.Transpose(x, [1, 0, 2]), [2, 1, 0])) == [("Transpose", [2, 0, 1])]
    assert moved(lambda x: ge.Relu(ge.Transpose(ge.Transpose(ge.Relu(x), [1, 0, 2]), [1, 0, 2])))[0][0] == "Relu"
    assert moved(lambda x: ge.Unsqueeze(ge.Unsqueeze(x, axes=[0]), axes=[-1])) == [("Unsqueeze", (0, 4))]
    assert moved(lambda x: ge.Unsqueeze(ge.Unsqueeze(x, axes=[1]), axes=[1])) == [("Unsqueeze", (1, 2))]
    assert moved(lambda x: ge.Reshape(ge.Unsqueeze(x, axes=[1]), [6, 4])) == [("Reshape", [6, 4])]
    back = moved(lambda x: ge.Relu(ge.Squeeze(ge.Unsqueeze(x, axes=[1]), axis=[-3])))
    assert [op for op, _ in back] == ["Relu"]


@pytest.mark.parametrize(
    ("first", "between", "last", "left"),
    [
        (DataType.DT_FLOAT16, DataType.DT_FLOAT, DataType.DT_BF16, 1),
        (DataType.DT_BF16, DataType.DT_FLOAT, DataType.DT_FLOAT16, 1),
        (DataType.DT_INT32, DataType.DT_INT64, DataType.DT_FLOAT, 1),
        (DataType.DT_BOOL, DataType.DT_FLOAT16, DataType.DT_INT64, 1),
        (DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_FLOAT, 2),  # rounds
        (DataType.DT_FLOAT, DataType.DT_INT32, DataType.DT_FLOAT, 2),  # cuts off
        (DataType.DT_INT64, DataType.DT_INT32, DataType.DT_INT64, 2),  # wraps
        (DataType.DT_INT32, DataType.DT_FLOAT, DataType.DT_INT32, 2),  # 24 bits
        (DataType.DT_INT8, DataType.DT_UINT8, DataType.DT_INT32, 2),  # -1 is 255
        (DataType.DT_INT32, DataType.DT_BOOL, DataType.DT_INT32, 2),
        (DataType.DT_FLOAT, DataType.DT_DOUBLE, DataType.DT_INT32, 2),  # beyond the integers
    ],
)
def test_casts(first: DataType, between: DataType, last: DataType, left: int) -> None:
    found = moved(lambda x: ge.Cast(ge.Cast(x, dst_type=between), dst_type=last), first)
    assert [op for op, _ in found] == ["Cast"] * left


def test_order_and_memory_keep_a_move() -> None:
    def held(x: Tensor) -> Tensor:
        return ge.Transpose(ge.Transpose(x, [1, 0, 2], dependencies=[x]), [2, 1, 0])

    assert [op for op, _ in moved(held)] == ["Transpose", "Transpose"]
