"""What fails on the device says so in Python, and leaves no trace. Run under ``tair emulate``, at every queue level."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_npu

import torchair


def _percentiles() -> Any:
    x = torch.arange(6.0).npu()
    how = {"min_percentile": 0.9, "max_percentile": 0.9, "search_start": 0.7, "search_end": 1.3, "search_step": 0.01}
    return torch_npu.npu_ifmr(x, x, x, x, with_offset=False, **how)


# Error code to a call that ends in it: no kernel, a call that does not fit the schema, a kernel that refuses elements.
FAILING: list[tuple[str, Callable[[], Any]]] = [
    ("500000", lambda: torch.nn.LSTMCell(3, 4).npu()(torch.randn(2, 3).npu())),
    ("500000", lambda: torch.nn.LSTM(3, 4, num_layers=2).npu()(torch.randn(2, 1, 3).npu())),
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


def _taken(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    doubled = x * 2
    return torch.index_select(doubled, 0, places)


ENDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "copy": lambda result: result.cpu(),
    "item": lambda result: result[0].item(),
    "synchronize": lambda result: torch.npu.synchronize(),
}


def _compiled(mode: str, dynamic: bool) -> Callable[..., torch.Tensor]:
    config = torchair.CompilerConfig()
    config.mode = mode
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(_taken, backend=backend, dynamic=dynamic)  # type: ignore[no-any-return]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_that_fails_names_code_operator_line_and_next_step_and_runs_again(end: str, dynamic: bool) -> None:
    x, compiled = torch.arange(6.0), _compiled("max-autotune", dynamic)
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            ENDS[end](compiled(x.npu(), torch.tensor([99]).npu()))
        text = str(caught.value)
        assert "[GE4005] GatherV2 failed on (f32[6], i64[1])" in text
        line = _taken.__code__.co_firstlineno + 2
        assert f"{__file__}:{line} in _taken, return torch.index_select(doubled, 0, places)" in text
        assert text.count("\nNext: ") == 1
        assert compiled(x.npu(), torch.tensor([3]).npu()).cpu().tolist() == [6.0]


@pytest.mark.parametrize("end", ENDS)
def test_an_operator_that_fails_names_code_operator_line_and_next_step(end: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        ENDS[end](_taken(torch.arange(6.0).npu(), torch.tensor([99]).npu()))
    text = str(caught.value)
    assert "[GE4005] aclnnIndexSelect failed on (f32[6], 0, i64[1])" in text
    assert text.count("\nNext: ") == 1
    if os.environ["TASK_QUEUE_ENABLE"] != "2":  # there the operator starts on a thread without lines of Python
        assert f"{__file__}:{_taken.__code__.co_firstlineno + 2} in _taken" in text


@pytest.mark.skipif(
    os.environ.get("TASK_QUEUE_ENABLE") == "2", reason="torch_npu captures nothing at level 2, and says so"
)
@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_captured_operator_that_fails_names_code_operator_and_the_models_line(
    turn: int, end: str, dynamic: bool
) -> None:
    """In the first run and in a later replay; the next replay has right numbers again."""
    x, compiled = torch.arange(6.0), _compiled("reduce-overhead", dynamic)
    for number in range(4):
        if number != turn:
            assert compiled(x.npu(), torch.tensor([number]).npu()).cpu().tolist() == [2.0 * number]
            continue
        with pytest.raises(RuntimeError) as caught:
            ENDS[end](compiled(x.npu(), torch.tensor([99]).npu()))
        text = str(caught.value)
        assert "[GE4005] aclnnIndexSelect failed on (f32[6], 0, i64[1])" in text
        assert f"{__file__}:{_taken.__code__.co_firstlineno + 2} in _taken" in text
        assert text.count("\nNext: ") == 1
