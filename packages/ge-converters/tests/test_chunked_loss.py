"""A linear layer with its loss by chunks equals torch's own, gradients included."""

import pytest
import torch
from torch.nn.modules import linear_cross_entropy

from ge_converters.decompose.formulas import chunked_loss

REAL = {
    chunked_loss.loss_and_gradients: linear_cross_entropy._linear_cross_entropy_batch_chunked,
    chunked_loss.losses: linear_cross_entropy._linear_cross_entropy_batch_chunked_no_reduction,
}


def operands(rows, dtype, *, bias, weight):
    torch.manual_seed(4)
    given = [torch.randn(rows, 5), torch.randn(7, 5), torch.randint(0, 7, (rows,))]
    given += [torch.randn(7) if bias else None, torch.rand(7) if weight else None]
    if rows:
        given[2][1] = -100
    return [x.to(dtype) if x is not None and x.is_floating_point() else x for x in given]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [0, 4, 9])
@pytest.mark.parametrize("extras", [False, True])
def test_loss_and_gradients(dtype, reduction, rows, extras):
    given = operands(rows, dtype, bias=extras, weight=extras)
    chunk = 4 if dtype is torch.float32 else 16  # torch adds the gradients of chunks in the half type
    rest = [reduction, -100, 0.0, chunk, "accuracy", torch.float32, False, True, extras, extras]
    found, wanted = (f(*given, *rest) for f in (chunked_loss.loss_and_gradients, REAL[chunked_loss.loss_and_gradients]))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("rows", [0, 4, 9])
@pytest.mark.parametrize("extras", [False, True])
def test_losses(rows, extras):
    given = operands(rows, torch.float32, bias=extras, weight=extras)
    rest = [-100, 4, "accuracy", torch.float32]
    found, wanted = (f(*given, *rest) for f in (chunked_loss.losses, REAL[chunked_loss.losses]))
    torch.testing.assert_close(found, wanted)


def test_gradients_that_nobody_asks_for_are_empty():
    given = operands(4, torch.float32, bias=False, weight=False)
    rest = ["sum", -100, 0.0, 4, "accuracy", torch.float32, False, False, False, False]
    _, *gradients = chunked_loss.loss_and_gradients(*given, *rest)
    assert [tuple(g.shape) for g in gradients] == [(0, 0), (0, 0), (0,)]
