"""Matrix functions composed of other ops equal eager."""

import pytest
import torch

from ge_converters.decompose.formulas.matrices import BESIDE_CONVERTERS, FORMULAS

aten = torch.ops.aten
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])


def equal_to_eager(name, *args, table=FORMULAS, **limits):
    wanted = getattr(aten, name)(*args)
    found = table[f"{name}.default"](*args)
    wanted, found = (x if isinstance(x, tuple) else (x,) for x in (wanted, found))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, **limits)
        assert table is FORMULAS or got.stride() == want.stride() or not got.numel()


def drawn(*shape, dtype):
    torch.manual_seed(3)
    return torch.randn(shape, dtype=dtype)


@TYPES
@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 4), (0, 3, 2), (3, 0)])
def test_reflectors(shape, dtype):
    factors, tau = torch.geqrf(drawn(*shape, dtype=dtype))
    equal_to_eager("linalg_householder_product", factors, tau)
    rows = shape[-2]
    for transpose in (False, True):
        equal_to_eager("ormqr", factors, tau, drawn(*shape[:-2], rows, 6, dtype=dtype), True, transpose)
        equal_to_eager("ormqr", factors, tau, drawn(*shape[:-2], 6, rows, dtype=dtype), False, transpose)


@TYPES
@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1.0])
def test_matrix_exp(dtype, scale):
    equal_to_eager("linalg_matrix_exp", drawn(3, 4, 4, dtype=dtype) * scale)


@pytest.mark.parametrize("scale", [3.0, 10.0])
def test_matrix_exp_of_large_matrices_is_as_near_as_eager(scale):
    x = drawn(50, 4, 4, dtype=torch.float32) * scale
    exact = torch.linalg.matrix_exp(x.double())
    size = exact.abs().amax((-1, -2), keepdim=True)
    ours, eager = (
        ((found - exact).abs() / size).max() for found in (FORMULAS["linalg_matrix_exp.default"](x), x.matrix_exp())
    )
    assert ours <= 2 * eager


def test_matrix_exp_that_decays():
    equal_to_eager("linalg_matrix_exp", torch.diag(torch.tensor([-1e5, -3.0, 0.5])))


@TYPES
@pytest.mark.parametrize("shape", [(2, 3, 5), (0, 3), (2, 0, 3), (0, 2, 3)])
@pytest.mark.parametrize("name", ["linalg_lu", "linalg_lu_factor_ex"])
def test_factors_of_wide_matrices(name, shape, dtype):
    equal_to_eager(name, drawn(*shape, dtype=dtype), table=BESIDE_CONVERTERS)


@pytest.mark.parametrize("name", ["linalg_lu", "linalg_lu_factor_ex"])
def test_rows_of_wide_matrices_are_moved(name):
    """A product with the permutation would spread what is not finite over its column."""
    x = torch.tensor([[1.0, 2, float("inf")], [4, 5, 6]])
    equal_to_eager(name, x, table=BESIDE_CONVERTERS, equal_nan=True)


@pytest.mark.parametrize("name", ["linalg_lu", "linalg_lu_factor_ex"])
def test_other_matrices_are_left_to_the_converters(name):
    for shape in ((3, 3), (4, 2)):
        assert BESIDE_CONVERTERS[f"{name}.default"](torch.ones(shape)) is NotImplemented


def test_gcd_of_long_numbers():
    torch.manual_seed(1)
    equal_to_eager("gcd", *torch.randint(-(2**62), 2**62, (2, 300)), table=BESIDE_CONVERTERS)
    equal_to_eager("gcd", torch.arange(-6, 7)[:, None], torch.arange(-4, 9)[None], table=BESIDE_CONVERTERS)


def test_gcd_of_neighbours_that_need_most_steps():
    fibonacci = [1, 1]
    while sum(fibonacci[-2:]) < 2**63:
        fibonacci.append(sum(fibonacci[-2:]))
    small, large = torch.tensor(fibonacci[:-1]), torch.tensor(fibonacci[1:])
    equal_to_eager("gcd", large, small, table=BESIDE_CONVERTERS)
    equal_to_eager("gcd", small, large, table=BESIDE_CONVERTERS)


def test_gcd_of_short_numbers_is_left_to_the_converter():
    assert BESIDE_CONVERTERS["gcd.default"](*torch.ones(2, 3, dtype=torch.int32)) is NotImplemented
