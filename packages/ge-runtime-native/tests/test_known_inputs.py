"""A yes must be certain: everything that the engine would refuse is a no."""

import pytest
import torch

from ge_runtime.cpu.known_inputs import KnownInputs

GIVEN = (torch.ones(2, 3), torch.ones(4, dtype=torch.int64))


def learned(*shapes):
    known = KnownInputs(shapes or ((2, 3), ("n",)))
    known.learn(GIVEN)
    return known


def test_the_same_kind_of_inputs_fits():
    known = learned()
    assert known.fits(list(GIVEN))
    assert known.fits([torch.zeros(3, 2).t(), torch.zeros(9, dtype=torch.int64)])


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [torch.ones(2, 3)],
        [*GIVEN, torch.ones(1)],
        [torch.ones(2, 4), GIVEN[1]],
        [torch.ones(2, 3, 1), GIVEN[1]],
        [torch.ones(2, 3, dtype=torch.float64), GIVEN[1]],
        [torch.ones(2, 3).to_sparse(), GIVEN[1]],
        [torch.ones(2, 3, device="meta"), GIVEN[1]],
        [GIVEN[0], torch.ones(4, 1, dtype=torch.int64)],
        [GIVEN[0], 3],
        [GIVEN[0], None],
        ["x", GIVEN[1]],
        [GIVEN[0].numpy(), GIVEN[1]],
    ],
)
def test_another_kind_does_not(inputs):
    assert not learned().fits(inputs)


def test_a_tensor_whose_content_was_exchanged_does_not_fit():
    known, x = learned(), torch.ones(2, 3)
    assert known.fits([x, GIVEN[1]])
    x.data = torch.ones(2, 3, dtype=torch.float64)
    assert not known.fits([x, GIVEN[1]])


def test_what_differs_and_is_accepted_is_learned_a_few_times():
    known = learned()
    wanting = [torch.ones(2, 3, requires_grad=True), GIVEN[1]]
    assert not known.fits(wanting)
    known.learn(wanting)
    assert known.fits(wanting)
    for _ in range(20):
        known.learn(GIVEN)
        known.learn(wanting)
    assert not known.fits([torch.ones(5, 3), GIVEN[1]])


def test_sizes_beside_a_free_one_are_compared():
    known = learned(("n", 3), (-1,))
    assert known.fits([torch.ones(7, 3), GIVEN[1]])
    assert not known.fits([torch.ones(7, 4), GIVEN[1]])


def test_nothing_is_learned_without_a_rank_or_of_a_tensor_given_twice():
    assert not learned((2, 3), None).fits(list(GIVEN))
    known = KnownInputs([(2,), (2,)])
    x = torch.ones(2)
    known.learn([x, x])
    assert not known.fits([x, x])
