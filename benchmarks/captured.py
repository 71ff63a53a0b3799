"""Captured graphs on the CANN emulator with the torch_npu wheel: ours against the npugraph_ex inside torch_npu.

Each program runs in processes of its own, once for each of the two; the second start has the folder of the first. The
emulator says nothing of a device's speed: what is compared is the start, what the host does for a replay, and counts.
What one of them does not do stands as a row with its reason. Without the wheel (TAIR_TORCH_NPU) there are no rows.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
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

from benchmarks import rows
from benchmarks.device import without_torch_npu
from benchmarks.rows import Measurement, at_least, at_most, beside

GROUP = "captured"
STEPS = 64
BATCH = 4
SIZES = (1, 2, 4, 8)
LAYERS = 24
_TO_GE = ("lower", "GE passes", "verify")
_SERVE = Path(__file__).resolve().parent.parent / "examples" / "serving" / "serve.py"


# -- in a process on the emulator


class _Captures:
    """What torch_npu captures from here on: how often, and the graphs that are alive."""

    def __init__(self) -> None:
        import torch

        self.count = 0
        self.graphs: list[Any] = []
        begin = torch.npu.NPUGraph.capture_begin

        def counted(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            self.graphs.append(graph)
            return begin(graph, *args, **kwargs)

        torch.npu.NPUGraph.capture_begin = counted

    def tasks(self) -> int:
        """Tasks of the newest graph."""
        import torch

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.json"
            graph: Any = super(torch.npu.NPUGraph, self.graphs[-1])
            graph.debug_dump(str(path))
            return len(json.loads(path.read_text()))

    def pool_bytes(self) -> int:
        """Bytes of the pools of all graphs."""
        import torch

        pools = {tuple(graph.pool()) for graph in self.graphs}
        return sum(s["total_size"] for s in torch.npu.memory_snapshot() if tuple(s["segment_pool_id"]) in pools)


def _serve() -> Any:
    spec = importlib.util.spec_from_file_location("serving_example", _SERVE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["serving_example"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _decoder() -> tuple[Any, Callable[[int, int], tuple[Any, ...]]]:
    """The example's model on the device, and the inputs of a step of a batch."""
    import torch

    serve = _serve()
    torch.manual_seed(0)
    model = serve.Decoder().eval().npu()
    size = (serve.BLOCKS * serve.BLOCK, serve.KV_HEADS, serve.HEAD)
    caches = [torch.zeros(size).npu() for _ in range(2 * serve.LAYERS)]
    for cache in caches:
        torch._dynamo.mark_static(cache)

    def inputs(step: int, batch: int) -> tuple[Any, ...]:
        places = torch.arange(batch) * serve.BLOCK
        table = 1 + (torch.arange(batch)[:, None] + torch.arange(serve.BLOCKS_EACH)) % (serve.BLOCKS - 1)
        given = [(torch.arange(batch) + step) % serve.VOCABULARY, torch.full((batch,), 1 + step % 31)]
        return (*(t.npu() for t in (*given, places + step % serve.BLOCK, table)), caches)

    return model, inputs


def _loop(call: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]], check: Callable[..., Any]) -> Any:
    """64 steps; the median time of a step on the thread that calls, and the largest difference from eager."""
    import torch

    host, wall, worst = [], [], 0.0
    for step in range(STEPS):
        given = inputs(step)
        want = check(*copy.deepcopy(given))
        torch.npu.synchronize()
        start, cpu = time.perf_counter(), time.thread_time()
        got = call(*given)
        host.append(time.thread_time() - cpu)
        torch.npu.synchronize()
        wall.append(time.perf_counter() - start)
        pairs = zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True)
        worst = max(worst, *(float((a.float() - b.float()).abs().max()) for a, b in pairs))
    assert worst < 1e-4, f"differs from eager by {worst}"
    later = slice(STEPS // 2, None)
    return {"host": statistics.median(host[later]), "wall": statistics.median(wall[later])}


def _decode(folder: str) -> dict[str, Any]:
    """A start of the decode loop by ``cache_compile``: the first result, then the loop."""
    import torch

    model, inputs = _decoder()
    first, captures = inputs(0, BATCH), _Captures()
    with torch.no_grad():
        start = time.perf_counter()
        call = torch.npu.npugraph_ex.inference.cache_compile(model.decode, dynamic=True, cache_dir=folder)
        call(*first)
        torch.npu.synchronize()
        took = time.perf_counter() - start
        found = _loop(call, lambda step: inputs(step, BATCH), model.decode)
    return {"first": took, **found, "captures": captures.count, "tasks": captures.tasks()}


def _ahead(folder: str) -> dict[str, Any]:
    """The first call of a process by ``aot_compile``, in captured mode; by what it has saved, if it has."""
    import torch

    from tools import models

    case = models.llama("tiny", 2 if rows.small else LAYERS)
    model, inputs, path = case.model.npu(), [v.npu() for v in case.inputs], Path(folder) / "function"
    with torch.no_grad():
        start = time.perf_counter()
        if path.exists():
            with path.open("rb") as file:
                function = torch.compiler.load_compiled_function(file)
        else:
            # guards on transformers' decorators cannot be written by torch; those on tensors are kept
            options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
            compiled = torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False, options=options)
            function = compiled.forward.aot_compile((tuple(inputs), {}))
        function(model, *inputs)
        torch.npu.synchronize()
        took = time.perf_counter() - start
    if not path.exists():
        function.save_compiled_function(str(path))
    return {"first": took}


