"""Programs of jagged tensors: eager's values, and its gradients where eager has them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tair_testing.compiling import compiled

SQUARE = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))


def rows(lengths=(3, 5, 2)):
    torch.manual_seed(0)
    return torch.nested.nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged, requires_grad=True)


CASES = {
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.5),
    "amax": lambda x: x.amax(dim=1),
    "amin": lambda x: x.amin(dim=1),
    "values": lambda x: x.values() * 2,
    "pointwise": lambda x: (x * 2).sin(),
    "linear": lambda x: F.linear(x, SQUARE),
    "matmul": lambda x: x @ SQUARE,
    "softmax of columns": lambda x: F.softmax(x, dim=-1),
    "softmax of rows": lambda x: F.softmax(x, dim=1),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "pooled after a layer": lambda x: F.linear(x, SQUARE).relu().amax(dim=1),
}
FORWARD_ONLY = {  # eager has no gradient of these
    "sum": lambda x: x.sum(dim=1),
    "mean": lambda x: x.mean(dim=1),
    "sum of products": lambda x: (x * x).sum(dim=1),
}


def dense(x):
    return x.values() if x is not None and x.is_nested else x


@pytest.mark.parametrize("case", {**CASES, **FORWARD_ONLY})
def test_values(case):
    fn, x = {**CASES, **FORWARD_ONLY}[case], rows().detach()
    torch.testing.assert_close(dense(compiled(fn)(x)), dense(fn(x)))


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    found = []
    for call in (CASES[case], compiled(CASES[case])):
        x = rows()
        out = dense(call(x))
        (out * torch.arange(float(out.numel())).view(out.shape).sin()).sum().backward()
        found.append(dense(x.grad))
    torch.testing.assert_close(found[1], found[0])


def test_other_lengths():
    call = compiled(CASES["padded"], dynamic=True)
    for lengths in ((3, 5, 2), (4, 1, 6), (2, 2, 9)):
        x = rows(lengths).detach()
        torch.testing.assert_close(call(x), CASES["padded"](x))


@pytest.mark.parametrize("case", FORWARD_ONLY)
def test_eager_has_no_gradient(case):
    """Of what is compared in the forward only; a torch that has one moves its row to the others."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        dense(FORWARD_ONLY[case](rows())).sum().backward()
