"""Tests with several processes: a test file names cases, and processes that are started once carry them out.

The processes load the test file, take its ``CASES``, get the name of a case at a time and answer with the traceback, or
nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils import _pytree as pytree

from tair_testing import warm

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


_folder: Path | None = None


def shared_folder() -> Path:
    """A folder for files of a case, the same on all ranks."""
    assert _folder is not None, "this process is no rank"
    return _folder


def values(tree: Any) -> Any:
    """Results of eager collectives once they have arrived."""
    return pytree.tree_map(lambda v: v.wait() if isinstance(v, AsyncCollectiveTensor) else v, tree)


def close(got: Any, want: Any, **tolerance: float) -> None:
    """Compare; equal bits if there is no tolerance."""
    torch.testing.assert_close(values(got), values(want), **(tolerance or {"rtol": 0, "atol": 0}))


def _rank(file: str, rank: int, world: int, folder: str, asked: Connection) -> None:
    """One of the processes: a gloo group on the files of the folder, then one case after another."""
    global _folder
    _folder = Path(folder)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(quiet, descriptor)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS // 2),
    )
    sys.path.insert(0, str(Path(file).parent))
    cases = importlib.import_module(Path(file).stem).CASES
    gc.freeze()  # as in conftest.py: nothing that is loaded by now goes away
    gc.set_threshold(20_000, 20, 20)
    while True:
        name = asked.recv()
        error = ""
        try:
            torch.manual_seed(0)
            cases[name]()
        except BaseException:  # noqa: BLE001  (whatever it is goes to the test)
            error = traceback.format_exc()
        asked.send(error)


class Ranks:
    """The processes; new ones after a failure, which may leave them waiting for each other.

    Args:
        file: The test file, with ``CASES``.
        world: Number of processes.
    """

    def __init__(self, file: str, world: int = WORLD) -> None:
        self.file, self.world = file, world
        self.started: list[tuple[Any, Connection]] = []

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        for rank in range(self.world):
            here, there = multiprocessing.Pipe()
            args = (self.file, rank, self.world, self.folder.name, there)
            process = warm.FORKS.Process(target=_rank, args=args, daemon=True)
            process.start()
            there.close()
            self.started.append((process, here))

    def stop(self) -> None:
        for process, _ in self.started:
            process.kill()
            process.join()
        if self.started:
            self.folder.cleanup()
        self.started = []

    def run(self, name: str) -> list[str]:
        """Carry out a case on all ranks; the traceback of each, empty where it passes."""
        if not self.started:
            self.start()
        errors = []
        end = time.monotonic() + 2 * SECONDS
        try:
            for _, rank in self.started:
                rank.send(name)
            for _, rank in self.started:
                errors.append(rank.recv() if rank.poll(max(end - time.monotonic(), 0)) else "no answer")
        except (EOFError, OSError):
            errors = ["a process ended"]
        if any(errors):
            self.stop()
        return errors

    def check(self, name: str) -> None:
        """Carry out a case on all ranks; AssertionError with the traceback of each that fails."""
        errors = self.run(name)
        assert not any(errors), "\n".join(f"rank {r}:\n{e}" for r, e in enumerate(errors))


@contextlib.contextmanager
def processes(file: str, world: int = WORLD) -> Iterator[Ranks]:
    """The processes of a test file, ended after the block."""
    made = Ranks(file, world)
    try:
        yield made
    finally:
        made.stop()
