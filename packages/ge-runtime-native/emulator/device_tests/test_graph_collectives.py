"""Collectives in GE graphs between processes of this host. Run under ``tair emulate``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ge_graph import serde

RANK = Path(__file__).with_name("tensor_parallel.py")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "lose"), [(2, True), (4, False)])
def test_tensor_parallel_model(ranks: int, lose: bool, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TAIR_EMULATOR_DEVICES": str(ranks),
            "TAIR_EMULATOR_GRAPHS": str(tmp_path / f"graphs{rank}"),
            "HCCL_EXEC_TIMEOUT": "300",
            **({"LOSE_A_RANK": "1"} if lose else {}),
        }
        log = (tmp_path / f"{rank}.log").open("w")
        started.append(subprocess.Popen([sys.executable, str(RANK)], env=env, stdout=log, stderr=log))
    limit = time.monotonic() + 500
    try:
        codes = [p.wait(timeout=max(limit - time.monotonic(), 1)) for p in started]
    finally:
        for p in started:
            p.kill()
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(ranks)]
    for text in logs:
        assert "equals the whole model" in text, text[-4000:]
        assert "collectives of the graph right" in text, text[-4000:]
    if lose:
        assert "error after a rank was lost" in logs[0], logs[0][-4000:]
        assert "EI0006" in logs[0], logs[0][-4000:]
    else:
        assert codes == [0] * ranks
    for rank in range(ranks):
        graphs = [serde.from_bytes(p.read_bytes()) for p in sorted((tmp_path / f"graphs{rank}").iterdir())]
        groups = {str(n.attr("group")) for g in graphs for n in g.nodes if n.op.startswith("Hcom")}
        assert groups
        assert all(g.startswith("npu-") for g in groups), groups  # HCCL's name, not torch's
