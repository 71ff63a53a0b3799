"""`make bench`: every figure is a ratio or a share measured in this run; medians; written to benchmarks/results.md.

python -m benchmarks.run                  everything
python -m benchmarks.run conversion       one group
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from pathlib import Path

import torch

from benchmarks.rows import Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.md"

# group -> module with `measure() -> Iterator[Row]`
GROUPS = {
    "graphs": "benchmarks.graphs",
    "conversion": "benchmarks.conversion",
    "startup": "benchmarks.startup",
    "steady": "benchmarks.steady",
    "memory": "benchmarks.memory",
    "export": "benchmarks.export",
    "device": "benchmarks.device",
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


def write(rows: list[Row]) -> None:
    """The table as Markdown, atomically."""
    lines = ["# Measured", "", machine(), "", "| group | what | ours | peer | ratio | target | met |"]
    lines.append("|---|---|---:|---:|---:|---|---|")
    lines += [f"| {r.group} | {r.what} | {r.ours} | {r.peer} | {r.ratio} | {r.target} | {r.met} |" for r in rows]
    partial = RESULTS.with_suffix(".part")
    partial.write_text("\n".join(lines) + "\n")
    os.replace(partial, RESULTS)


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="groups to measure; all if none is given")
    groups = parser.parse_args().groups or list(GROUPS)
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows: list[Row] = []
    for group in groups:
        with console.status(f"measuring {group}") if sys.stdout.isatty() else open(os.devnull):
            rows += importlib.import_module(GROUPS[group]).measure()
    table = Table(title=machine())
    for heading in ("group", "what", "ours", "peer", "ratio", "target", "met"):
        table.add_column(heading, justify="left" if heading in ("group", "what", "target") else "right")
    for r in rows:
        table.add_row(r.group, r.what, r.ours, r.peer, r.ratio, r.target, r.met)
    console.print(table)
    if len(groups) == len(GROUPS):
        write(rows)
        console.print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
