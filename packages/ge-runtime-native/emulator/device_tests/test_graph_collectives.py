"""Collectives in GE graphs between processes of this host. Run under ``tair emulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ge_graph import serde

RANK = Path(__file__).with_name("tensor_parallel.py")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "lose"), [(2, True), (3, False)])
def test_tensor_parallel_model(ranks: int, lose: bool, tmp_path: Path, run_ranks: Any):
    env = {"HCCL_EXEC_TIMEOUT": "300", **({"LOSE_A_RANK": "1"} if lose else {})}
    codes, logs = run_ranks(
        ranks,
        str(RANK),
        seconds=500,
        env_of=lambda rank: {**env, "TAIR_EMULATOR_GRAPHS": str(tmp_path / f"graphs{rank}")},
    )
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
