"""Operators in our graphs against those that the incumbent makes of the same models, constants and inputs aside.

The incumbent's counts were taken from its graphs before its own optimisation, with the `eager` attention of
transformers; ours are what an engine gets, with the same attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.capture import aot_graph
from benchmarks.conversion import convert
from benchmarks.rows import Row, at_most
from ge_graph import Graph
from tools import models

GROUP = "graphs"
TABLE = Path(__file__).with_name("incumbent_graphs.tsv")


def _llama(layers: int) -> models.Case:
    return models.llama("full", layers)


def _one(case: models.Case) -> models.Case:
    """Batch 1, as the incumbent was measured."""
    case.inputs = tuple(t[:1] for t in case.inputs)
    return case


CASES = {
    "llama2": lambda: _llama(2),
    "llama24": lambda: _llama(24),
    "bert": models.bert,
    "resnet50": lambda: _one(models.resnet50()),
    "vit": lambda: _one(models.vit()),
    "gpt2": models.gpt2,
    "t5": models.t5,
    "whisper_enc": lambda: _one(models.whisper_encoder()),
}


def operators(graph: Graph) -> int:
    """Nodes that compute something."""
    return sum(n.op not in ("Const", "Data", "RefData", "NetOutput") for n in graph.nodes)


def incumbent() -> dict[tuple[str, str], int]:
    """(model, mode) -> number of operators."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith(("#", "model"))]
    return {(model, mode): int(count) for model, mode, count in rows}


def ours(model: str, mode: str) -> int:
    """Operators in our graph of one of the models."""
    case = CASES[model]()
    getattr(case.model.model, "set_attn_implementation", lambda _: None)("eager")
    graph, _ = convert(aot_graph(case, dynamic=mode == "dynamic"))
    return operators(graph)


def measure() -> Iterator[Row]:
    for (model, mode), theirs in incumbent().items():
        yield at_most(GROUP, f"{model}, {mode}", ours(model, mode), 1.0, unit="ops", peer=theirs)
