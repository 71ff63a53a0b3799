"""`make bench`: every figure is a ratio or a share measured in this run; medians; written to benchmarks/results.md.

python -m benchmarks.run                  everything, about 12 minutes on two idle cores
python -m benchmarks.run conversion       some groups
python -m benchmarks.run --small          every row with small sizes: does it run, whatever else the machine does

The rows that docs/performance.md shows as a trend are kept as lines of JSON in benchmarks/history.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks import rows as rows_module
from benchmarks.rows import HEADINGS, Measurement

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.md"
HISTORY = ROOT / "benchmarks" / "history.jsonl"
PAGE = ROOT / "docs" / "performance.md"
_SHOWN = 4
FIELDS = tuple(f.name for f in dataclasses.fields(Measurement))

# group -> module with `measure() -> Iterator[Measurement]`
GROUPS = {
    "steady": "benchmarks.steady",
    "inductor": "benchmarks.inductor",
    "overhead": "benchmarks.overhead",
    "startup": "benchmarks.startup",
    "conversion": "benchmarks.conversion",
    "graphs": "benchmarks.graphs",
    "memory": "benchmarks.memory",
    "plans": "benchmarks.plans",
    "tools": "benchmarks.tools",
    "export": "benchmarks.export",
    "rank archives": "benchmarks.rank_archives",
    "device": "benchmarks.device",
    "captured": "benchmarks.captured",
}


def machine() -> str:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = (line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name"))
    cpu = next(named, platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GB; Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {time.strftime('%Y-%m-%d')}"
    )


def processor_seconds() -> float:
    """What this process and its finished children have used: how long it takes where nothing else runs."""
    return sum(os.times()[:4])


def _atomically(path: Path, text: str) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(text)
    os.replace(partial, path)


def _table(rows: list[Measurement]) -> list[str]:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---|---:|---|---|"]
    return lines + [f"| {' | '.join(r.cells())} |" for r in rows]


def write() -> None:
    """The table as Markdown: of each group its newest run, also where only some groups were measured."""
    lines = ["# Measured", "", "Made by `make bench`; each group stands as its newest run measured it."]
    for group in GROUPS:
        rows = [r[-1] for (name, _), r in history().items() if name == group]
        newest = max((str(r["time"]) for r in rows), default="")
        run = [r for r in rows if r["time"] == newest]
        if not run:
            continue
        load = float(str(run[0]["load"]))
        busy = "" if load < 1.5 else f" Other programs were busy (load {load:.1f}): only ratios mean anything."
        lines += ["", f"## {group}", "", f"{newest[:10]}, commit {run[0]['commit']}; {run[0]['machine']}.{busy}", ""]
        lines += _table([Measurement(**{k: r.get(k) for k in FIELDS}) for r in run])  # type: ignore[arg-type]
    _atomically(RESULTS, "\n".join(lines) + "\n")


def keep(rows: list[Measurement], load: float) -> None:
    """Add the rows of a run to the history, one line of JSON each, and drop those that no page shows any more."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    run = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "load": round(load, 1),
    }
    known = history()
    measured = {(row.group, row.what) for row in rows}
    groups = {row.group for row in rows}
    kept = [r for key, old in known.items() if key[0] not in groups or key in measured for r in old]
    kept += [{**run, **dataclasses.asdict(row)} for row in rows]
    newest: dict[tuple[object, object], list[str]] = {}
    for r in kept:
        newest.setdefault((r["group"], r["what"]), []).append(json.dumps(r) + "\n")
    _atomically(HISTORY, "".join(text for texts in newest.values() for text in texts[-_SHOWN:]))


def history() -> dict[tuple[str, str], list[dict[str, object]]]:
    """(group, what) -> its rows, oldest first."""
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for text in HISTORY.read_text().splitlines() if HISTORY.exists() else ():
        row = json.loads(text)
        found.setdefault((row["group"], row["what"]), []).append(row)
    return found


