"""Kernels in a process of their own, so that the program on the emulator needs no torch: the program's side.

Requests and answers go through pipes, as a line of JSON and bytes; tensors are read and written where they lie, by the
kernels' process. Before it answers, that process may ask in turn for the program's communicators (``Parent``).
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

from ge_emulator import hccl
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
                while got is not None and "communicator" in got[0]:
                    send(pipes.stdin, *_communicate(*got))
                    got = receive(pipes.stdout)
            except OSError:
                got = None
        if got is None:
            return -1, b"the process of the kernels has ended; what it said is on standard error", INTERNAL
        head, reply = got
        return head["value"], reply, head["error"]


def _communicate(asked: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """What the kernels ask of a communicator."""
    here, name = hccl.Here(), asked["communicator"]
    if "header" not in asked:
        return {"place": here.place(name)}, b""
    code, got = here.exchange(name, tuple(asked["header"]), data, asked["room"])
    return {"code": code}, got


class Parent:
    """The program's communicators, as the kernels' process reaches them."""

    def __init__(self, told: IO[bytes], answers: IO[bytes]) -> None:
        self._told, self._answers = told, answers

    def place(self, name: str) -> tuple[int, int] | None:
        found = self._ask({"communicator": name}, b"")[0]["place"]
        return None if found is None else (found[0], found[1])

    def exchange(self, name: str, header: tuple[int, ...], data: bytes, room: int) -> tuple[int, bytes]:
        head, got = self._ask({"communicator": name, "header": list(header), "room": room}, data)
        return head["code"], got

    def _ask(self, head: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        send(self._told, head, data)
        got = receive(self._answers)
        if got is None:
            raise EOFError("the program has ended")
        return got


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
