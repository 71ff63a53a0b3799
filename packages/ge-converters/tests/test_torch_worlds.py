"""What is found behind a compiled model."""

import functools

import pytest
import torch

from ge_converters.base.torch_worlds import uncompiled


def backend(gm, inputs, **keywords):
    return gm.forward


@pytest.mark.parametrize("times", [0, 1])
def test_the_module_and_the_backend_behind_a_compiled_module(times):
    model = made = torch.nn.Linear(2, 2)
    wanted = functools.partial(backend, options=3)
    for _ in range(times):
        made = torch.compile(made, backend=wanted)
    found, behind = uncompiled(made)
    assert found is model
    assert behind is (wanted if times else None)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_the_function_behind_a_compiled_function(times):
    def fn(x):
        return x + 1

    made = fn
    for _ in range(times):
        made = torch.compile(made, backend=backend)
    assert uncompiled(made) == (fn, None)