_LEADS = {
    "en": [
        "# Speed and memory over time",
        "",
        "Made by `make bench` from `benchmarks/history.jsonl`; the newest table is",
        "[benchmarks/results.md](../benchmarks/results.md). Each line is one row of the table over the last runs: its",
        "figure divided by the largest that its target allows, so that everything up to 1 meets its target. Rows are",
        "numbered as listed below their plot; each is followed by its runs, and how many of them shared the machine",
        "with other programs.",
        "",
        "A call that computes little is mostly torch's. dynamo's guards and frames and AOTAutograd's wrapper around a",
        "function that computes nothing take 1.6 times what eager takes for a whole MLP of five operators on 8",
        "numbers (36 and 23 us of processor time on one thread, torch 2.13), so no backend reaches 1.1 there. With the",
        "operators it is 57 us if they are four calls of ATen written by hand, and 59 us with ours. Both comparisons",
        "are rows of the group `steady`.",
        "",
        "Models near 1.0 in `steady` do eager's own work: of a Llama's forward 94 % is the same matrix products, of",
        "CREPE nearly all the same convolutions, and AOTAutograd alone (`aot_eager`) takes 1.03 of eager for the",
        "ResNet-50 training step. `TAIR_CPU_PROGRAM=inductor` fuses what is left; its rows are the group `inductor`.",
        "A second start by `torch.compile` is dynamo's tracing, which `cache_compile` leaves out.",
        "",
    ],
    "zh": [
        "# 速度与内存的变化",
        "",
        "由 `make bench` 根据 `benchmarks/history.jsonl` 生成；最新的表见",
        "[benchmarks/results.md](../benchmarks/results.md)。每条线是表中一行在最近几次运行中的值：",
        "实测值除以目标允许的最大值，不大于 1 就达到目标。各行的编号见图下的列表，行名为英文；",
        "其后是运行次数，以及其中与其他程序同时运行的次数。",
        "",
        "计算量很小的调用，时间主要花在 torch 自身：dynamo 的守卫和帧，加上 AOTAutograd 的外层，",
        "包住一个什么都不算的函数，就要用 eager 执行整个五算子 MLP（8 个数）的 1.6 倍时间",
        "（单线程处理器时间 36 与 23 微秒，torch 2.13），因此任何后端在那里都达不到 1.1。",
        "带上算子，手写的四次 ATen 调用为 57 微秒，本项目为 59 微秒。这两个比较都是 `steady` 组中的行。",
        "",
        "`steady` 中接近 1.0 的模型，做的就是 eager 自己的计算：Llama 前向的 94 % 是同样的矩阵乘，",
        "CREPE 几乎全是同样的卷积；ResNet-50 训练步单是 AOTAutograd（`aot_eager`）就要 eager 的 1.03 倍。",
        "`TAIR_CPU_PROGRAM=inductor` 融合其余部分，",
        "结果见 `inductor` 组。用 `torch.compile` 第二次启动的时间是 dynamo 的追踪，`cache_compile` 省去了它。",
        "",
    ],
}


def page(language: str = "en") -> str:
    """The trend: one plot a group, ratios to the peer or to the limit over the runs."""
    lines = list(_LEADS[language])
    groups: dict[str, list[tuple[str, list[dict[str, object]]]]] = {}
    for (group, what), rows in history().items():
        if rows[-1]["target"]:
            groups.setdefault(group, []).append((what, rows[-_SHOWN:]))
    for group, found in groups.items():
        series = [(what, [_of_target(r) for r in rows], rows) for what, rows in found]
        top = max(1.2, *(max(values) for _, values, _ in series))
        length = max(len(values) for _, values, _ in series)
        lines += [f"## {group}", "", "```mermaid", "xychart-beta", f'    x-axis "run" 1 --> {max(length, 2)}']
        lines += [f'    y-axis "of the target" 0 --> {top:.2f}']
        lines += [f"    line [{', '.join(f'{v:.3f}' for v in _padded(values, length))}]" for _, values, _ in series]
        lines += ["```", ""]
        for number, (what, values, rows) in enumerate(series, 1):
            busy = sum(float(str(r["load"])) >= 1 for r in rows)
            lines.append(
                f"{number}. {what} ({rows[-1]['target']}): {values[-1]:.2f} of the target; {len(rows)}, {busy}"
            )
        lines.append("")
    return "\n".join(lines)


def _padded(values: list[float], length: int) -> list[float]:
    """Runs in which a row did not exist yet take its first value; a plot needs two points."""
    filled = [values[0]] * (length - len(values)) + values
    return filled if len(filled) > 1 else filled * 2


def _of_target(row: dict[str, object]) -> float:
    words = str(row["target"]).split()
    limit = float(words[1])
    absolute = row["ratio"] is None or (words[0] == "<=" and len(words) > 2)  # a limit with a unit
    figure = float(str(row["value"] if absolute else row["ratio"]))
    if words[0] == ">=":
        return limit / figure
    return figure / limit if limit else figure + 1 if figure else 0.0


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="groups to measure; all if none is given")
    parser.add_argument("--small", action="store_true", help="small sizes; nothing is written")
    given = parser.parse_args()
    rows_module.small = given.small
    groups = given.groups or list(GROUPS)
    console = Console(width=None if sys.stdout.isatty() else 160)
    load = os.getloadavg()[0]
    rows: list[Measurement] = []
    for group in groups:
        start, used = time.perf_counter(), processor_seconds()
        with console.status(f"measuring {group}") if sys.stdout.isatty() else open(os.devnull):
            found = list(importlib.import_module(GROUPS[group]).measure())
        if not given.small:
            keep(found, load)
        rows += found
        console.print(f"{group}: {time.perf_counter() - start:.0f} s, {processor_seconds() - used:.0f} s of processors")
    table = Table(title=machine())
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("ours", "peer's", "ratio") else "left")
    for r in rows:
        table.add_row(*r.cells())
    console.print(table)
    if not given.small:
        _atomically(PAGE, page())
        _atomically(PAGE.with_suffix(".zh.md"), page("zh"))
        write()
        console.print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
