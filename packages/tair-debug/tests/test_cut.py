"""A call that cannot be converted does not hide what the rest of its graph does."""

import pytest
import torch

from ge_converters.registry import REGISTRY, register_fx_node_ge_converter
from ge_graph import ops as ge
from ge_graph.errors import GeError
from tair_debug import ask, cut, models, tracing
from tair_debug.graph_dump import dump_of
from tair_debug.graph_page import to_html

LIB = torch.library.Library("tair_tests", "FRAGMENT")  # beside the one of conftest
LIB.define("pair(Tensor x) -> (Tensor, Tensor)")
LIB.impl("pair", lambda x: (x + 1, x - 1), "CompositeExplicitAutograd")
torch.library.register_fake("tair_tests::pair", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=LIB)


def one(x):
    y = torch.sigmoid(x * 2)
    return torch.relu(torch.ops.tair_tests.odd(y)) + y


def several(x):
    a, b = torch.ops.tair_tests.pair(torch.exp(x))
    return torch.ops.tair_tests.odd(a * b) - a


def returned(x):
    return torch.ops.tair_tests.odd(x + 1), x * 3


def unused_arguments(x):
    return torch.ops.tair_tests.odd(torch.cos(x)) * 2


CASES = [
    (one, ["odd"]),
    (several, ["pair", "odd"]),
    (returned, ["odd"]),
    (unused_arguments, ["odd"]),
]


def compared(fn, *args, **more):
    return ask.compare_of(models.given(fn, args, fake=False), **more)


@pytest.mark.parametrize(("fn", "calls"), CASES)
def test_the_rest_is_compared_with_eagers_values(fn, calls):
    result = compared(fn, torch.randn(3, 4))
    assert [c.target for c in result.refused] == [f"tair_tests.{name}.default" for name in calls]
    assert all("test_cut.py" in c.source for c in result.refused)
    assert not result.ok
    assert result.first is None
    assert result.totals
    assert all(r.measure.ok for r in result.totals)
    assert str(result).startswith(f"not all was compared, the rest is within tolerance: {len(calls)} call")


def test_a_fault_beside_a_refused_call_is_found():
    @register_fx_node_ge_converter(torch.ops.aten.sigmoid.default)
    def wrong(self, *, meta_outputs):
        return ge.Tanh(self)

    try:
        result = compared(one, torch.randn(3, 4))
    finally:
        REGISTRY.unregister(torch.ops.aten.sigmoid.default)
    assert result.first.target == "aten.sigmoid.default"
    assert len(result.refused) == 1


@pytest.mark.parametrize(("fn", "calls"), CASES)
def test_a_chip_is_asked_for_the_rest(fn, calls):
    result = ask.check(fn, torch.randn(3, 4), soc="ascend910b")
    assert len(result.refused) == len(calls)
    assert not result.ok
    (report,) = result.reports
    assert report.ok
    assert result.as_dict()["refused"][0]["reason"].startswith("no converter")


def test_a_graph_without_refused_calls_is_itself():
    (graph,) = tracing.capture(models.given(torch.relu, (torch.randn(2),)))
    part = cut.cut(graph.gm)
    assert part.gm is graph.gm
    assert not part.calls
    assert not part.refused


def test_what_only_a_refused_call_read_is_not_computed():
    (graph,) = tracing.capture(models.given(unused_arguments, (torch.randn(2),)))
    targets = [str(n.target) for n in cut.cut(graph.gm).gm.graph.nodes if n.op == "call_function"]
    assert targets == ["aten.mul.Tensor"]


def stands(graph):
    """Whether every node reads what stands before it, in this graph."""
    seen = set()
    for node in graph.nodes:
        if not all(t.node in seen and t.node.graph is graph for t in node.operands()):
            return False
        seen.add(node)
    return all(t.node in seen for t in graph.outputs)


def feeds(node, graph):
    return {n.op for n in graph.nodes if any(t.node is node for t in n.operands())}


