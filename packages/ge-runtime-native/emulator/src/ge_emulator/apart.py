"""Kernels in a process of their own, so that the program on the emulator needs no torch: the program's side.

Requests and answers go through pipes, as a line of JSON and bytes; tensors are read and written where they lie, by the
kernels' process.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from ge_emulator.refusal import INTERNAL

_MAY_BE_TRACED_BY: Final = 0x59616D61  # PR_SET_PTRACER: a kernel with Yama asks for it


def send(pipe: IO[bytes], head: Mapping[str, Any], data: bytes) -> None:
    """Write a line of JSON, which says how many bytes follow, and the bytes."""
    pipe.write(json.dumps({**head, "bytes": len(data)}).encode() + b"\n" + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read what ``send`` wrote; None at the end."""
    line = pipe.readline()
    if not line:
        return None
    head = json.loads(line)
    return head, pipe.read(head["bytes"])


class _Kernels:
    def __init__(self) -> None:
        env = {k: v for k, v in os.environ.items() if k != "TAIR_EMULATOR_PYTHON"}
        env.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=str(Path(__file__).resolve().parents[1]))
        command = [os.environ["TAIR_EMULATOR_PYTHON"], "-m", "ge_emulator.serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        ctypes.CDLL(None).prctl(_MAY_BE_TRACED_BY, ctypes.c_ulong(self._process.pid), 0, 0, 0)
        self._lock = threading.Lock()

    def ask(self, verb: bytes, data: bytes, words: Sequence[int]) -> tuple[int, bytes, int]:
        pipes = self._process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        with self._lock:
            try:
                send(pipes.stdin, {"verb": verb.decode(), "words": list(words)}, data)
                got = receive(pipes.stdout)
            except OSError:
                got = None
        if got is None:
            return -1, b"the process of the kernels has ended; what it said is on standard error", INTERNAL
        head, reply = got
        return head["value"], reply, head["error"]


_start: Final = threading.Lock()
_kernels: _Kernels | None = None


def answer(verb: bytes, data: bytes, words: Sequence[int]) -> tuple[int, bytes, int]:
    """Value, reply or text, error number; see ``ge_emulator.verbs.Response``."""
    global _kernels
    try:
        with _start:
            if _kernels is None:
                _kernels = _Kernels()
        return _kernels.ask(verb, data, words)
    except Exception as error:  # noqa: BLE001 - nothing may unwind into the library
        return -1, f"{type(error).__name__}: {error}".encode(), INTERNAL
