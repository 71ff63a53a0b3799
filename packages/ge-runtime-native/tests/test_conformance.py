"""The embedded engine passes the suite that it ships, and the suite notices engines that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import DataType, Graph, schema
from ge_graph.schema import PortSchema
from ge_runtime.api import Capability
from ge_runtime.conformance import cases, run_conformance
from ge_runtime.conformance.case import Case
from ge_runtime.conformance.contract import RULES
from ge_runtime.conformance.suite import check_case
from ge_runtime.cpu import CpuEngine

_BY_OP: dict[str, list[Case]] = {}
for _case in cases():
    _BY_OP.setdefault(_case.op, []).append(_case)


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("op", sorted(_BY_OP))
def test_operator(op: str) -> None:
    wrong = {str(c): text for c in _BY_OP[op] if (text := check_case(CpuEngine(), c))}
    assert not wrong


# Element type: what it is in torch, relative and absolute difference to results in float64.
_TYPES = {"DT_FLOAT16": (torch.float16, 4e-3), "DT_BF16": (torch.bfloat16, 3.2e-2), "DT_DOUBLE": (torch.float64, 1e-6)}


def _typed() -> dict[str, Case]:
    """The first case of each operator whose expected results follow the types of its inputs."""
    return {c.op: c for c in reversed(list(cases())) if c.typed and "float16" not in c.name}


def _as_type(run: Callable[..., Any], case: Case, name: str) -> str:
    """One run with floats of another type where the port knows it; what is wrong, or nothing."""
    kind, slack = _TYPES[name]

    def cast(value: Any, port: PortSchema) -> Any:
        if isinstance(value, tuple):
            return [cast(v, port) for v in value]
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value.copy())
        return tensor.to(kind) if value.dtype.kind == "f" and DataType[name] in port.domain else tensor

    def wide(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(wide(v) for v in value)
        if not isinstance(value, torch.Tensor):
            return value
        return value.double().numpy() if value.is_floating_point() else value.numpy()

    operands = [cast(v, p) for v, p in zip(case.inputs, schema.require(case.op).inputs)]
    results = run(case.op, *operands, **case.attrs, **case.keywords)
    wanted = [np.asarray(v, np.float64) for v in case.expect(*map(wide, operands))]
    for got, want in zip(results if isinstance(results, list) else [results], wanted, strict=True):
        if not np.allclose(wide(got), want, rtol=slack, atol=slack * max(1.0, np.abs(want).max(initial=0))):
            return f"{name}: {got.tolist()}, expected {want.tolist()}"
    return ""


@pytest.mark.parametrize("op", sorted(_TYPED := _typed()))
def test_other_element_types(op: str, run: Callable[..., Any]) -> None:
    """Formulas hold in half types and float64 too, where the first float port knows them."""
    case, entry = _TYPED[op], schema.require(op)
    first = [(v[0] if isinstance(v, tuple) else v, p) for v, p in zip(case.inputs, entry.inputs)]
    port = next((p for v, p in first if isinstance(v, np.ndarray) and v.dtype.kind == "f"), None)
    names = [name for name in _TYPES if port is not None and DataType[name] in port.domain]
    assert not [text for name in names if (text := _as_type(run, case, name))]


@pytest.mark.parametrize("name", sorted(RULES))
def test_contract(name: str) -> None:
    assert RULES[name](CpuEngine()) == ""


class _Spoilt:
    """The embedded engine with one fault planted into its results."""

    name = "spoilt"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def probe(self) -> Capability:
        return Capability(True, "", ("cpu",))

    def compile(self, graph: Graph, options: Mapping[str, str]) -> Any:
        inner = CpuEngine().compile(graph, options)
        return _SpoiltExecutable(inner, self.fault)


class _SpoiltExecutable:
    def __init__(self, inner: Any, fault: str) -> None:
        self.inner, self.fault, self.kept = inner, fault, None
        self.source = inner.source

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        results = self.inner.run(inputs)
        if self.fault == "value":
            return [r + 1 if r.is_floating_point() else r for r in results]
        if self.fault == "type":
            return [r.double() for r in results]
        if self.fault == "alias" and len(results) > 1:
            return [results[0]] * len(results)
        if self.fault == "buffer":
            if self.kept is None or [k.shape for k in self.kept] != [r.shape for r in results]:
                self.kept = results
            for k, r in zip(self.kept, results):
                k.copy_(r)
            return list(self.kept)
        if self.fault == "writes":
            for x in inputs:
                if isinstance(x, np.ndarray) and x.flags.writeable:
                    x += np.ones((), x.dtype) if x.dtype != bool else True
        return results

    def run_traced(self, inputs: Sequence[Any], on_node: Any) -> list[Any]:
        return self.inner.run_traced(inputs, (lambda *a: None) if self.fault == "silent" else on_node)


@pytest.mark.parametrize(
    ("fault", "must_fail"),
    [
        ("value", "Add[float32[2, 3][2, 3]]"),
        ("type", "Add[float32[2, 3][2, 3]]"),
        ("alias", "contract:results_own_their_memory"),
        ("buffer", "contract:earlier_results_survive_later_runs"),
        ("writes", "Relu[f32[2, 3]]"),
        ("silent", "contract:traced_runs_show_every_node"),
    ],
)
def test_faults_are_found(fault: str, must_fail: str) -> None:
    report = run_conformance(_Spoilt(fault), only=lambda name: name == must_fail)
    assert list(report.failed) == [must_fail], str(report)


def test_report_counts_operators_that_an_engine_lacks() -> None:
    class Without(CpuEngine):
        def compile(self, graph: Graph, options: Mapping[str, str]) -> Any:
            from ge_runtime import errors

            raise errors.missing_kernels("without", graph.nodes)

    report = run_conformance(Without(), only=lambda name: name.startswith("Relu"))
    assert report.ok
    assert not report.passed
    assert report.unsupported


def test_results_are_torch_tensors() -> None:
    graph, fed = _BY_OP["Add"][0].graph(feed_numbers=False)
    assert all(isinstance(r, torch.Tensor) for r in CpuEngine().compile(graph, {}).run(fed))
