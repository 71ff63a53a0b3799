"""Processes that save, load and remove one folder at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ge_graph.errors import ArchiveError
from tair_export import CompiledModel
from tair_export.export import write_graph

SAVE = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from conftest import linear
from tair_export import weights
from tair_export.export import write_graph
weights.GRAPH_INLINE_BYTES = 0
root, seed = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(30):
    write_graph(linear(size=256, seed=seed).captured, root)
"""


@pytest.mark.slow
def test_two_processes_save_while_a_third_loads(tmp_path, make, small_files):
    root, x = tmp_path / "a", np.ones((1, 256), "f4")
    allowed = [make(size=256, seed=s).expected(x) for s in range(2)]
    write_graph(make(size=256, seed=0).captured, root)
    writers = [
        subprocess.Popen([sys.executable, "-c", SAVE, str(root), str(seed)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(2)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    whole, changed = 0, []
    while any(w.poll() is None for w in writers):
        try:
            result = CompiledModel.load_graph(root, verify="full")(x)["y"]
        except ArchiveError as error:
            changed.append(error.code)
            continue
        whole += 1
        assert any(np.allclose(result, a, rtol=1e-4, atol=1e-4) for a in allowed)
    assert whole
    assert set(changed) <= {"GE5010"}  # it changed under the reader, who says so
    for writer in writers:
        _, said = writer.communicate()
        assert writer.returncode == 0, said
    result = CompiledModel.load_graph(root, verify="full")(x)["y"]
    assert any(np.allclose(result, a, rtol=1e-4, atol=1e-4) for a in allowed)
    assert not list(root.glob(".*"))


@pytest.mark.slow
def test_a_folder_that_vanishes_while_saving(tmp_path, make, small_files, monkeypatch):
    """The folder is removed before the n-th system call that names a file, for every n: saved, or our error."""
    x, outcomes = np.ones((1, 4), "f4"), []
    for at in range(1, 40):
        root, calls = tmp_path / f"a{at}", [0]

        def vanishing(real, root=root, calls=calls, at=at):
            def call(*args, **kwargs):
                calls[0] += 1
                if calls[0] == at:
                    shutil.rmtree(root, ignore_errors=True)
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "replace", "rename", "mkdir"):
                patch.setattr(os, name, vanishing(getattr(os, name)))
            try:
                write_graph(make(seed=1).captured, root)
                outcomes.append("saved")
            except ArchiveError as error:
                outcomes.append(error.code)
        write_graph(make(seed=1).captured, root)
        result = CompiledModel.load_graph(root, verify="full")(x)["y"]
        np.testing.assert_allclose(result, make(seed=1).expected(x), rtol=1e-5)
        assert not list(root.glob(".*"))
    assert set(outcomes) == {"saved", "GE5033"}
    assert outcomes[-1] == "saved"  # beyond the last call


def test_a_captured_model_is_written_once(tmp_path, make, small_files):
    captured = make().captured
    write_graph(captured, tmp_path / "a")
    with pytest.raises(ArchiveError, match=r"GE5\d\d\d.*written before"):
        write_graph(captured, tmp_path / "b")
    assert not (tmp_path / "b").exists()