@pytest.mark.parametrize(("fn", "calls"), CASES)
@pytest.mark.parametrize("soc", [None, "ascend910b2"])
def test_a_page_has_the_refused_calls_where_they_stand(fn, calls, soc):
    page = ask.view(fn, torch.randn(3, 4), soc=soc)
    (graph,) = page.graphs
    assert not page.ok
    assert [n.op for n in page.refused] == [f"tair_tests.{name}.default" for name in calls]
    assert stands(graph)
    assert not [n.name for n in graph.nodes if n.name.endswith("_given")]
    for node, call in page.refused.items():
        assert node.operands()
        assert page.figures[node]["refused"].startswith("no converter")
        assert node.provenance.source == call.source
    assert page.as_dict()["refused"][0]["target"] == f"tair_tests.{calls[0]}.default"


def test_a_refused_call_reads_and_is_read_in_the_page():
    page = ask.view(several, torch.randn(3, 4))
    (graph,) = page.graphs
    pair, odd = page.refused
    assert [t.node.op for t in pair.operands()] == ["Exp"]
    assert feeds(pair, graph) == {"Mul", "Sub"}
    assert feeds(odd, graph) == {"Sub"}
    returning = ask.view(returned, torch.randn(3, 4))
    (odd,) = returning.refused
    assert [t.node.op for t in returning.graphs[0].outputs] == [odd.op, "Mul"]


def test_symbols_and_written_inputs_stay_in_the_page():
    def fn(x, y):
        y.add_(1)
        return torch.ops.tair_tests.odd(x.reshape(-1)) * x.shape[0] + y.sum()

    inputs = torch.randn(3, 4), torch.randn(5)
    for dynamic in (False, True):
        torch._dynamo.reset()
        page = ask.view(fn, *inputs, dynamic=dynamic)
        assert stands(page.graphs[0])
        assert len(page.graphs[0].outputs) == 2
        assert [n.op for n in page.refused] == ["tair_tests.odd.default"]


def test_passes_beside_each_other_have_the_refused_calls():
    found = ask.passes_of(models.given(several, (torch.randn(3, 4),)))
    assert not found.ok
    ((only_first, only_second),) = [(m.counts()["only_first"], m.counts()["only_second"]) for m in found.matches]
    assert only_second == 0 <= only_first
    assert found.html(found.matches[0]).count("no converter") == 4  # two calls on two sides


@pytest.mark.parametrize(("fn", "calls"), CASES)
@pytest.mark.parametrize("kind", ["txt", "model-explorer"])
def test_a_dump_has_the_rest(fn, calls, kind, tmp_path):
    result = dump_of(models.given(fn, (torch.randn(3, 4),)), kind, tmp_path / "new")
    assert not result.ok
    assert len(result.refused) == len(calls)
    assert {*(tmp_path / "new").iterdir()} == {*result.written}
    assert len(result.written) == (2 if kind == "txt" else 1)
    text = result.written[-1].read_text()
    if fn is unused_arguments:  # what only the refused call read is there too
        assert "Cos" in text


def test_a_plan_says_what_is_in_no_figure():
    found = ask.plan(several, torch.randn(3, 4))
    assert not found.ok
    assert [c["target"] for c in found.as_dict()["refused"]] == ["tair_tests.pair.default", "tair_tests.odd.default"]
    assert "2 calls cannot be converted, left out here" in str(found)
    assert found.plans[0].graphs[0].working()
    with pytest.raises(GeError, match="GE2001"):  # sums under the names of others have no place for it
        ask.cost_analysis(several, torch.randn(3, 4))


@pytest.mark.slow
@pytest.mark.parametrize(("language", "says"), [("en", "cannot be converted 2"), ("zh-CN", "不能转换 2")])
def test_a_page_in_a_browser_shows_refused_calls(driven, language, says):
    page = ask.view(several, torch.randn(3, 4))
    script = """
      const out = [document.getElementById("legend").children[0].textContent];
      document.querySelector("aside a").click(); out.push(document.querySelector("aside").textContent);
    """
    legend, details = driven(to_html(page.graphs[0], figures=page.figures), script, language)
    assert legend == says
    assert "no converter, no decomposition" in details
    assert "test_cut.py" in details
