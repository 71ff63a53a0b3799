"""Recurrent layers compiled on NPU tensors: results and gradients are those of eager CPU tensors.

torch_npu brings kernels of its own for them, which a program that is traced must not meet.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from torch.utils import _pytree as pytree

import torchair

# Name: layer, whether it takes one step at a time.
LAYERS: dict[str, tuple[Any, bool]] = {
    "lstm": (lambda: torch.nn.LSTM(4, 6), False),
    "lstm of two layers": (lambda: torch.nn.LSTM(4, 6, 2), False),
    "lstm both ways": (lambda: torch.nn.LSTM(4, 6, bidirectional=True), False),
    "lstm of two layers both ways, batch first": (
        lambda: torch.nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True),
        False,
    ),
    "lstm without bias": (lambda: torch.nn.LSTM(4, 6, bias=False), False),
    "lstm with a projection": (lambda: torch.nn.LSTM(4, 6, proj_size=3), False),
    "gru": (lambda: torch.nn.GRU(4, 6), False),
    "gru of two layers both ways": (lambda: torch.nn.GRU(4, 6, 2, bidirectional=True), False),
    "gru batch first without bias": (lambda: torch.nn.GRU(4, 6, bias=False, batch_first=True), False),
    "rnn": (lambda: torch.nn.RNN(4, 6), False),
    "rnn of two layers both ways with relu": (
        lambda: torch.nn.RNN(4, 6, 2, bidirectional=True, nonlinearity="relu"),
        False,
    ),
    "lstm cell": (lambda: torch.nn.LSTMCell(4, 6), True),
    "gru cell": (lambda: torch.nn.GRUCell(4, 6), True),
    "rnn cell": (lambda: torch.nn.RNNCell(4, 6), True),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(3)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def _step(layer: torch.nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor | None]:
    """Results, then the gradients of the input and of the parameters."""
    results = pytree.tree_leaves(call(x))
    sum((r * r).sum() for r in results).backward()
    return [*(r.detach().cpu() for r in results), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_backward(name: str, mode: str) -> None:
    make, one_step = LAYERS[name]
    plain = make()
    twin = copy.deepcopy(plain).npu()
    x = torch.randn(*((3, 4) if one_step else (5, 3, 4)))
    want = _step(plain, plain, x.clone().requires_grad_())
    config = torchair.CompilerConfig()
    config.mode = mode
    compiled = torch.compile(twin, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    with torchair.record_compilation() as reports:
        got = _step(twin, compiled, x.npu().requires_grad_())
    assert len(reports) == 2
    for g, w in zip(got, want, strict=True):
        assert g is not None
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_without_gradients(kind: str) -> None:
    plain = getattr(torch.nn, kind)(4, 6, 2, bidirectional=True).eval()
    twin = copy.deepcopy(plain).npu()
    x = torch.randn(5, 3, 4)
    with torch.no_grad():
        want = pytree.tree_leaves(plain(x))
        compiled = torch.compile(twin, backend=torchair.get_npu_backend(), fullgraph=True)
        got = pytree.tree_leaves(compiled(x.npu()))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)
