"""Writes what ran on the emulated device as torch_npu's profiler does; TAIR_EMULATOR_PROFILE names the folder.

Every task of every stream is a row: operators that eager mode launches, tasks of captured graphs, and of a GE graph its
nodes. Times are those of the host that computes; streams and their order are those of the program.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from ge_graph.cost.profile import Streams, Task, chrome_trace, kernel_details, of_node
from ge_runtime.cpu.engine import CpuExecutable

FOLDER: Final = "TAIR_EMULATOR_PROFILE"
_FIRST_LABEL: Final = 4096  # streams that a graph names get numbers beyond those of the runtime
_AROUND: Final = frozenset(("graph", "replay", "group", "group update"))  # what they run has rows of its own

_lock = threading.Lock()
_tasks: list[Task] = []
_local = threading.local()
_labels = Streams()


def wanted() -> bool:
    """Whether somebody has named a folder."""
    return bool(os.environ.get(FOLDER))


def task(data: bytes, words: list[int]) -> int:
    """A task has run; words: its stream, start and end in nanoseconds of the steady clock."""
    stream, start, end = words
    name = data.decode()
    with _lock:
        if not _tasks:
            atexit.register(write)
        if name in _AROUND:
            _tasks.extend(_of_graph(stream))
        else:
            _tasks.append(Task(name, name.removeprefix("aclnn"), stream, start / 1e3, (end - start) / 1e3))
    return 0


def _of_graph(stream: int) -> list[Task]:
    """The nodes of the graphs that this thread ran, now that their stream is known."""
    nodes, _local.nodes = getattr(_local, "nodes", []), []
    made = []
    for node, sizes, start, took in nodes:
        row = of_node(node, _labels, sizes, start, took, 0)
        number = stream if not row.stream else _FIRST_LABEL + row.stream
        made.append(Task(row.name, row.op, number, start, took, row.label, 0, row.inputs, row.outputs, row.source))
    return made


def run(program: CpuExecutable, fed: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run a graph and keep when each node ran."""
    nodes = _local.nodes = getattr(_local, "nodes", [])
    last = time.perf_counter_ns()

    def on_node(node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        nonlocal last
        now = time.perf_counter_ns()
        sizes = {"inputs": [tuple(t.shape) for t in inputs], "outputs": [tuple(t.shape) for t in outputs]}
        nodes.append((node, sizes, last / 1e3, (now - last) / 1e3))
        last = time.perf_counter_ns()

    return program.run_traced(fed, on_node)


def write() -> None:
    """``kernel_details.csv`` and ``trace_view.json`` of all that ran so far."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    with _lock:
        tasks = list(_tasks)
    (folder / "kernel_details.csv").write_text(kernel_details(tasks), encoding="utf-8")
    trace = chrome_trace(tasks, "emulated device")
    (folder / "trace_view.json").write_text(json.dumps(trace), encoding="utf-8")
