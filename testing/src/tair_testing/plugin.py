"""A pytest plugin: less time for garbage and for logs that nobody reads, and modules that leave nothing behind.

What one test leaves in the process must not reach the next: all folders run in one.
"""

from __future__ import annotations

import collections
import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

# Dynamo would look through everything made since the last such look after each of the thousands of graphs.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")


VERIFY = "TAIR_VERIFY_REWRITES"
MARKERS = (
    "slow: over a second; left out of `make quick`",
    "night(rows=0): proves on more what other tests prove, and runs under TAIR_NIGHT=1; else every so many-th row does",
    "npu: needs a device",
    "unverified: a rule here changes numbers on purpose, or options are looked at: debug.verify_rewrites stays off",
)


def pytest_configure(config: pytest.Config) -> None:
    """The marks of all tests."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected goes away, so nothing is gained by looking for garbage: a sixth of the time.

    Nor often while tests run, which compile and drop graphs among millions of objects that stay: a tenth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        _no_records_for_a_trace()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def _no_records_for_a_trace() -> None:
    """Pytest listens to each logger that hands nothing on, and torch writes its records out for whoever listens.

    Stacks of symbols and texts of graphs, for a file that is not asked for: a twentieth of the time.
    """
    trace = logging.getLogger("torch.__trace")
    trace.handlers.clear()
    vars(trace)["addHandler"] = lambda _: None


def pytest_sessionfinish() -> None:
    """Pytest and Python look for garbage once more before the process ends and all memory goes: a second or two."""
    gc.freeze()


def pytest_runtest_setup() -> None:
    """To log how long guards take, dynamo clears the processor's caches after each graph: 30 ms, which nobody reads."""
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = _unmeasured


def _unmeasured(*_: object) -> float:
    return 0.0


@pytest.fixture(autouse=True)
def _rewrites_that_may_be_wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all rewrites are verified, as every night, some tests are about wrong ones."""
    if request.node.get_closest_marker("unverified"):
        monkeypatch.delenv(VERIFY, raising=False)


@pytest.fixture(autouse=True, scope="module")
def _no_names_of_gone_operators() -> Iterator[None]:
    """Libraries that a test defined and destroyed leave their names behind, on which torch.export stumbles."""
    yield
    if "torch" not in sys.modules:
        return
    ops = sys.modules["torch"].ops
    for name in ops._dir:
        space = vars(ops).get(name)
        if isinstance(getattr(space, "_dir", None), list):
            space._dir[:] = [op for op in space._dir if op in vars(space)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--rows-of N``: a quick look at tests with long tables."""
    parser.addoption("--rows-of", type=int, default=1, help="run every N-th row of a test with more than a few")
    parser.addoption("--few", type=int, default=8, help="so many rows are few, and run whole (8)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the night runs, and the rows between; tests with few rows run whole."""
    step, few = config.getoption("--rows-of"), config.getoption("--few")
    named = any("::" in argument for argument in config.args)  # who names a test gets it
    night = bool(os.environ.get("TAIR_NIGHT")) or named
    tables: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for rows in tables.values():
        by_day = rows if night else _by_day(rows)
        kept |= set(by_day if step <= 1 or len(by_day) <= few else by_day[::step])
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = [i for i in items if i in kept]


def _by_day(rows: list[pytest.Item]) -> list[pytest.Item]:
    """Those of a test's rows that do not wait for the night; a row can have a mark of its own."""
    marks = [(row, row.get_closest_marker("night")) for row in rows]
    plain = [row for row, mark in marks if mark is None]
    tables = [(row, mark.kwargs["rows"]) for row, mark in marks if mark is not None and mark.kwargs]
    return plain + [row for at, (row, each) in enumerate(tables) if at % each == 0]
