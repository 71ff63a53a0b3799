"""What tools ask of torch's traces."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify
from torch.fx.experimental.symbolic_shapes import ShapeEnv

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
