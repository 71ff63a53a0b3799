"""The blocks that a running graph holds, counted by what the run does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ge_emulator import graphs
from ge_emulator.account import Account
from ge_emulator.graphs import CompiledGraph
from ge_graph import DataType, Graph, building, ops
from ge_graph.attrs import Attr, Kind
from ge_graph.ir import Tensor

F32 = DataType.DT_FLOAT
SIZE = 64 * 64 * 4


def _input(graph: Graph, index: int = 0) -> Tensor:
    return graph.add("Data", (None,), {"index": Attr(Kind.INT, index)}, [(F32, (64, 64))]).outputs[0]


def _peak(graph: Graph, *inputs: torch.Tensor) -> int:
    account = Account()
    results = account.run(CompiledGraph(graph, {}).program, list(inputs))
    assert account.live == sum(SIZE for _ in results)
    del results
    return account.peak


def test_a_chain_holds_an_operand_and_a_result() -> None:
    graph = Graph("chain")
    with building(graph):
        x = _input(graph)
        for _ in range(5):
            x = ops.Relu(x)
    graph.outputs = [x]
    assert _peak(graph, torch.randn(64, 64)) == 2 * SIZE


def test_a_transposed_tensor_is_a_copy_on_a_device_and_a_reshaped_one_is_not() -> None:
    graph = Graph("moved")
    with building(graph):
        x = _input(graph)
        order = graph.add(
            "Const", (), {"value": Attr(Kind.TENSOR, torch.tensor([1, 0]).numpy())}, [(DataType.DT_INT64, (2,))]
        ).outputs[0]
        sizes = graph.add(
            "Const", (), {"value": Attr(Kind.TENSOR, torch.tensor([32, 128]).numpy())}, [(DataType.DT_INT64, (2,))]
        ).outputs[0]
        turned = ops.Transpose(x, order)
        plain = ops.Reshape(turned, sizes)
        graph.outputs = [ops.Relu(plain)]
    assert _peak(graph, torch.randn(64, 64)) == 2 * SIZE


def test_a_copy_on_a_device_keeps_nothing_alive() -> None:
    """In the engine it looks at the memory of its operand, which a device has freed by then."""
    graph = Graph("freed")
    with building(graph):
        x = ops.Relu(_input(graph))
        order = graph.add(
            "Const", (), {"value": Attr(Kind.TENSOR, torch.tensor([1, 0]).numpy())}, [(DataType.DT_INT64, (2,))]
        ).outputs[0]
        turned = ops.Transpose(x, order)
        other = ops.Abs(ops.Neg(turned))
        graph.outputs = [ops.Add(turned, other)]
    assert _peak(graph, torch.randn(64, 64)) == 3 * SIZE


def test_a_variable_names_the_file_for_the_peaks_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("wide")
    with building(graph):
        x = _input(graph)
        graph.outputs = [ops.Add(ops.Relu(x), ops.Abs(x))]
    compiled, value = CompiledGraph(graph, {}), torch.randn(64, 64)
    plain = graphs._computed(compiled, [value])
    monkeypatch.setenv("TAIR_EMULATOR_MEMORY", str(tmp_path / "peaks"))
    for _ in range(2):
        (counted,) = graphs._computed(compiled, [value])
        torch.testing.assert_close(counted, plain[0])
    lines = [json.loads(line) for line in (tmp_path / "peaks").read_text().splitlines()]
    assert lines == [{"graph": "wide", "peak": 3 * SIZE}] * 2
