"""Graphs in nodes on the embedded engine: which one runs, what is copied, what observers see."""

from __future__ import annotations

import pytest
import torch

from ge_graph import DataType, Graph, attrs, builder, building
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from ge_runtime.cpu.engine import CpuEngine

F, I64, I32, B = DataType.DT_FLOAT, DataType.DT_INT64, DataType.DT_INT32, DataType.DT_BOOL


def inner(name, make, *specs, parents=None):
    """A graph of the given inputs, ``(type, shape)`` each, that returns what ``make`` gives."""
    graph = Graph(name)
    with building(graph):
        data = [builder.data(graph, index=k, dtype=d, shape=s) for k, (d, s) in enumerate(specs)]
        for k, each in enumerate(data if parents else ()):
            each.node.attrs["_parent_node_index"] = attrs.Int(parents[k])
        graph.outputs = list(make(*data))
    return graph


def compiled(make, *specs):
    return CpuEngine().compile(inner("outer", make, *specs), {})


def thrice(executable, *args):
    """Results of three runs, which have to be the same."""
    runs = [executable.run([a.clone() for a in args]) for _ in range(3)]
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            torch.testing.assert_close(a, b)
    return runs[0]


X = (F, ("n",))


@pytest.mark.parametrize("op", ["If", "_If", "StatelessIf"])
@pytest.mark.parametrize(
    ("dtype", "value", "holds"),
    [(B, True, True), (B, False, False), (F, 0.5, True), (I32, 0, False), (B, [False], True)],
)
def test_if(op, dtype, value, holds):
    cond = torch.tensor(value, dtype={B: torch.bool, F: torch.float32, I32: torch.int32}[dtype])

    def make(c, x):
        return getattr(ge, op)(
            c,
            [x],
            then_branch=inner("t", lambda a: [ge.Mul(a, 2.0)], X),
            else_branch=inner("e", lambda a: [a], X),
            size_of_output=1,
        )

    x = torch.tensor([1.0, 2.0])
    (found,) = thrice(compiled(make, (dtype, tuple(cond.shape)), X), cond, x)
    torch.testing.assert_close(found, x * 2 if holds else x)


@pytest.mark.parametrize("op", ["Case", "StatelessCase"])
@pytest.mark.parametrize(("index", "expected"), [(0, 1.0), (1, 10.0), (2, 100.0), (3, 100.0), (-1, 100.0)])
def test_case(op, index, expected):
    def make(i, x):
        branches = [inner(f"b{k}", lambda a, k=k: [ge.Mul(a, 10.0**k)], X) for k in range(3)]
        return getattr(ge, op)(i, [x], branches=branches, size_of_output=1)

    (found,) = thrice(compiled(make, (I32, ()), X), torch.tensor(index, dtype=torch.int32), torch.ones(2))
    torch.testing.assert_close(found, torch.full((2,), expected))


def counting(body, until, *specs):
    """A While that counts up to ``until``; the body makes the other values."""

    def make(*values):
        return ge.While(
            [ge.Const(0, dtype=I64), *values],
            cond=inner("cond", lambda i, *a: [ge.Less(i, until)], (I64, ()), *specs),
            body=inner("body", lambda i, *a: [ge.Add(i, 1), *body(i, *a)], (I64, ()), *specs),
            size_of_output=1 + len(values),
        )

    return make


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_while_that_hands_values_round(rounds):
    x, y = torch.arange(3.0), torch.arange(3.0) + 5
    count, a, b = thrice(compiled(counting(lambda i, a, b: [b, ge.Add(a, b)], rounds, X, X), X, X), x, y)
    p, q = x, y
    for _ in range(rounds):
        p, q = q, p + q
    assert int(count) == rounds
    torch.testing.assert_close(a, p)
    torch.testing.assert_close(b, q)


def test_results_never_share_memory_with_inputs_or_each_other():
    x = torch.arange(3.0)
    executable = compiled(counting(lambda i, a, b: [b, b], 2, X, X), X, X)
    for _ in range(3):
        _, a, b = executable.run([x, x])
        pointers = {t.untyped_storage().data_ptr() for t in (a, b, x)}
        assert len(pointers) == 3


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_memory_that_a_loop_updates_is_copied_once(rounds):
    rows = (F, ("m", 2))

    def body(i, buffer):
        row = ge.Reshape(ge.Cast(i, dst_type=F), [1, 1])
        return [ge.ScatterNdUpdate(buffer, ge.Reshape(i, [1, 1]), ge.BroadcastTo(row, [1, 2]))]

    executable = compiled(counting(body, rounds, rows), rows)
    start = torch.full((5, 2), -1.0)
    kept = start.clone()
    _, found = thrice(executable, start)
    executable.run([start])
    torch.testing.assert_close(start, kept)
    expected = kept.clone()
    expected[:rounds] = torch.arange(rounds)[:, None].float()
    torch.testing.assert_close(found, expected)
    assert "clone" not in executable.source.split("body", 1)[1]


def test_partitioned_call_and_parent_index():
    graph = inner("f", lambda a, b: [ge.Sub(a, b), b], X, X, parents=[1, 0])
    executable = compiled(lambda x, y: ge.PartitionedCall([x, y], f=graph, size_of_output=2), X, X)
    x, y = torch.ones(2), torch.tensor([3.0, 4.0])
    found = thrice(executable, x, y)
    torch.testing.assert_close(found[0], y - x)
    torch.testing.assert_close(found[1], x)


def test_observers_see_inner_nodes_as_often_as_they_run():
    seen = []
    executable = compiled(counting(lambda i, a: [ge.Sqrt(a)], 3, X), X)
    executable.run_traced([torch.ones(2)], lambda node, ins, outs: seen.append(node.op))
    assert seen.count("Sqrt") == 3
    assert seen.count("Less") == 4
    assert seen.count("While") == 1


def test_operators_without_kernel_are_named_inside_too(monkeypatch):
    from ge_runtime.cpu import registry

    found = registry.find
    monkeypatch.setattr(registry, "find", lambda op: None if op == "Sqrt" else found(op))
    with pytest.raises(EngineError, match="Sqrt") as error:
        compiled(counting(lambda i, a: [ge.Sqrt(a)], 3, X), X)
    assert error.value.code == "GE4003"


def test_failures_name_the_inner_node():
    executable = compiled(counting(lambda i, a: [ge.Reshape(a, [7])], 3, X), X)
    with pytest.raises(EngineError, match="Reshape"):
        executable.run([torch.ones(2)])
