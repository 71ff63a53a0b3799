"""Patterns of distributed models on processes with hccl, and ranks that fail each other. Run under ``tair emulate``.

Some patterns on two processes; all of them on two, four and eight by ``make rank-patterns``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tair_testing import rank_faults, rank_patterns
from tair_testing.ranks import ENDED, Ranks, processes

SOME = (
    "tensor_parallel",
    "decode_loop_dynamic",
    "expert_parallel",
    "context_parallel_bfloat16",
    "fully_sharded_uneven",
)


@pytest.fixture(scope="module")
def patterns() -> Iterator[Ranks]:
    with processes(rank_patterns.__name__, 2, "hccl") as made:
        yield made


@pytest.fixture(scope="module")
def faults() -> Iterator[Ranks]:
    with processes(rank_faults.__name__, rank_faults.RANKS, "hccl") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_patterns(name: str, patterns: Ranks) -> None:
    patterns.check(name)


@pytest.mark.slow
def test_two_nodes() -> None:
    rank_patterns.on_two_nodes("hccl", ("tensor_parallel", "fully_sharded", "tensor_parallel_and_fully_sharded"))


@pytest.mark.slow
@pytest.mark.night(rows=2)
@pytest.mark.parametrize("name", rank_faults.CASES)
def test_all_others_get_an_error(name: str, faults: Ranks) -> None:
    """In time, with rank, collective and line."""
    _, errors = faults.run(name)
    faults.stop()  # none of their groups is whole any more
    assert errors == ["", ENDED if name == "killed" else "", ""], "\n".join(errors)