def _position() -> dict[str, Any]:
    """A loop whose position is an int."""
    import torch

    def step(cache: Any, x: Any, pos: int) -> Any:
        cache.narrow(1, pos, 2).copy_(x)
        seen = torch.where((torch.arange(cache.shape[1], device=x.device) <= pos)[:, None], cache, 0.0)
        return seen.sum(1) + pos

    cache, x = torch.zeros(2, 80, 4).npu(), torch.ones(2, 2, 4).npu()
    captures = _Captures()
    call = torch.compile(step, backend="npugraph_ex", dynamic=True, fullgraph=True)
    return {**_loop(call, lambda n: (cache, x, 5 + n), step), "captures": captures.count}


def _lengths() -> dict[str, Any]:
    """A loop of attention whose lengths are a list on the host."""
    import torch

    def step(q: Any, k: Any, v: Any, lengths: list[int]) -> Any:
        made, _ = torch.ops.npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=2, scale=0.125, input_layout="BNSD", actual_seq_lengths_kv=lengths
        )
        return made * 2

    q, k, v = (torch.randn(2, 2, rows_, 64).half().npu() for rows_ in (1, 80, 80))
    captures = _Captures()
    call = torch.compile(step, backend="npugraph_ex", dynamic=True, fullgraph=True)
    return {**_loop(call, lambda n: (q, k, v, [4 + n, 5 + n]), step), "captures": captures.count}


def _sizes() -> dict[str, Any]:
    """Four sizes of the decode loop: bytes of the pools of their graphs."""
    import torch

    model, inputs = _decoder()
    captures = _Captures()
    call = torch.compile(model.decode, backend="npugraph_ex", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for size in SIZES:
            for step in range(2):
                call(*inputs(step, size))
    torch.npu.synchronize()
    return {"captures": captures.count, "pool": captures.pool_bytes()}


def _regions() -> dict[str, Any]:
    """24 equal layers as GE graphs, with and without a region: seconds from dynamo's graph to what it calls."""
    import torch

    import torchair

    F = torch.nn.functional

    class Layer(torch.nn.Module):  # type: ignore[misc]  # torch.nn.Module has no types here
        """A decoder layer of the usual kind: norm, rotated heads, attention, norm, gated products."""

        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o, self.gate, self.up, self.down = (
                torch.nn.Linear(64, 64, bias=False) for _ in range(7)
            )
            self.first, self.second = torch.nn.RMSNorm(64), torch.nn.RMSNorm(64)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            y = self.first(x)
            q, k, v = (m(y).unflatten(-1, (4, 16)).transpose(1, 2) for m in (self.q, self.k, self.v))
            q, k = (t * cos + torch.cat((-t[..., 8:], t[..., :8]), -1) * sin for t in (q, k))
            scores = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v
            x = x + self.o(scores.transpose(1, 2).flatten(2))
            y = self.second(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Region(Layer):
        forward = torch.compiler.nested_compile_region(Layer.forward)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, kind: type[Layer]) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(kind() for _ in range(LAYERS))

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            for layer in self.layers:
                x = layer(x, cos, sin)
            return x

    found: dict[str, Any] = {}
    inputs = [torch.randn(2, 8, 64).npu(), torch.randn(8, 16).npu(), torch.randn(8, 16).npu()]
    for turn in ("warm", "plain", "warm", "region"):
        torch._dynamo.reset()
        model = Model(Region if "plain" in found else Layer).eval().npu()
        took: list[float] = []

        def backend(gm: Any, examples: Any, took: list[float] = took) -> Any:
            made = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
            start = time.perf_counter()
            try:
                return made(gm, examples)
            finally:
                took.append(time.perf_counter() - start)

        reports: Any = []
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if hasattr(torchair, "record_compilation"):
                reports = stack.enter_context(torchair.record_compilation())
            got = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(*inputs)
            torch.testing.assert_close(got.cpu(), model(*inputs).cpu(), rtol=1e-4, atol=1e-4)
        if turn != "warm":
            found[turn] = sum(took)
            found[f"{turn}, to GE"] = sum(r.stages[stage] for r in reports for stage in _TO_GE)
    return found


_PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "decode": _decode,
    "ahead": _ahead,
    "position": _position,
    "lengths": _lengths,
    "sizes": _sizes,
    "regions": _regions,
}


