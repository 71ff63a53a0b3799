"""The smallest program with a fault: the same fault, few operators, nothing of the user's in the file."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

from ge_converters.base.errors import Refusal
from ge_converters.registry import REGISTRY, register_fx_node_ge_converter
from ge_graph import ops as ge
from ge_graph.errors import ConfigError
from tair_debug import minify, models
from tair_debug.fx_summary import target_text


class Secret(nn.Module):
    def __init__(self):
        super().__init__()
        self.private_weight = nn.Parameter(torch.randn(8, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, private_input):
        x = torch.sigmoid(private_input @ self.private_weight)
        return self.norm(x).reshape(-1, 4) + 1


@pytest.fixture
def override():
    """``override(op, converter)``: a converter until the test ends."""
    ops = []

    def put(op, converter):
        ops.append(op)
        register_fx_node_ge_converter(op)(converter)

    yield put
    for op in ops:
        REGISTRY.unregister(op)


def as_tanh(self, *, meta_outputs):
    return ge.Tanh(self)


def run(model, *args, **more):
    torch._dynamo.reset()
    return minify.minify(models.given(model, args, fake=False), **more)


def loaded(path):
    spec = importlib.util.spec_from_file_location("minified_of_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make()


def names(result):
    return [target_text(n.target) for n in result.program.calls]


def test_a_model_without_fault(tmp_path):
    result = run(Secret(), torch.randn(2, 8))
    assert result.ok
    minify.write(result, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_wrong_number(override, tmp_path):
    override(torch.ops.aten.sigmoid.default, as_tanh)
    result = run(nn.Sequential(Secret(), nn.Linear(4, 4), Secret2()), torch.randn(2, 8))
    assert names(result) == ["aten.sigmoid.default"]
    assert [tuple(a.shape) for a in result.program.args] == [(1, 1)]
    assert not result.valued
    minify.write(result, tmp_path)
    assert "the converters of aten.sigmoid.default are yours" in str(result)
    (path,) = result.written
    text = path.read_text()
    assert "private" not in text
    assert "Secret" not in text
    assert __file__ not in text
    program, args = loaded(path)
    torch.testing.assert_close(program(*args)[0], torch.sigmoid(args[0]))
    again = run(program, *args)
    assert result.fault.same(again.fault)


class Secret2(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 0) * 2


def test_a_refused_call(override):
    def refuse(self, dim, *, dtype=None, meta_outputs):
        raise Refusal("not today")

    override(torch.ops.aten.cumsum.default, refuse)
    result = run(nn.Sequential(Secret(), Secret2()), torch.randn(2, 8))
    assert result.fault.kind == "refused"
    assert names(result) == ["aten.cumsum.default"]


def test_an_error(override):
    def fail(self, *, meta_outputs):
        raise ZeroDivisionError("of a converter")

    override(torch.ops.aten.sigmoid.default, fail)
    result = run(Secret(), torch.randn(2, 8))
    assert (result.fault.kind, result.fault.what) == ("error", "GE2006")
    assert names(result) == ["aten.sigmoid.default"]


def test_a_fault_of_values(override, tmp_path):
    """Wrong only where an input is large: random numbers do not show it, the values do."""

    def clipped(self, *, meta_outputs):
        return ge.ClipByValue(ge.Sqrt(self), 0.0, 50.0)

    override(torch.ops.aten.sqrt.default, clipped)
    x = torch.full((3, 4), 10_000.0)
    result = run(lambda a: torch.sqrt(a) + 1, x)
    assert names(result) == ["aten.sqrt.default"]
    assert result.valued == [0]
    minify.write(result, tmp_path)
    assert len(result.written) == 1
    assert "--values keeps them" in str(result)
    minify.write(result, tmp_path, values=True)
    path, array = result.written
    assert (np.load(array) == 10_000).all()
    program, args = loaded(path)
    assert result.fault.same(run(program, *args).fault)


def test_two_operators_that_are_needed_together(override):
    """A rewrite that joins two operators is wrong: neither shows it alone."""

    def relu(self, *, meta_outputs):
        return ge.Relu(self) if self.node.op != "Exp" else ge.Tanh(self)

    override(torch.ops.aten.relu.default, relu)
    result = run(lambda x: torch.relu(torch.exp(torch.sin(x) * 2)) - 3, torch.randn(4))
    assert sorted(names(result)) == ["aten.exp.default", "aten.relu.default"]


@pytest.mark.parametrize("backward", [False, True])
def test_a_backward_pass(override, backward):
    def wrong(grad_output, output, *, meta_outputs):
        return ge.Mul(grad_output, output)

    override(torch.ops.aten.sigmoid_backward.default, wrong)
    x = torch.randn(2, 8, requires_grad=True)
    result = run(Secret(), x, backward=backward)
    assert result.ok is not backward
    if backward:
        assert names(result) == ["aten.sigmoid_backward.default"]


def test_strides_types_and_sizes(override, tmp_path):
    """What an input is like stays: its memory, its type, the range of whole numbers."""

    def gather(self, dim, index, *, sparse_grad=False, meta_outputs):
        return ge.Neg(ge.GatherElements(self, index, dim=dim))

    override(torch.ops.aten.gather.default, gather)
    x, index = torch.randn(6, 5).T, torch.randint(0, 5, (5, 6))
    result = run(lambda a, i: torch.gather(a.half(), 0, i).float() + 1, x, index)
    assert names(result) == ["aten.gather.default"]
    minify.write(result, tmp_path)
    program, args = loaded(result.written[0])
    assert [a.dtype for a in args] == [torch.float16, torch.int64]
    assert result.fault.same(run(program, *args).fault)


def test_a_branch_has_no_file(override, tmp_path):
    override(torch.ops.aten.sigmoid.default, as_tanh)
    result = run(lambda x: torch.cond(x.sum() > 0, lambda y: torch.sigmoid(y), lambda y: y * 2, (x,)), torch.ones(3))
    assert result.fault is not None
    with pytest.raises(ConfigError, match="GE1059"):
        minify.write(result, tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        1,
        True,
        None,
        -1.5,
        float("inf"),
        float("nan"),
        "mean",
        [1, 2],
        (3,),
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        1 + 2j,
    ],
)
def test_constants_are_written_as_they_are(value):
    read = eval(minify._code(value, {}), {"torch": torch})
    assert read == value or (read != read and value != value)


def test_a_name_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="GE1059"):
        minify._name("a; import os")
