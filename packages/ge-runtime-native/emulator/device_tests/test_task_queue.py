"""torch_npu's queue of operators at each of its levels (TASK_QUEUE_ENABLE). Run under ``tair emulate``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = ("test_failed_operators.py", "test_frozen_parameters.py")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["1", "2"])
def test_errors_and_graphs_at_this_level(level: str) -> None:
    """The thread of the queue waits for nothing that the interpreter's lock guards: others wait for it with the lock."""
    env = {**os.environ, "TASK_QUEUE_ENABLE": level}
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    line = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
