"""The torchair inside the wheel compiles; its GE graphs, which we did not write, run on our kernels.

Run under ``tair emulate --bundled-torchair``.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch_npu  # noqa: F401

import torchair


@pytest.fixture
def backend():
    torch._dynamo.reset()
    return torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())


def test_it_is_the_one_in_the_wheel():
    assert "torch_npu" in torchair.__file__


def _attend(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, y: torch.relu(x @ y) + 1, [torch.randn(4, 8), torch.randn(8, 8)]),
        (_attend, [torch.randn(2, 3, 16) for _ in range(3)]),
        (lambda x: torch.cat([x, x * 2], 1).sum(0, keepdim=True).sigmoid(), [torch.randn(4, 8)]),
    ],
)
def test_forward(backend, fn, args, dynamic):
    compiled = torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        got = compiled(*[a.npu() for a in args])
    torch.testing.assert_close(got.cpu(), fn(*args), rtol=1e-4, atol=1e-4)


def test_other_sizes_run_in_one_dynamic_graph(backend):
    compiled = torch.compile(lambda x: torch.relu(x) * x.shape[0], backend=backend, dynamic=True, fullgraph=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x.npu()).cpu(), torch.relu(x) * rows)


def test_bfloat16(backend):
    x, y = torch.randn(4, 8).bfloat16(), torch.randn(8, 8).bfloat16()
    compiled = torch.compile(lambda a, b: torch.softmax(a @ b, -1), backend=backend, dynamic=False)
    torch.testing.assert_close(compiled(x.npu(), y.npu()).cpu(), torch.softmax(x @ y, -1), rtol=2e-2, atol=2e-2)


def test_in_place(backend):
    def fn(x):
        x.add_(1)
        return x * 2

    x = torch.randn(3, 3).npu()
    before = x.cpu()
    got = torch.compile(fn, backend=backend, dynamic=False)(x)
    torch.testing.assert_close(x.cpu(), before + 1)
    torch.testing.assert_close(got.cpu(), (before + 1) * 2)


def test_training(backend):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    twin = copy.deepcopy(model).npu()
    compiled = torch.compile(twin, backend=backend, dynamic=False)
    x = torch.randn(4, 8)
    compiled(x.npu()).square().sum().backward()
    model(x).square().sum().backward()
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-3)
