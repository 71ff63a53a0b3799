"""Sizes as graph values: the compiled graph serves sizes that it was not traced with."""

import pytest
import torch
from torch.utils._sympy import functions as sym

from ge_converters import LoweringError
from ge_converters.emit.shapes import shape_operand
from ge_converters.lowering import lower
from ge_converters.lowering.aliasing import Constant, ScalarResult
from ge_converters.lowering.symbols import Symbols
from ge_graph import DataType, Graph, building
from ge_graph import ops as ge

sympy = pytest.importorskip("sympy")


def test_a_list_of_ints_stays_a_list_and_a_mixed_one_is_packed():
    with building(Graph()):
        n = ge.Data(index=0, dtype=DataType.DT_INT64, shape=())
        assert shape_operand([2, 3]) == [2, 3]
        packed = shape_operand([n, 3], DataType.DT_INT32)
        assert packed.dtype is DataType.DT_INT32
        assert packed.rank == 1
        assert packed.node.op == "Pack"


S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)
EXPRESSIONS = {
    "sum": S0 + 3 * S1 - 1,
    "product": S0 * S1 * 2,
    "square": S0**2 + S1,
    "floor division": sym.FloorDiv(S0 + 1, S1),
    "ceiling division": sym.CeilDiv(S0, S1) if hasattr(sym, "CeilDiv") else S0,
    "modulo": sym.Mod(S0, S1),
    "python modulo": sym.PythonMod(S0 - 10, S1),
    "modular indexing": sym.ModularIndexing(S0, 2, 3),
    "maximum": sym.Max(S0, S1, 4),
    "minimum": sym.Min(S0, S1),
    "negative": -S0,
    "shift": sym.LShift(S0, sympy.Integer(2)),
    "true division": sym.IntTrueDiv(S0, S1),
    "truncation": sym.TruncToInt(sym.IntTrueDiv(S0, S1)),
    "rounding up": sym.CeilToInt(sym.IntTrueDiv(S0, S1)),
    "root": sym.FloorToInt(sym.OpaqueUnaryFn_sqrt(sym.ToFloat(S0))),
    "choice": sym.Where(sympy.StrictLessThan(S0, S1), S0, S1 * 2),
    "relation": sympy.GreaterThan(S0, S1),
    "equality": sympy.Eq(S0, S1),
    "both": sympy.And(S0 > 2, S1 > 2),
    "not": sympy.Not(sympy.Eq(S0, S1)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize(("a", "b"), [(7, 3), (3, 7), (5, 5)])
def test_an_expression_has_sympy_s_value(name, a, b, engine):
    expr = EXPRESSIONS[name]
    graph = Graph()
    with building(graph):
        x, y = (ge.Data(index=i, dtype=DataType.DT_INT64, shape=(), placement="CPU") for i in range(2))
        symbols = Symbols(graph, lambda s: None)
        symbols.define(S0, lambda: x)
        symbols.define(S1, lambda: y)
        graph.outputs.append(symbols.value(expr))
    (got,) = engine.compile(graph, {}).run([torch.tensor(a), torch.tensor(b)])
    expected = expr.subs({S0: a, S1: b})
    assert float(got) == pytest.approx(float(bool(expected)) if expected in (True, False) else float(expected))


def test_an_expression_is_emitted_once():
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_INT64, shape=())
        symbols = Symbols(graph, lambda s: None)
        symbols.define(S0, lambda: x)
        assert symbols.value(2 * S0) is symbols.value(S0 * 2)
        assert symbols.value(sympy.Integer(3)) == 3
    assert [n.op for n in graph.nodes].count("Mul") == 1


def test_a_symbol_without_source_says_what_to_do():
    graph = Graph()
    with building(graph), pytest.raises(LoweringError) as error:
        Symbols(graph, lambda s: None).value(S0 + 1)
    assert error.value.code == "GE2009"


def test_a_function_without_counterpart_is_named():
    graph = Graph()
    symbols = Symbols(graph, lambda s: None)
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_INT64, shape=())
        symbols.define(S0, lambda: x)
        with pytest.raises(LoweringError, match="uses f, which has no GE counterpart"):
            symbols.value(sympy.Function("f")(S0))


def test_one_graph_serves_every_size(aot, run):
    def fn(x, y):
        n = x.shape[0] // 2
        return x.reshape(n, -1) + 1, x.shape[0] * 3 + y.shape[1], y[:, : x.shape[0]], x.new_zeros(n + 1)

    low = lower(aot(fn, torch.randn(8), torch.randn(3, 16), dynamic=True))
    assert isinstance(low.outputs[1], ScalarResult)
    assert not any(isinstance(o, Constant) for o in low.outputs)
    for n, m in ((8, 16), (6, 9), (12, 20)):
        x, y = torch.randn(n), torch.randn(4, m)
        got = run(low, fx_inputs(low, x, y))
        for g, e in zip(got, fn(x, y)):
            assert torch.equal(g, e) if isinstance(e, torch.Tensor) else g == e


def fx_inputs(low, *tensors):
    """FX inputs in placeholder order: tensors as given, sizes where the graph has scalar inputs."""
    order = [b for b in low.inputs if b.kind == "tensor"]
    assert len(order) == len(tensors)
    placed = {b.fx_index: t for b, t in zip(order, tensors)}
    for b in low.inputs:
        if b.kind == "scalar":
            raise AssertionError("sizes of inputs must come from the inputs")
    return placed


def test_sizes_that_inputs_have_are_no_inputs(aot):
    low = lower(aot(lambda x: x.reshape(-1, 2).sum(0) * x.shape[0], torch.randn(8), dynamic=True))
    assert [b.kind for b in low.inputs] == ["tensor"]
    assert "Shape" in [n.op for n in low.graph.nodes]


def test_a_number_that_no_tensor_tells_is_a_cpu_scalar(aot, run):
    def fn(x, n):
        return x * (n + 1)

    low = lower(aot(fn, torch.randn(3), 5, dynamic=True))
    (scalar,) = (b for b in low.inputs if b.kind == "scalar")
    node = low.graph.inputs[low.inputs.index(scalar)]
    assert node.attr("_placement") == "CPU"
    assert node.outputs[0].dtype is DataType.DT_INT64
    x = torch.randn(3)
    placed = {b.fx_index: (torch.tensor(9) if b.kind == "scalar" else x) for b in low.inputs}
    assert torch.equal(run(low, placed)[0], x * 10)


def test_data_dependent_sizes_come_from_the_result_that_made_them(aot, run):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):

        def fn(x):
            where = x.nonzero()
            return where.reshape(-1) + where.shape[0], torch.zeros(where.shape[0] * 2)

        low = lower(aot(fn, torch.tensor([0, 1, 0, 2])))
    for x in (torch.tensor([0, 1, 0, 2]), torch.tensor([3, 1, 0, 2]), torch.tensor([0, 0, 0, 0])):
        for g, e in zip(run(low, {0: x}), fn(x)):
            assert torch.equal(g, e)


def test_item_is_a_value_of_the_graph(aot, run):
    with torch._dynamo.config.patch(capture_scalar_outputs=True):

        def fn(x):
            n = x.max().item()
            torch._check(n >= 0)
            torch._check(n < 100)
            return torch.arange(n), n + 1

        low = lower(aot(fn, torch.tensor([2, 5])))
    for x in (torch.tensor([2, 5]), torch.tensor([7, 1])):
        got = run(low, {0: x})
        assert torch.equal(got[0], torch.arange(int(x.max())))
        assert got[1] == int(x.max()) + 1
