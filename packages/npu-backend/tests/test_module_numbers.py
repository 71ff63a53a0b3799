"""Floats of modules are constants of the graph, under guards; floats that change are inputs, never stale."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import torchair

FACTOR = 0.3


class Scaled(torch.nn.Module):
    """An RMS norm, written out, times numbers from everywhere."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x, factor):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)) * FACTOR * factor


def _ops(seen):
    return [n.op for n in seen.last_graph().nodes]


def _compiled(model, **more):
    torch._dynamo.reset()
    return torch.compile(model, backend="npu", fullgraph=True, **more)


@torch.no_grad()
def test_an_epsilon_is_an_attribute_of_the_norm_under_dynamic_true(recording):
    model, x = Scaled(), torch.randn(4, 8)
    with recording() as seen:
        got = _compiled(model, dynamic=True)(x, 2.0)
    torch.testing.assert_close(got, model(x, 2.0))
    assert "RmsNorm" in _ops(seen)
    (norm,) = [n for n in seen.last_graph().nodes if n.op == "RmsNorm"]
    assert norm.attr("epsilon") == pytest.approx(1e-6)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("dynamic", [True, None])
def test_a_number_that_changes_is_never_stale_and_becomes_an_input(dynamic):
    model, x = Scaled(), torch.randn(4, 8)
    with torchair.record_compilation() as reports:
        compiled = _compiled(model, dynamic=dynamic)
        for eps in (1e-6, 1e-2, 0.1, 1.0, 3.0, 1e-6, 1e-2):
            model.eps = eps
            torch.testing.assert_close(compiled(x, 2.0), model(x, 2.0))
    assert len(reports) == 2  # the constant, then the input; not one a value


@torch.no_grad()
def test_arguments_stay_inputs_from_the_start():
    model, x = Scaled(), torch.randn(4, 8)
    with torchair.record_compilation() as reports:
        compiled = _compiled(model, dynamic=True)
        for factor in (0.1, 0.2, 7.0):
            torch.testing.assert_close(compiled(x, factor), model(x, factor))
    assert len(reports) == 1


@pytest.mark.slow
@torch.no_grad()
def test_two_modules_of_one_class_keep_their_numbers():
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Scaled(1e-6), Scaled(0.5)

        def forward(self, x):
            return self.a(x, 1.0) + self.b(x, 1.0)

    model, x = Pair(), torch.randn(4, 8)
    compiled = _compiled(model, dynamic=True)
    torch.testing.assert_close(compiled(x), model(x))
    model.a.eps, model.b.eps = model.b.eps, model.a.eps
    torch.testing.assert_close(compiled(x), model(x))
    each = [_compiled(m, dynamic=True) for m in (model.a, model.b)]
    for c, m in zip(each, (model.a, model.b)):
        torch.testing.assert_close(c(x, 1.0), m(x, 1.0))


@pytest.mark.slow
@torch.no_grad()
def test_numbers_of_globals_and_of_captured_variables(monkeypatch, recording):
    half = 0.5

    def gelu(x):
        return half * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))) * FACTOR

    x = torch.randn(3, 5)
    compiled = _compiled(gelu, dynamic=True)
    with recording() as seen:
        torch.testing.assert_close(compiled(x), gelu(x))
    assert "Gelu" in _ops(seen)
    monkeypatch.setitem(globals(), "FACTOR", 11.0)
    torch.testing.assert_close(compiled(x), gelu(x))
    half = 4.0
    torch.testing.assert_close(compiled(x), gelu(x))


@pytest.mark.slow
def test_gradients_with_a_number_that_changes():
    model, x = Scaled(), torch.randn(4, 8)
    compiled = _compiled(model, dynamic=True)
    for eps in (1e-6, 0.1, 2.0):
        model.eps = eps
        got, want = (torch.autograd.grad(f(x, 2.0).sum(), model.weight)[0] for f in (compiled, model))
        torch.testing.assert_close(got, want)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.0])
def test_special_numbers(value):
    model, x = Scaled(), torch.randn(4, 8)
    compiled = _compiled(model, dynamic=True)
    for eps in (1e-6, value, 0.5, value):
        model.eps = eps
        torch.testing.assert_close(compiled(x, 2.0), model(x, 2.0), equal_nan=True)


@pytest.mark.slow
@torch.no_grad()
def test_a_compilation_that_fails_leaves_nothing_behind():
    model, x = Scaled(), torch.randn(4, 8)
    config = torchair.CompilerConfig()
    config.export.export_mode = True
    torch._dynamo.reset()
    with pytest.raises(Exception, match="GE1008"):
        torch.compile(Scaled(), backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)(x, 2.0)
    torch.testing.assert_close(_compiled(model, dynamic=True)(x, 2.0), model(x, 2.0))


@pytest.mark.slow
@torch.no_grad()
def test_scale_of_attention_and_of_dropout(recording):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scaling, self.p = 0.37, 0.1

        def forward(self, *qkv):
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in qkv)
            weights = F.dropout((q @ k.transpose(2, 3) * self.scaling).softmax(-1), self.p, self.training)
            return weights @ v

    model, x = Attention().eval(), torch.randn(2, 6, 32)
    with recording() as seen:
        got = _compiled(model, dynamic=True)(x, x + 1, x - 1)
    torch.testing.assert_close(got, model(x, x + 1, x - 1))
    assert "FlashAttentionScore" in _ops(seen)
