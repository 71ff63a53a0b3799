"""Running the cases on an engine and saying what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ge_graph import Graph
from ge_graph.errors import EngineError
from ge_runtime.api import Engine
from ge_runtime.conformance import (
    derived_cases,
    elementwise_cases,
    foreach_cases,
    gradient_cases,
    index_cases,
    norm_cases,
    scatter_cases,
    shape_cases,
    training_cases,
    window_cases,
)
from ge_runtime.conformance.case import Array, Case, mismatch
from ge_runtime.conformance.contract import RULES

_TABLES = (
    elementwise_cases,
    shape_cases,
    index_cases,
    scatter_cases,
    foreach_cases,
    gradient_cases,
    norm_cases,
    window_cases,
    training_cases,
    derived_cases,
)


@dataclass
class SuiteReport:
    """Outcome of a run.

    Attributes:
        passed: Names of what held.
        failed: Name to what happened.
        unsupported: Operators for which the engine says (GE4003) that it has no kernel.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything held; operators that an engine openly lacks do not count."""
        return not self.failed

    def __str__(self) -> str:
        head = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.unsupported)} unsupported"
        return "\n".join([head, *(f"  {name}: {text}" for name, text in self.failed.items())])


def cases() -> Iterator[Case]:
    """All operator cases."""
    for module in _TABLES:
        yield from module.cases()


def check_case(engine: Engine, case: Case) -> str:
    """Run one case with constants known, with constants fed, and with sizes unknown; what went wrong, or nothing.

    Each graph runs three times, the second time with other values: an engine may check or specialise in the first run.
    """
    expected = case.expected()
    for feed_numbers, fixed in ((False, True), (True, False)):
        graph, fed = case.graph(feed_numbers=feed_numbers, fixed=fixed)
        executable = engine.compile(graph, {})
        before = [a.copy() for a in fed]
        form = "fed" if feed_numbers else "constant"
        for attempt in ("first", "second", "third"):
            if attempt == "second" and fed:
                wrong = _other_values(engine, case, graph, executable, fed)
            else:
                wrong = mismatch(executable.run(fed), expected, case.tolerance)
            if wrong:
                return f"{form} numbers, {attempt} run: {wrong}"
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(fed, before)):
                return f"{form} numbers, {attempt} run: an input was overwritten"
    return ""


def _other_values(engine: Engine, case: Case, graph: Graph, executable: Any, fed: Sequence[Array]) -> str:
    """Run with the elements of every input moved along, against a fresh executable in its first run."""
    moved = [np.roll(a.reshape(-1), 1).reshape(a.shape) for a in fed]
    outcomes: list[tuple[str, list[Any]]] = []
    for tried in (engine.compile(graph, {}), executable):
        try:
            outcomes.append(("", tried.run(moved)))
        except EngineError as error:  # moved elements may be none that the operator takes
            outcomes.append((error.code, []))
    (first_code, first), (code, later) = outcomes
    if code != first_code:
        return (
            f"other values give {code or 'results'}, in the first run of another executable {first_code or 'results'}"
        )
    return mismatch(later, [np.asarray(v) for v in first], case.tolerance)


def run_conformance(engine: Engine, only: Callable[[str], bool] = lambda name: True) -> SuiteReport:
    """Run every operator case and every rule of the contract.

    Args:
        engine: Any engine that takes arrays as inputs and gives results numpy can read.
        only: Which names to run; all by default.
    """
    report = SuiteReport()
    checks: list[tuple[str, Callable[[], str]]] = []
    for case in cases():
        checks.append((str(case), lambda case=case: check_case(engine, case)))  # type: ignore[misc]
    for name, rule in RULES.items():
        checks.append((f"contract:{name}", lambda rule=rule: rule(engine)))  # type: ignore[misc]
    for name, check in checks:
        if not only(name):
            continue
        try:
            wrong = check()
        except EngineError as error:
            if error.code == "GE4003" and not name.startswith("contract:"):
                report.unsupported.append(name)
                continue
            wrong = str(error)
        except Exception:  # noqa: BLE001 - whatever an engine raises is a finding, not an end of the run
            wrong = traceback.format_exc(limit=-2)
        if wrong:
            report.failed[name] = wrong
        else:
            report.passed.append(name)
    return report
