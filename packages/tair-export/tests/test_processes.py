"""Processes that save, load and remove one folder at the same time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ge_graph import files
from ge_graph.errors import ArchiveError
from tair_export import CompiledModel, archive
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
for _ in range(15):
    write_graph(linear(size=256, seed=seed).captured, root)
"""


@pytest.mark.slow
def test_two_processes_save_while_a_third_loads(tmp_path, make, small_files):
    root, x = tmp_path / "a", np.ones((1, 256), "f4")
    allowed = [make(size=256, seed=s).expected(x) for s in range(2)]
    write_graph(make(size=256, seed=0).captured, root)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVE, str(root), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    whole = 0
    while any(w.poll() is None for w in writers):
        result = CompiledModel.load_graph(root, verify="full")(x)["y"]
        whole += 1
        assert any(np.allclose(result, a, rtol=1e-4, atol=1e-4) for a in allowed)
    assert whole
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


class Stop(BaseException):
    """A process that was stopped for good."""


STEPS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "write", "fsync")  # system calls of a save


def stopping(patch, at):
    """From the ``at``-th of the ``STEPS`` on, every one raises ``Stop``: nothing runs any more, no clean-up either."""
    calls = [0]

    def counted(real):
        def call(*args, **kwargs):
            calls[0] += 1
            if at is not None and calls[0] >= at:
                raise Stop
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        patch.setattr(os, name, counted(getattr(os, name)))
    return calls


def before_opening(patch, acts):
    """Run ``acts[n]`` before the n-th file that this process opens; a function that tells whether all of them ran."""
    real, calls, left = os.open, [0], dict(acts)

    def opening(*args, **kwargs):
        calls[0] += 1
        if act := left.pop(calls[0], None):
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(os, "open", real)
                act()
        return real(*args, **kwargs)

    patch.setattr(os, "open", opening)
    return lambda: not left


@pytest.fixture
def two(memory_path, make, small_files):
    """A folder, a function that saves one of two models into it, and one that loads and says which it got."""
    root, x = memory_path / "a", np.ones((1, 4), "f4")
    allowed = [make(seed=s).expected(x) for s in range(2)]

    def save(seed):
        write_graph(make(seed=seed).captured, root)

    def load(**how):
        result = CompiledModel.load_graph(root, verify="full", **how)(x)["y"]
        return [bool(np.allclose(result, a, rtol=1e-4)) for a in allowed].index(True)

    save(0)
    return root, save, load


@pytest.mark.parametrize("copy", [False, True])
def test_saves_between_any_two_files_that_a_reader_opens(two, copy):
    """There and back: the manifest of a model has the same bytes each time, so that looked like no change at all."""
    root, save, load = two
    pairs = 0
    for first in range(1, 20):
        for second in range(first + 1, 20):
            save(0)
            with pytest.MonkeyPatch.context() as patch:
                happened = before_opening(patch, {first: lambda: save(1), second: lambda: save(0)})
                assert load(copy=copy) in (0, 1)
                if not happened():
                    break
                pairs += 1
    assert pairs >= 3


def test_a_reader_that_is_overtaken_again_and_again_comes_to_an_end(two):
    """Somebody saves before every single file that it opens, until it takes part in the writers' lock."""
    root, save, load = two
    real, saves = os.open, []

    def opening(*args, **kwargs):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(os, "open", real)
            try:
                with files.locked(root, wait=0):
                    pass
            except BlockingIOError:  # the reader has it; a writer would wait here
                saves.append(None)
            else:
                saves.append(len(saves) % 2)
                save(saves[-1])
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opening)
        assert load() in (0, 1)
    kept_out = saves.index(None)
    assert kept_out > 6
    assert set(saves[kept_out:]) == {None}


@pytest.mark.parametrize("overtaken", [0, 7])
def test_a_lock_that_somebody_keeps_hangs_no_reader(two, monkeypatch, overtaken):
    """Nor is the archive called damaged, whatever happened while it was read."""
    root, save, load = two
    save(1)
    monkeypatch.setattr(archive, "_ATTEMPTS", 0)  # every attempt asks for the lock
    monkeypatch.setattr(archive, "_LOCK_SECONDS", 0.05)
    real, left = archive._stands_for, [overtaken]

    def stands(path, file):
        left[0] -= 1
        return left[0] < 0 and real(path, file)

    monkeypatch.setattr(archive, "_stands_for", stands)
    with files.locked(root):
        assert load() == 1
    assert left[0] < 0
    monkeypatch.setattr(archive, "_LOCKS_SECONDS", 0.1)
    left[0] = 1000
    with files.locked(root), pytest.raises(ArchiveError, match="GE5020.*keeps changing"):
        load()


@pytest.mark.slow
def test_a_writer_stopped_at_any_step_while_a_reader_reads(two):
    """Every step of a save with every file that a load opens, after one that went through: old or new, whole."""
    root, save, load = two
    with pytest.MonkeyPatch.context() as patch:
        calls = stopping(patch, None)
        save(1)
    steps = calls[0]
    seen = set()
    for step in range(1, steps + 1):
        for at in range(1, 60):
            save(0)

            def act(step=step):
                save(1)
                with pytest.MonkeyPatch.context() as patch:
                    stopping(patch, step)
                    with contextlib.suppress(Stop):
                        save(0)

            with pytest.MonkeyPatch.context() as patch:
                happened = before_opening(patch, {at: act})
                seen.add(load())
            assert load() in (0, 1)
            if not happened():
                break
    assert seen == {0, 1}
