"""One GE operator as a graph of its own, run by the embedded engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import EngineError, Graph, building, ops
from ge_graph.dtypes import BY_TORCH_NAME
from ge_graph.ir import Tensor
from ge_runtime.cpu import CpuEngine
from ge_runtime.cpu.engine import CpuExecutable


def run_operator(op: str, *operands: Any, **attrs: Any) -> Any:
    """Build ``op`` from torch tensors (graph inputs), lists of them, and Python values (constants); run it.

    Returns what the operator gives: one tensor, or a list of them.
    """
    graph, feeds = Graph("case"), []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            feeds.append(value)
            dtype = BY_TORCH_NAME[str(value.dtype).removeprefix("torch.")]
            return ops.Data(index=len(feeds) - 1, dtype=dtype, shape=tuple(value.shape))
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, torch.Tensor) for v in value):
            return [place(v) for v in value]
        return value

    with building(graph):
        found = getattr(ops, op)(*(place(v) for v in operands), **attrs)
        graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    results = CpuEngine().compile(graph, {}).run(feeds)
    return results[0] if len(results) == 1 else results


@pytest.fixture
def run() -> Callable[..., Any]:
    """``run("MatMul", a, b, transpose_x1=True)``."""
    return run_operator


_single = CpuExecutable.run
_RUN_ONCE = (
    "test_printing",
    "test_conformance",
    "test_faults",
    "test_host",
    "test_written_inputs",
    "test_inductor",
    "test_limits",
    "test_profiled_runs",
)  # a run writes to the terminal or into its inputs, is stopped, or is repeated there with other values


def _other_values(inputs: Sequence[Any], shift: int) -> list[Any]:
    """The same tensors with their elements moved along: other values of the same kind, in memory of their own."""
    moved = []
    for value in inputs:
        given = torch.as_tensor(value).detach()
        same = given.clone()
        moved.append(torch.roll(given.reshape(-1), shift).reshape(given.shape) if given.numel() > 1 else same)
    return moved


def _outcome(executable: CpuExecutable, inputs: Sequence[Any]) -> tuple[str, list[Any], list[Any]]:
    """Error code, results, and inputs as the run leaves them."""
    inputs = [v.clone() for v in inputs]
    torch.manual_seed(0)
    try:
        return "", _single(executable, inputs), inputs
    except EngineError as error:
        return error.code, [], inputs


def _three_times(self: CpuExecutable, inputs: Sequence[Any]) -> Any:
    """Run, and then run twice more with other values: a fresh executable, in its first run, must give the same."""
    usual = isinstance(inputs, (list, tuple)) and all(isinstance(v, (torch.Tensor, np.ndarray)) for v in inputs)
    others = [_other_values(inputs, shift) for shift in (1, 2)] if usual else []
    results = _single(self, inputs)
    for fed in others:
        fresh = CpuExecutable(self._graph, self._order, numbers=self._numbers)
        later, first = _outcome(self, fed), _outcome(fresh, fed)
        assert later[0] == first[0]
        for got, want in zip([*later[1], *later[2]], [*first[1], *first[2]], strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    return results


@pytest.fixture(autouse=True)
def every_graph_runs_three_times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a graph uses another program than the later ones; every test compares both."""
    if request.module.__name__.rpartition(".")[2] not in _RUN_ONCE:
        monkeypatch.setattr(CpuExecutable, "run", _three_times)
