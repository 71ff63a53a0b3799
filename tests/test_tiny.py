"""What must hold before anything else is looked at; `make tiny` runs this file alone, in seconds."""

import pytest
import torch

import torchair


class Block(torch.nn.Module):
    """A little of everything: norm, linear layers, activation, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def compiled(model, dynamic):
    return torch.compile(model, backend=torchair.get_npu_backend(), dynamic=dynamic, fullgraph=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_equals_eager_in_three_runs(dynamic):
    model = Block().eval()
    run = compiled(model, dynamic)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x))


def test_gradients_equal_eager():
    model, x = Block(), torch.randn(4, 8)
    model(x).square().sum().backward()
    want = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    compiled(model, False)(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name])


def test_an_input_changed_in_place():
    def step(cache, x):
        cache.add_(x)
        return cache * 2

    mine, theirs, x = torch.ones(3), torch.ones(3), torch.randn(3)
    torch.testing.assert_close(compiled(step, False)(mine, x), step(theirs, x))
    torch.testing.assert_close(mine, theirs)


def test_a_saved_graph_runs_without_its_model(tmp_path):
    model, x = Block().eval(), torch.randn(2, 8)
    torchair.CompiledModel.save_graph(model, (x,), dynamic=True, save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    for rows in (2, 4):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(loaded(x), model(x))


def test_an_operator_without_converter_is_refused_with_the_users_line():
    def fn(x):
        return torch.linalg.eig(x)[0]

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"GE2001[\s\S]*test_tiny\.py"):
        compiled(fn, False)(torch.eye(2))
