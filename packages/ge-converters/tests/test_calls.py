"""Arguments of calls: numbers of choices, symbolic numbers where a constant is needed, numbers for tensors."""

import pytest
import torch

from ge_converters import F32, Support
from ge_converters.base.errors import LoweringError
from ge_converters.lowering import lower
from ge_converters.registry import REGISTRY
from ge_converters.report import smoke

aten = torch.ops.aten


def graph(op, *args):
    case = smoke.DeclaredForm(REGISTRY.find(op), Support(*args), 0)
    return smoke.trace(case, *case.support.make())


IMAGE, GRID = F32(1, 2, 3, 4), F32(1, 2, 2, 2)


@pytest.mark.parametrize("number", [-1, 3, 7])
@pytest.mark.parametrize(
    ("op", "args", "name"),
    [
        (aten.mse_loss.default, lambda n: (F32(2), F32(2), n), "reduction"),
        (aten.grid_sampler_2d.default, lambda n: (IMAGE, GRID, n, 0, False), "interpolation_mode"),
        (aten.grid_sampler_2d.default, lambda n: (IMAGE, GRID, 0, n, False), "padding_mode"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(op, args, name, number, monkeypatch):
    gm = graph(op, *args(0))
    (node,) = [n for n in gm.graph.nodes if n.op == "call_function"]
    names = [a.name for a in op._schema.arguments]
    node.update_arg(names.index(name), number)
    with pytest.raises(LoweringError, match=rf"'{name}' is {number}; it says which of 3 forms") as error:
        lower(gm)
    assert error.value.code == "GE2001"


def test_a_symbolic_number_where_an_attribute_is_needed_is_refused_with_its_name(aot):
    gm = aot(lambda x: torch.histc(x, 3, 0, x.shape[0]), torch.rand(5), dynamic=True)
    with pytest.raises(LoweringError, match="argument 'max' is a symbolic number") as error:
        lower(gm)
    assert error.value.code == "GE2001"


def test_a_converter_that_fails_for_another_reason_is_named():
    def fails(self, *, meta_outputs):
        raise IndexError("oops")

    REGISTRY.register(aten.relu.default)(fails)
    try:
        with pytest.raises(LoweringError, match="IndexError: oops") as error:
            lower(graph(aten.relu.default, F32(2)))
    finally:
        REGISTRY.unregister(aten.relu.default)
    assert error.value.code == "GE2006"


@pytest.mark.parametrize("op", [aten.zeros_like.default, aten._to_copy.default, aten.rand_like.default])
def test_a_layout_that_graphs_do_not_know_is_refused(op):
    gm = graph(op, F32(2))
    (node,) = [n for n in gm.graph.nodes if n.op == "call_function"]
    node.kwargs = {**node.kwargs, "layout": torch.sparse_coo}
    with pytest.raises(LoweringError, match=r"layout=torch.sparse_coo; GE knows dense tensors only") as error:
        lower(gm)
    assert error.value.code == "GE2001"


def test_a_converter_may_leave_out_where_a_result_lies_and_nothing_else():
    taken, called = REGISTRY.find(aten.zeros.default), []

    def zeros(size, *, dtype, meta_outputs):
        called.append(size)
        return taken.fn(size, dtype=dtype, meta_outputs=meta_outputs)

    try:
        REGISTRY.register(aten.zeros.default)(zeros)
        lower(graph(aten.zeros.default, [2]))
        assert called == [[2]]
        with pytest.raises(LoweringError, match="parameter 'dtype' is missing") as error:
            REGISTRY.register(aten.zeros.default)(lambda size, *, meta_outputs: None)
        assert error.value.code == "GE2002"
    finally:
        REGISTRY.unregister(aten.zeros.default)
