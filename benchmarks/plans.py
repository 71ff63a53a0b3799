"""`tair plan` of large models without weights: processor time and memory of the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Measurement, at_most

GROUP = "plans"
MODELS = Path(__file__).resolve().parent.parent / "examples" / "plan" / "large_models.py"
SECONDS, MEGABYTES = 120, 8192
_CHILD = """
import json, resource, sys
from typer.testing import CliRunner
from tair_debug.cli import app
done = CliRunner().invoke(app, ["plan", sys.argv[1], "--soc", "Ascend910B2", "--json"])
made = json.loads(done.output)["plans"][0]
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1024,
                  "operators": sum(g["operators"] for graph in made["graphs"] for g in graph["groups"])}))
"""


def planned(model: str, layers: int | None = None) -> dict[str, float]:
    """Processor seconds, megabytes and operators of one plan, in a process of its own."""
    variables = {**os.environ, **({} if layers is None else {"LAYERS": str(layers)})}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, f"{MODELS}:{model}"],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=1800,
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure() -> Iterator[Measurement]:
    for model in ("llama_70b", "deepseek_v3", "sdxl"):
        found = planned(model, 2 if rows.small else None)
        what = f"{model}, {found['operators']:.0f} operators"
        yield at_most(GROUP, f"{what}: processor time", found["seconds"], SECONDS, unit="s")
        yield at_most(GROUP, f"{what}: memory", found["megabytes"], MEGABYTES, unit="MB")
