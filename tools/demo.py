"""`make demo`: real models through `torch.compile` on the embedded engine, compared with eager, in one table.

Two models carry real weights and get real input; the others come from `transformers` configs with random weights. Graph
dumps of every model go below `artefacts/demo/`.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import torchair
from tools import models

ROOT = Path(__file__).resolve().parent.parent
ARTEFACTS = ROOT / "artefacts" / "demo"
DEVICE = "cpu"
REPEATS = 3
SIZE = "full"


@dataclass
class DemoRow:
    """One line of the table; sizes are sums over the graphs of the model."""

    name: str
    fx_nodes: int = 0
    ge_ops: int = 0
    trace_s: float = 0.0
    conversion_ms: float = 0.0
    eager_ms: float = 0.0
    compiled_ms: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    graphs: int = 0
    notes: list[str] = field(default_factory=list)


@contextmanager
def recorded(row: DemoRow) -> Iterator[None]:
    """Add to `row` what the pipeline reports of each graph compiled inside; the rest of the first call is tracing."""
    start = time.perf_counter()
    with torchair.record_compilation() as reports:
        yield
    total = time.perf_counter() - start
    row.graphs += len(reports)
    row.fx_nodes += sum(r.fx_nodes for r in reports)
    row.ge_ops += sum(r.ge_ops for r in reports)
    row.conversion_ms += 1e3 * sum(r.conversion_s for r in reports)
    row.trace_s += total - sum(r.total_s for r in reports)


def on_device(value: Any) -> Any:
    """A module (a copy of its own) or inputs where the compiled model runs; eager, the truth, stays on the CPU."""
    if DEVICE == "cpu":
        return value
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(DEVICE)
    return tuple(v.to(DEVICE) for v in value)


def on_host(value: Any) -> Any:
    """A result, or a tuple of them, for the notes below the table."""
    return tuple(map(on_host, value)) if isinstance(value, tuple) else value.cpu()


def synchronize() -> None:
    """Wait for the device, where calls only launch."""
    if DEVICE != "cpu":
        getattr(torch, DEVICE).synchronize()


def difference(row: DemoRow, got: Any, want: Any) -> None:
    """Largest absolute error, and largest error relative to the largest value of its tensor."""
    for g, w in zip(got, want, strict=True):
        g = g.cpu()
        error = float((g.detach() - w.detach()).abs().max())
        row.max_abs = max(row.max_abs, error)
        row.max_rel = max(row.max_rel, error / max(float(w.detach().abs().max()), 1e-12))


def median_ms(*calls: Callable[[], Any]) -> list[float]:
    """Median wall time of each call; the calls take turns, so that a drift of the machine meets all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, into in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            synchronize()
            into.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(t) for t in times]


def backend(name: str) -> Any:
    """Our backend with graph dumps below the model's own folder."""
    folder = ARTEFACTS / name
    folder.mkdir(parents=True, exist_ok=True)
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "pbtxt"
    config.debug.graph_dump.path = str(folder)
    return torchair.get_npu_backend(compiler_config=config)


def inference(name: str, case: models.ModelCase, *, dynamic: bool = False) -> tuple[DemoRow, Any]:
    """One forward pass, first and steady."""
    row = DemoRow(name)
    inputs = on_device(case.inputs)
    compiled = torch.compile(on_device(case.model), backend=backend(name), fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        want = case.model(*case.inputs)
        with recorded(row):
            got = on_host(compiled(*inputs))
        difference(row, got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,))
        row.eager_ms, row.compiled_ms = median_ms(lambda: case.model(*case.inputs), lambda: compiled(*inputs))
    return row, got


def sentence_encoder() -> DemoRow:
    row, (embeddings,) = inference("MiniLM-L6 (real)", models.sentence_encoder(), dynamic=True)
    similarity = embeddings @ embeddings.T
    row.notes.append("similarity of the sentences, compiled:")
    for sentence, line in zip(models.SENTENCES, similarity.tolist(), strict=True):
        row.notes.append("  " + " ".join(f"{v:6.2f}" for v in line) + f"   {sentence}")
    return row


def pitch_network() -> DemoRow:
    case, truth = models.pitch_network(SIZE)
    row, probability = inference("CREPE pitch (real)", case)
    pitch = models.pitch_in_hz(probability)
    row.notes.append("pitch of the glide in Hz, every 100 ms, compiled:")
    row.notes.append("  found " + " ".join(f"{v:6.1f}" for v in pitch[5::10].tolist()))
    row.notes.append("  true  " + " ".join(f"{v:6.1f}" for v in truth[5::10].tolist()))
    return row


def llama_decoder(steps: int = 16) -> DemoRow:
    """Prefill, then decode steps over a growing cache: one compilation for the prompt, one for all steps."""
    row = DemoRow(f"Llama prefill + {steps} steps")
    decoder, prompt = models.llama_decoder(SIZE)
    compiled = torch.compile(on_device(decoder), backend=backend("Llama decoder"), fullgraph=True, dynamic=True)
    (moved,) = on_device((prompt,))

    def generate(call: Callable[..., Any], prompt: torch.Tensor = prompt) -> list[torch.Tensor]:
        logits, *cache = call(prompt)
        outputs = [logits]
        for _ in range(steps):
            logits, *cache = call(logits.argmax(-1, keepdim=True), *cache)
            outputs.append(logits)
        return [*outputs, *cache]

    with torch.no_grad():
        want = generate(decoder)
        with recorded(row):
            got = generate(compiled, moved)
        difference(row, got, want)
        row.eager_ms, row.compiled_ms = median_ms(lambda: generate(decoder), lambda: generate(compiled, moved))
    row.notes.append(f"{row.graphs} compilations: the prompt, and one for all {steps} steps")
    return row


