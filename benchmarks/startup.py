"""What the import, the first call and the second process cost beyond torch itself."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import torchair
from benchmarks import rows
from benchmarks.rows import Measurement, at_least, at_most, beside, size
from tools import models

GROUP = "startup"
CAPTURED = ", captured"
MODELS = ("llama", "bert", "resnet50", "gpt2")


def _import_seconds(module: str, repeats: int = 7) -> float:
    """Median seconds that importing `module` adds in a process that has torch already."""
    code = f"import time, torch; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2 if rows.small else repeats)
    ]
    return statistics.median(float(r.stdout) for r in runs)


def first_call_share(name: str, small: bool) -> float:
    """Our part of the first call of a process: everything that is neither dynamo nor AOTAutograd nor the run itself.

    Torch's own compiler has compiled something before, so that what it loads once does not hide what we load.
    """
    torch.compile(torch.neg, backend="aot_eager")(torch.ones(2))
    if name == "mlp":
        layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        case = models.ModelCase(layers, (torch.randn(4, 16),))
    else:
        case = models.ZOO[name]("tiny" if small else size())
    compiled = torch.compile(case.model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    with torch.no_grad(), torchair.record_compilation() as reports:
        start = time.perf_counter()
        compiled(*case.inputs)
        total = time.perf_counter() - start
    return float(sum(r.total_s for r in reports) / total)


# -- the second process -----------------------------------------------------------------------------------------------


def child(door: str, folder: str, layers: int) -> dict[str, float]:
    """The first call of a process: wall time and processor time, and what of it dynamo needs."""
    case = models.llama("tiny", layers)
    config = torchair.CompilerConfig()
    if door.endswith(CAPTURED):
        config.mode = "npugraph_ex"
    if door.startswith("cache_compile"):
        call = torchair.inference.cache_compile(case.model.forward, config=config, cache_dir=folder, dynamic=False)
    elif door == "aot_compile":
        return _ahead(case, Path(folder) / "function")
    else:
        config.cache_dir = folder
        call = torch.compile(case.model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    with torch.no_grad():
        start, cpu = time.perf_counter(), time.process_time()
        call(*case.inputs)
        return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}


def _ahead(case: models.ModelCase, path: Path) -> dict[str, float]:
    """The first call by ``aot_compile``; by what it has saved, if it has."""
    with torch.no_grad():
        start, cpu = time.perf_counter(), time.process_time()
        if path.exists():
            with path.open("rb") as file:
                function = torch.compiler.load_compiled_function(file)
        else:
            compiled = torch.compile(case.model, backend="npu", fullgraph=True, dynamic=False)
            function = compiled.forward.aot_compile((case.inputs, {}))
        function(case.model, *case.inputs)
        took = {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    if not path.exists():
        function.save_compiled_function(str(path))
    return took


def _start(door: str, folder: str, layers: int) -> dict[str, float]:
    return _child(door, folder, str(layers))


def _child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.startup", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _second_process() -> Iterator[Measurement]:
    layers = 2 if rows.small else 24
    for door in (
        "cache_compile",
        "torch.compile",
        "cache_compile" + CAPTURED,
        "torch.compile" + CAPTURED,
        "aot_compile",
    ):
        wanted = 5.0
        with tempfile.TemporaryDirectory() as folder:
            first, second = (_start(door, folder, layers) for _ in range(2))
        what = f"Llama, 24 layers of small width, {door}: first call of the second process"
        yield at_least(GROUP, what, second["wall"], wanted, unit="s", peer=first["wall"], name="first process")
        yield beside(GROUP, f"{what}, processor time", second["cpu"], unit="s", peer=first["cpu"], name="first process")


def measure() -> Iterator[Measurement]:
    yield at_most(GROUP, "import torchair beyond import torch", _import_seconds("torchair"), 0.3, unit="s")
    for name, most in (("mlp", 10), *((m, 4) for m in (("llama",) if rows.small else MODELS))):
        share = _child("share", name, "tiny" if rows.small else "")["share"]
        yield at_most(GROUP, f"our share of the first call, {name}", 100 * share, most, unit="%")
    yield from _second_process()


if __name__ == "__main__":
    if sys.argv[1] == "share":
        print(json.dumps({"share": first_call_share(sys.argv[2], small=bool(sys.argv[3]))}))
    else:
        print(json.dumps(child(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
