"""Tests with several processes: a test file names cases, and processes that are started once carry them out.

The processes run the test file itself with ``<rank> <folder>`` as arguments; it then calls ``serve``. They read the
name of a case a line and answer with the traceback, or nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils import _pytree as pytree

import torchair

ROOT = Path(__file__).resolve().parent.parent
WORLD = 2
SECONDS = 150  # of a case that hangs; compiling a model on all ranks of a busy machine takes a minute


class Cases(dict[str, Callable[[], Any]]):
    """Name of a case to the function that carries it out."""

    def __call__(self, *args: Any, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: the function, called with ``args``, is the case ``name``; its own name if there is none."""

        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            self[name or fn.__name__] = lambda: fn(*args)
            return fn

        return register


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function or module as one graph."""
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True, **options)
    return made


def values(tree: Any) -> Any:
    """Results of eager collectives once they have arrived."""
    return pytree.tree_map(lambda v: v.wait() if isinstance(v, AsyncCollectiveTensor) else v, tree)


def close(got: Any, want: Any, **tolerance: float) -> None:
    """Compare; equal bits if there is no tolerance."""
    torch.testing.assert_close(values(got), values(want), **(tolerance or {"rtol": 0, "atol": 0}))


def serve(cases: Mapping[str, Callable[[], None]]) -> None:
    """One of the processes: a gloo group on the files of the folder, then one case after another."""
    rank, folder = int(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=SECONDS // 2),
    )
    for line in sys.stdin:
        error = ""
        try:
            torch.manual_seed(0)
            cases[line.strip()]()
        except BaseException:  # noqa: BLE001  (whatever it is goes to the test)
            error = traceback.format_exc()
        answers.write(json.dumps(error) + "\n")
        answers.flush()


class Ranks:
    """The processes; new ones after a failure, which may leave them waiting for each other."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.processes: list[Any] = []

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.answers: list[queue.Queue[str]] = [queue.Queue() for _ in range(WORLD)]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path}
        for rank in range(WORLD):
            command = [sys.executable, self.file, str(rank), self.folder.name]
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self.processes.append(process)
            threading.Thread(target=self._read, args=(self.answers[rank], process), daemon=True).start()

    @staticmethod
    def _read(answers: queue.Queue[str], process: Any) -> None:
        for line in process.stdout:
            answers.put(json.loads(line))
        answers.put("the process ended")

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        if self.processes:
            self.folder.cleanup()
        self.processes = []

    def run(self, name: str) -> list[str]:
        """Carry out a case on all ranks; the traceback of each, empty where it passes."""
        if not self.processes:
            self.start()
        for process in self.processes:
            process.stdin.write(name + "\n")
            process.stdin.flush()
        errors = []
        for rank in range(WORLD):
            try:
                errors.append(self.answers[rank].get(timeout=2 * SECONDS))
            except queue.Empty:
                errors.append("no answer")
        if any(errors):
            self.stop()
        return errors


@contextlib.contextmanager
def processes(file: str) -> Iterator[Ranks]:
    """The processes of a test file, ended behind the block."""
    made = Ranks(file)
    try:
        yield made
    finally:
        made.stop()
