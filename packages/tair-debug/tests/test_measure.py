"""Distances of tensors against numpy, and the edges: NaN, infinity, integers, other shapes."""

import math

import numpy as np
import pytest
import torch

from tair_debug import measure as module
from tair_debug.measure import Tolerance, measure

nan, inf = float("nan"), float("inf")


def test_numbers(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 100)
    a, b = torch.randn(37, 19, dtype=torch.float64), torch.randn(37, 19, dtype=torch.float64)
    found = measure(a, b)
    x, y = a.numpy().ravel(), b.numpy().ravel()
    assert math.isclose(found.max_abs, np.abs(x - y).max())
    assert math.isclose(found.max_rel, np.abs(x - y).max() / np.abs(y).max())
    assert math.isclose(found.cosine, x @ y / np.linalg.norm(x) / np.linalg.norm(y), rel_tol=1e-12)
    assert found.bad == int((np.abs(x - y) > 1e-8 + 1e-6 * np.abs(y)).sum())


@pytest.mark.parametrize(
    ("got", "expected", "ok"),
    [
        ([1.0, nan, inf], [1.0, nan, inf], True),
        ([1.0, nan], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, nan], False),
        ([inf], [-inf], False),
        ([inf], [1.0], False),
        ([1.0005], [1.0], True),
        ([1.01], [1.0], False),
        ([], [], True),
        ([0.0], [0.0], True),
    ],
)
def test_floats(got, expected, ok):
    assert measure(torch.tensor(got), torch.tensor(expected)).ok is ok


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_must_be_equal(dtype):
    a = torch.tensor([1, 0], dtype=dtype)
    assert measure(a, a.clone()).ok
    assert not measure(a, torch.tensor([0, 0], dtype=dtype)).ok


def test_large_integers():
    a = torch.tensor([2**60], dtype=torch.int64)
    assert not measure(a + 1, a).ok


def test_other_shapes_and_types():
    assert measure(torch.ones(2), torch.ones(3)).why == "got float32[2], expected float32[3]"
    assert measure(torch.ones(2), torch.ones(2, dtype=torch.float16)).why == "got float32[2], expected float16[2]"


def test_tolerances():
    a, b = torch.tensor([1.05]), torch.tensor([1.0])
    assert measure(a, b, Tolerance(rtol=0.1)).ok
    assert measure(a, b, Tolerance(atol=0.1)).ok
    assert not measure(a, b, Tolerance(rtol=0.01, atol=0.01)).ok
    assert Tolerance().of(torch.int32) == (0.0, 0.0)


def test_complex_and_json():
    a = torch.tensor([1 + 2j])
    assert measure(a, a).cosine == pytest.approx(1)
    assert measure(torch.tensor([inf]), torch.tensor([1.0])).as_dict()["max_abs"] == "inf"
