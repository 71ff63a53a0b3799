"""LU factors of tall, wide, empty and singular matrices equal eager's, which are LAPACK's, gradients too."""

import pytest
import torch

import torchair

FUNCTIONS = {
    "lu": torch.linalg.lu,
    "factors": torch.linalg.lu_factor,
    "with info": torch.linalg.lu_factor_ex,
    "unpacked": lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)),
}
SHAPES = [(7, 5), (2, 3, 6), (5, 1), (2, 40, 3), (0, 3), (3, 0), (2, 3, 0), (0, 4, 3)]
DTYPES = [torch.float32, torch.float64, torch.complex64]


def compiled(function, dynamic):
    torch._dynamo.reset()
    return torch.compile(function, backend=torchair.get_npu_backend(), dynamic=dynamic, fullgraph=True)


@pytest.mark.night(rows=2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_factors(name, dtype):
    torch.manual_seed(4)
    function = FUNCTIONS[name]
    for number, shape in enumerate(SHAPES):
        x = torch.randn(shape, dtype=dtype)
        torch.testing.assert_close(compiled(function, bool(number % 2))(x), function(x))


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (3, 5)])
def test_factors_of_singular_matrices(shape):
    """Half the pivots tie and one is zero: the exchanges are LAPACK's all the same, and info says where it is."""
    x = torch.tensor([1.0, -1.0]).repeat(sum(shape) * 4)[: shape[0] * shape[1]].reshape(shape)
    x[-1] *= 2
    for name in ("lu", "with info"):
        torch.testing.assert_close(compiled(FUNCTIONS[name], False)(x), FUNCTIONS[name](x))


@pytest.mark.parametrize("name", ["lu", "factors"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5)])
def test_gradients_of_factors(name, shape):
    torch.manual_seed(5)
    leaves = [torch.randn(shape, requires_grad=True)]
    leaves.append(leaves[0].detach().clone().requires_grad_())
    grads = []
    for x, function in zip(leaves, (FUNCTIONS[name], compiled(FUNCTIONS[name], True)), strict=True):
        torch.manual_seed(6)
        sum((part * torch.randn_like(part)).sum() for part in function(x) if part.requires_grad).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


def test_sizes_fixed_for_one_operator_hold_for_the_next():
    """The second operator takes an input whose recorded sizes are still symbols; there is nothing left to fix."""

    def both(factors, pivots, b):
        return torch.linalg.lu_solve(factors, pivots, b), torch.lu_unpack(factors, pivots)[0]

    torch.manual_seed(7)
    run = compiled(both, True)
    for size in (3, 5):
        given = (*torch.linalg.lu_factor(torch.randn(size, size)), torch.randn(size, 2))
        torch.testing.assert_close(run(*given), both(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [(), (2,), (0,)])
def test_right_sides_of_other_symbols(batch):
    """A batch of vectors is one by its rank; its sizes are symbols of their own until torch has compared them."""
    torch.manual_seed(8)
    for right in ((*batch, 4), (*batch, 4, 2), (4,)):
        a, b = torch.randn(*batch, 4, 4), torch.randn(right)
        got = compiled(torch.linalg.solve, True)(a, b)
        torch.testing.assert_close(got, torch.linalg.solve(a, b), rtol=1e-4, atol=1e-4)
