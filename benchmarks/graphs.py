"""Operators in our graphs against those that the incumbent makes of the same models, constants and inputs aside.

    python -m benchmarks.graphs            count, and write docs/graphs.md
    python -m benchmarks.graphs bert vit   count some models and print them

The incumbent's counts were taken from its graphs before its own optimisation, with the `eager` attention of
transformers; ours are what an engine gets, with the same attention.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator
from pathlib import Path

from benchmarks import rows
from benchmarks.capture import aot_graph
from benchmarks.rows import Row, at_most
from ge_graph import Graph
from tools import models
from torchair.config import CompilerConfig
from torchair.pipeline import Pipeline

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
    "mixtral": models.mixtral,
}


_FREE = ("Const", "Data", "RefData", "NetOutput")


def operators(graph: Graph) -> int:
    """Nodes that compute something."""
    return sum(n.op not in _FREE for n in graph.nodes)


def incumbent() -> dict[tuple[str, str], int]:
    """(model, mode) -> number of operators."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith(("#", "model"))]
    return {(model, mode): int(count) for model, mode, count in rows}


def graph_of(model: str, mode: str) -> Graph:
    """Our graph of one of the models."""
    case = CASES[model]()
    getattr(case.model.model, "set_attn_implementation", lambda _: None)("eager")
    gm = aot_graph(case, dynamic=mode == "dynamic")
    return Pipeline(CompilerConfig(), "forward", 0).to_graph(gm, (), lambda lowered: lowered).graph


def ours(model: str, mode: str) -> int:
    """Operators in our graph of one of the models."""
    return operators(graph_of(model, mode))


def measure() -> Iterator[Row]:
    for (model, mode), theirs in incumbent().items():
        if rows.small and model != "llama2":
            continue
        yield at_most(GROUP, f"{model}, {mode}", ours(model, mode), 1.0, unit="ops", peer=theirs, name="incumbent")


# -- the page --------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parent.parent / "docs" / "graphs.md"
_MOVES = ("Transpose", "TransposeD", "Reshape", "Cast")


def back_to_back(graph: Graph) -> int:
    """Nodes that undo or continue the only thing their operand does: one Transpose, Reshape or Cast after another."""
    readers = collections.Counter(t.node for n in graph.nodes for t in n.operands())
    return sum(
        n.op in _MOVES and any(t.node.op == n.op and readers[t.node] == 1 for t in n.operands()) for n in graph.nodes
    )


def page(counted: list[tuple[str, str, Graph, int]]) -> str:
    """The counts as a page."""
    lines = [
        "# Operators in the graphs of real models",
        "",
        "Made by `make graphs`. Counted is what an engine gets of a float32 forward, inputs and constants aside. The",
        "incumbent is the torchair inside torch_npu 2.13.0, before its own optimisation; both have the `eager`",
        "attention of transformers. A pair is a Transpose, Reshape or Cast whose operand is another of its kind.",
        "",
        "| model | sizes | operators | incumbent | ratio | pairs | most frequent |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, mode, graph, theirs in counted:
        count = operators(graph)
        frequent = collections.Counter(n.op for n in graph.nodes if n.op not in _FREE).most_common(6)
        named = ", ".join(f"{n} {op}" for op, n in frequent)
        lines.append(
            f"| {model} | {mode} | {count} | {theirs} | {count / theirs:.2f} | {back_to_back(graph)} | {named} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *CASES], help="all, and the page, if none is given")
    chosen = parser.parse_args().models
    counted = [(m, mode, graph_of(m, mode), n) for (m, mode), n in incumbent().items() if not chosen or m in chosen]
    text = page(counted)
    if chosen:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
