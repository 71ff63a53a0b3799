"""Options of GE at the level that takes them."""

from __future__ import annotations

import pytest

from ge_graph import option_levels


def test_every_row_is_whole_and_its_home_is_a_level_that_takes_it():
    table = option_levels.table()
    assert len(table) == 298
    for key, facts in table.items():
        assert facts.key == key
        assert set(facts.levels) <= {"global", "session", "graph", "load", "build"}
        assert facts.home in option_levels.LEVELS
        if set(facts.levels) - {"build"}:
            assert facts.home in facts.levels, key


@pytest.mark.parametrize(
    ("key", "home"),
    [
        ("ge.oo.level", "graph"),
        ("ge.topoSortingMode", "graph"),
        ("ge.exportCompileStat", "graph"),
        ("ge.fusionSwitchFile", "session"),
        ("ge.exec.enableEngineParallel", "session"),
        ("ge.aicoreNum", "session"),
        ("ge.deterministic", "global"),
        ("ge.exec.dumpPath", "global"),
        ("ge.jobType", "global"),
        ("ge.tuningPath", "global"),
        ("ge.exec.frozenInputIndexes", "load"),
        ("frozen_parameter", "engine"),
    ],
)
def test_homes(key, home):
    assert option_levels.home(key) == home


def test_split_keeps_every_option_once():
    given = {key: "1" for key in (*option_levels.table(), "mine")}
    parts = option_levels.split(given)
    assert list(parts) == list(option_levels.LEVELS)
    assert sum(len(part) for part in parts.values()) == len(given)
    assert {k: v for part in parts.values() for k, v in part.items()} == given
    assert parts["engine"] == {"mine": "1"}
