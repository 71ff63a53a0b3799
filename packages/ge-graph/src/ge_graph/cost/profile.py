"""What ran, in the forms of torch_npu's profiler: the table ``kernel_details.csv`` and a trace that Chrome shows.

``ge_graph.cost.measured`` reads the table again. Columns that only a device can fill, such as the unit, are left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ge_graph.cost.measured import TABLE_TYPES
from ge_graph.ir import Node

STREAM: Final = "_user_stream_label"
_SHORT: Final = {short: name for name, short in reversed(TABLE_TYPES.items())}
_COLUMNS: Final = (
    "Step Id",
    "Task ID",
    "Stream ID",
    "Name",
    "Type",
    "Start Time(us)",
    "Duration(us)",
    "Input Shapes",
    "Input Data Types",
    "Output Shapes",
    "Output Data Types",
)
_CELL: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes such a cell for a formula


@dataclass(frozen=True, slots=True)
class Task:
    """One operator that ran.

    Attributes:
        name: Its name in the graph, or the function that was launched.
        op: Operator type.
        stream: Number of its stream.
        label: What the user calls the stream, empty for the default one.
        start: When it began, in microseconds.
        duration: How long it took, in microseconds.
        step: Which run.
        inputs, outputs: Sizes and short type name of each.
        source: The user's line.
    """

    name: str
    op: str
    stream: int
    start: float
    duration: float
    label: str = ""
    step: int = 0
    inputs: tuple[tuple[tuple[int, ...], str], ...] = ()
    outputs: tuple[tuple[tuple[int, ...], str], ...] = ()
    source: str = ""


@dataclass
class Streams:
    """Numbers of streams by what the user calls them, in the order in which they come up; 0 is the default one."""

    numbers: dict[str, int] = field(default_factory=lambda: {"": 0})

    def of(self, node: Node) -> tuple[int, str]:
        """Number and label of the stream of a node."""
        label = str(node.attr(STREAM, "") or "")
        return self.numbers.setdefault(label, len(self.numbers)), label


def of_node(
    node: Node, streams: Streams, sizes: Mapping[str, Sequence[Sequence[int]]], start: float, duration: float, step: int
) -> Task:
    """A node that ran.

    Args:
        sizes: ``inputs`` and ``outputs``: the sizes that they had.
        start, duration: In microseconds.
        step: Which run.
    """
    stream, label = streams.of(node)

    def described(edges: Sequence[Any], shapes: Sequence[Sequence[int]]) -> tuple[tuple[tuple[int, ...], str], ...]:
        return tuple((tuple(shape), edge.dtype.short) for edge, shape in zip(edges, shapes))

    source = node.provenance.source if node.provenance is not None else ""
    ins, outs = described(list(node.operands()), sizes["inputs"]), described(node.outputs, sizes["outputs"])
    return Task(node.name, node.op, stream, start, duration, label, step, ins, outs, source)


def kernel_details(tasks: Iterable[Task]) -> str:
    """The table, one line a task, in the order in which they began."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(_COLUMNS)
    for number, task in enumerate(sorted(tasks, key=lambda t: t.start)):
        times = (f"{task.start:.3f}", f"{task.duration:.3f}")
        sides = [cell for side in (task.inputs, task.outputs) for cell in (_shapes(side), _types(side))]
        table.writerow([task.step, number, task.stream, _cell(task.name), _cell(task.op), *times, *sides])
    return out.getvalue()


def chrome_trace(tasks: Iterable[Task], process: str) -> dict[str, Any]:
    """A trace in Chrome's form: a row for each stream; the number of a task says in which order they began.

    Args:
        process: What the row of all streams is called.
    """
    ordered = sorted(tasks, key=lambda t: t.start)
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": process}}]
    for stream, label in dict.fromkeys((t.stream, t.label) for t in ordered):
        title = f"Stream {stream}{f' ({label})' if label else ''}"
        events.append({"ph": "M", "pid": 0, "tid": stream, "name": "thread_name", "args": {"name": title}})
    for number, task in enumerate(ordered):
        about = {"Task Id": number, "Stream Id": task.stream, "Type": task.op, "step": task.step, "source": task.source}
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": task.stream,
                "name": task.name,
                "cat": "kernel",
                "ts": task.start,
                "dur": task.duration,
                "args": about,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _shapes(side: Sequence[tuple[tuple[int, ...], str]]) -> str:
    return ";".join(",".join(map(str, shape)) for shape, _ in side)


def _types(side: Sequence[tuple[tuple[int, ...], str]]) -> str:
    return ";".join(_SHORT.get(short, short.upper()) for _, short in side)


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_CELL) else text
