"""No kernel ignores what a node says: it reads a port or attribute, or the engine refuses it, or it has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ge_graph import DataType, Graph, building, schema
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from ge_runtime.cpu import CpuEngine, ignored, registry
from ge_runtime.cpu.plan_context import PlanContext, said
from ge_runtime.cpu.registry import Call, Kernel, registered

_REASONS = Path(__file__).with_name("ignored_arguments.tsv")

# What a kernel takes and never reads: the engine refuses it unless it is left out or at its default.
REFUSED_WHEN_GIVEN = {
    "AddRmsNormQuant": {"axis"},
    "FFN": {"output_dtype"},
    "FlashAttentionScore": {"kv_start_idx", "padding_mask", "q_start_idx"},
    "FlashAttentionScoreGrad": {"kv_start_idx", "padding_mask", "q_start_idx"},
    "MaxPoolWithArgmaxV1": {"dtype"},
    "MoeDistributeCombine": {"activation_scale", "group_list", "weight_scale"},
    "MoeDistributeCombineV2": {
        "activation_scale",
        "const_expert_alpha_1",
        "const_expert_alpha_2",
        "const_expert_v",
        "elastic_info",
        "group_list",
        "weight_scale",
    },
    "MoeDistributeDispatchV2": {"elastic_info"},
    "FlatQuant": {"group_list"},
    "MoeInitRoutingV3": {"offset"},
    "QuantConv2D": {"offset", "offset_x", "round_mode"},
    "QuantMatmulReduceSum": {"bias", "x1_offset", "x2_offset", "x2_table", "y_offset", "y_scale"},
    "RingAttentionUpdate": {"actual_seq_qlen"},
    "ScatterPaCache": {"compress_lens", "compress_seq_offset", "seq_lens"},
    "ScatterPaKvCache": {"compress_lens", "compress_seq_offset", "seq_lens"},
}


# Ignored names that the newest release of the operator no longer has.
OF_OLDER_RELEASES = {
    "FlashAttentionScore": {"is_flash"},
    "GatherV2": {"validate_indices"},
    "GatherV2D": {"is_preprocessed", "validate_indices"},
    "GridSampler2D": {"data_format"},
}


def _never(op: str, k: Kernel) -> set[str]:
    found = schema.get(op)
    if found is None:
        return set()
    ports = [p.name for p in found.inputs]
    return registry.never_read(k, ports) & {*ports, *(a.name for a in found.attrs)}


def builtin() -> dict[str, Kernel]:
    return {op: k for op, k in registered().items() if registry.is_builtin(op)}


def test_every_argument_is_read_or_refused_or_has_a_reason() -> None:
    never = {op: _never(op, k) - set(k.ignores) for op, k in builtin().items()}
    assert {op: names for op, names in never.items() if names} == REFUSED_WHEN_GIVEN


def test_what_is_ignored_has_a_reason() -> None:
    rows = [line.split("\t") for line in _REASONS.read_text(encoding="utf-8").splitlines()[1:]]
    reasons = {(op, name) for name, ops, _ in rows for op in ops.split(",")}
    written = {(op, name) for op, k in builtin().items() for name in k.ignores if name not in ignored.names(op)}
    assert written == reasons
    assert all(len(reason) > 10 for *_, reason in rows)


def test_every_ignored_name_is_one_of_the_operator() -> None:
    for op, k in builtin().items():
        found = schema.get(op)
        if found is not None:
            known = {p.name for p in found.inputs} | {a.name for a in found.attrs}
            assert set(k.ignores) - known == OF_OLDER_RELEASES.get(op, set()), op
    for op in {op for ops in ignored.REASONS.values() for op in ops}:
        taken, keywords = registry.parameters(builtin()[op].run)
        untaken = {name for name in ignored.names(op) if name not in {*taken, *(keywords or ())}}
        assert set(ignored.names(op)) <= _never(op, builtin()[op]) | untaken, op


def _score(**extra: object) -> Graph:
    graph = Graph()
    with building(graph):
        q = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(1, 2, 4, 8))
        fed = {name: ge.Data(index=1, dtype=d, shape=s) for name, (d, s) in extra.items()}  # type: ignore[misc]
        graph.outputs = [ge.FlashAttentionScore(q, q, q, head_num=2, input_layout="BNSD", **fed)[3]]
    return graph


def test_a_port_that_is_never_read_is_refused() -> None:
    graph = _score(q_start_idx=(DataType.DT_INT64, (1,)))
    with pytest.raises(EngineError, match="'q_start_idx' is given and not computed here") as caught:
        CpuEngine().compile(graph, {})
    assert caught.value.code == "GE4009"


def test_a_short_cut_that_looks_at_less_is_not_taken(monkeypatch) -> None:
    def hook(ctx: PlanContext) -> Call:
        return Call(torch.zeros_like, (ctx.tensor("x"),))

    plain = registered()["LeakyRelu"]
    changed = Kernel("LeakyRelu", plain.run, plan=hook, source=plain.source)
    monkeypatch.setitem(registry._builtin, "LeakyRelu", changed)
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2,))
        graph.outputs = [ge.LeakyRelu(x, negative_slope=0.5)]
    (got,) = CpuEngine().compile(graph, {}).run([torch.tensor([-2.0, 4.0])])
    assert got.tolist() == [-1.0, 4.0]


def test_defaults_say_nothing() -> None:
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2,))
        node = ge.LeakyRelu(x).node
    assert list(said(node, ("x",))) == ["x"]


def test_code_that_reads_is_told_from_code_that_does_not() -> None:
    def kernel(a, b, c, *, d=1, e=2):
        return [a + d for _ in range(3)], (lambda: b)()

    assert registry.unread(kernel) == {"c", "e"}
    assert registry.unread(torch.add) == frozenset()
