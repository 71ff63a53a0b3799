"""Kernels with hostile operands: a part of ``make fuzz-kernels``, and that a process which ends is noticed."""

from __future__ import annotations

import ctypes
from collections import Counter

import pytest
import torch

from ge_graph import DataType
from ge_runtime.cpu import kernel, registry
from labs.fuzz import kernels
from labs.fuzz.kernel_calls import KernelCall, calls


@pytest.fixture(scope="module")
def known() -> dict[str, list[KernelCall]]:
    return calls(forms=False)


def test_hostile_calls_end_in_results_or_our_errors(known) -> None:
    seeds = range(7, 40_000, 401)  # of all families
    outcomes = list(kernels.run(seeds, known))
    assert len(outcomes) == len(seeds)
    wrong = [
        f"{seed}: {outcome} {kernels.draw(seed, known)}"
        for seed, outcome in outcomes
        if outcome.status not in ("result", "refused")
    ]
    assert not wrong
    assert Counter(outcome.status for _, outcome in outcomes)["result"] > 10


def test_calls_end_after_a_time(known, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_FEW", 3)
    monkeypatch.setattr(kernels, "run", lambda seeds, *_: [(s, kernels.FuzzOutcome("result")) for s in seeds])
    assert [seed for seed, _ in kernels._for(7, known, 1.0, 0.0)] == [7, 8, 9]


def test_calls_are_the_same_in_every_run(known) -> None:
    for seed in range(0, 3000, 97):
        assert str(kernels.draw(seed, known)) == str(kernels.draw(seed, known))


@pytest.mark.parametrize(
    ("act", "status"), [(lambda: ctypes.string_at(0), "signal"), (lambda: 1 / 0, "refused"), (lambda: None, "result")]
)
def test_what_a_kernel_does_is_noticed(act, status, monkeypatch) -> None:
    @kernel("Abs", override=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        act()
        return x.clone()

    x = torch.ones(2)
    call = KernelCall("Abs", (x,), {}, (DataType.DT_FLOAT,), {})
    monkeypatch.setattr(kernels, "draw", lambda seed, known: call)
    try:
        ((_, outcome),) = kernels.run([0], {})
    finally:
        registry.unregister("Abs")
    assert outcome.status == status
