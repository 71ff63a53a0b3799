"""Random numbers have their distribution, not only their shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.lowering import lower

aten = torch.ops.aten
N = 40_000
LIKE = torch.zeros(N)
DISTRIBUTIONS = {
    "rand": (lambda x: aten.rand([N]) + x * 0, 0.5, 12**-0.5),
    "rand_bf16": (lambda x: aten.rand([N], dtype=torch.bfloat16).float() + x * 0, 0.498, 12**-0.5),
    "randn": (lambda x: aten.randn([N]) + x * 0, 0.0, 1.0),
    "randint": (lambda x: aten.randint.low(-3, 5, [N]) + x, 0.5, (63 / 12) ** 0.5),
    "uniform": (lambda x: aten.uniform(x, -1.0, 3.0), 1.0, 4 * 12**-0.5),
    "normal": (lambda x: aten.normal_functional(x, 2.0, 3.0), 2.0, 3.0),
    "bernoulli": (lambda x: aten.bernoulli.p(x, 0.25), 0.25, 0.1875**0.5),
    "exponential": (lambda x: aten.exponential(x, 2.0), 0.5, 0.5),
    "geometric": (lambda x: aten.geometric(x, 0.25), 4.0, 12**0.5),
    "log_normal": (lambda x: aten.log_normal(x, 0.0, 0.25), 1.0317, 0.2620),
    "poisson": (lambda x: aten.poisson(x + 3.5), 3.5, 3.5**0.5),
    "poisson_f64": (lambda x: aten.poisson((x + 0.2).double()).float(), 0.2, 0.2**0.5),
    "gamma": (lambda x: aten._standard_gamma(x + 2.5), 2.5, 2.5**0.5),
    "binomial": (lambda x: aten.binomial(x + 10, x + 0.3), 3.0, 2.1**0.5),
    "dropout": (lambda x: aten.native_dropout(x + 1, 0.25, True)[0], 1.0, (1 / 3) ** 0.5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_random_numbers_have_their_distribution_and_differ_between_runs(name: str, engine: Any) -> None:
    fn, mean, std = DISTRIBUTIONS[name]
    lowered = lower(make_fx(fn, tracing_mode="fake")(LIKE))
    executable = engine.compile(lowered.graph, {})
    first, second = (executable.run([LIKE])[lowered.outputs[0].ge_index].double() for _ in range(2))
    assert not torch.equal(first, second)
    for drawn in (first, second):
        assert abs(drawn.mean().item() - mean) < 6 * std / N**0.5
        assert abs(drawn.std().item() - std) < 0.06 * std


def test_random_bounds(run: Any) -> None:
    for fn, low, high in ((DISTRIBUTIONS["rand"][0], 0, 1), (DISTRIBUTIONS["rand_bf16"][0], 0, 1)):
        drawn = run(lower(make_fx(fn, tracing_mode="fake")(LIKE)), [LIKE])[0]
        assert drawn.min() >= low
        assert drawn.max() < high


def test_randperm_is_a_permutation(run: Any) -> None:
    lowered = lower(make_fx(lambda x: aten.randperm(50) + x, tracing_mode="fake")(torch.zeros(50, dtype=torch.int64)))
    drawn = run(lowered, [torch.zeros(50, dtype=torch.int64)])[0]
    assert drawn.sort().values.tolist() == list(range(50))


def test_cauchy_has_its_quartiles(run: Any) -> None:
    lowered = lower(make_fx(lambda x: aten.cauchy(x, 1.0, 2.0), tracing_mode="fake")(LIKE))
    drawn = run(lowered, [LIKE])[0]
    quartiles = torch.quantile(drawn, torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), rtol=0, atol=0.15)


@pytest.mark.parametrize(
    ("fn", "parameter", "words"),
    [
        (lambda x: aten.poisson(x), -1.0, "rate"),
        (lambda x: aten._standard_gamma(x), -1.0, "alpha"),
        (lambda x: aten.binomial(x.abs(), x), 1.5, "probs"),
        (lambda x: aten.binomial(x, x * 0), -2.0, "counts"),
    ],
)
def test_parameters_outside_of_a_distribution_are_refused(fn: Any, parameter: float, words: str, engine: Any) -> None:
    x = torch.full((3,), parameter)
    executable = engine.compile(lower(make_fx(fn, tracing_mode="fake")(x)).graph, {})
    with pytest.raises(Exception, match=words):
        executable.run([x])
