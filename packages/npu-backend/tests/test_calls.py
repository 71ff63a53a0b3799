"""What a call of a compiled function costs, counted: Python functions entered, and none of them per input."""

import sys

import pytest
import torch

import torchair
from ge_graph.errors import EngineError


def entered(call):
    """Names of the Python functions that a call enters, ours and torch's, and of the generated ones."""
    seen = []

    def on(frame, event, _):
        if event == "call":
            seen.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(on)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def steady(fn, *inputs, **options):
    torch._dynamo.reset()
    run = torch.compile(fn, backend="npu", dynamic=False, **options)
    with torch.no_grad():
        for _ in range(4):  # the first runs check results and learn inputs
            run(*inputs)
        return entered(lambda: run(*inputs))


def ours(seen):
    return [name for file, name in seen if "torchair" in file or "ge_runtime" in file or file.startswith("<")]


def joined(*parts):
    return torch.cat(parts)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 30, 300])
def test_functions_entered_do_not_grow_with_the_inputs(count):
    seen = steady(joined, *(torch.ones(2) for _ in range(count)))
    assert len(ours(seen)) <= 8, ours(seen)
    assert not [name for file, name in seen if "runtime_wrappers" in file], "AOTAutograd's wrapper is called"


def test_inputs_that_dynamo_guards_are_not_looked_at_again():
    """Neither by a Python function nor by torch's guard on tensors, which costs more an input than all else of ours."""
    torch._dynamo.reset()
    run, inputs = torch.compile(joined, backend="npu", dynamic=False), [torch.ones(2) for _ in range(30)]
    called = []
    with torch.no_grad():
        for _ in range(3):
            run(*inputs)
        sys.setprofile(lambda frame, event, what: called.append(what.__name__) if event == "c_call" else None)
        try:
            run(*inputs)
        finally:
            sys.setprofile(None)
    assert "check" not in called
    assert len(called) <= 60, called


def test_inputs_of_a_graph_compiled_outside_of_dynamo_are_looked_at():
    gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x + 1,))(torch.ones(2))
    call = torchair.get_npu_backend()(gm, [torch.ones(2)])
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(call(torch.ones(2))[0], torch.full((2,), 2.0))
        with pytest.raises(EngineError, match="GE4004"):
            call(torch.ones(3))


def test_functions_entered_do_not_grow_with_the_operators():
    def chain(x):
        for _ in range(40):
            x = torch.sin(x)
        return x

    few, many = steady(torch.sin, torch.ones(3)), steady(chain, torch.ones(3))
    assert len(many) <= len(few) + 3


class Written(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen.add_(x)
        return self.seen * 2, x


def test_without_the_wrapper_inputs_are_written_and_handed_back():
    model = Written()
    torch._dynamo.reset()
    run = torch.compile(model, backend="npu")
    for step in range(1, 5):
        x = torch.ones(2)
        doubled, same = run(x)
        assert same is x
        assert not doubled.requires_grad
        torch.testing.assert_close(model.seen, torch.full((2,), float(step)))
        torch.testing.assert_close(doubled, torch.full((2,), 2.0 * step))


def test_under_autocast_the_graph_keeps_its_types():
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    torch._dynamo.reset()
    run = torch.compile(layer, backend="npu")
    for enabled in (True, False, True, False):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for _ in range(3):
                got, want = run(x), layer(x)
                assert got.dtype is want.dtype
                torch.testing.assert_close(got, want)


def test_gradients_wanted_later_are_given():
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    torch._dynamo.reset()
    run = torch.compile(layer, backend="npu")
    with torch.no_grad():
        for _ in range(3):
            assert not run(x).requires_grad
    run(x).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((4,), 2.0))
