"""Passes: each keeps what the graph computes (a numpy interpreter is the judge), each folds what it says."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from ge_graph import DataType, Graph, GraphError, Literal, Node, Tensor, building, passes
from ge_graph import attrs as attr_kinds
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.passes import topology
from ge_graph.passes.base import Pass
from ge_graph.testing import graphs
from ge_graph.verify import verify

EXAMPLES = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def evaluate(graph: Graph, feeds: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs and what Print nodes saw, by the definition of the few operators that the tests use."""
    values: dict[Tensor, Any] = {}
    printed: list[np.ndarray] = []

    def arg(node: Node, at: int) -> Any:
        entry = node.inputs[at]
        return [values[t] for t in entry] if isinstance(entry, tuple) else None if entry is None else values[entry]

    def matmul(node: Node) -> np.ndarray:
        a, b = arg(node, 0), arg(node, 1)
        flags = [f for f in ("transpose_x1", "adj_x1", "transpose_x2", "adj_x2") if node.attr(f)]
        a = np.swapaxes(a, -1, -2) if any(f.endswith("x1") for f in flags) else a
        b = np.swapaxes(b, -1, -2) if any(f.endswith("x2") for f in flags) else b
        return np.matmul(a, b)

    def gather(node: Node) -> np.ndarray:
        return np.asarray(np.take(arg(node, 0), arg(node, 1), axis=0))

    table = {
        "Add": lambda n: arg(n, 0) + arg(n, 1),
        "Mul": lambda n: arg(n, 0) * arg(n, 1),
        "Muls": lambda n: arg(n, 0) * np.float32(n.attr("value")),
        "Relu": lambda n: np.maximum(arg(n, 0), 0),
        "Identity": lambda n: arg(n, 0),
        "TensorMove": lambda n: arg(n, 0).copy(),
        "Cast": lambda n: arg(n, 0).astype(n.outputs[0].dtype.numpy),
        "MatMulV2": matmul,
        "BatchMatMulV2": matmul,
        "BatchMatMul": matmul,
        "Transpose": lambda n: np.transpose(arg(n, 0), arg(n, 1).tolist()),
        "TransposeD": lambda n: np.transpose(arg(n, 0), n.attr("perm")),
        "Reshape": lambda n: arg(n, 0).reshape([d or arg(n, 0).shape[i] for i, d in enumerate(arg(n, 1).tolist())]),
        "ConcatD": lambda n: np.concatenate(arg(n, 0), axis=n.attr("concat_dim")),
        "SplitD": lambda n: np.split(arg(n, 0), n.attr("num_split"), axis=n.attr("split_dim")),
        "Shape": lambda n: np.array(arg(n, 0).shape, np.int64),
        "Gather": gather,
        "Const": lambda n: n.attr("value"),
        "Print": lambda n: printed.extend(v.copy() for v in arg(n, 0)),
    }
    for node in graph.nodes:
        if node.op in ("Data", "RefData"):
            values[node.outputs[0]] = feeds[node.attr("index")]
        elif node.op == "Assign":
            np.copyto(arg(node, 0), arg(node, 1))
            values[node.outputs[0]] = arg(node, 0)
        else:
            result = table[node.op](node)
            results = result if isinstance(result, list) else [result]
            values.update(zip(node.outputs, results))
    return [np.array(values[t]) for t in graph.outputs], printed


def feeds_of(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 2)).astype(np.float32) for _ in graph.inputs]


def same(graph: Graph, change: Any) -> None:
    """``change`` leaves outputs and prints as they were."""
    try:
        before = evaluate(graph, feeds_of(graph))
    except (ValueError, IndexError):
        reject()  # sizes that do not fit each other
    change()
    verify(graph)
    after = evaluate(graph, feeds_of(graph))
    assert len(before[1]) == len(after[1])
    for a, b in zip([*before[0], *sorted(before[1], key=str)], [*after[0], *sorted(after[1], key=str)]):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.slow
@EXAMPLES
@given(graphs())
def test_default_passes_keep_the_meaning(graph: Graph) -> None:
    same(graph, lambda: passes.run(graph, check=True))


@pytest.mark.slow
@EXAMPLES
@given(graphs(), st.sampled_from(sorted(topology.STRATEGIES)))
def test_orders_keep_the_meaning(graph: Graph, strategy: str) -> None:
    same(graph, lambda: passes.run(graph, [passes.SortNodes(strategy)], check=True))
    done: set[Node] = set()
    for node in graph.nodes:
        assert {t.node for t in node.operands()} | set(node.control) <= done
        done.add(node)


