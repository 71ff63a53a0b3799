"""Models whose graphs run through torch's Inductor below backend npu: forward, backward, open sizes, state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ge_graph import EngineError

pytestmark = pytest.mark.usefixtures("inductor")


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "inductor")


class Model(nn.Module):
    """Statistics in buffers, a convolution, a reshape, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x))).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(y, y, y)
        return torch.log_softmax(self.out(y), -1)


def test_training_steps_equal_eager() -> None:
    eager = Model()
    ours = copy.deepcopy(eager)
    compiled = torch.compile(ours, backend="npu", dynamic=True)
    for step in range(3):
        x = torch.randn(2 + step, 4, 10 + 3 * step)
        for model, call in ((eager, eager), (ours, compiled)):
            model.zero_grad()
            call(x).square().mean().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        for (name, got), want in zip(ours.state_dict().items(), eager.state_dict().values(), strict=True):
            torch.testing.assert_close(got, want, msg=lambda text, name=name: f"{name}, step {step}: {text}")
        for got, want in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)


def test_numbers_of_open_sizes_alone_reach_elements() -> None:
    """A batch norm's factor n / (n - 1) for its buffer, where nothing before it names the sizes that make up n."""
    eager, ours = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    compiled = torch.compile(ours, backend="npu", dynamic=True)
    for step in range(3):
        x = torch.randn(2 + step, 4, 10 + 3 * step)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(ours.running_var, eager.running_var)


def test_an_optimizer_in_a_graph_writes_its_state() -> None:
    weights = [torch.randn(6, 5), torch.randn(5)]
    results = []
    for compiled in (False, True):
        parameters = [w.clone().requires_grad_() for w in weights]
        optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(1e-2), capturable=False)
        step = torch.compile(optimizer.step, backend="npu") if compiled else optimizer.step
        for k in range(3):
            for p in parameters:
                p.grad = torch.full_like(p, 0.1 * (k + 1))
            step()
        results.append([p.detach() for p in parameters])
    torch.testing.assert_close(results[1], results[0])


def test_counters_in_graphs_are_read_in_every_run() -> None:
    seen = torch.tensor(0)

    def count(x: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return x * seen

    compiled = torch.compile(count, backend="npu")
    assert [compiled(torch.ones(2)).tolist() for _ in range(4)] == [[k, k] for k in (1, 2, 3, 4)]
    assert seen.item() == 4


def test_dropout_scales_in_both_directions() -> None:
    """What is dropped forward has no gradient; the rest is doubled."""
    compiled = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend="npu", dynamic=True)
    for rows in (40, 50):
        x = torch.ones(rows, 8, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        assert set(y.unique().tolist()) == {0.0, 2.0}
        assert 0.3 < (y == 0).float().mean() < 0.7
        assert torch.equal(x.grad, y.detach())


DATA_DEPENDENT = {
    "mask written": lambda x, y: x.clone().index_put((y > 0,), torch.tensor(2.0)),
    "mask read": lambda x, y: x[y > 0] * 2,
    "places": lambda x, y: torch.nonzero(x > 0),
    "sum of what a mask reads": lambda x, y: torch.masked_select(x, y > 0).sum(),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_depend_on_elements_stay_open(name: str) -> None:
    torch._dynamo.reset()
    fn = DATA_DEPENDENT[name]
    compiled = torch.compile(fn, backend="npu", dynamic=False, fullgraph=True)
    for _ in range(4):
        x, y = torch.randn(6), torch.randn(6)
        torch.testing.assert_close(compiled(x, y), fn(x, y))


def test_branches_are_refused_with_the_line() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with pytest.raises(EngineError, match=r"\[GE4026\][\s\S]*If[\s\S]*test_inductor_program.py"):
        torch.compile(choose, backend="npu")(torch.ones(3))
