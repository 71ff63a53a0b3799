"""Patterns of distributed models on processes with gloo, and ranks that fail each other.

On two processes, symbolic sizes and bfloat16 at night; on four and eight processes with ``TAIR_WHOLE=1``.
"""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from ge_graph.errors import EngineError
from tair_testing import rank_patterns
from tair_testing.compiling import compiled
from tair_testing.ranks import WORLD, Cases

case = Cases()
WHOLE = bool(os.environ.get("TAIR_WHOLE"))


@case()
def a_rank_that_never_comes():
    """The others get an error within the group's time, no matter what they wait in."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))

    def f(x):
        return fc.all_reduce(x, "sum", group) * 2

    if dist.get_rank() == 0:
        with pytest.raises(EngineError, match=r"(?is)GE4005.*HcomAllReduce.*(timed out|timeout)") as caught:
            compiled(f)(torch.ones(3))
        assert "this is rank 0; rank 1 did not come" in str(caught.value)
        assert f"{__file__}:" in str(caught.value)


@case()
def ranks_in_other_collectives():
    """Each says where the other stands."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))

    def gathers(x):
        return fc.all_gather_tensor(x, 0, group) * 2

    def adds(x):
        return fc.all_reduce(x, "sum", group) * 2

    if (rank := dist.get_rank()) < 2:
        with pytest.raises(EngineError, match="GE4005") as caught:
            compiled(gathers if rank else adds)(torch.ones(100 if rank else 3))
        there = f"{(gathers, adds)[rank].__code__.co_filename}:{(gathers, adds)[rank].__code__.co_firstlineno + 1}"
        other = f"rank {1 - rank} failed in {'HcomAllReduce' if rank else 'HcomAllGather'} at {there}"
        assert other in str(caught.value), caught.value


# --- processes -------------------------------------------------------------------------------------------------------

CASES = {**rank_patterns.CASES, **case}
VARIANTS = ("_dynamic", "_bfloat16")  # of a pattern that runs by day
RUNS = [
    pytest.param(n, name, marks=[pytest.mark.night] if name.endswith(VARIANTS) else [])
    for n in (WORLD, 4, 8)[: 3 if WHOLE else 1]
    for name in CASES
    if rank_patterns.FEWEST.get(name, WORLD) <= n <= rank_patterns.MOST.get(name, n)
]


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), RUNS, indirect=["ranks"], scope="module", ids=lambda v: str(v))
def test_ranks(name, ranks):
    ranks.check(name)
