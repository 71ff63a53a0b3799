"""Orthogonal polynomials equal eager's, for degrees that are numbers and degrees that are values."""

import pytest
import torch

from ge_converters.decompose.formulas import orthogonal_polynomials as polynomials
from ge_converters.decompose.table import decomposition_table

# Not NaN: eager's kernels return memory that they have not written.
EDGES = [0.0, 1.0, -1.0, 1 - 1e-7, -1 + 1e-7, 1 - 6e-8, -1 + 6e-8, 2.5, float("inf"), -float("inf")]
NUMBERS = (0, 1, 2, 3, 6, 7, 8, 9, 12, 33, 129, -1, 2.7)


def points(dtype, packet):
    """Without the number next to one for shifted polynomials of the fourth kind: eager gives 1 for the limit 2n + 1."""
    edges = [e for e in EDGES if "shifted" not in packet or not 1 - 1e-7 < e < 1]
    return torch.cat([torch.linspace(-1.25, 1.25, 101, dtype=dtype), torch.tensor(edges, dtype=dtype)])


def arguments(packet, overload, dtype):
    x = points(dtype, packet)
    if overload == "n_scalar":
        return [(x, n) for n in NUMBERS]
    if overload == "x_scalar":
        return [(x, torch.arange(-2, 12)) for x in (0.5, 2.0, 1, -1.0)]
    degrees = torch.arange(x.numel()) % 20 - 2
    return [(x, torch.tensor(11)), (x, degrees), (x[:, None], degrees.double()[:5]), (x[:0], degrees[:0])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", polynomials.FORMULAS)
def test_equals_eager(name, dtype):
    packet, overload = name.split(".")
    eager = getattr(getattr(torch.ops.aten, packet), overload)
    for args in arguments(packet, overload, dtype):
        got, want = polynomials.FORMULAS[name](*args), eager(*args)
        if (
            args[1] is NUMBERS[10] and dtype is torch.float32
        ):  # near the end of the type, one overflows before the other
            both = want.isfinite() & got.isfinite()
            got, want = got[both], want[both]
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_whole_numbers_become_the_default_type():
    x = torch.arange(-3, 4)
    torch.testing.assert_close(
        polynomials.FORMULAS["special_hermite_polynomial_he.n_scalar"](x, 4), torch.special.hermite_polynomial_he(x, 4)
    )


def test_each_is_in_the_table():
    table = {str(op) for op in decomposition_table()}
    assert {f"aten.{name}" for name in polynomials.FORMULAS} <= table
