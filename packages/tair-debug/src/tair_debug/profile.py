"""How long each operator of a model's GE graphs takes on an engine, with its stream and its place in the order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import real_values
from ge_graph.cost.profile import Streams, Task, chrome_trace, kernel_details, of_node
from tair_debug import artefacts
from tair_debug.compare import engine as find_engine
from tair_debug.terminal import Answer, Detail, sentence, table
from tair_debug.tracing import run_with, traceable

if TYPE_CHECKING:
    from tair_debug.models import Subject
    from tair_debug.terminal import Part

OPTION: Final = "tair profile --output"
_FEW: Final = 20


@dataclass(repr=False)
class Profile(Answer):
    """What ran.

    Attributes:
        engine: The engine.
        tasks: Operators in the order in which they ran, of all measured runs.
        runs: How many runs were measured.
        written: Files.
    """

    engine: str
    runs: int
    tasks: list[Task] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Always: a profile judges nothing."""
        return True

    def by_operator(self) -> list[dict[str, Any]]:
        """Operator types, the longest time first; times of one run in microseconds."""
        found: dict[str, list[float]] = {}
        for task in self.tasks:
            found.setdefault(task.op, []).append(task.duration)
        total = sum(map(sum, found.values())) or 1.0
        rows = [
            {
                "op": op,
                "calls": len(times) // self.runs,
                "us": round(sum(times) / self.runs, 3),
                "share": round(sum(times) / total, 4),
            }
            for op, times in found.items()
        ]
        return sorted(rows, key=lambda row: -row["us"])

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        rows = self.by_operator()
        total = sum(row["us"] for row in rows)
        yield sentence(f"engine {self.engine}: {len(self.tasks) // self.runs} operators, {total:,.0f} us a run")
        if not detail.quiet:
            kept = rows if detail.every else rows[:_FEW]
            cells = [[r["op"], str(r["calls"]), f"{r['us']:,.1f}", f"{r['share']:.1%}"] for r in kept]
            yield table(["operator", "calls", "us", "share"], cells)
        for path in self.written:
            yield sentence(f"written: {path}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": True,
            "engine": self.engine,
            "runs": self.runs,
            "operators": self.by_operator(),
            "written": [str(path) for path in self.written],
        }

    def records(self) -> list[dict[str, Any]]:
        return self.by_operator()


def profile_of(
    subject: Subject,
    *,
    engine: str = "cpu",
    warmup: int = 1,
    runs: int = 1,
    backward: bool = False,
    dynamic: bool = False,
) -> Profile:
    """Run the GE graphs of a model and time each operator.

    Args:
        subject: The model with real inputs.
        engine: What runs the graphs.
        warmup: Runs before the measured ones.
        runs: Measured runs.
        backward, dynamic: As ``run_with`` has them.

    Errors: ConfigError GE1044 if there is no such engine, GE1047 if the model cannot be traced; EngineError GE4025 if
        the engine shows nothing of the inside of a graph.
    """
    from ge_converters.conversion import convert_graph

    found = Profile(engine, runs)
    made, streams, began = find_engine(engine), Streams(), time.perf_counter()
    graphs = 0

    def timed(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        with real_values():
            lowered = convert_graph(gm, name=f"{phase}_{graphs}")
            executable = made.compile(lowered.graph, {})
        written = {m.fx_index for m in lowered.mutations}

        def call(*args: Any) -> Any:
            with real_values(), torch.no_grad():
                for turn in range(warmup + runs):
                    given = [args[b.fx_index] for b in lowered.inputs]
                    given = [
                        v.clone() if b.fx_index in written and isinstance(v, torch.Tensor) else v
                        for b, v in zip(lowered.inputs, given)
                    ]
                    clock = _Clock(streams, began, turn - warmup)
                    executable.run_traced(given, clock.on_node)
                    if turn >= warmup:
                        found.tasks += clock.tasks
            return gm.forward(*args)

        return call

    with traceable(subject):
        run_with(subject, timed, backward=backward, dynamic=dynamic)
    return found


class _Clock:
    """Times nodes: each from the end of the one before it."""

    def __init__(self, streams: Streams, began: float, step: int) -> None:
        self._streams, self._began, self._step = streams, began, step
        self.tasks: list[Task] = []
        self._last = time.perf_counter()

    def on_node(self, node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        now = time.perf_counter()
        sizes = {"inputs": [_size(v) for v in inputs], "outputs": [_size(v) for v in outputs]}
        start, took = (self._last - self._began) * 1e6, (now - self._last) * 1e6
        self.tasks.append(of_node(node, self._streams, sizes, start, took, self._step))
        self._last = time.perf_counter()


def _size(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def write(found: Profile, folder: Path) -> None:
    """``kernel_details.csv`` and ``trace_view.json`` of a profile.

    Errors: ConfigError GE1041 if they cannot be written.
    """
    artefacts.folder(folder, OPTION)
    table_path, trace_path = folder / "kernel_details.csv", folder / "trace_view.json"
    artefacts.write_text(table_path, kernel_details(found.tasks), OPTION)
    artefacts.write_text(trace_path, json.dumps(chrome_trace(found.tasks, f"engine {found.engine}")), OPTION)
    found.written += [table_path, trace_path]
