"""Operators in our graphs against those that the bundled torchair makes of the same models, constants and inputs aside.

    python -m benchmarks.graphs            count, and write docs/graphs.md
    python -m benchmarks.graphs bert vit   count some models and print them

The bundled torchair's counts were taken from its graphs before its own optimisation, with the `eager` attention of
transformers; ours are what an engine gets, with the same attention.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import rows
from benchmarks.capture import aot_graph
from benchmarks.rows import Measurement, at_most
from ge_graph import Graph
from tools import models
from torchair.compiler.pipeline import Job, Pipeline
from torchair.config.compiler_config import CompilerConfig

GROUP = "graphs"
TABLE = Path(__file__).with_name("bundled_graphs.tsv")


def _llama(layers: int) -> models.ModelCase:
    return models.llama("full", layers)


def _one(case: models.ModelCase) -> models.ModelCase:
    """Batch 1, as the bundled torchair was measured."""
    case.inputs = tuple(t[:1] for t in case.inputs)
    return case


CASES: dict[str, Callable[[], models.ModelCase]] = {
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


def bundled() -> dict[tuple[str, str], int]:
    """(model, mode) -> number of operators."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith(("#", "model"))]
    return {(model, mode): int(count) for model, mode, count in rows}


def graph_of(model: str, mode: str, case: models.ModelCase | None = None) -> Graph:
    """Our graph of one of the models."""
    case = CASES[model]() if case is None else case
    getattr(case.model.model, "set_attn_implementation", lambda _: None)("eager")
    gm = aot_graph(case, dynamic=mode == "dynamic")
    return Pipeline(Job(CompilerConfig(), model_id=0)).to_graph(gm, (), lambda lowered: lowered).graph


def _lines(model: str) -> list[tuple[str, int, str]]:
    """Of one model, made once: mode, operators and line of the page, for each mode."""
    case, found = CASES[model](), []
    for mode in ("static", "dynamic"):
        graph = graph_of(model, mode, case)
        found.append((mode, operators(graph), row(model, mode, graph, bundled().get((model, mode)))))
    return found


def _of_models(chosen: Sequence[str]) -> Iterator[tuple[str, str, int, str]]:
    """Model, mode, operators and line; counts depend on no clock, so that two processes share the work."""
    if len(chosen) == 1:
        yield from ((chosen[0], *line) for line in _lines(chosen[0]))
        return
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for model, lines in zip(chosen, pool.map(_lines, chosen)):
            yield from ((model, *line) for line in lines)


def measure() -> Iterator[Measurement]:
    peers = bundled()
    for model, mode, count, _ in _of_models(["llama2"] if rows.small else list(CASES)):
        theirs = peers.get((model, mode))
        if theirs is not None:
            yield at_most(GROUP, f"{model}, {mode}", count, 1.0, unit="ops", peer=theirs, name="bundled")


# -- the page --------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parent.parent / "docs" / "graphs.md"
_MOVES = ("Transpose", "TransposeD", "Reshape", "Cast", "Unsqueeze")
FUSED = (
    "AddLayerNorm",
    "AddRmsNorm",
    "FlashAttentionScore",
    "GeGluV2",
    "Gelu",
    "LayerNormV4",
    "MoeGatingTopKSoftmax",
    "MoeGatingTopKSoftmaxV2",
    "RmsNorm",
    "RotaryPositionEmbedding",
    "SwiGlu",
    "Swish",
)


def back_to_back(graph: Graph) -> int:
    """Nodes that undo or continue the only thing their operand does: one move after another of its kind."""
    readers = collections.Counter(t.node for n in graph.nodes for t in n.operands())
    return sum(
        n.op in _MOVES and any(t.node.op == n.op and readers[t.node] == 1 for t in n.operands()) for n in graph.nodes
    )


def _listed(counts: collections.Counter[str], most: int | None = None) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    return ", ".join(f"{n} {op}" for op, n in ordered)


def row(model: str, mode: str, graph: Graph, theirs: int | None) -> str:
    """The line of a graph."""
    count = operators(graph)
    ops = collections.Counter(n.op for n in graph.nodes if n.op not in _FREE)
    fused = collections.Counter({op: n for op, n in ops.items() if op in FUSED})
    others = _listed(ops - fused, 5)
    peer = ("not measured", "") if theirs is None else (str(theirs), f"{count / theirs:.2f}")
    cells = (model, mode, str(count), *peer, str(back_to_back(graph)), _listed(fused), others)
    return "| " + " | ".join(cells) + " |"


def page(rows: list[str]) -> str:
    """The counts as a page."""
    lines = [
        "# Operators in the graphs of real models",
        "",
        "Made by `make graphs`. Counted is what an engine gets of a float32 forward, inputs and constants aside. The",
        "bundled torchair is the one inside torch_npu 2.13.0, before its own optimisation; both have the `eager`",
        "attention of transformers. Dynamic is `torch.compile(dynamic=True)`. A pair is a Transpose, Reshape, Cast or",
        "Unsqueeze whose operand is another of its kind and has no other reader.",
        "",
        "| model | sizes | operators | bundled | ratio | pairs | fused operators | most frequent others |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def read_page() -> dict[tuple[str, str], str]:
    """(model, mode) -> line of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    keys = [line.split("|")[1:3] for line in lines]
    return {(model.strip(), mode.strip()): line for (model, mode), line in zip(keys, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *CASES], help="all, and the page, if none is given")
    chosen = parser.parse_args().models
    text = page([line for *_, line in _of_models(chosen or list(CASES))])
    if chosen:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
