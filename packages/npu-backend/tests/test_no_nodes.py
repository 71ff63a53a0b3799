"""Programs whose GE graph has no node: they return their arguments, views of them, or what is known beforehand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchair

PROGRAMS: dict[str, Callable[[torch.Tensor], object]] = {
    "transposed": lambda x: x.T,
    "the argument": lambda x: x,
    "views of it": lambda x: (x[0], x.view(-1), x.detach()),
    "its size": lambda x: (x.shape[0], x),
    "nothing": lambda x: None,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_without_operators(name, dynamic):
    torch._dynamo.reset()
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend=torchair.get_npu_backend(), dynamic=dynamic, fullgraph=True)
    for rows in (2, 5):
        x = torch.arange(rows * 3, dtype=torch.int64).view(rows, 3)
        got, expected = compiled(x), program(x)
        torch.testing.assert_close(got, expected)
        tensors = [v for v in torch.utils._pytree.tree_leaves(got) if isinstance(v, torch.Tensor)]
        assert all(t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in tensors)


def test_a_training_step_whose_backward_computes_nothing():
    torch._dynamo.reset()
    x = torch.ones(2, 3, requires_grad=True)
    y = torch.compile(lambda x: x.permute(1, 0), backend=torchair.get_npu_backend())(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
