"""Tests with several processes: a test file names cases, and processes that are started once carry them out.

The processes load the test file, take its ``CASES``, get the name of a case at a time and answer with what it returns,
or with the traceback. They meet with gloo, or with hccl where a program has NPUs or the emulator of them.
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
ENDED = "the process ended"
DEVICES = {"gloo": "cpu", "hccl": "npu"}


def shared_folder() -> Path:
    """A folder for files of a case, the same on all ranks."""
    assert _folder is not None, "this process is no rank"
    return _folder


def backend() -> str:
    """What this rank speaks with the others through: ``gloo`` or ``hccl``."""
    return str(dist.get_backend())


def device() -> str:
    """Where the tensors of this rank are: ``cpu`` or ``npu``."""
    return DEVICES[backend()]


def values(tree: Any) -> Any:
    """Results of eager collectives once they have arrived; tensors of a device on the host."""

    def arrived(v: Any) -> Any:
        v = v.wait() if isinstance(v, AsyncCollectiveTensor) else v
        return v.cpu() if isinstance(v, torch.Tensor) else v

    return pytree.tree_map(arrived, tree)


def close(got: Any, want: Any, **tolerance: float) -> None:
    """Compare, on the host; equal bits if there is no tolerance."""
    torch.testing.assert_close(values(got), values(want), **(tolerance or {"rtol": 0, "atol": 0}))


def join(meets: str, place: int, **how: Any) -> None:
    """Meet the other processes.

    Args:
        meets: ``gloo`` or ``hccl``.
        place: Number of the device on this host.
        **how: Arguments of ``init_process_group``.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if meets == "hccl":
        os.environ["HCCL_ASYNC_ERROR_HANDLING"] = "0"  # else torch_npu ends the process of a failed collective
        importlib.import_module("torch_npu")
        torch.get_device_module("npu").set_device(place)
    dist.init_process_group(meets, timeout=timedelta(seconds=SECONDS // 2), **how)


def _rank(source: str, rank: int, world: int, meets: str, folder: str, asked: Connection) -> None:
    """One of the processes: a group on the files of the folder, then one case after another."""
    global _folder
    _folder = Path(folder)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(quiet, descriptor)
    torch.set_num_threads(1)
    join(meets, rank, init_method=f"file://{folder}/store", rank=rank, world_size=world)
    if source.endswith(".py"):
        sys.path.insert(0, str(Path(source).parent))
        source = Path(source).stem
    cases = importlib.import_module(source).CASES
    gc.freeze()  # as in conftest.py: nothing that is loaded by now goes away
    gc.set_threshold(20_000, 20, 20)
    while True:
        name = asked.recv()
        result, error = None, ""
        try:
            torch.manual_seed(0)
            result = cases[name]()
        except BaseException:  # noqa: BLE001  (whatever it is goes to the test)
            error = traceback.format_exc()
        asked.send((result, error))


def _with_devices() -> Any:
    """The server of forks, with devices for eight ranks: the emulator counts them while torch_npu is loaded."""
    os.environ.setdefault("TAIR_EMULATOR_DEVICES", "8")
    return warm.FORKS


class Ranks:
    """The processes; new ones after a failure, which may leave them waiting for each other.

    Args:
        source: The test file, or the name of a module, with ``CASES``.
        world: Number of processes.
        meets: ``gloo`` or ``hccl``.
    """

    def __init__(self, source: str, world: int = WORLD, meets: str = "gloo") -> None:
        self.source, self.world, self.meets = source, world, meets
        self.started: list[tuple[Any, Connection]] = []

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = warm.FORKS if self.meets == "gloo" else _with_devices()
        for rank in range(self.world):
            here, there = multiprocessing.Pipe()
            args = (self.source, rank, self.world, self.meets, self.folder.name, there)
            process = context.Process(target=_rank, args=args, daemon=True)
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

    def run(self, name: str) -> tuple[list[Any], list[str]]:
        """Carry out a case on all ranks; what each returns, and the traceback of each, empty where it passes."""
        if not self.started:
            self.start()
        answers: list[tuple[Any, str]] = []
        end = time.monotonic() + 2 * SECONDS
        for _, rank in self.started:
            with contextlib.suppress(OSError):  # it has ended: that is its answer
                rank.send(name)
        for _, rank in self.started:
            try:
                answers.append(rank.recv() if rank.poll(max(end - time.monotonic(), 0)) else (None, "no answer"))
            except (EOFError, OSError):
                answers.append((None, ENDED))
        results, errors = [a for a, _ in answers], [e for _, e in answers]
        if any(errors):
            self.stop()
        return results, errors

    def check(self, name: str) -> list[Any]:
        """Carry out a case on all ranks; what each returns. AssertionError with the traceback of each that fails."""
        results, errors = self.run(name)
        assert not any(errors), "\n".join(f"rank {r}:\n{e}" for r, e in enumerate(errors))
        return results


@contextlib.contextmanager
def processes(source: str, world: int = WORLD, meets: str = "gloo") -> Iterator[Ranks]:
    """The processes of a test file, or of a module, ended after the block."""
    made = Ranks(source, world, meets)
    try:
        yield made
    finally:
        made.stop()
