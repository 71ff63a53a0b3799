"""Gradients of slices and selections against eager, over every axis, end and step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ge_converters.decompose.formulas.view_gradients import FORMULAS

aten = torch.ops.aten
SHAPE = (3, 5, 4)
ENDS = [(0, 2), (1, 9), (-2, 10**18), (-9, 3), (4, 4), (9, 12), (2, -1), (None, None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_slices(dim: int, ends: Any, step: int, dtype: torch.dtype) -> None:
    start, end = (0, 10**18) if ends[0] is None else ends
    shape = aten.slice.Tensor(torch.ones(SHAPE), dim, start, end, step).shape
    grad = torch.randn(shape).to(dtype).mT.contiguous().mT  # of another memory order than the result
    given = (grad, list(SHAPE), dim, start, end, step)
    want = aten.slice_backward.default(*given)
    got = FORMULAS["slice_backward.default"](*given)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
@pytest.mark.parametrize("index", [0, 2, -1, -3])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_selections(dim: int, index: int, dtype: torch.dtype) -> None:
    grad = torch.randn(torch.ones(SHAPE).select(dim, index).shape).to(dtype)
    given = (grad, list(SHAPE), dim, index)
    want = aten.select_backward.default(*given)
    got = FORMULAS["select_backward.default"](*given)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == want.stride()
