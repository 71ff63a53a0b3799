"""Approximations of special functions equal eager over their whole range, at the edges and in both types."""

import math

import pytest
import torch

from ge_converters.decompose.formulas import special
from ge_converters.decompose.table import decomposition_table

aten = torch.ops.aten
INF = math.inf
# Poles, ends of ranges, zeros of either sign, what overflows, what is not a number.
EDGES = [
    0.0,
    -0.0,
    1e-40,
    1e-6,
    -1e-6,
    2.0,
    2.09,
    -2.09,
    5.0,
    8.33,
    -6.1,
    -26.8,
    60.0,
    103.9,
    1e10,
    INF,
    -INF,
    math.nan,
]


def numbers(dtype):
    torch.manual_seed(1)
    drawn = torch.randn(500, dtype=dtype) * 20
    return torch.cat([torch.tensor(EDGES, dtype=dtype), torch.linspace(-12, 12, 1001, dtype=dtype), drawn])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", special.FORMULAS)
def test_equals_eager(name, dtype):
    x = numbers(dtype)
    function = getattr(aten, name.split(".")[0])
    torch.testing.assert_close(special.FORMULAS[name](x), function(x), equal_nan=True)


@pytest.mark.parametrize("name", special.FORMULAS)
def test_integers_give_the_default_type(name):
    x = torch.arange(-3, 9)
    function = getattr(aten, name.split(".")[0])
    torch.testing.assert_close(special.FORMULAS[name](x), function(x), equal_nan=True)


def test_each_is_in_the_table():
    table = {str(op) for op in decomposition_table()}
    assert {f"aten.{name}" for name in special.FORMULAS} <= table
