"""Rules for composite operators that a device has kernels for; the emulator's tests run them on NPU tensors."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from ge_converters.base import device_composites as rules
from ge_converters.decompose.table import decomposition_table

aten = torch.ops.aten
HEADS = torch.randn(2, 4, 5, 8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rule", "cell", "states"), [(rules._lstm_cell, torch.nn.LSTMCell, 2), (rules._gru_cell, torch.nn.GRUCell, 1)]
)
def test_cells_are_torchs(rule, cell, states, bias):
    module = cell(6, 5, bias=bias)
    x, hidden = torch.randn(3, 6), [torch.randn(3, 5) for _ in range(states)]
    given = hidden if states == 2 else hidden[0]
    got = rule(x, given, *module.parameters())
    torch.testing.assert_close(got, module(x, tuple(hidden) if states == 2 else hidden[0]))


@pytest.mark.parametrize(
    ("args", "more"),
    [
        ([HEADS] * 3, {}),
        ([HEADS] * 3, {"is_causal": True, "scale": 0.3}),
        ([*[HEADS] * 3, torch.randn(5, 5)], {}),
        ([*[HEADS] * 3, torch.ones(5, 5).tril().bool()], {}),
        ([*[HEADS[0]] * 3, torch.randn(5, 5)], {}),
        ([HEADS, HEADS[:, :2], HEADS[:, :2]], {"enable_gqa": True}),
        ([HEADS, HEADS, HEADS[..., :3]], {}),
        ([HEADS.mT.contiguous().mT] * 3, {}),
        ([HEADS.transpose(1, 2).contiguous().transpose(1, 2)] * 3, {}),
        ([*[HEADS] * 3, torch.randn(5, 1)], {}),
        ([*[HEADS] * 3, torch.randn(2, 1, 1, 5)], {}),
        ([*[HEADS] * 3, torch.randn(1, 5, 5)], {}),
        ([*[HEADS] * 3, torch.randn(5, 5).t()], {}),
        ([*[HEADS] * 3, torch.randn(5, 5, requires_grad=True)], {}),
        ([HEADS, HEADS[:1], HEADS[:1]], {}),
        ([HEADS, HEADS[:, :1], HEADS[:, :1]], {}),
        ([HEADS[..., :1]] * 3, {}),
        ([HEADS.double()] * 3, {}),
    ],
)
def test_attention_is_what_torch_makes_of_it_on_cpu(args, more):
    calls = (rules._attention, F.scaled_dot_product_attention)
    got, want = (_operators(lambda *a, f=f: f(*a, **more), args) for f in calls)
    assert got == want
    with FakeTensorMode() as mode:
        made, eager = (f(*map(mode.from_tensor, args), **more) for f in calls)
    assert (made.shape, made.stride(), made.dtype) == (eager.shape, eager.stride(), eager.dtype)
    torch.testing.assert_close(*(f(*args, **more) for f in calls))


def _operators(function, args):
    """What AOTAutograd makes of a function, as it makes it of a compiled one."""
    found = []

    def note(gm, _):
        found.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        return gm.forward

    aot_function(function, note)(*args)
    return found


def test_without_such_a_device_there_is_no_rule():
    assert rules.device_composites() == []
    assert aten.softmax.int not in decomposition_table()
