"""The embedded engine passes the suite that it ships, and the suite notices engines that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import Graph
from ge_runtime.api import Capability
from ge_runtime.conformance import cases, run_conformance
from ge_runtime.conformance.case import Case
from ge_runtime.conformance.contract import RULES
from ge_runtime.conformance.suite import check_case
from ge_runtime.cpu import CpuEngine

_BY_OP: dict[str, list[Case]] = {}
for _case in cases():
    _BY_OP.setdefault(_case.op, []).append(_case)


@pytest.mark.parametrize("op", sorted(_BY_OP))
def test_operator(op: str) -> None:
    wrong = {str(c): text for c in _BY_OP[op] if (text := check_case(CpuEngine(), c))}
    assert not wrong


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