@pytest.mark.slow
@EXAMPLES
@given(graphs(max_nodes=8), st.data())
def test_writing_inputs_in_place_keeps_the_meaning(graph: Graph, data: st.DataObject) -> None:
    """What the caller would copy into inputs is in the inputs; all other outputs are what they were."""
    floats = [i for i, t in enumerate(graph.outputs) if t.dtype is DataType.DT_FLOAT]
    indexes = [n.attr("index") for n in graph.inputs]
    outputs = data.draw(st.lists(st.sampled_from(floats), unique=True)) if floats else []
    pairs = list(zip(data.draw(st.permutations(indexes)), outputs))
    feeds = feeds_of(graph)
    try:
        before, _ = evaluate(graph, [f.copy() for f in feeds])
    except (ValueError, IndexError):
        reject()
    if any(before[o].shape != (2, 2) for _, o in pairs):
        reject()
    passes.run(graph, [passes.WriteInputsInPlace(pairs), passes.ReplaceDataWithRefData()], check=True)
    verify(graph)
    for strategy in sorted(topology.STRATEGIES):  # whatever order the control edges allow
        passes.run(graph, [*passes.DEFAULT, passes.SortNodes(strategy)], check=True)
        fed = [f.copy() for f in feeds]
        after, _ = evaluate(graph, fed)
        kept = [b for i, b in enumerate(before) if i not in {o for _, o in pairs}]
        for a, b in zip(kept, after, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        for index, output in pairs:
            np.testing.assert_allclose(fed[index], before[output], rtol=1e-5)


def build(make: Any, rank: int = 2) -> Graph:
    """A graph of two inputs whose outputs ``make`` gives."""
    graph = Graph("g")
    with building(graph):
        shape = tuple(f"s{i}" for i in range(rank))
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=shape, node_name="x")
        y = ge.Data(index=1, dtype=DataType.DT_FLOAT, shape=shape, node_name="y")
        made = make(x, y)
    graph.outputs = [made] if isinstance(made, Tensor) else list(made)
    return graph


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if n.op not in ("Data", "RefData", "Const")]


FOLDS = [
    (lambda x, y: ge.MatMulV2(ge.Transpose(x, [1, 0]), y), ["MatMulV2"], {"transpose_x1": True}),
    (lambda x, y: ge.MatMulV2(x, ge.Transpose(y, [-1, -2])), ["MatMulV2"], {"transpose_x2": True}),
    (lambda x, y: ge.MatMulV2(x, ge.Transpose(y, [1, 0]), transpose_x2=True), ["MatMulV2"], {"transpose_x2": False}),
    (lambda x, y: ge.MatMulV2(ge.Transpose(ge.Transpose(x, [1, 0]), [1, 0]), y), ["MatMulV2"], {"transpose_x1": False}),
    (lambda x, y: ge.Relu(ge.Reshape(ge.Reshape(x, [-1]), [2, 2])), ["Reshape", "Relu"], {}),
    (lambda x, y: ge.Relu(ge.Cast(x, dst_type=DataType.DT_FLOAT)), ["Relu"], {}),
    (lambda x, y: ge.Relu(ge.Identity(ge.Identity(x))), ["Relu"], {}),
    (lambda x, y: ge.Relu(ge.Transpose(x, [0, 1])), ["Relu"], {}),
    (lambda x, y: ge.Identity(ge.Relu(x)), ["Relu"], {}),
]


@pytest.mark.parametrize(("make", "left", "attrs"), FOLDS)
def test_folds(make: Any, left: list[str], attrs: dict[str, Any]) -> None:
    graph = build(make)
    same(graph, lambda: passes.run(graph, check=True))
    assert ops_of(graph) == left
    for name, value in attrs.items():
        assert next(n for n in graph.nodes if n.op == "MatMulV2").attr(name) is value


