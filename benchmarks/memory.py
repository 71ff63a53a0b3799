"""Memory while compiling and while running, against eager.

Live tensors are counted from torch's own allocation events; while compiling, the peak of the process is taken.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import torchair
from benchmarks import rows
from benchmarks.rows import Measurement, at_most, size
from tools import models

GROUP = "memory"


def peak_bytes(call: Callable[[], Any]) -> int:
    """Highest sum of allocations minus releases inside the call."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    live = peak = 0
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def status(key: str) -> int:
    """A line of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(key)).split()[1]) << 10


def child(name: str, which: str, backend: str) -> dict[str, float]:
    """Peak memory of the process over what it holds before, while the model is compiled and first run."""
    warm = torch.nn.Linear(2, 2)
    torch.compile(warm, backend=backend)(torch.ones(1, 2)).sum().backward()  # torch's own modules are not the model's
    torch._dynamo.reset()
    case = models.ZOO[name](which)
    with torch.no_grad():
        case.model(*case.inputs)
        Path("/proc/self/clear_refs").write_text("5")
        base = status("VmRSS")
        run = torch.compile(case.model, backend=backend, fullgraph=True, dynamic=False)
        run(*case.inputs)
    parameters = sum(p.numel() * p.element_size() for p in case.model.parameters())
    return {"more": max(status("VmHWM") - base, 0), "parameters": parameters}


def _compiling(name: str) -> Iterator[Measurement]:
    """Beside the parameters, and beside a backend that only traces: dynamo alone takes about 50 MB."""
    ours, traced = (_peak(name, backend) for backend in ("npu", "aot_eager"))
    what = f"{name}: peak while compiling, parameters included"
    held = ours["parameters"]
    yield at_most(GROUP, what, held + ours["more"], 1.15, unit="MB", peer=held, name="parameters")
    what = f"{name}: peak while compiling, beside a backend that only traces"
    yield at_most(GROUP, what, held + ours["more"], 1.05, unit="MB", peer=held + traced["more"], name="aot_eager")


def _peak(name: str, backend: str) -> dict[str, float]:
    """What ``child`` finds in a process of its own, in MB."""
    command = [sys.executable, "-m", "benchmarks.memory", name, size(), backend]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return {what: n / 2**20 for what, n in json.loads(done.stdout.splitlines()[-1]).items()}


def measure() -> Iterator[Measurement]:
    for name in ("llama",) if rows.small else ("llama", "bert", "resnet50", "gpt2", "vit"):
        case = models.ZOO[name](size())
        torch._dynamo.reset()
        compiled = torch.compile(case.model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
        with torch.no_grad():
            ours = peak_bytes(functools.partial(compiled, *case.inputs))
            eager = peak_bytes(functools.partial(case.model, *case.inputs))
        yield at_most(
            GROUP, f"{name}: peak of live tensors in a call", ours / 2**20, 1.0, unit="MB", peer=eager / 2**20
        )
    for name in ("bert",) if rows.small else ("bert", "gpt2"):
        yield from _compiling(name)


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
