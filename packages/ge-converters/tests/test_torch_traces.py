"""What tools ask of torch's traces."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ge_converters.base.torch_traces import failed_operator, failing_in_silence, more_like
from ge_converters.decompose.whole import KeepWhole


def test_a_symbol_stays_the_size_of_its_input():
    """A maximum that equals a symbol, of a number that the tracer has not seen: DTensors make them of their sizes."""
    x = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(4, 3))
    rows = x.shape[0] * 2 // 2  # the symbol, in another object

    def f(x):
        with maybe_enable_thunkify():
            y = x + 1
            return y.expand(torch.sym_max(rows, 1), 3)

    with KeepWhole():
        graph = make_fx(f)(x)
    called = [str(node.target) for node in graph.graph.nodes]
    assert "aten.sym_size.int" in called, graph.code


def test_more_tensors_like_one():
    """As torch would make them: form, type, device and what an operator gives for them; each its own."""
    with FakeTensorMode() as mode:
        value = torch.empty(3, 4, dtype=torch.bfloat16, device="cpu").t()
        make = more_like(value)
        one, other = make(), make()
        assert one is not other
        for made in (one, other):
            assert (made.shape, made.stride(), made.dtype) == (value.shape, value.stride(), value.dtype)
            assert (made.device, made.fake_mode, made.requires_grad) == (value.device, mode, False)
        assert (one + other).stride() == (value + value).stride()
        assert more_like(torch.tensor(2.0)) is None  # its value is known
        assert more_like(torch.empty(2, dtype=torch.complex64).conj()) is None
        assert more_like(torch.empty(2, requires_grad=True)) is None
    assert more_like(torch.empty(2)) is None
    assert more_like(FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(4, 3))) is None  # sizes are symbols


def test_what_an_operator_raised_is_found():
    def fails(x):
        return x @ torch.ones(4, 4)

    try:
        with failing_in_silence():
            torch.compile(fails, backend="eager")(torch.ones(2, 5))
    except Exception as error:  # noqa: BLE001 - torch's classes differ by version
        raised, frame = failed_operator(error)
    assert not type(raised).__module__.startswith("torch")
    assert "5" in str(raised)
    assert (frame.name, frame.line) == ("fails", "return x @ torch.ones(4, 4)")
    assert failed_operator(ValueError("another one")) is None