KEPT = [
    lambda x, y: ge.MatMulV2(ge.Transpose(x, [0, 1], dependencies=[y]), y),  # a control edge
    lambda x, y: ge.Identity(x),  # an output that would become an input
    lambda x, y: ge.Relu(ge.Reshape(ge.Reshape(x, [1, -1]), [0, 4])),  # 0 copies a dimension
    lambda x, y: ge.Relu(ge.Reshape(ge.Reshape(x, [4]), ge.Shape(y))),  # a target that is not known
    lambda x, y: ge.Relu(ge.Cast(x, dst_type=DataType.DT_FLOAT16)),
    lambda x, y: ge.MatMulV2(ge.Transpose(x, ge.Shape(y)), y),  # a permutation that is not known
]


@pytest.mark.parametrize("make", KEPT)
def test_kept(make: Any) -> None:
    graph = build(make)
    ops = ops_of(graph)
    passes.run(graph, check=True)
    assert ops_of(graph) == ops


@pytest.mark.parametrize(
    ("recorded", "left"), [(("s0", "s1"), []), (("s0", "s2"), ["BroadcastTo"]), (None, ["BroadcastTo"])]
)
def test_broadcast_to_the_shape_that_is_there(recorded: Any, left: list[str]) -> None:
    def make(x: Tensor, y: Tensor) -> Tensor:
        wide = ge.BroadcastTo(x, ge.Shape(y))
        wide.record_shape(recorded)
        return ge.Relu(wide)

    graph = build(make)
    passes.run(graph, check=True)
    assert [op for op in ops_of(graph) if op not in ("Shape", "Relu")] == left


def test_batched_product() -> None:
    graph = build(lambda x, y: ge.BatchMatMulV2(x, ge.Transpose(y, [0, 2, 1])), rank=3)
    passes.run(graph, check=True)
    assert ops_of(graph) == ["BatchMatMulV2"]
    assert graph.nodes[-1].attr("adj_x2") is True
    other = build(lambda x, y: ge.BatchMatMulV2(x, ge.Transpose(y, [1, 0, 2])), rank=3)
    passes.run(other, check=True)
    assert ops_of(other) == ["Transpose", "BatchMatMulV2"]


def test_dead_nodes() -> None:
    graph = build(lambda x, y: ge.Relu(x))
    with building(graph):
        ge.Add(graph.node("x").outputs[0], 2.0)
        printed = ge.Print([ge.Relu(graph.node("y").outputs[0])])
    (result,) = passes.run(graph, [passes.DropDeadNodes()], check=True)
    assert result.changed
    assert result.notes == ("2 dead nodes removed",)
    assert [n.name for n in graph.nodes] == ["x", "y", "Relu", "Relu_1", printed.name]


def test_writes_to_inputs_are_alive() -> None:
    graph = build(lambda x, y: ge.Relu(y))
    with building(graph):
        moved = ge.TensorMove(graph.node("y").outputs[0])
        ge.Assign(graph.node("x").outputs[0], moved)  # reaches the caller
        ge.Assign(moved, graph.node("y").outputs[0])  # reaches nobody
    passes.run(graph, check=True)
    assert ops_of(graph) == ["Relu", "TensorMove", "Assign"]


def test_identity_that_protects_a_value_stays() -> None:
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2, 2), node_name="x")
        old = ge.Identity(x)
        written = ge.Assign(x, ge.Relu(x), dependencies=[old])
        graph.outputs = [ge.Relu(old), written]
    passes.run(graph, check=True)
    assert "Identity" in ops_of(graph)


def test_constants() -> None:
    graph = Graph("g")
    big = np.arange(50_000, dtype=np.float32)
    values = [np.float32(1), np.float32(1), np.int32(1), big, big.copy(), big + 1, np.float32([1])]
    for value in values:
        array = np.asarray(value)
        node = graph.add("Const", (), {"value": Attr(Kind.TENSOR, array)}, [(DataType.DT_FLOAT, array.shape)])
        if array.dtype == np.int32:
            node.outputs[0].dtype = DataType.DT_INT32
        graph.outputs.append(node.outputs[0])
    bf16 = [Literal(DataType.DT_BF16, (1,), np.array([1, 2], np.uint8)) for _ in range(2)]
    for literal in bf16:
        node = graph.add("Const", (), {"value": Attr(Kind.TENSOR, literal)}, [(DataType.DT_BF16, (1,))])
        graph.outputs.append(node.outputs[0])
    (result,) = passes.run(graph, [passes.MergeConstants()], check=True)
    assert result.notes == ("3 duplicate constants merged",)
    assert [t.node.name for t in graph.outputs] == [
        "Const",
        "Const",
        "Const_2",
        "Const_3",
        "Const_3",
        "Const_5",
        "Const_6",
        "Const_7",
        "Const_7",
    ]


