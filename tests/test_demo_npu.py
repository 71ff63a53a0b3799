"""``make demo-npu`` on the emulator, shortened to the two models with real weights: it shows its table to the end.

CREPE is the small one of the two that its wheel ships; the full one computes for ten seconds more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ge_emulator import launch
from ge_graph.errors import EngineError

ROOT = Path(__file__).resolve().parent.parent


def recipe(target: str) -> str:
    """The command of a target of the Makefile."""
    return (ROOT / "Makefile").read_text().split(f"\n{target}:", 1)[1].split("\n")[1].strip()


@pytest.mark.slow
def test_the_command_shows_its_table():
    try:
        launch.find_torch_npu()
    except EngineError:
        pytest.skip("torch_npu is not here; TAIR_TORCH_NPU names its wheel")
    command = recipe("demo-npu").removeprefix("@").replace("$(RUN)", sys.executable)
    command += " --only real --repeats 1 --size tiny"
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    done = subprocess.run(command.split(), cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "NPU tensors (Ascend910B1)" in done.stdout
    rows = {r.split("│")[1].strip(): r.split("│")[2:-1] for r in done.stdout.splitlines() if r.startswith("│")}
    assert sorted(rows) == ["CREPE pitch (real)", "MiniLM-L6 (real)"]
    for cells in rows.values():
        assert float(cells[-1]) < 1e-5  # largest relative difference from eager
    found = re.search(r"found ([\d. ]+)", done.stdout)
    true = re.search(r"true  ([\d. ]+)", done.stdout)
    assert found
    assert true
    for got, want in zip(found[1].split(), true[1].split(), strict=True):
        assert abs(float(got) / float(want) - 1) < 0.03
