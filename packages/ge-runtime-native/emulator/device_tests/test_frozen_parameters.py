"""``frozen_parameter``: GE reads a parameter where it lay in the first run, whatever the user does to it since."""

from __future__ import annotations

import pytest
import torch
import torch_npu  # noqa: F401

import torchair

pytestmark = pytest.mark.parametrize("engine", ["torch_npu", "cann"])


class Product(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.weight.sum()


def _config() -> torchair.CompilerConfig:
    config = torchair.CompilerConfig()
    config.experimental_config.frozen_parameter = True
    return config


def _compiled(model):
    return torch.compile(model, backend=torchair.get_npu_backend(compiler_config=_config()))


def _check(call, model, runs=3):
    """Runs equal eager's while the memory of earlier ones is taken by others."""
    for at in range(runs):
        x = torch.randn(2, 4).npu()
        others = [torch.full((4, 3), float(at), device="npu") for _ in range(8)]
        got = call(x)
        torch.testing.assert_close(got.cpu(), model(x).cpu())
        del others


def _weight(kind: str) -> torch.Tensor:
    return {
        "transposed": lambda: torch.randn(3, 4).npu().t(),
        "every second": lambda: torch.randn(4, 6).npu()[:, ::2],
        "view inside": lambda: torch.randn(9, 3).npu()[5:],
        "expanded": lambda: torch.randn(4, 1).npu().expand(4, 3),
        "dense": lambda: torch.randn(4, 3).npu(),
    }[kind]()


@pytest.fixture(autouse=True)
def chosen(engine, monkeypatch):
    monkeypatch.setenv("TAIR_ENGINE", engine)
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", ["transposed", "every second", "view inside", "expanded"])
def test_every_run_sees_a_strided_parameter(engine, kind, inference):
    model = Product(_weight(kind))
    call = _compiled(model)
    with torch.inference_mode(inference):
        _check(call, model)
    with torch.no_grad():
        _check(call, model)


@pytest.mark.parametrize("kind", ["dense", "transposed"])
def test_a_parameter_changes_between_runs(engine, kind):
    model = Product(_weight(kind))
    call = _compiled(model)
    _check(call, model)
    model.load_state_dict({"weight": torch.randn(4, 3)})
    _check(call, model)
    model.weight.data.mul_(2)
    _check(call, model)
    old = model.weight
    model.weight = torch.nn.Parameter(_weight(kind), requires_grad=False)
    _check(call, model)
    old.data.zero_()
    model.weight.data = _weight(kind)
    _check(call, model)


def test_a_run_does_not_overtake_operators_that_torch_npu_has_queued(engine):
    model = Product(_weight("transposed"))
    call = torch.compile(model, backend=torchair.get_npu_backend())
    wrong = 0
    for _ in range(60):
        x = torch.randn(2, 4).npu()
        model.load_state_dict({"weight": torch.randn(4, 3)})
        wrong += not torch.allclose(call(x).cpu(), model(x).cpu(), atol=1e-4)
    assert wrong == 0


def test_tied_parameters(engine):
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(torch.randn(3, 4).npu().t(), requires_grad=False)
            self.second = self.first
            self.third = torch.nn.Parameter(self.first.data.t(), requires_grad=False)

        def forward(self, x):
            return x @ self.first @ self.third @ self.second

    model = Tied()
    call = _compiled(model)
    _check(call, model)
    with torch.no_grad():
        model.first.mul_(-1)
    _check(call, model)


def test_a_cached_call(engine, tmp_path):
    class Cached(Product):
        def __init__(self, weight):
            super().__init__(weight)
            self.call = torchair.inference.cache_compile(self.step, config=_config(), cache_dir=str(tmp_path))

        def step(self, x):
            return super().forward(x)

    with torch.no_grad():
        for _ in range(2):  # the second finds the first one's files
            torch._dynamo.reset()
            model = Cached(_weight("transposed"))
            _check(model.call, model)
            model.load_state_dict({"weight": torch.randn(4, 3)})
            _check(model.call, model)