def test_constants_that_are_written_stay_apart() -> None:
    graph = Graph("g")
    for _ in range(2):
        value = Attr(Kind.TENSOR, np.zeros(2, np.float32))
        const = graph.add("Const", (), {"value": value}, [(DataType.DT_FLOAT, (2,))]).outputs[0]
        assign = graph.add("Assign", [const, const], {}, [(DataType.DT_FLOAT, (2,))])
        graph.outputs.append(assign.outputs[0])
    (result,) = passes.run(graph, [passes.MergeConstants()], check=True)
    assert not result.changed


def test_shape_arithmetic() -> None:
    def make(x: Tensor, y: Tensor) -> list[Tensor]:
        sizes = [ge.Mul(ge.Gather(ge.Shape(x, dtype=9), 0), 2) for _ in range(3)]
        sizes.append(ge.Gather(ge.Shape(y, dtype=9), 0))
        sizes.append(ge.Gather(ge.Shape(x, dtype=3), 0))
        return [*sizes, ge.Relu(x), ge.Relu(x)]

    graph = build(make)
    (result,) = passes.run(graph, [passes.MergeShapeArithmetic()], check=True)
    assert result.notes == ("6 duplicate shape computations merged",)
    assert ops_of(graph).count("Mul") == 1
    assert ops_of(graph).count("Shape") == 3
    assert ops_of(graph).count("Relu") == 2  # not a size


def test_streams_are_kept_apart() -> None:
    graph = build(lambda x, y: [])
    with building(graph):
        x = graph.node("x").outputs[0]
        graph.outputs = [ge.Shape(x)]
        graph.scope_attrs = {"_user_stream_label": attr_kinds.Str("s1")}
        graph.outputs.append(ge.Shape(x))
    (result,) = passes.run(graph, [passes.MergeShapeArithmetic()], check=True)
    assert not result.changed


def test_ref_data(caplog: pytest.LogCaptureFixture) -> None:
    graph = build(lambda x, y: [ge.Add(x, y), ge.Relu(y)])
    steps = [passes.WriteInputsInPlace([(0, 0)]), passes.ReplaceDataWithRefData()]
    with caplog.at_level(logging.DEBUG, logger="ge_graph"):
        results = passes.run(graph, steps, check=True)
    assert [r.changed for r in results] == [True, True]
    assert "Replace x:RefData with x:Data in graph g" in caplog.text
    assert [n.op for n in graph.inputs] == ["RefData", "Data"]
    assert len(graph.outputs) == 1
    assert [n.op for n in graph.output_control] == ["Assign"]
    verify(graph)


def test_swapped_inputs() -> None:
    graph = build(lambda x, y: [y, x])
    passes.run(graph, [passes.WriteInputsInPlace([(0, 0), (1, 1)])], check=True)
    x, y = np.full((2, 2), 1, np.float32), np.full((2, 2), 2, np.float32)
    evaluate(graph, [x, y])
    assert x[0, 0] == 2
    assert y[0, 0] == 1


def test_a_view_of_the_input_is_written_into_it() -> None:
    graph = build(lambda x, y: [ge.Transpose(x, [1, 0])])
    passes.run(graph, [passes.WriteInputsInPlace([(0, 0)])], check=True)
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    evaluate(graph, [x, x.copy()])
    assert x.tolist() == [[0, 2], [1, 3]]


def test_what_an_operator_wrote_is_not_assigned_again() -> None:
    graph = build(lambda x, y: [ge.Assign(x, ge.Relu(y))])
    passes.run(graph, [passes.WriteInputsInPlace([(0, 0)]), passes.ReplaceDataWithRefData()], check=True)
    assert ops_of(graph) == ["Relu", "Assign"]
    assert [n.op for n in graph.output_control] == ["Assign"]
    assert [n.op for n in graph.inputs] == ["RefData", "Data"]


@pytest.mark.parametrize("pairs", [[(5, 0)], [(0, 3)], [(0, 0), (0, 1)]])
def test_wrong_pairs(pairs: list[tuple[int, int]]) -> None:
    graph = build(lambda x, y: [ge.Add(x, y), ge.Relu(y)])
    with pytest.raises(GraphError, match="GE3052"):
        passes.run(graph, [passes.WriteInputsInPlace(pairs)])


