"""Dumps against numpy.save, the command line against tracing alone, other exporters beside ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchair
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


def _dump(
    what: str,
    case: models.ModelCase,
    plain: Callable[..., Any],
    configure: Callable[[torchair.CompilerConfig, str], None],
) -> Measurement:
    """Seconds that dumping adds to a run, against saving the same arrays.

    Both take their files away again: what stays has to reach the disk, and whoever writes next waits for that.
    """
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder, other = Path(name) / "dump", Path(name) / "again"
        folder.mkdir()
        other.mkdir()
        config = torchair.CompilerConfig()
        configure(config, str(folder))
        backend = torchair.get_npu_backend(compiler_config=config)
        dumping = torch.compile(lambda *given: case.model(*given), backend=backend, dynamic=False)
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

def llama():
    case = models.llama({size!r}, layers=24)
    return case.model, case.inputs

def faulty():
    import torch
    from torchair import ge, register_fx_node_ge_converter

    @register_fx_node_ge_converter(torch.ops.aten.silu.default)
    def wrong(self, *, meta_outputs=None):
        return ge.Sigmoid(self)

    return llama()
"""
# commands on a Llama of 24 layers, and the processor time that each may take, in seconds
_COMMANDS = {"summary": 5, "check --soc ascend910b": 6, "dump -o dumps": 6, "view -o page.html": 5, "compare": 10}
_TRACE = """
import torch
from made import bert
model, inputs = bert()
with torch.no_grad():
    torch.compile(model, backend="aot_eager", fullgraph=True)(*inputs)
"""


def _children() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _process(command: list[str], folder: Path, code: int = 0) -> float:
    """Seconds of the processor that a process takes, which ends with a code: other programs do not count."""
    start = _children()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return _children() - start


def _command_line() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = str(Path(__file__).resolve().parent.parent)
        (folder / "made.py").write_text(_FACTORY.format(root=root, size=size()))
        (folder / "trace.py").write_text(_TRACE)
        tair = [sys.executable, "-m", "tair_debug.cli"]
        alone = _process([sys.executable, "trace.py"], folder)
        for command, limit in (("summary", 1.3), ("compare", 2.0)):
            took = _process([*tair, command, "made.py:bert"], folder)
            what = f"tair {command} of BERT, whole process, processor time"
            yield at_most(GROUP, what, took, limit, unit="s", peer=alone, name="aot_eager's process")
        loading = _process([sys.executable, "-c", "import transformers; transformers.LlamaForCausalLM"], folder)
        for command, limit in _COMMANDS.items():
            verb, *options = command.split()
            # the best of three: limits are near, and the processor of a shared machine is not always as fast
            took = min(_process([*tair, verb, "made.py:llama", *options], folder) for _ in range(3))
            what = f"tair {verb} of a 24-layer Llama, whole process, processor time"
            yield at_most(
                GROUP, what, took, limit, unit="s", peer=loading, name="import transformers' Llama", absolute=True
            )
        took = _process([*tair, "minify", "made.py:faulty", "-o", "shrunk"], folder, code=1)
        what = "tair minify of a wrong operator in a 24-layer Llama, whole process, processor time"
        yield at_most(GROUP, what, took, 60, unit="s", peer=loading, name="import transformers' Llama", absolute=True)


def _export_calls(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path
) -> dict[str, Callable[[], Any]]:
    folder.mkdir()
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: torchair.dynamo_export(*inputs, model=model, export_path=str(folder / "ours"), dynamic=False),
        "torch.export": lambda: torch.export.export(model, inputs, strict=False),
    }
    try:
        import onnxscript  # noqa: F401

        calls["torch.onnx"] = lambda: torch.onnx.export(model, inputs, str(folder / "m.onnx"), dynamo=True)
    except ImportError:  # torch.onnx needs a package that torch does not bring
        pass
    return calls


def _exporters() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        small = torch.nn.Linear(2, 2).eval()
        for call in _export_calls(small, (torch.ones(1, 2),), Path(name) / "small").values():
            call()
        case = models.bert(size())
        calls = _export_calls(case.model, case.inputs, Path(name) / "bert")
        # a figure beside, no target: once, after a small model has made each exporter load its modules
        seconds = dict(zip(calls, medians(*calls.values(), repeats=1, warm=0), strict=True))
    for other in list(calls)[1:]:
        yield beside(GROUP, f"BERT: export, beside {other}", seconds["ours"], unit="s", peer=seconds[other], name=other)


def measure() -> Iterator[Measurement]:
    case = models.resnet50(size())
    plain = torch.compile(case.model, backend="npu", dynamic=False)
    with torch.no_grad():
        plain(*case.inputs)
    yield _dump("ResNet-50: data dump of the ATen operators, over the run", case, plain, _data_dump)
    yield _dump("ResNet-50: data dump of the GE operators, over the run", case, plain, _ge_dump)
    yield from _command_line()
    yield from _exporters()
