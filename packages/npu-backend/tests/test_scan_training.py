"""Training through ``scan``: results and gradients of every kind of body are those of ``aot_eager``."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

torch.manual_seed(0)
GRU, LSTM, CONV = nn.GRUCell(4, 4), nn.LSTMCell(4, 4), nn.Conv1d(2, 2, 3, padding=1)
PARAMETERS = [p for m in (GRU, LSTM, CONV) for p in m.parameters()]


def gru(carry, x):
    new = GRU(x, carry)
    return new, new * 2


def lstm(carry, x):
    hidden, cell = LSTM(x, carry)
    return (hidden, cell), hidden.clone()


def chunks(carry, x):
    a, b = x.chunk(2, 1)
    return carry + torch.cat([b, a], 1), a * b


def splits(carry, x):
    a, b = x.split([1, 3], 1)
    return carry * 0.5 + torch.cat([b, a], 1), a.sin()


def slices(carry, x):
    return carry + x[:, 1:].sum(), x[:, :2] * carry[:, 2:]


def in_place(carry, x):
    y = x.clone()
    y.add_(carry)
    return y * 2, y.sin()


def attention(carry, x):
    new = F.scaled_dot_product_attention(x, carry, carry)
    return (carry + new) * 0.5, new.clone()


def convolution(carry, x):
    new = (CONV(x) + carry).tanh()
    return new, new.sum(1)


CASES = {
    "gru": (gru, [(3, 4)], (3, 4)),
    "lstm": (lstm, [(3, 4), (3, 4)], (3, 4)),
    "chunks": (chunks, [(3, 4)], (3, 4)),
    "splits": (splits, [(3, 4)], (3, 4)),
    "slices": (slices, [(3, 4)], (3, 4)),
    "in place": (in_place, [(3, 4)], (3, 4)),
    "attention": (attention, [(1, 2, 3, 4)], (1, 2, 3, 4)),
    "convolution": (convolution, [(3, 2, 4)], (3, 2, 4)),
}


def outcome(case, backend):
    body, carries, size = CASES[case]
    torch._dynamo.reset()
    torch.manual_seed(1)
    start = [torch.randn(c) for c in carries]
    xs = torch.randn(5, *size).requires_grad_()
    init = tree_map(lambda t: t.requires_grad_(), start[0] if len(start) == 1 else tuple(start))
    for p in PARAMETERS:
        p.grad = None
    call = torch.compile(lambda i, x: torch._higher_order_ops.scan(body, i, x), backend=backend, fullgraph=True)
    results = tree_leaves(call(init, xs))
    sum((r * torch.arange(float(r.numel())).view(r.shape).sin()).sum() for r in results).backward()
    return [*results, xs.grad, *(t.grad for t in tree_leaves(init)), *(p.grad for p in PARAMETERS)]


@pytest.mark.night(rows=7)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_as_aot_eager(case):
    for got, want in zip(outcome(case, "npu"), outcome(case, "aot_eager"), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)
