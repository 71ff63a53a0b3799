"""On the CANN emulator with the torch_npu wheel: this torchair against the one inside torch_npu, on the same models.

The emulator says nothing of a device's speed; what is compared is what each torchair does on the host, and how many
operators it gives to GE. Without the wheel (TAIR_TORCH_NPU) there are no rows.
"""

from __future__ import annotations

import ctypes
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
LIMIT_US = 60
PEER = "torchair of torch_npu"
_PLUMBING = {"Data", "RefData", "Const", "Constant", "ConstPlaceHolder", "NetOutput"}


def _mlp(width: int) -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval()


def _models() -> dict[str, Any]:
    import torch

    from tools import models

    bert = models.bert()
    llamas = {f"Llama, {layers} layers": models.llama("tiny", layers) for layers in (2, 12)}
    return {
        "MLP": (_mlp(64), (torch.randn(4, 64),)),
        "BERT base": (bert.model, bert.inputs),
        **{name: (zoo.model, zoo.inputs) for name, zoo in llamas.items()},
    }


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


def _without(part: Callable[[], int], call: Callable[[], Any], repeats: int = 500) -> float:
    """CPU microseconds of this thread for a call, without a part of it; the best of many calls.

    The part is taken off call by call, so that a drift of the machine meets both.

    Args:
        part: CPU nanoseconds that the part has taken in this thread so far.
        call: What to measure.
        repeats: How often.
    """
    import torch

    found = []
    for at in range(repeats):
        if at % 20 == 0:
            torch.npu.synchronize()  # the queue is never so full that a launch waits
        before, start = part(), time.thread_time_ns()
        call()
        found.append(time.thread_time_ns() - start - (part() - before))
    torch.npu.synchronize()
    return 1e-3 * min(found)


class _Timed:
    """A compiled graph of torch_npu's extension module whose runs are timed."""

    def __init__(self, compiled: Any) -> None:
        self._run, self.nanoseconds = compiled.run, 0

    def run(self, arguments: Any) -> Any:
        start = time.thread_time_ns()
        try:
            return self._run(arguments)
        finally:
            self.nanoseconds += time.thread_time_ns() - start


def _timed(backend: Any, took: list[float]) -> Any:
    """The backend, whose seconds for each of dynamo's graphs are kept."""

    def compiles(graph: Any, examples: Any) -> Any:
        start = time.perf_counter()
        try:
            return backend(graph, examples)
        finally:
            took.append(time.perf_counter() - start)

    return compiles


def _many_inputs() -> Any:
    """A graph that reads one of many inputs."""
    from ge_graph import DataType, Graph, building
    from ge_graph import ops as ge

    graph = Graph("many")
    with building(graph):
        inputs = [ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(1,)) for i in range(INPUTS)]
        result = ge.Identity(inputs[0])
        result.record_shape((1,))
        graph.outputs = [result]
    return graph


def _above_the_engine(name: str, *, parameters: bool) -> tuple[float, float]:
    """What a run of a graph with many inputs costs, in CPU microseconds of the thread that calls.

    Returns:
        Ours: above the graph engine itself for ``cann``, above the extension module of torch_npu for ``torch_npu``;
        and all that is above the graph engine, which includes that module.
    """
    import torch

    from ge_emulator.build import build
    from ge_runtime.discovery import load

    launches = ctypes.CDLL(str(build() / "lib64" / "libge_runner.so")).TairEmulatorLaunchNanoseconds
    launches.restype = ctypes.c_int64
    made: Any = load(name).compile(_many_inputs(), {})
    tensors: list[torch.Tensor] = [torch.ones(1).npu() for _ in range(INPUTS)]
    if parameters:  # what most inputs of a compiled model are; they ask for gradients
        tensors = [torch.nn.Parameter(t) for t in tensors]
    for _ in range(3):
        assert len(made.run(tensors)) == 1
    whole = _without(launches, lambda: made.run(tensors))
    if name == "cann":
        return whole, whole
    timed = made._compiled[made._seen] = _Timed(made._compiled[made._seen])
    return _without(lambda: timed.nanoseconds, lambda: made.run(tensors)), whole


