"""A rank that is killed, hangs or compiles another graph, on three processes with gloo."""

import pytest

from tair_testing import rank_faults
from tair_testing.ranks import ENDED

CASES = {name: run for name, run in rank_faults.CASES.items() if name not in rank_faults.ON_DEVICES}


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [rank_faults.RANKS], indirect=True, scope="module", ids=str)
def test_all_others_get_an_error(name, ranks):
    """In time, with rank, collective and line."""
    _, errors = ranks.run(name)
    assert errors == ["", ENDED if name == "killed" else "", ""], "\n".join(errors)
