"""Running the cases on an engine and saying what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ge_graph import DataType, Graph, building, schema
from ge_graph import ops as ge
from ge_graph.dtypes import from_numpy
from ge_graph.ir import Tensor
from ge_graph.schema import PortSchema
from ge_runtime.api import Engine

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One operator call with its result.

    Attributes:
        op: GE operator type.
        inputs: One entry a port: an array is fed as graph input, a Python number or list becomes a constant, None
            leaves an optional port out, a tuple of arrays feeds a dynamic port.
        expect: The results, or a function of the inputs that gives them.
        attrs: Attributes.
        name: Tells the cases of one operator apart.
        keywords: Arguments of the wrapper that are neither port nor attribute (``size_of_y``).
        tolerance: Relative and absolute, for floats; None asks for equality.
    """

    op: str
    inputs: tuple[Any, ...]
    expect: Any
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = 1e-5

    def __str__(self) -> str:
        return f"{self.op}[{self.name}]" if self.name else self.op

    def graph(self, *, feed_numbers: bool, fixed: bool = True) -> tuple[Graph, list[Array]]:
        """The graph of this one call and the arrays to feed.

        Args:
            feed_numbers: Feed numbers and lists as graph inputs too, so that nothing is known when planning.
            fixed: Declare the sizes of the inputs; otherwise only their rank.
        """
        graph = Graph(self.op)
        fed: list[Array] = []

        def operand(value: Any, port: PortSchema) -> Any:
            if isinstance(value, tuple):
                return [operand(v, port) for v in value]
            if value is None or not isinstance(value, np.ndarray) and not feed_numbers:
                return value
            array = value if isinstance(value, np.ndarray) else _number_array(value, port)
            sizes = tuple(array.shape) if fixed else tuple(f"s{len(fed)}_{d}" for d in range(array.ndim))
            fed.append(array)
            return ge.Data(index=len(fed) - 1, dtype=from_numpy(array.dtype), shape=sizes)

        with building(graph):
            args = [operand(v, p) for v, p in zip(self.inputs, schema.require(self.op).inputs)]
            results = getattr(ge, self.op)(*args, **self.attrs, **self.keywords)
        graph.outputs = _flat(results)
        return graph, fed

    def expected(self) -> list[Array]:
        """The results as arrays."""
        found = self.expect(*self.inputs) if callable(self.expect) else self.expect
        return [np.asarray(v) for v in (found if isinstance(found, (tuple, list)) else (found,))]


def _number_array(value: Any, port: PortSchema) -> Array:
    """Numbers as an input of the port's type: INT64 unless it only knows INT32, FLOAT for fractions."""
    array = np.array(value)
    if array.size and array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.int64 if DataType.DT_INT64 in port.domain else np.int32)


def _flat(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [t for r in results for t in _flat(r)]


@dataclass
class Report:
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
    from ge_runtime.conformance import elementwise_cases, index_cases, shape_cases

    yield from elementwise_cases.cases()
    yield from shape_cases.cases()
    yield from index_cases.cases()


def as_array(value: Any) -> Array:
    """A result as an array; tensors on a device are brought to the host."""
    host = getattr(value, "cpu", None)
    return np.asarray(value if host is None else host())


def mismatch(actual: Sequence[Any], expected: Sequence[Array], tolerance: float | None) -> str:
    """What differs between results and expectation; empty if nothing does."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, expected {len(expected)}"
    for index, (got, want) in enumerate(zip(actual, expected, strict=True)):
        array = as_array(got)
        if array.dtype != want.dtype or array.shape != want.shape:
            return f"result {index} is {array.dtype}{list(array.shape)}, expected {want.dtype}{list(want.shape)}"
        exact = tolerance is None or want.dtype.kind not in "fc"
        slack = 0.0 if exact else max(tolerance or 0.0, 2e-3 if want.dtype == np.float16 else 0.0)
        if not np.allclose(array, want, rtol=slack, atol=slack, equal_nan=want.dtype.kind in "fc"):
            return f"result {index} is {array.tolist()}, expected {want.tolist()}"
    return ""


def check_case(engine: Engine, case: Case) -> str:
    """Run one case with constants known, with constants fed, and with sizes unknown; what went wrong, or nothing."""
    expected = case.expected()
    for feed_numbers, fixed in ((False, True), (True, False)):
        graph, fed = case.graph(feed_numbers=feed_numbers, fixed=fixed)
        executable = engine.compile(graph, {})
        for attempt in ("first", "second"):  # an engine may check or specialise in the first run
            before = [a.copy() for a in fed]
            wrong = mismatch(executable.run(fed), expected, case.tolerance)
            if wrong:
                return f"{'fed' if feed_numbers else 'constant'} numbers, {attempt} run: {wrong}"
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(fed, before)):
                return f"{'fed' if feed_numbers else 'constant'} numbers, {attempt} run: an input was overwritten"
    return ""


def run_conformance(engine: Engine, only: Callable[[str], bool] = lambda name: True) -> Report:
    """Run every operator case and every rule of the contract.

    Args:
        engine: Any engine that takes arrays as inputs and gives results numpy can read.
        only: Which names to run; all by default.
    """
    from ge_graph.errors import EngineError
    from ge_runtime.conformance.contract import RULES

    report = Report()
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