def work(ours: bool) -> dict[str, Any]:
    """What one process measures; it runs on the emulator."""
    import torch
    import torch._dynamo
    import torch_npu  # noqa: F401

    start = time.perf_counter()
    import torchair

    assert ("torch_npu" in torchair.__file__) is not ours, torchair.__file__
    torch.npu.set_compile_mode(jit_compile=False)
    found: dict[str, Any] = {}

    def backend() -> Any:
        return torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())

    # ours loads the converters of a graph, the other one all of them
    with torch.no_grad():
        torch.compile(_mlp(32).npu(), backend=backend())(torch.ones(2, 32).npu())
    torch.npu.synchronize()
    found["first graph"] = time.perf_counter() - start
    for name, (model, inputs) in _models().items():
        moved = [v.npu() for v in inputs]
        took: list[float] = []
        compiled = torch.compile(model.npu(), backend=_timed(backend(), took), dynamic=False)
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
            found[f"{name}, conversion"] = sum(took)
    many = [torch.ones(1).npu() for _ in range(INPUTS)]
    cat = torch.compile(lambda *xs: torch.cat(xs), backend=backend(), dynamic=False)
    for _ in range(3):
        cat(*many)
    found["call"] = _microseconds(lambda: cat(*many), 50)
    if ours:
        for name in ("cann", "torch_npu"):  # in this order: cann builds the native library where no wheel brought it
            for parameters in (False, True):
                found[f"above {name} {parameters}"] = _above_the_engine(name, parameters=parameters)
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


def _best(ours: bool) -> dict[str, Any]:
    """The smallest figures of three processes: what is measured once in each of them meets what else a machine does."""
    runs = [_child(ours) for _ in range(3)]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def without_torch_npu(group: str) -> Measurement | None:
    """The row of a group that cannot be measured for want of a wheel; None if there is one."""
    from ge_emulator.launch import find_torch_npu
    from ge_graph.errors import EngineError

    try:
        find_torch_npu()
    except EngineError as error:
        return Measurement(group, f"not measured: {error.what}", None, "")
    return None


def measure() -> Iterator[Measurement]:
    if (absent := without_torch_npu(GROUP)) is not None:
        yield absent
        return
    ours, peer = _best(True), _best(False)
    what = "import and the first graph of a process"
    yield at_most(GROUP, what, ours["first graph"], 1.0, unit="s", peer=peer["first graph"], name=PEER)
    for at, name in enumerate(_models(), start=1):
        key = f"{name}, first call"
        if isinstance(peer[key], str):
            yield Measurement(GROUP, key, ours[key], "s", peer=f"{PEER}: does not run")
            continue
        yield at_most(GROUP, key, ours[key], 1.0, unit="s", peer=peer[key], name=PEER)
        what = f"{name}, conversion: from dynamo's graph to what it calls"
        yield at_most(
            GROUP, what, ours[f"{name}, conversion"], 1.0, unit="s", peer=peer[f"{name}, conversion"], name=PEER
        )
        counted = ours["operators"][at], peer["operators"][at]
        yield at_most(GROUP, f"{name}, GE operators", counted[0], 1.0, unit="ops", peer=counted[1], name=PEER)
    yield at_most(GROUP, f"a call with {INPUTS} inputs", ours["call"], 1.0, unit="us", peer=peer["call"], name=PEER)
    for name, engine in (("cann", "GE"), ("torch_npu", "the extension module")):
        for parameters, kind in ((False, "tensors"), (True, "parameters")):
            own, whole = ours[f"above {name} {parameters}"]
            what = f"{INPUTS} {kind}, engine {name}: a run above {engine}, CPU time"
            yield at_most(GROUP, what, own, LIMIT_US, unit="us")
            if whole != own:
                what = f"{INPUTS} {kind}, engine {name}: that module and ours above GE, CPU time"
                yield Measurement(GROUP, what, whole, "us")


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1] == "ours")))
