"""Between jagged and padded form: torch's own operators are the measure, and gradients go through."""

import pytest
import torch

from ge_converters.decompose.formulas.jagged import jagged, padded

aten = torch.ops.aten
OFFSETS = [[0, 2, 5], [0, 0, 3, 3, 4], [0, 4]]


@pytest.mark.parametrize("longest", [1, 3, 5])
@pytest.mark.parametrize("width", [(), (2,), (2, 3)])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_padding(offsets, width, longest):
    values, ends = torch.randn(offsets[-1], *width), torch.tensor(offsets)
    got = padded(values, [ends], [longest], -3.5)
    for row, (start, end) in enumerate(zip(offsets, offsets[1:])):
        own = values[start:end][:longest]
        torch.testing.assert_close(got[row, : len(own)], own)
        assert (got[row, len(own) :] == -3.5).all()
    if len(width) == 1:  # the form that torch's kernel for the CPU knows
        torch.testing.assert_close(got, aten._jagged_to_padded_dense_forward(values, [ends], [longest], -3.5))


@pytest.mark.parametrize("longest", [2, 3, 5])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_back(offsets, longest):
    dense, ends = torch.randn(len(offsets) - 1, longest, 2), torch.tensor(offsets)
    got = jagged(dense, [ends], offsets[-1])
    for row, (start, end) in enumerate(zip(offsets, offsets[1:])):
        kept = min(end - start, longest)
        torch.testing.assert_close(got[start : start + kept], dense[row, :kept])
        assert (got[start + kept : end] == 0).all()


@pytest.mark.parametrize("offsets", OFFSETS)
def test_gradients(offsets):
    """Those of the same rows cut out, padded and put together one by one."""
    ends, longest = torch.tensor(offsets), 3
    rows = list(zip(offsets, offsets[1:]))
    values = torch.randn(offsets[-1], 2, requires_grad=True)
    want = torch.stack(
        [torch.nn.functional.pad(values[a:b][:longest], (0, 0, 0, max(0, longest - b + a))) for a, b in rows]
    )
    weight = torch.randn(want.shape)
    (expected,) = torch.autograd.grad((want * weight).sum(), values)
    (got,) = torch.autograd.grad((padded(values, [ends], [longest]) * weight).sum(), values)
    torch.testing.assert_close(got, expected)

    dense = torch.randn(len(rows), longest, 2, requires_grad=True)
    weight = torch.randn(offsets[-1], 2)
    kept = [(dense[k, : min(b - a, longest)] * weight[a : a + longest][: b - a]).sum() for k, (a, b) in enumerate(rows)]
    (expected,) = torch.autograd.grad(sum(kept), dense)
    (got,) = torch.autograd.grad((jagged(dense, [ends], offsets[-1]) * weight).sum(), dense)
    torch.testing.assert_close(got, expected)