def resnet_training() -> DemoRow:
    """One training step: forward, cross entropy, backward, SGD; gradients and updated weights must match."""
    row = DemoRow("ResNet-50 training step")
    case = models.resnet50(SIZE)
    if case.resize is None:
        raise TypeError("this model has one size only")
    inputs, labels = case.resize(2), torch.tensor([3, 7])
    eager, ours = case.model.train(), on_device(copy.deepcopy(case.model)).train()
    compiled = torch.compile(ours, backend=backend("ResNet-50"), fullgraph=True, dynamic=False)

    def step(model: torch.nn.Module, call: Callable[..., Any], rate: float) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        optimizer.zero_grad()
        given, truth = (inputs, labels) if model is eager else (on_device(inputs), on_device((labels,))[0])
        torch.nn.functional.cross_entropy(call(*given)[0], truth).backward()
        optimizer.step()

    step(eager, eager, 0.1)
    with recorded(row):
        step(ours, compiled, 0.1)
    gradients = [(p.grad, q.grad) for p, q in zip(ours.parameters(), eager.parameters(), strict=True)]
    difference(row, [g for g, _ in gradients], [w for _, w in gradients])
    difference(row, list(ours.state_dict().values()), list(eager.state_dict().values()))
    row.eager_ms, row.compiled_ms = median_ms(lambda: step(eager, eager, 0.0), lambda: step(ours, compiled, 0.0))
    row.notes.append(f"{len(gradients)} gradients and all updated weights and statistics compared")
    return row


JOBS: dict[str, Callable[[], DemoRow]] = {
    "MiniLM-L6 (real weights)": sentence_encoder,
    "CREPE pitch CNN (real weights)": pitch_network,
    "Llama decoder": llama_decoder,
    "BERT base": lambda: inference("BERT base", models.bert(SIZE))[0],
    "ResNet-50 training step": resnet_training,
}


def use_npu() -> None:
    """Run on NPU tensors: on the device if CANN is here, else on the emulator, which takes this process over."""
    global DEVICE
    import ctypes

    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        sys.stderr.write("demo: CANN is not here, running on the emulator\n")
        sys.stderr.flush()
        command = [sys.executable, "-m", "ge_emulator", "-m", "tools.demo", *sys.argv[1:]]
        os.execv(sys.executable, command)
    import torch_npu  # noqa: F401

    DEVICE = "npu"
    torch.npu.set_compile_mode(jit_compile=False)


def table(rows: list[DemoRow]) -> Table:
    where = "the embedded engine" if DEVICE == "cpu" else f"NPU tensors ({torch.npu.get_device_name(0)})"
    result = Table(title=f"PyTorch models as GE graphs on {where}, against eager on the CPU")
    result.add_column("model")
    for heading in (
        "FX nodes",
        "GE ops",
        "trace s",
        "convert ms",
        "eager ms",
        "compiled ms",
        "ratio",
        "max abs",
        "max rel",
    ):
        result.add_column(heading, justify="right")
    for r in rows:
        result.add_row(
            r.name,
            str(r.fx_nodes),
            str(r.ge_ops),
            f"{r.trace_s:.1f}",
            f"{r.conversion_ms:.0f}",
            f"{r.eager_ms:.1f}",
            f"{r.compiled_ms:.1f}",
            f"{r.compiled_ms / r.eager_ms:.2f}",
            f"{r.max_abs:.1e}",
            f"{r.max_rel:.1e}",
        )
    return result


def main() -> None:
    global REPEATS, SIZE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="run the models whose name contains this text")
    parser.add_argument("--device", choices=("cpu", "npu"), default="cpu", help="where the compiled models run")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs that a time is the median of")
    parser.add_argument("--size", choices=("full", "tiny"), default=SIZE, help="of the models that come in two sizes")
    asked = parser.parse_args()
    REPEATS, SIZE = max(1, asked.repeats), asked.size
    only = (asked.only or "").lower()
    if asked.device == "npu":
        use_npu()
    jobs = {n: j for n, j in JOBS.items() if only in n.lower()}
    torch.manual_seed(0)
    # Converters and kernels load once in a process; the first model of the table must not carry that.
    torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend())(torch.ones(2, device=DEVICE))
    rows = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=len(jobs))
        for name, job in jobs.items():
            progress.update(task, description=name)
            rows.append(job())
            progress.advance(task)
    console = Console(width=None if sys.stdout.isatty() else 150)
    for row in rows:
        if row.notes:
            console.print(f"\n{row.name}", highlight=False)
            for note in row.notes:
                console.print(f"  {note}", highlight=False)
    console.print()
    console.print(table(rows))
    console.print(
        "Relative error: largest difference over largest value of the tensor. convert: FX graph to verified GE bytes."
    )
    console.print(f"GE graphs for TensorBoard and Netron: {ARTEFACTS.relative_to(ROOT)}/<model>/*.pbtxt")
    worst = max(rows, key=lambda r: r.max_rel, default=None)
    if worst and worst.max_rel > 1e-3:
        sys.exit(f"demo: {worst.name} differs from eager by {worst.max_rel:.1e} of its largest value")


if __name__ == "__main__":
    main()
