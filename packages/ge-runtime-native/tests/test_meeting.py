"""Processes without torch meet at an address: values, barriers, and what is said of those that do not come."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ge_runtime.cann import meeting as module
from ge_runtime.cann.meeting import Meeting, NotMet, meeting


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """``job(count, work, seconds=, ranks=)``: what each rank's work gave or raised; ranks are threads here."""
    here = threading.local()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)

    def run(
        count: int, work: Callable[[Meeting], Any], seconds: float = 20, ranks: tuple[int, ...] | None = None
    ) -> list[Any]:
        numbers = {"WORLD_SIZE": count, "MASTER_PORT": port}
        monkeypatch.setattr(module, "_number", lambda name: here.rank if name == "RANK" else numbers[name])
        ranks = tuple(range(count)) if ranks is None else ranks
        given: list[Any] = [None] * count

        def one(rank: int) -> None:
            here.rank = rank
            try:
                with meeting(seconds) as met:
                    given[rank] = work(met)
            except NotMet as error:
                given[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return given

    return run


def test_values_reach_every_rank(job: Callable[..., list[Any]]) -> None:
    data = bytes(range(256)) * 17

    def work(met: Meeting) -> Any:
        if met.rank == 1:
            met.tell("root", data)
        return met.ask("root", 1), met.everybody("who", bytes([met.rank]))

    for _ in range(2):  # the address is free again at once
        assert job(4, work) == [(data, [b"\0", b"\1", b"\2", b"\3"])] * 4


def test_ranks_that_do_not_come_are_named(job: Callable[..., list[Any]]) -> None:
    start = time.monotonic()
    for error in job(4, lambda met: met.everybody("comes"), seconds=1, ranks=(0, 2))[::2]:
        assert "rank 1, 3 of 4 did not come" in str(error)
    (error,) = job(2, lambda met: None, seconds=1, ranks=(1,))[1:]
    assert "rank 0 cannot be reached at MASTER_ADDR 127.0.0.1" in str(error)
    assert time.monotonic() - start < 40


def test_a_visitor_that_speaks_another_language_is_left_alone(job: Callable[..., list[Any]]) -> None:
    def work(met: Meeting) -> Any:
        if met.rank == 1:
            for words in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"name": "x", "value": "zz"}\n', b"\xff" * 70000):
                port = met._values._socket.getpeername()[1]  # type: ignore[attr-defined]
                with socket.create_connection(("127.0.0.1", port), 10) as other:
                    try:
                        other.sendall(words)
                        other.shutdown(socket.SHUT_WR)
                        answer = other.recv(100)
                    except OSError as error:
                        if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                            raise
                        answer = b""  # closed before all was read
                    assert answer == b""
        return met.everybody("after")

    assert job(2, work) == [[b"", b""]] * 2


def test_rank_0_that_goes_away_is_an_error(job: Callable[..., list[Any]]) -> None:
    def work(met: Meeting) -> Any:
        if met.rank == 0:
            raise NotMet("ends")
        met._values._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        return met.everybody("comes")

    assert "rank 0 went away" in str(job(2, work, seconds=2)[1])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, WORLD_SIZE 2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1', not a number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x\n"}, r"MASTER_PORT is 'x\\n'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "0"}, "cannot listen"),
    ],
)
def test_variables_that_are_wrong(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NotMet, match=words), meeting(2):
        pass


def test_one_process_meets_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with meeting(1) as met:
        assert (met.rank, met.count, met.everybody("comes", b"x")) == (0, 1, [b"x"])
