"""On the CANN emulator with the torch_npu wheel: this torchair against the one inside torch_npu, on the same models.

The emulator says nothing of a device's speed; what is compared is what each torchair does on the host, and how many
operators it gives to GE. Without the wheel (TAIR_TORCH_NPU) there are no rows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.rows import Measurement, at_most

GROUP = "device"
INPUTS = 300
_PLUMBING = {"Data", "RefData", "Const", "Constant", "ConstPlaceHolder", "NetOutput"}


def _models() -> dict[str, Any]:
    import torch

    from tools import models

    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    bert = models.bert()
    return {"MLP": (mlp.eval(), (torch.randn(4, 64),)), "BERT base": (bert.model, bert.inputs)}


def _microseconds(call: Callable[[], Any], repeats: int = 100) -> float:
    import torch

    times = []
    for _ in range(repeats):
        torch.npu.synchronize()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.npu.synchronize()
    return 1e6 * statistics.median(times)


def _above_the_engine(name: str) -> float:
    """What a run of a graph with many inputs costs above the engine's own call, in microseconds."""
    import torch

    from ge_graph import DataType, Graph, building
    from ge_graph import ops as ge
    from ge_runtime.cann import library
    from ge_runtime.discovery import load

    graph = Graph("many")
    with building(graph):
        inputs = [ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(1,)) for i in range(INPUTS)]
        result = ge.Identity(inputs[0])
        result.record_shape((1,))
        graph.outputs = [result]
    made: Any = load(name).compile(graph, {})
    tensors = [torch.ones(1).npu() for _ in range(INPUTS)]
    for _ in range(3):
        results = made.run(tensors)
    stream = torch.npu.current_stream()
    if name == "cann":
        native, handle = library.native(), int(stream.npu_stream)
        outs = made._outs

        def bare() -> None:
            native.gec_graph_run(made._handle, handle, made._ins, outs, None)
    else:
        compiled = made._on(made._seen)

        def bare() -> None:
            compiled.run((tensors, made._no_targets, stream))

    assert len(results) == 1
    whole, own = [], []
    for _ in range(3):
        whole.append(_microseconds(lambda: made.run(tensors)))
        own.append(_microseconds(bare))
    return min(whole) - min(own)


def work(ours: bool) -> dict[str, Any]:
    """What one process measures; it runs on the emulator."""
    import torch
    import torch_npu  # noqa: F401

    import torchair

    assert ("torch_npu" in torchair.__file__) is not ours, torchair.__file__
    torch.npu.set_compile_mode(jit_compile=False)
    found: dict[str, Any] = {}

    def backend() -> Any:
        return torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())

    torch.compile(lambda x: x + 1, backend=backend())(torch.ones(2).npu())  # loads converters and kernels
    for name, (model, inputs) in _models().items():
        moved = [v.npu() for v in inputs]
        compiled = torch.compile(model.npu(), backend=backend(), dynamic=False)
        with torch.no_grad():
            start = time.perf_counter()
            try:
                compiled(*moved)
            except Exception as error:
                if ours:
                    raise
                found[f"{name}, first call"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
                continue
            torch.npu.synchronize()
            found[f"{name}, first call"] = time.perf_counter() - start
    many = [torch.ones(1).npu() for _ in range(INPUTS)]
    cat = torch.compile(lambda *xs: torch.cat(xs), backend=backend(), dynamic=False)
    for _ in range(3):
        cat(*many)
    found["call"] = _microseconds(lambda: cat(*many), 50)
    if ours:
        found["above torch_npu"] = _above_the_engine("torch_npu")
        found["above cann"] = _above_the_engine("cann")
    return found


def _child(ours: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TAIR_EMULATOR_GRAPHS": folder}
        bundled = [] if ours else ["--bundled-torchair"]
        command = [sys.executable, "-m", "ge_emulator", *bundled, "-m", "benchmarks.device", "ours" if ours else "peer"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        from ge_graph import serde

        graphs = [serde.from_bytes(p.read_bytes()) for p in sorted(Path(folder).iterdir())]
        found["operators"] = [sum(n.op not in _PLUMBING for n in g.nodes) for g in graphs]
        return found


def measure() -> Iterator[Measurement]:
    from ge_emulator.launch import find_torch_npu
    from ge_graph.errors import EngineError

    try:
        find_torch_npu()
    except EngineError as error:
        yield Measurement(GROUP, f"not measured: {error.what}", None, "")
        return
    ours, peer = _child(True), _child(False)
    for at, name in enumerate(("MLP", "BERT base"), start=1):
        key = f"{name}, first call"
        if isinstance(peer[key], str):
            yield Measurement(GROUP, key, ours[key], "s", peer="the other one does not run")
            continue
        yield at_most(GROUP, key, ours[key], 1.0, unit="s", peer=peer[key])
        counted = ours["operators"][at], peer["operators"][at]
        yield at_most(GROUP, f"{name}, GE operators", counted[0], 1.0, unit="ops", peer=counted[1])
    yield at_most(GROUP, f"a call with {INPUTS} inputs", ours["call"], 1.0, unit="us", peer=peer["call"])
    for name in ("cann", "torch_npu"):
        what = f"{INPUTS} inputs, engine {name}, above the engine's own call"
        yield at_most(GROUP, what, ours[f"above {name}"], 60, unit="us")


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1] == "ours")))
