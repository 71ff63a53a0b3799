"""Small models of three families on many ranks; random ones with one fault each, a part of ``make ranks-faults``."""

import os
import sys
from pathlib import Path

import pytest

from labs import ranks_faults
from torchair.ranks import check_ranks

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "ranks"
WHOLE = bool(os.environ.get("TAIR_WHOLE"))
MESHES = [
    ("llama", {"tp": 4}),
    ("mixtral", {"tp": 2, "ep": 2}),
    ("deepseek", {"tp": 2, "ep": 2}),
    *(
        [
            (m, mesh)
            for m in ("llama", "mixtral", "deepseek")
            for mesh in ({"tp": 8}, {"tp": 4, "ep": 4}, {"tp": 8, "ep": 8})
        ]
        if WHOLE
        else []
    ),
]
SEEDS = range(20)


@pytest.fixture(scope="module")
def models():
    sys.path.insert(0, str(EXAMPLES))
    import small_models

    yield small_models
    sys.path.remove(str(EXAMPLES))


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"), MESHES, ids=lambda v: v if isinstance(v, str) else "x".join(map(str, v.values()))
)
def test_models(name, mesh, models):
    """Within 1e-5 of the unsharded model in eager mode; on 8, 16 and 64 ranks with TAIR_WHOLE=1."""
    model, inputs = getattr(models, name)()
    found = check_ranks(model, inputs, mesh=mesh, shard=models.shard)
    assert found.ok, found.faults
    assert found.worst < 1e-5
    assert found.graphs == found.ranks
    # ranks with the same experts do the same; without experts of their own, all do
    assert found.traced == found.distinct == (1 if name == "llama" else mesh.get("ep", 1))
    assert found.log


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults(seed):
    """Found; with collective and line too, but for the seeds that ``UNPLACED`` tells of."""
    result = ranks_faults.outcome(ranks_faults.plan_of(seed), seed)
    assert result.found, result.plan
    assert result.right == (seed not in UNPLACED), (result.plan, result.told)


UNPLACED = {11: "the size that a rank fixes shows first in a collective of an earlier block"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_sound_random_models(seed):
    """No alarm."""
    result = ranks_faults.outcome(ranks_faults.plan_of(seed, healthy=True), seed)
    assert not result.found, (result.plan, result.told)
