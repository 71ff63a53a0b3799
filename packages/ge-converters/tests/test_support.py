"""Declared forms turn into real calls."""

import pytest
import torch

from ge_converters.base.support import BF16, BOOL, C64, F32, I32, I64, U8, Support


def test_a_form_reads_like_the_call():
    assert repr(Support(F32(2, 2), [I64(3, high=2)], 2.0, alpha=2)) == (
        "Support(F32(2, 2), [I64(3, high=2)], 2.0, alpha=2)"
    )


def test_the_same_seed_gives_the_same_arguments():
    form = Support(F32(2, 3), [BF16(4), BOOL(2)], other=C64(2))
    (a, b), k = form.make(7)
    (a2, b2), k2 = form.make(7)
    assert torch.equal(a, a2)
    assert all(torch.equal(x, y) for x, y in zip(b, b2))
    assert torch.equal(k["other"], k2["other"])
    assert not torch.equal(a, form.make(8)[0][0])


@pytest.mark.parametrize("factory", [F32, BF16, I32, U8])
def test_bounds_hold(factory):
    values = factory(1000, low=1, high=3).make(torch.Generator().manual_seed(0)).float()
    assert values.min() >= 1
    assert values.max() <= 3


def test_fractional_bounds_of_integers_leave_something_to_draw():
    assert I64(4, low=0.0, high=0.5).make(torch.Generator()).tolist() == [0, 0, 0, 0]


def test_fixed_values_and_strides():
    made = F32(value=[[1, 2], [3, 4]]).make(torch.Generator())
    assert made.tolist() == [[1, 2], [3, 4]]
    laid_out = F32(2, 3, strides=(1, 2)).make(torch.Generator())
    assert laid_out.stride() == (1, 2)


def test_stand_ins_are_found_in_lists():
    form = Support(F32(1), [F32(2), None, (I64(3),)], x=F32(4))
    assert [t.shape for t in form.stand_ins()] == [(1,), (2,), (3,), (4,)]
