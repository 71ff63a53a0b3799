"""Export and load of large models: against the raw speed of the same disk, with the memory and the time that they take.

Each measurement runs in a process of its own, in a temporary folder that is removed afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import rows
from benchmarks.rows import Measurement, at_most, beside

GROUP = "export"
_WIDTH = 8192
_LAYER = _WIDTH * _WIDTH * 4
_BLOCK = 32 << 20
FULL = 16  # layers of 256 MB: 4 GB, twice what one graph file can hold


def status(key: str) -> int:
    """A line of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(key)).split()[1]) << 10


def reset_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def raw_write(path: Path, layers: list[Any]) -> float:
    """Seconds to write the same bytes to one file, sequentially, and flush it."""
    start = time.perf_counter()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    for tensor in layers:
        view = memoryview(tensor.detach().numpy()).cast("B")
        for at in range(0, len(view), _BLOCK):
            os.write(handle, view[at : at + _BLOCK])
    os.fsync(handle)
    os.close(handle)
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def child_save(folder: Path, layers: int) -> dict[str, float]:
    """Build a model of random weights and export it between two raw writes of as many bytes."""
    import torch

    import torchair

    small = torch.nn.Linear(2, 2).eval()
    torchair.CompiledModel.save_graph(small, (torch.ones(1, 2),), save_path=folder / "warm")
    base = status("VmRSS")
    parts: list[torch.nn.Module] = []
    for seed in range(layers):
        part = torch.nn.Linear(_WIDTH, _WIDTH, bias=False, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            part.weight.uniform_(-0.01, 0.01, generator=generator)
        parts.append(part)
    model = torch.nn.Sequential(*parts).eval()
    x = torch.ones(1, _WIDTH)
    with torch.no_grad():
        torch.save(model(x), folder / "want.pt")
    weights = [p.weight for p in parts]
    before = raw_write(folder / "raw", weights)
    reset_peak()
    start = time.perf_counter()
    torchair.CompiledModel.save_graph(model, (x,), save_path=folder / "saved")
    seconds = time.perf_counter() - start
    peak = status("VmHWM") - base
    after = raw_write(folder / "raw", weights)
    start = time.perf_counter()
    torchair.dynamo_export(x, model=model, export_path=str(folder / "exported"), dynamic=False)
    exported = time.perf_counter() - start
    shutil.rmtree(folder / "exported")
    raw = (before + after) / 2
    return {"raw": raw, "export": seconds, "dynamo_export": exported, "peak": peak, "bytes": layers * _LAYER}


def child_load(folder: Path, _: int) -> dict[str, float]:
    """Load, then run, and see how many of the weights' pages are this process's own; numpy.memmap beside it.

    A small archive is loaded and run before: importing protobuf and the kernels is not the large one's doing, and takes
    as long as Python needs to read its modules, from bytecode or from text.
    """
    import numpy
    import torch

    import tair_export

    load = tair_export.CompiledModel.load_graph
    start = time.perf_counter()
    load(folder / "warm")(torch.ones(1, 2))
    imports = time.perf_counter() - start
    base = status("RssAnon")
    times = {}
    for verify in (True, "fast", "sizes"):
        start = time.perf_counter()
        model = load(folder / "saved", verify=verify)
        times[str(verify)] = time.perf_counter() - start
    with torch.no_grad():
        torch.testing.assert_close(model(torch.ones(1, _WIDTH)), torch.load(folder / "want.pt"))
    own = max(status("RssAnon") - base, 0)
    start = time.perf_counter()
    for path in (folder / "saved").rglob("*"):
        if path.is_file() and path.stat().st_size:
            numpy.memmap(path, mode="r")
    memmap = time.perf_counter() - start
    return {
        "imports": imports,
        "load": times["True"],
        "fast": times["fast"],
        "sizes": times["sizes"],
        "own": own,
        "memmap": memmap,
    }


def child(
    what: str, folder: Path, number: int, module: str = "benchmarks.export", **variables: str
) -> dict[str, float]:
    """What a measurement prints that runs in a process of its own."""
    command = [sys.executable, "-m", module, what, str(folder), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _fitting() -> int:
    """Layers that disk and memory hold: two copies on disk, one in memory with room to spare."""
    if rows.small:
        return 1
    free = shutil.disk_usage(tempfile.gettempdir()).free
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(min(FULL, int(free / 2.5 / _LAYER), int(memory / 1.4 / _LAYER)), 1)


def measure() -> Iterator[Measurement]:
    layers = _fitting()
    size = "random weights" if rows.small else f"{layers * _LAYER / 2**30:.0f} GB of random weights"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = child("save", folder, layers)
        loaded = child("load", folder, layers)
        on_disk = sum(p.stat().st_size for p in (folder / "saved").rglob("*") if p.is_file())
    mb = 1 << 20
    for what, key in (("save_graph", "export"), ("dynamo_export", "dynamo_export")):
        yield at_most(
            GROUP,
            f"{size}: {what}, at least 80 % of the disk's speed",
            saved[key],
            1.25,
            unit="s",
            peer=saved["raw"],
            name="sequential write and flush",
        )
    yield at_most(
        GROUP,
        f"{size}: peak memory beyond torch itself; limit is the weights x 1.05 + 200 MB",
        saved["peak"] / mb,
        saved["bytes"] * 1.05 / mb + 200,
        unit="MB",
    )
    for verify in ("fast", "sizes"):
        what = f"{size}: load_graph(verify='{verify}') until it can be called"
        yield at_most(GROUP, what, loaded[verify], 0.1, unit="s")
    yield beside(
        GROUP,
        f"{size}: load_graph, verify='fast'",
        loaded["fast"],
        unit="s",
        peer=loaded["memmap"],
        name="numpy.memmap",
    )
    yield beside(
        GROUP,
        f"{size}: load_graph that compares every byte, the default",
        loaded["load"],
        unit="s",
        peer=loaded["fast"],
        name="verify='fast'",
    )
    yield beside(
        GROUP,
        "the first load_graph of a process, imports included",
        loaded["imports"],
        unit="s",
        peer=loaded["fast"],
        name="a later one",
    )
    yield at_most(
        GROUP, f"{size}: memory of its own after a run that reads every weight", loaded["own"] / mb, 200, unit="MB"
    )
    yield at_most(
        GROUP,
        f"{size}: bytes on disk to bytes of weights",
        on_disk / mb,
        1.001,
        unit="MB",
        peer=saved["bytes"] / mb,
        name="weights",
    )


if __name__ == "__main__":
    call = {"save": child_save, "load": child_load}[sys.argv[1]]
    print(json.dumps(call(Path(sys.argv[2]), int(sys.argv[3]))))
