"""A pytest plugin for `make quick`: of a test with many rows, every ``--rows-of``-th one; tests with few run whole."""

from __future__ import annotations

import collections

import pytest

FEW = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--rows-of N``."""
    parser.addoption("--rows-of", type=int, default=1, help="run every N-th row of a test with more than a few")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rows between."""
    step = config.getoption("--rows-of")
    if step <= 1:
        return
    tables: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0]].append(item)
    kept = {i for rows in tables.values() for i in (rows if len(rows) <= FEW else rows[::step])}
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = [i for i in items if i in kept]
