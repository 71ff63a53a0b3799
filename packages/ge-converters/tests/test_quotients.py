"""The formula for quotients of integers, which only some releases of torch need."""

from __future__ import annotations

import pytest
import torch

from ge_converters.decompose.formulas.quotients import quotient


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_quotients_of_integers(dtype):
    a, b = torch.tensor([[5, 4, 0]]).to(dtype), torch.tensor([[2], [1]]).to(dtype)
    for other in (b, b.to(torch.int16), 2, True):
        torch.testing.assert_close(quotient(a, other), a / other)


def test_other_calls_stay_whole():
    x = torch.tensor([3, 4])
    for args in ((x.float(), 2), (x, x.half()), (x.float(), x.float()), (x, 0.5), (x, x * 1j)):
        assert quotient(*args) is NotImplemented
