"""What each chip makes of the graphs of real models, by the facts that the package carries.

    python -m benchmarks.chips            write docs/chips.md
    python -m benchmarks.chips bert vit   print the rows of some models

A graph is made for the chip, as `config.check_soc` does, and checked as `tair check --soc` does.
"""

from __future__ import annotations

import argparse
import collections
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.capture import aot_graph
from ge_graph import Graph, kernels
from ge_graph.passes import FitChip
from tair_debug import check
from tools import models
from torchair.compiler.pipeline import Job, Pipeline
from torchair.config.compiler_config import CompilerConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "chips.md"
CHIPS = {
    "ascend910b": ("float32", "bfloat16"),
    "ascend910_93": ("float32", "bfloat16"),
    "ascend950": ("float32", "bfloat16"),
    "ascend310p": ("float32", "float16"),
}
"""Chip to the types of its rows: Ascend 310P has no bfloat16."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = tuple(models.ZOO)


def _typed(case: models.ModelCase, dtype: torch.dtype) -> models.ModelCase:
    case.model.to(dtype)
    case.inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in case.inputs)
    return case


def _made(gm: torch.fx.GraphModule, soc: str | None) -> Graph:
    config = CompilerConfig()
    if soc is not None:
        config.check_soc = soc
    found: Graph = Pipeline(Job(config, model_id=0)).to_graph(gm, (), lambda lowered: lowered).graph
    return found


def rows(model: str, dtype: str) -> dict[str, str]:
    """Chip to the line of a model."""
    case = _typed(models.ZOO[model]("tiny"), DTYPES[dtype])
    gm = aot_graph(case)
    plain = _made(gm, None)
    found = {}
    for soc in (soc for soc, types in CHIPS.items() if dtype in types):
        oracle = kernels.oracle(soc)
        graph = _made(gm, soc) if FitChip(oracle).concerns(plain) else plain
        found[soc] = row(model, dtype, plain, graph, check.examine([graph], oracle))
    return found


def _ops(graph: Graph) -> collections.Counter[str]:
    return collections.Counter(n.op for n in graph.nodes if n.op not in ("Data", "RefData", "Const"))


def row(model: str, dtype: str, plain: Graph, graph: Graph, report: check.CheckReport) -> str:
    """A line of the page."""
    counts = report.counts()
    gone = _ops(plain) - _ops(graph)
    made = _ops(graph) - _ops(plain)
    other = f"{_listed(gone)} as {_listed(made)}" if gone else f"with {_listed(made)}" if made else ""
    troubles = collections.Counter[str]()
    unknown = collections.Counter[str]()
    for entry in report.rows:
        if entry.verdict.state in ("none", "aicpu"):
            troubles[f"{entry.op}({entry.types.partition(',')[0].rpartition(' ')[2]})"] += len(entry.nodes)
        elif entry.verdict.state == "unknown":
            unknown[entry.op] += len(entry.nodes)
    strengths = collections.Counter[str]()
    for entry in report.rows:
        if entry.verdict.state == "aicore":
            strengths[entry.verdict.strength] += len(entry.nodes)
    on_core = (
        strengths["listed"],
        strengths["measured"] + strengths["same core"],
        strengths["launched"],
        strengths["documented"],
    )
    others = (counts[state] for state in ("open", "device", "aicpu", "none", "unknown"))
    numbers = map(str, (*on_core, *others))
    cells: tuple[Any, ...] = (model, dtype, *numbers, other, _listed(troubles), _listed(unknown))
    return "| " + " | ".join(cells) + " |"


def _listed(counts: collections.Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} {op}" for op, n in ordered)


def page(found: dict[tuple[str, str], dict[str, str]]) -> str:
    """The page."""
    lines = [
        "# Graphs of real models on each chip",
        "",
        "Made by `make chips`: forward graphs of the models in [graphs](graphs.md), with few and narrow layers.",
        "Each is made for the chip as `config.check_soc` does, and checked as `tair check --soc` does, by the facts",
        "that the package carries ([check](check.md)). Kernel lists are complete for ascend950 only; for the others",
        "public evidence fills the gaps, and the columns say how strong it is: *measured* is a run on this chip or one",
        "of the same core, *launched* and *documented* are what libraries and pages say, *types open* an operator that",
        "runs on AI Core, though nobody names these types. `--cann` reads an installation, which has all. Ascend 310P",
        "has no bfloat16, so that its rows are of float32 and float16.",
    ]
    head = (
        "model",
        "type",
        "AI Core",
        "measured",
        "launched",
        "documented",
        "types open",
        "no kernel needed",
        "AI CPU",
        "no kernel",
        "unknown",
        "in another form",
        "AI CPU or no kernel",
        "unknown operators",
    )
    for soc in CHIPS:
        lines += ["", f"## {soc}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += [lines_of[soc] for lines_of in found.values() if soc in lines_of]
    return "\n".join(lines) + "\n"


def read_page() -> dict[str, dict[tuple[str, str], str]]:
    """Chip to (model, type) to line."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            found[line.removeprefix("## ")] = {}
        elif line.startswith("| ") and not line.startswith("| model"):
            model, dtype = (cell.strip() for cell in line.split("|")[1:3])
            found[list(found)[-1]][model, dtype] = line
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *CASES], help="all, and the page, if none is given")
    chosen = parser.parse_args().models
    os.environ.pop("ASCEND_HOME_PATH", None)  # the page is the same on every machine
    found = {(model, dtype): rows(model, dtype) for model in (chosen or CASES) for dtype in DTYPES}
    if chosen:
        print(page(found))
    else:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
