"""How far a result may be from eager's, against sums in float64 and roundings that are known."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tair_debug import judge
from tair_debug.measure import Tolerance, measure

aten = torch.ops.aten
EPS = torch.finfo(torch.float32).eps


def judged(got, target, *args, pointwise=False):
    expected = target(*args)
    return judge.judge(
        got,
        expected,
        Tolerance(),
        judge.truth(target, args, {}),
        pointwise=pointwise,
        terms=judge.truth(target, args, {}, terms=True),
    )


def test_one_rounding_of_bfloat16_is_no_fault_and_eight_are():
    """The type's fixed tolerance would let 0.03 pass."""
    x = torch.linspace(1, 2, 50).bfloat16()
    right, eps = x.sqrt(), torch.finfo(torch.bfloat16).eps
    for units, ok in ((1, True), (8, False)):
        got = (right.double() * (1 + units * eps)).bfloat16()
        assert judged(got, aten.sqrt.default, x, pointwise=True).ok is ok
        assert measure(got, right).ok or units == 8


def test_a_sum_that_cancels_may_lose_what_its_terms_lose():
    """Ours is the same sum in another order, with a small result of large terms."""
    x = torch.cat([torch.randn(5000) * 1e4, torch.ones(1)])
    x = torch.cat([x, -x[:-1]])
    total, again = x.sum(), x[torch.randperm(x.numel())].cumsum(0)[-1]
    assert not measure(again, total).ok
    assert judged(again, aten.sum.default, x).ok
    assert not judged(total + 1e4, aten.sum.default, x).ok


def test_what_is_not_finite_must_be_so_in_both():
    x = torch.tensor([0.0, 1.0, 2.0])
    inf = x.log()
    assert judged(inf.clone(), aten.log.default, x).ok
    assert not judged(torch.tensor([-1e38, 0, 0.6931472]), aten.log.default, x).ok
    assert not judged(torch.tensor([float("-inf"), 0, float("nan")]), aten.log.default, x).ok


def test_numbers_of_the_user_decide_alone():
    x = torch.tensor([1.0])
    assert judge.judge(x + 0.5, x, Tolerance(atol=1.0), x.double()).ok
    assert not judge.judge(x + EPS, x, Tolerance(rtol=0.0, atol=0.0), x.double()).ok


def test_without_a_truth_the_type_decides():
    x = torch.ones(2, dtype=torch.float64)
    assert judge.truth(aten.rand_like.default, (x,), {}) is None
    assert judge.judge(x.float() * 1.0005, x.float(), Tolerance(), None).ok
    assert not judge.judge(x + 1e-3, x, Tolerance(), x).ok


@pytest.mark.parametrize(
    ("target", "args", "result"),
    [
        (aten.sort.default, (torch.tensor([2.0, 1.0, 2.0]),), 1),
        (aten.topk.default, (torch.tensor([2.0, 1.0, 2.0]), 2), 1),
        (aten.max.dim, (torch.tensor([[2.0, 1.0, 2.0]]), 1), 1),
        (aten.argmax.default, (torch.tensor([2.0, 1.0, 2.0]),), None),
    ],
)
def test_indices_of_equal_keys(target, args, result):
    expected = target(*args)
    expected = expected if result is None else expected[result]
    swapped = torch.where(expected == 0, 2, torch.where(expected == 2, 0, expected))
    assert not torch.equal(swapped, expected)
    assert judge.same_by_value(target, args, {}, swapped, expected)
    assert not judge.same_by_value(target, args, {}, torch.full_like(expected, 1), expected)
    assert not judge.same_by_value(target, args, {}, expected + 7, expected)
    if target in (aten.sort.default, aten.topk.default):  # the same element twice
        twice = expected.clone()
        twice[twice == 0] = 2
        assert not judge.same_by_value(target, args, {}, twice, expected)


def test_a_stable_sort_has_one_order():
    x = torch.tensor([2.0, 2.0])
    expected = aten.sort.stable(x, stable=True)[1]
    assert not judge.same_by_value(aten.sort.stable, (x,), {"stable": True}, expected.flip(0), expected)


@pytest.mark.parametrize(
    ("fn", "random"),
    [
        (lambda x: torch.rand_like(x), True),
        (lambda x: torch.nn.functional.dropout(x, 0.3), True),
        (lambda x: aten.native_dropout(x, 0.3, False)[0], False),
        (lambda x: aten.native_dropout(x, 0.0, True)[0], False),
        (lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), False),
        (lambda x: x.exp(), False),
    ],
)
def test_random_is_said_of_what_draws(fn, random):
    gm = make_fx(fn)(torch.rand(1, 2, 4, 4))
    assert any(judge.draws(n) for n in gm.graph.nodes) is random
