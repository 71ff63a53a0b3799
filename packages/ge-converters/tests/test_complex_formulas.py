"""Formulas for complex arguments against eager, and that real arguments are left to the converters."""

import pytest
import torch

from ge_converters.decompose.formulas import complex_numbers

aten = torch.ops.aten


def _z(*shape):
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))


INDEX = torch.tensor([0, 2, 0])
CASES = [
    ("index_add.default", (_z(3, 4), -2, INDEX, _z(3, 4)), {"alpha": 2 + 1j}),
    ("index_add.default", (_z(3, 4, 2)[..., 0], 1, torch.tensor([3, 3]), _z(3, 2)), {"alpha": -1}),
    ("index_add.default", (_z(), 0, torch.tensor([0]), _z()), {}),
    ("var.correction", (_z(3, 4), [1]), {"correction": 1}),
    ("var.correction", (_z(3, 4),), {"correction": 0}),
    ("var_mean.correction", (_z(3, 4), [0]), {"correction": 2, "keepdim": True}),
    ("std.correction", (_z(3, 4), [-1]), {}),
    ("nonzero.default", (torch.tensor([[0j, 1j], [2 + 0j, 0j]]),), {}),
    ("nonzero_static.default", (torch.tensor([0j, 1j, 2]),), {"size": 3, "fill_value": -7}),
    ("addcmul.default", (_z(3), _z(2, 3), _z(3)), {"value": 0.5 - 1j}),
    ("addcdiv.default", (_z(3), _z(2, 3), _z(3)), {"value": 2}),
    ("silu.default", (_z(5),), {}),
    ("linspace.default", (1 + 1j, 3, 5), {}),
    ("linspace.default", (0.0, 1.0, 4), {"dtype": torch.complex128}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_equals_eager(name, args, kwargs):
    packet, overload = name.split(".")
    expected = getattr(getattr(aten, packet), overload)(*args, **kwargs)
    torch.testing.assert_close(complex_numbers.BESIDE_CONVERTERS[name](*args, **kwargs), expected)


def test_every_formula_is_tested():
    assert {name for name, _, _ in CASES} == set(complex_numbers.BESIDE_CONVERTERS)


@pytest.mark.parametrize("name", complex_numbers.BESIDE_CONVERTERS)
def test_real_arguments_are_left_to_the_converter(name):
    args, kwargs = next((a, k) for n, a, k in CASES if n == name)
    real = [a.real if isinstance(a, (torch.Tensor, complex)) and a is not INDEX else a for a in args]
    assert complex_numbers.BESIDE_CONVERTERS[name](*real, **kwargs) is NotImplemented
