"""What the import and the first call cost beyond torch itself."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

import torchair
from benchmarks.rows import Row, at_most
from tools import models

GROUP = "startup"


def _import_seconds(module: str, repeats: int = 7) -> float:
    """Median seconds that importing `module` adds in a process that has torch already."""
    code = f"import time, torch; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(repeats)
    ]
    return statistics.median(float(r.stdout) for r in runs)


def _first_call_share(name: str) -> float:
    """Our part of the first call: everything that is neither dynamo nor AOTAutograd nor the run itself."""
    case = models.ZOO[name]()
    torch._dynamo.reset()
    compiled = torch.compile(case.model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    with torch.no_grad(), torchair.record_compilation() as reports:
        start = time.perf_counter()
        compiled(*case.inputs)
        total = time.perf_counter() - start
    return sum(r.total_s for r in reports) / total


def measure() -> Iterator[Row]:
    yield at_most(GROUP, "import torchair beyond import torch", _import_seconds("torchair"), 0.3, unit="s")
    for name in ("llama", "bert", "resnet50", "gpt2"):
        yield at_most(GROUP, f"our share of the first call, {name}", 100 * _first_call_share(name), 10, unit="%")
