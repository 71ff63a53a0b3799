"""Learned and observed fake quantisation: torch's own kernels are the measure, for ranges of all sizes."""

from __future__ import annotations

import itertools

import pytest
import torch

from ge_converters.decompose.formulas.learned_quantization import FORMULAS

aten = torch.ops.aten
OBSERVED = FORMULAS["_fused_moving_avg_obs_fq_helper_functional.default"]
RANGES = [(-128, 127), (0, 255), (-127, 127), (-8, 7)]
KINDS = list(itertools.product((False, True), (False, True), RANGES))


def passes(rows):
    """Tensors of sizes from 1e-6 to 1e3, around zero and beside it, and state of a first and of a later pass."""
    draw = torch.Generator().manual_seed(5)
    for power, beside, first in itertools.product(range(-6, 4), (-3, 0, 3), (False, True)):
        size = 10.0**power
        x = (torch.randn(5, 4, generator=draw) + beside) * size
        n = 5 if rows else 1
        low = torch.full((n,), torch.inf) if first else -torch.rand(n, generator=draw) * size
        high = torch.full((n,), -torch.inf) if first else torch.rand(n, generator=draw) * size
        yield x, [low, high, torch.ones(n), torch.zeros(n, dtype=torch.int32)]


@pytest.mark.parametrize(("rows", "symmetric", "bounds"), KINDS)
def test_observed_ranges_scales_and_results(rows, symmetric, bounds):
    for x, state in passes(rows):
        for observing, faking in ((1, 1), (1, 0), (0, 1), (0, 0)):
            switches = torch.tensor([observing]), torch.tensor([faking])
            mine, theirs = ([t.clone() for t in state] for _ in range(2))
            rest = (0.01, *bounds, 0, rows, symmetric)
            want = aten._fused_moving_avg_obs_fq_helper(x, *switches, *theirs, *rest)
            got = OBSERVED(x, *switches, *mine, *rest)
            for g, w in zip(got, (*want, *theirs), strict=True):
                torch.testing.assert_close(g, w, rtol=1e-6, atol=0)


def test_channels_along_another_axis_are_left_to_the_refusal():
    state = [torch.zeros(4), torch.ones(4), torch.ones(4), torch.zeros(4, dtype=torch.int32)]
    on = torch.tensor([1])
    assert OBSERVED(torch.randn(5, 4), on, on, *state, 0.01, 0, 255, 1, True, False) is NotImplemented


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("channels", [False, True])
def test_learned(channels, bounds):
    name = f"_fake_quantize_learnable_per_{'channel' if channels else 'tensor'}_affine"
    draw = torch.Generator().manual_seed(6)
    n = 5 if channels else 1
    for shift in (-300.0, -7.7, -7.5, -0.3, 0.5, 1.5, 2.5, 300.0):
        x, grad = torch.randn(3, 5, generator=draw) * 3, torch.randn(3, 5, generator=draw)
        args = (torch.rand(n, generator=draw) * 0.1 + 0.005, torch.full((n,), shift), *((1,) if channels else ()))
        args = (*args, *bounds, 0.5)
        torch.testing.assert_close(FORMULAS[f"{name}.default"](x, *args), getattr(aten, name)(x, *args))
        got = FORMULAS[f"{name}_backward.default"](grad, x, *args)
        want = getattr(aten, f"{name}_backward")(grad, x, *args)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=2e-5)  # sums of terms up to 100, in another order
