"""Where processes without torch meet: small values by name, at the address that torchrun's variables give.

Rank 0 keeps the values and the others ask it. A message is one line of JSON; values are bytes of at most 8 KiB. Where
torchrun itself keeps such a store at that address, as it does with one node, the store is used by torch's own client.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ge_graph import escape

_LINE: Final = 1 << 15  # bytes of a message, at most: 8 KiB as hexadecimal digits, and a name
_NAMES: Final = 1 << 16
_AGAIN: Final = 0.1  # seconds between two attempts to reach rank 0


class NotMet(Exception):
    """Processes did not find each other; the text says why."""


class _Values(Protocol):
    def set(self, name: str, value: bytes) -> None: ...

    def get(self, name: str, seconds: float) -> bytes | None: ...


@dataclass
class Meeting:
    """The processes of one job.

    Attributes:
        rank: This process.
        count: Number of processes.
        deadline: When waiting ends, by ``time.monotonic``.
    """

    rank: int
    count: int
    deadline: float
    _values: _Values

    def tell(self, name: str, value: bytes) -> None:
        """Let all others have a value."""
        self._values.set(name, value)

    def ask(self, name: str, of: int) -> bytes:
        """The value that another rank tells.

        Raises:
            NotMet: If it does not until the deadline.
        """
        value = self._values.get(name, self.deadline - time.monotonic())
        if value is None:
            raise NotMet(f"rank {of} did not come within the time given")
        return value

    def everybody(self, name: str, value: bytes = b"") -> list[bytes]:
        """Tell a value, and wait for that of every rank; by rank.

        Raises:
            NotMet: With the ranks that do not come until the deadline.
        """
        self.tell(f"{name}/{self.rank}", value)
        told = [self._values.get(f"{name}/{r}", self.deadline - time.monotonic()) for r in range(self.count)]
        silent = [str(r) for r, v in enumerate(told) if v is None]
        if silent:
            raise NotMet(f"rank {', '.join(silent)} of {self.count} did not come within the time given")
        return [v for v in told if v is not None]


@contextlib.contextmanager
def meeting(seconds: float) -> Iterator[Meeting]:
    """Meet the processes that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT tell of; without RANK there is one.

    Args:
        seconds: How long this process waits for others.

    Raises:
        NotMet: If a variable is missing or wrong, or rank 0 cannot be reached.
    """
    deadline = time.monotonic() + seconds
    if "RANK" not in os.environ:
        yield Meeting(0, 1, deadline, _Board())
        return
    rank, count = _number("RANK"), _number("WORLD_SIZE")
    if rank >= count:
        raise NotMet(f"RANK is {rank}, WORLD_SIZE {count}")
    host, port = _variable("MASTER_ADDR"), _number("MASTER_PORT")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield Meeting(rank, count, deadline, _TorchrunStore(host, port, seconds))
        return
    with contextlib.ExitStack() as kept:
        values: _Values
        if rank == 0:
            values = kept.enter_context(_served(host, port))
        else:
            values = kept.enter_context(contextlib.closing(_Visitor(host, port, deadline)))
        met = Meeting(rank, count, deadline, values)
        try:
            yield met
        finally:
            with contextlib.suppress(NotMet):  # what there was to tell was told, or that is the error
                met.tell(f"leaves/{rank}", b"")
                for other in range(count if rank == 0 else 0):  # rank 0 keeps the values until then
                    met.ask(f"leaves/{other}", other)


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise NotMet(f"the environment variable {name} is not set")
    return value


def _number(name: str) -> int:
    value = _variable(name)
    if not (value.isdecimal() and value.isascii() and int(value) < 1 << 16):
        raise NotMet(f"the environment variable {name} is {escape.line(repr(value), 60)}, not a number")
    return int(value)


class _Board:
    """Values in this process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, name: str, value: bytes) -> None:
        with self._changed:
            if len(self._values) < _NAMES:
                self._values[name] = value
            self._changed.notify_all()

    def get(self, name: str, seconds: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: name in self._values, max(seconds, 0))
            return self._values.get(name)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, family: int, address: Any, board: _Board) -> None:
        self.address_family = family
        self.board = board
        super().__init__(address, _Answers)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that breaks off, or that speaks another language, is left alone."""


class _Answers(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer one visitor until it leaves or says something that is no message."""
        while line := self.rfile.readline(_LINE):
            asked = json.loads(line)
            name = str(asked["name"])
            if "value" in asked:
                self.server.board.set(name, bytes.fromhex(asked["value"]))
                value: bytes | None = b""
            else:
                value = self.server.board.get(name, min(float(asked["seconds"]), threading.TIMEOUT_MAX))
            self.wfile.write(json.dumps(None if value is None else value.hex()).encode() + b"\n")


@contextlib.contextmanager
def _served(host: str, port: int) -> Iterator[_Board]:
    """A board that others reach, at an address of this host."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, address, _Board())
    except OSError as error:
        raise NotMet(f"rank 0 cannot listen at MASTER_ADDR {host}, MASTER_PORT {port}: {error}") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.board
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Visitor:
    """Values that rank 0 keeps."""

    def __init__(self, host: str, port: int, deadline: float) -> None:
        while True:
            try:
                self._socket = socket.create_connection((host, port), max(deadline - time.monotonic(), 0.05))
                break
            except OSError as error:
                if time.monotonic() + _AGAIN > deadline:
                    raise NotMet(
                        f"rank 0 cannot be reached at MASTER_ADDR {host}, MASTER_PORT {port}: {error}"
                    ) from None
                time.sleep(_AGAIN)
        self._file = self._socket.makefile("rwb")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()

    def set(self, name: str, value: bytes) -> None:
        self._ask({"name": name, "value": value.hex()}, 60)

    def get(self, name: str, seconds: float) -> bytes | None:
        return self._ask({"name": name, "seconds": max(seconds, 0)}, max(seconds, 0) + 10)

    def _ask(self, message: dict[str, Any], seconds: float) -> bytes | None:
        try:
            self._socket.settimeout(seconds)
            self._file.write(json.dumps(message).encode() + b"\n")
            self._file.flush()
            told = json.loads(self._file.readline(_LINE))
            return None if told is None else bytes.fromhex(told)
        except (OSError, ValueError, TypeError) as error:
            raise NotMet(f"rank 0 went away: {error}") from None


class _TorchrunStore:
    """Values in the store that torchrun keeps."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        from datetime import timedelta

        try:
            from torch.distributed import DistError, PrefixStore, TCPStore

            made = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=math.ceil(seconds)))
        except ImportError as error:
            raise NotMet(f"torchrun keeps the store, and its client cannot be imported: {error}") from None
        except (DistError, RuntimeError) as error:
            raise NotMet(f"torchrun's store cannot be reached: {error}") from None
        self._store = PrefixStore(f"ge_runtime/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", made)

    def set(self, name: str, value: bytes) -> None:
        self._store.set(name, b"_" + value)  # some versions lose empty values

    def get(self, name: str, seconds: float) -> bytes | None:
        from datetime import timedelta

        try:
            self._store.wait([name], timedelta(seconds=max(seconds, 0.1)))
            return bytes(self._store.get(name)[1:])
        except RuntimeError:
            return None
