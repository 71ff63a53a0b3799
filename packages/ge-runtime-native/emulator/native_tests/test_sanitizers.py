"""Streams, events, memory, capture and collectives under the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_clean(sanitizer: str, tmp_path: Path):
    for line in (
        ["cmake", "-S", str(ROOT), "-B", str(tmp_path), f"-DTAIR_SANITIZE={sanitizer}"],
        ["cmake", "--build", str(tmp_path), "--target", "runtime_test", "-j2"],
    ):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    done = subprocess.run([tmp_path / "runtime_test"], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "all well\n"
    assert "ERROR" not in done.stderr
    assert "runtime error" not in done.stderr
