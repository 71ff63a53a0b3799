"""Processes of one group on this host."""

import os
import socket
import subprocess
import sys
import time

import pytest


@pytest.fixture
def run_ranks(tmp_path):
    """``run_ranks(ranks, *arguments, seconds=, env_of=)``: one Python process for each; exit codes, outputs."""

    def run(ranks, *arguments, seconds, env_of=lambda rank: {}):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        logs = [tmp_path / f"{rank}.log" for rank in range(ranks)]
        started = []
        for rank, log in enumerate(logs):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TAIR_EMULATOR_DEVICES": str(ranks),
                **env_of(rank),
            }
            with log.open("w") as out:
                started.append(subprocess.Popen([sys.executable, *arguments], env=env, stdout=out, stderr=out))
        limit = time.monotonic() + seconds
        try:
            codes = [p.wait(timeout=max(limit - time.monotonic(), 1)) for p in started]
        finally:
            for p in started:
                p.kill()
        return codes, [log.read_text() for log in logs]

    return run
