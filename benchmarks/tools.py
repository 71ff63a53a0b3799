"""Dumps against numpy.save, the command line against tracing alone, other exporters beside ours."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchair
from benchmarks import rows
from benchmarks.rows import Measurement, at_most, beside, medians, size
from tools import models

GROUP = "tools"
_REPEATS = 5


def _saved_again(folder: Path, into: Path) -> Callable[[], None]:
    """numpy.save of the arrays that a dump wrote, as many files of the same names."""
    arrays = [(p.name, np.load(p, allow_pickle=False)) for p in sorted(folder.rglob("*.npy"))]
    if not arrays:
        raise SystemExit(f"the dump in {folder} holds no arrays")

    def save() -> None:
        with tempfile.TemporaryDirectory(dir=into) as target:
            for name, array in arrays:
                np.save(Path(target) / name, array)

    return save


def _dump(what: str, configure: Callable[[torchair.CompilerConfig, str], None]) -> Measurement:
    """Seconds that dumping adds to a run, against saving the same arrays.

    Both take their files away again: what stays has to reach the disk, and whoever writes next waits for that.
    """
    case = models.resnet50(size())
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder, other = Path(name) / "dump", Path(name) / "again"
        folder.mkdir()
        other.mkdir()
        torch._dynamo.reset()
        plain = torch.compile(case.model, backend="npu", dynamic=False)
        plain(*case.inputs)
        torch._dynamo.reset()
        config = torchair.CompilerConfig()
        configure(config, str(folder))
        dumping = torch.compile(case.model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
        dumping(*case.inputs)
        save = _saved_again(folder, other)

        def dump() -> None:
            dumping(*case.inputs)
            for path in folder.rglob("*.npy"):
                path.unlink()

        with_dump, without, saved = medians(dump, lambda: plain(*case.inputs), save, repeats=_REPEATS, warm=1)
    return at_most(GROUP, what, with_dump - without, 1.3, unit="s", peer=saved, name="numpy.save")


def _data_dump(config: torchair.CompilerConfig, folder: str) -> None:
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = folder


def _ge_dump(config: torchair.CompilerConfig, folder: str) -> None:
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = folder


_FACTORY = """
import sys
sys.path.insert(0, {root!r})
from tools import models

def bert():
    case = models.bert({size!r})
    return case.model, case.inputs
"""
_TRACE = """
import torch
from made import bert
model, inputs = bert()
with torch.no_grad():
    torch.compile(model, backend="aot_eager", fullgraph=True)(*inputs)
"""


def _process(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return time.perf_counter() - start


def _command_line() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = str(Path(__file__).resolve().parent.parent)
        (folder / "made.py").write_text(_FACTORY.format(root=root, size=size()))
        (folder / "trace.py").write_text(_TRACE)
        tair = [sys.executable, "-m", "tair_debug.cli"]
        times: dict[str, list[float]] = {"summary": [], "compare": [], "trace": []}
        for _ in range(1 if rows.small else 2):
            times["trace"].append(_process([sys.executable, "trace.py"], folder))
            for command in ("summary", "compare"):
                times[command].append(_process([*tair, command, "made.py:bert"], folder))
    best = {k: min(v) for k, v in times.items()}
    for command, limit in (("summary", 1.3), ("compare", 2.0)):
        what = f"tair {command} of BERT, whole process"
        yield at_most(GROUP, what, best[command], limit, unit="s", peer=best["trace"], name="aot_eager's process")


def _exporters() -> Iterator[Measurement]:
    case = models.bert(size())
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda: torchair.dynamo_export(
                *case.inputs, model=case.model, export_path=str(Path(name) / "ours"), dynamic=False
            ),
            "torch.export": lambda: torch.export.export(case.model, case.inputs, strict=False),
        }
        try:
            import onnxscript  # noqa: F401

            calls["torch.onnx"] = lambda: torch.onnx.export(
                case.model, case.inputs, str(Path(name) / "m.onnx"), dynamo=True
            )
        except ImportError:  # torch.onnx needs a package that torch does not bring
            pass
        seconds = dict(zip(calls, medians(*calls.values(), repeats=2, warm=1), strict=True))
    for other in list(calls)[1:]:
        yield beside(GROUP, f"BERT: export, beside {other}", seconds["ours"], unit="s", peer=seconds[other], name=other)


def measure() -> Iterator[Measurement]:
    yield _dump("ResNet-50: data dump of the ATen operators, over the run", _data_dump)
    yield _dump("ResNet-50: data dump of the GE operators, over the run", _ge_dump)
    yield from _command_line()
    yield from _exporters()
