"""A call that cannot be converted does not hide what the rest of its graph does."""

import pytest
import torch

from ge_converters.registry import REGISTRY, register_fx_node_ge_converter
from ge_graph import ops as ge
from tair_debug import ask, cut, models, tracing

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