def _work(parts: list[str], ours: bool, folder: str) -> dict[str, Any]:
    """What one process measures."""
    import torch
    import torch_npu  # noqa: F401

    import torchair

    assert ("torch_npu" in torchair.__file__) is not ours, torchair.__file__
    torch.npu.set_compile_mode(jit_compile=False)
    torch.compile(lambda x: x + 1, backend="npugraph_ex")(torch.ones(2).npu())  # loads what is loaded once
    found: dict[str, Any] = {}
    for part in parts:
        torch._dynamo.reset()
        try:
            found[part] = _PARTS[part](*([folder] if part in ("decode", "ahead") else []))
        except Exception as error:
            if ours:
                raise
            lines = [line for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
            found[part] = f"{type(error).__name__}: {(lines or [''])[0]}"[:160]
    return found


# -- the rows


def _child(parts: list[str], ours: bool, folder: str) -> dict[str, Any]:
    bundled = [] if ours else ["--bundled-torchair"]
    words = [*parts, "--ours" if ours else "--peer", folder, *(["--small"] if rows.small else [])]
    command = [sys.executable, "-m", "ge_emulator", *bundled, "-m", "benchmarks.captured", *words]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _starts(part: str) -> dict[bool, Any]:
    """Of ours and of the other one: the first and the second start, or why there is none."""
    found: dict[bool, Any] = {}
    for ours in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            both = []
            for _ in range(2):
                made = _child([part], ours, folder)[part]
                both.append(made)
                if isinstance(made, str):
                    break
            found[ours] = both
    return found


def _start_rows(what: str, found: dict[bool, Any], wanted: float) -> Iterator[Measurement]:
    first, second = found[True]
    yield at_least(
        GROUP,
        f"{what}: second start, the first result",
        second["first"],
        wanted,
        unit="s",
        peer=first["first"],
        name="first start",
    )
    if isinstance(found[False][-1], str):
        yield Measurement(GROUP, f"{what}: second start", second["first"], "s", peer=f"npugraph_ex: {found[False][-1]}")
        return
    first_other, second_other = found[False]
    yield beside(
        GROUP, f"{what}: second start", second["first"], unit="s", peer=second_other["first"], name="npugraph_ex"
    )
    yield beside(GROUP, f"{what}: first start", first["first"], unit="s", peer=first_other["first"], name="npugraph_ex")


def _against(
    what: str, key: str, unit: str, ours: Any, other: Any, limit: float | None = None, scale: float = 1
) -> Measurement:
    """A figure beside the other one's; ``limit`` is of the ratio, of the figure where the other one has none."""
    value = ours[key] * scale
    if isinstance(other, str):
        return Measurement(GROUP, what, value, unit, peer=f"npugraph_ex: {other}")
    if limit is None:
        return beside(GROUP, what, value, unit=unit, peer=other[key] * scale, name="npugraph_ex")
    return at_most(GROUP, what, value, limit, unit=unit, peer=other[key] * scale, name="npugraph_ex")


def measure() -> Iterator[Measurement]:
    if (absent := without_torch_npu(GROUP)) is not None:
        yield absent
        return
    decode = _starts("decode")
    yield from _start_rows("decode loop of examples/serving, cache_compile", decode, 5)
    ours, other = decode[True][-1], decode[False][-1]
    loop = f"{STEPS} steps of the decode loop"
    yield at_most(GROUP, f"{loop}: captures", ours["captures"], 1, unit="captures")
    yield _against(f"{loop}: captures", "captures", "captures", ours, other)
    yield _against(f"{loop}: tasks of the captured graph", "tasks", "tasks", ours, other, 1)
    yield _against("a replay of the decode loop, thread that calls", "host", "us", ours, other, 1, 1e6)
    yield _against("a replay of the decode loop, until the device has ended", "wall", "us", ours, other, None, 1e6)
    yield from _start_rows("Llama of 24 layers, aot_compile", _starts("ahead"), 5)
    parts = ["position", "lengths", "sizes", "regions"]
    ours, other = (_child(parts, which, "") for which in (True, False))
    for part, named in (("position", "position is an int"), ("lengths", "lengths are a list on the host")):
        what = f"{STEPS} steps whose {named}"
        yield at_most(GROUP, f"{what}: captures", ours[part]["captures"], 1, unit="captures")
        yield _against(f"{what}: captures", "captures", "captures", ours[part], other[part])
        yield _against(f"{what}: a step, thread that calls", "host", "us", ours[part], other[part], None, 1e6)
    sizes = f"decode loop, sizes {', '.join(map(str, SIZES))}"
    yield _against(f"{sizes}: captures", "captures", "captures", ours["sizes"], other["sizes"])
    yield _against(f"{sizes}: bytes of the pools", "pool", "KB", ours["sizes"], other["sizes"], 1, 1 / 1024)
    regions, what = ours["regions"], f"{LAYERS} equal layers with nested_compile_region"
    yield at_most(
        GROUP,
        f"{what}: conversion and verification",
        regions["region, to GE"],
        0.34,
        unit="s",
        peer=regions["plain, to GE"],
        name="without it",
    )
    whole = f"{what}: from dynamo's graph to what it calls"
    yield beside(GROUP, whole, regions["region"], unit="s", peer=regions["plain"], name="without it")
    yield _against(whole, "region", "s", regions, other["regions"])


if __name__ == "__main__":
    *named, whose, place = [word for word in sys.argv[1:] if word != "--small"]
    rows.small = "--small" in sys.argv
    print(json.dumps(_work(named, whose == "--ours", place)))
