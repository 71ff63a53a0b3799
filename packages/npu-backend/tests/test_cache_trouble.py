"""A cache folder in trouble: the run goes on, its numbers are right, and one warning says what happened."""

import os
import resource
import shutil
import sys
import textwrap
from contextlib import contextmanager

import pytest
import torch

import torchair
from tair_export import archive
from tair_testing import warm
from torchair.artifact import cache
from torchair.inference import cache_compile


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.fc(x)) + x


def through_torch_compile(model, folder):
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.cache_dir = str(folder)
    return torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))


def through_cache_compile(model, folder):
    torch._dynamo.reset()
    return cache_compile(model.forward, cache_dir=str(folder))


DOORS = {"torch.compile": through_torch_compile, "cache_compile": through_cache_compile}


@contextmanager
def no_room(folder, monkeypatch):
    """Files may not grow: what a full disk or a quota does to a writer."""
    # byte code that Python writes meanwhile would be cut short, and stay so for everybody
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_folder(folder, monkeypatch):
    """Nobody may make a folder there, root included."""
    yield "/proc/self/no/cache"


@contextmanager
def vanishing(folder, monkeypatch):
    """The folder goes while the first file is being written."""
    original = archive._write

    def write(handle, block):
        shutil.rmtree(folder, ignore_errors=True)
        return original(handle, block)

    monkeypatch.setattr(archive, "_write", write)
    yield folder


@contextmanager
def no_handles(folder, monkeypatch):
    """The process has no file handle left for the archive."""

    def refuse(*args, **kwargs):
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(archive, "locked", refuse)
    yield folder


TROUBLES = {"no room": no_room, "no folder": no_folder, "vanishing": vanishing, "no handles": no_handles}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_run_goes_on(trouble, door, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(cache.logger, "tell", lambda text, *args: said.append(text % args))
    model, x = Small().eval(), torch.randn(3, 4)
    with torch.no_grad(), TROUBLES[trouble](tmp_path / "cache", monkeypatch) as folder:
        run = DOORS[door](model, folder)
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x))
    assert len([text for text in said if "cannot be written" in text]) == 1, said
    assert not list(tmp_path.rglob("*.manifest.json"))
    # nothing half written is left that the next start would take
    monkeypatch.undo()
    with torch.no_grad():
        torch.testing.assert_close(DOORS[door](model, tmp_path / "cache")(x), model(x))
    assert len(list(tmp_path.rglob("*.manifest.json"))) == 1


def test_a_folder_that_vanishes_between_compiling_and_running(tmp_path):
    model, x = Small().eval(), torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3):
            run = through_torch_compile(model, tmp_path / "cache")
            torch.testing.assert_close(run(x), model(x))
            shutil.rmtree(tmp_path / "cache")
            torch.testing.assert_close(run(x), model(x))


@pytest.mark.slow
def test_processes_that_start_at_once_share_a_folder(tmp_path):
    script = tmp_path / "start.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch, torchair
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
            x = torch.randn(3, 4)
            with torch.no_grad(), torchair.record_compilation() as reports:
                run = torch.compile(model, backend="npu")
                torch.testing.assert_close(run(x), model(x))
            print(sum(r.stages.get("lower", 0) > 0 for r in reports))
            """
        )
    )
    environment = {**os.environ, "TORCHAIR_CACHE_DIR": str(tmp_path / "c")}
    for program in [warm.Fork(script, env=environment) for _ in range(2)]:
        done = program.end()
        assert done.returncode == 0, done.stderr
        assert "cannot" not in done.stderr
    assert warm.run(script, env=environment).stdout.split() == ["0"]
