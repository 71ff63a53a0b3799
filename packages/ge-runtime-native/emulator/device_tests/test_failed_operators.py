"""An operator that fails leaves no trace: twenty after it have right values. Run under ``tair emulate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_npu


def _percentiles() -> Any:
    x = torch.arange(6.0).npu()
    how = {"min_percentile": 0.9, "max_percentile": 0.9, "search_start": 0.7, "search_end": 1.3, "search_step": 0.01}
    return torch_npu.npu_ifmr(x, x, x, x, with_offset=False, **how)


# Error code to a call that ends in it: no kernel, a call that does not fit the schema, a kernel that refuses elements.
FAILING: list[tuple[str, Callable[[], Any]]] = [
    ("500000", lambda: torch.nn.LSTMCell(3, 4).npu()(torch.randn(2, 3).npu())),
    ("500000", lambda: torch.nn.LSTM(3, 4).npu()(torch.randn(2, 1, 3).npu())),
    ("100000", _percentiles),
    ("507015", lambda: torch.index_select(torch.arange(6.0).npu(), 0, torch.tensor([99]).npu())),
    ("507015", lambda: torch.nn.functional.nll_loss(torch.randn(2, 3).npu(), torch.tensor([0, 9]).npu())),
]


def _to_the_end(call: Callable[[], Any]) -> None:
    call()
    torch.npu.synchronize()


@pytest.mark.parametrize(("code", "fails"), FAILING)
def test_twenty_operators_after_one_that_failed(code: str, fails: Callable[[], Any]) -> None:
    x = torch.arange(6.0)
    on_device = x.npu()
    with pytest.raises(RuntimeError, match=f"error code is {code}"):
        _to_the_end(fails)
    for i in range(10):
        assert torch.equal((on_device + i).cpu(), x + i)
        assert torch.equal((on_device * i).sum().cpu(), (x * i).sum())