def sizes_graph() -> Graph:
    graph = Graph("g")
    with building(graph):
        s0 = ge.Data(index=0, dtype=DataType.DT_INT64, shape=(), placement="CPU", node_name="s0_in")
        ge.Data(index=1, dtype=DataType.DT_INT64, shape=(), placement="CPU", node_name="s1_in")
        x = ge.Data(index=2, dtype=DataType.DT_FLOAT, shape=("s0", 2), node_name="x")
        graph.outputs = [ge.Mul(s0, 2), ge.Relu(x)]
    return graph


def test_unused_size_inputs() -> None:
    graph = sizes_graph()
    step = passes.DropSymbolicInputs()
    passes.run(graph, [step], check=False)
    assert step.kept == (0, 2)
    assert [(n.name, n.attr("index")) for n in graph.inputs] == [("s0_in", 0), ("x", 1)]


def test_derived_size_inputs() -> None:
    graph = sizes_graph()
    step = passes.DropSymbolicInputs({"s0_in": "s0"})
    result = step.run(graph)
    assert step.kept == (2,)
    assert result.notes == ("2 size inputs dropped", "1 of them derived from tensor inputs")
    verify(graph)
    outputs, _ = evaluate(graph, [np.ones((7, 2), np.float32)])
    assert outputs[0] == 14


def test_orders() -> None:
    graph = build(lambda x, y: ge.Add(ge.Relu(x), ge.Relu(y)))
    with building(graph):
        graph.outputs = [ge.Add(graph.outputs[0], ge.Relu(graph.node("x").outputs[0]))]
    found = {}
    for strategy in topology.STRATEGIES:
        passes.run(graph, [passes.SortNodes("BFS"), passes.SortNodes(strategy)], check=True)
        found[strategy] = [n.name for n in graph.nodes]
    assert found["BFS"] == ["x", "y", "Relu", "Relu_2", "Relu_1", "Add", "Add_1"]
    assert found["DFS"] == ["x", "Relu", "Relu_2", "y", "Relu_1", "Add", "Add_1"]
    assert found["RDFS"] == ["x", "Relu", "y", "Relu_1", "Add", "Relu_2", "Add_1"]
    assert found["StableRDFS"] == found["BFS"]


def test_cycles_and_unknown_orders() -> None:
    graph = build(lambda x, y: ge.Relu(ge.Relu(x)))
    first, second = graph.nodes[2:]
    first.control.append(second)
    for strategy in topology.STRATEGIES:
        with pytest.raises(GraphError, match="GE3050"):
            passes.run(graph, [passes.SortNodes(strategy)])
    with pytest.raises(GraphError, match="StableRDFS"):
        passes.SortNodes("random")


def test_graphs_in_nodes_are_rewritten() -> None:
    graph = build(lambda x, y: ge.Relu(x))
    inner = build(lambda x, y: ge.Relu(ge.Identity(x)))
    graph.outputs[0].node.subgraphs["body"] = inner
    passes.run(graph, check=True)
    assert ops_of(inner) == ["Relu"]


class _Liar(Pass):
    name = "liar"
    reason = place = "a test"

    def rewrite(self, graph: Graph) -> list[str]:
        graph.remove([graph.nodes[-1]])
        return []


class _Restless(Pass):
    name = "restless"
    reason = place = "a test"

    def rewrite(self, graph: Graph) -> list[str]:
        graph.attrs["_n"] = attr_kinds.Int(graph.attrs["_n"].value + 1 if "_n" in graph.attrs else 0)
        return ["counted"]


@pytest.mark.parametrize(("step", "check"), [(_Liar(), False), (_Liar(), True), (_Restless(), True)])
def test_claims_are_checked(step: Pass, check: bool) -> None:
    with pytest.raises(GraphError, match="GE3051"):
        passes.run(build(lambda x, y: ge.Relu(x)), [step], check=check)


def test_on_pass_sees_changes_only() -> None:
    seen: list[str] = []
    graph = build(lambda x, y: ge.Relu(ge.Identity(x)))
    results = passes.run(graph, on_pass=lambda name, g: seen.append(f"{name} {len(g.nodes)}"))
    assert [r.name for r in results] == [p.name for p in passes.DEFAULT]
    assert seen == ["fold_layout 3"]
