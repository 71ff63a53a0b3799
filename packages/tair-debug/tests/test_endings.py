"""Hostile moments: places that cannot be written, a full disk, Ctrl-C, a closed pipe, a narrow terminal, no home.

Each ends with our error, a next step and a documented exit code, and nothing half-written stays.
"""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from typer.testing import CliRunner

from tair_debug import artefacts, endings, terminal
from tair_debug.cli import app

MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def make():
    return Net(), torch.randn(2, 4)

def stopped():
    raise KeyboardInterrupt
"""
# what each command is told to write
WRITING = {
    "summary": ("-o", "out/deep/page.html"),
    "dump": ("-o", "out/deep"),
    "view": ("-o", "out/deep/page.html"),
    "compare": ("-o", "out/deep"),
    "check": ("--soc", "ascend910b", "-o", "out/deep/page.json"),
    "plan": ("--page", "out/deep/page.html"),
    "profile": ("-o", "out/deep"),
}


@pytest.fixture
def tair(tmp_path, monkeypatch):
    """``tair("summary", ...)``: exit code, what a program reads and what a person reads of errors."""
    (tmp_path / "moment.py").write_text(MODEL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "moment", raising=False)

    def run(*args):
        torch._dynamo.reset()
        result = CliRunner().invoke(app, [str(a) for a in args])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    yield run
    sys.modules.pop("moment", None)


def is_ours(said, code="GE1041"):
    assert said.startswith(f"[{code}] ")
    assert re.search(r"^Next: \w", said, re.M)


@pytest.mark.parametrize(
    ("command", "number"),
    [*((c, errno.ENOSPC) for c in WRITING), *(("view", n) for n in (errno.EACCES, errno.EROFS, errno.EDQUOT))],
)
def test_a_place_that_cannot_be_written(tair, tmp_path, monkeypatch, command, number):
    """The disk is full, or the folder may not be written: no file, no folder, no hidden file stays."""

    def full(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(artefacts, "create", full)
    monkeypatch.setattr("ge_graph.python_source.write_py", full)
    code, said, told = tair(command, "moment.py:make", *WRITING[command])
    assert code == 2
    is_ours(told)
    assert os.strerror(number) in told
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("moment.py", "__pycache__")] == []


@pytest.mark.parametrize("command", WRITING)
def test_a_file_where_a_folder_should_be(tair, tmp_path, command):
    (tmp_path / "out").write_text("mine")
    code, _, told = tair(command, "moment.py:make", *WRITING[command])
    assert code == 2
    is_ours(told)
    assert "a file stands where a folder should" in told
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("command", ["summary", "view", "check", "plan"])
def test_a_folder_where_a_file_should_be(tair, tmp_path, command):
    place = tmp_path / WRITING[command][-1]
    (place / "kept").mkdir(parents=True)
    code, _, told = tair(command, "moment.py:make", *WRITING[command])
    assert code == 2
    is_ours(told)
    assert (place / "kept").is_dir()
    assert [p.name for p in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize("command", ["summary", "dump", "compare"])
def test_interrupted(tair, tmp_path, command):
    code, said, told = tair(command, "moment.py:stopped", *WRITING[command])
    assert code == endings.STOPPED
    assert said == ""
    assert told == f"tair {command}: stopped; files that were written are whole\n"
    assert not (tmp_path / "out").exists()


def test_folders_that_were_there_or_hold_something_stay(tmp_path):
    (tmp_path / "there").mkdir()

    def fail():
        with endings.no_empty_folders([tmp_path / "there", tmp_path / "a" / "b" / "c"]):
            (tmp_path / "a" / "b").mkdir(parents=True)
            (tmp_path / "a" / "kept.txt").write_text("whole")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "kept.txt", "there"]


_PIPED = """
import sys
from tair_debug import cli
sys.argv = ["tair", *sys.argv[1:]]
cli.app()
"""


@pytest.mark.parametrize("words", [["ops"], ["ops", "--json"], ["ops", "Add", "--ge"]])
def test_a_reader_that_is_gone(words, tmp_path):
    """``tair ops | head -1``: no traceback, and no code that says something of the answer."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", _PIPED, *words], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (endings.NO_READER, "")


@pytest.mark.slow
def test_ctrl_c_in_the_middle(tmp_path):
    (tmp_path / "moment.py").write_text(
        MODEL + "    \n\ndef slow():\n    import time\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", _PIPED, "dump", "moment.py:slow", "-o", "out"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert run.stdout.readline() == "in\n"
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=60)
    assert run.returncode == endings.STOPPED
    assert told == "tair dump: stopped; files that were written are whole\n"
    assert not (tmp_path / "out").exists()


def test_two_at_once_into_one_file(tmp_path):
    """Whoever is last wins, and what stands there is whole at every moment."""
    path, texts, seen = tmp_path / "page.html", ["a" * 100_000, "b" * 100_000], set()

    def write(text):
        for _ in range(20):
            artefacts.write_text(path, text, "test")

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        if path.exists():
            seen.add(path.read_text())
        time.sleep(0.001)
    assert {*seen, path.read_text()} <= {*texts}
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_two_dumps_into_one_folder(tair, tmp_path):
    for _ in range(2):
        assert tair("dump", "moment.py:make", "-o", "out", "-t", "txt")[0] == 0
    assert len([*(tmp_path / "out").iterdir()]) == 4


@pytest.mark.parametrize("command", ["summary", "check", "plan", "compare"])
@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal(tair, monkeypatch, command, width):
    """Every word is whole, whatever the width; nothing is wider but a single word, or a line that a terminal folds."""
    wide = tair(command, "moment.py:make", *(["--soc", "ascend910b"] if command == "check" else []))[1]
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = tair(command, "moment.py:make", *(["--soc", "ascend910b"] if command == "check" else []))[1]
    plain = re.compile(r"[\w./%-]{3,}")
    missing = {*plain.findall(wide)} - {*plain.findall(narrow)}
    assert not missing
    assert all(len(line) <= width for line in narrow.splitlines() if line.startswith(("┃", "│", "┏", "└")))


def test_no_colour(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.console().color_system is not None
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.console().no_color


@pytest.mark.parametrize("home", [None, "/nonexistent/home"])
def test_no_home(tair, monkeypatch, home):
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert tair("dump", "moment.py:make", "-o", "out")[0] == 0


@pytest.mark.parametrize("name", ["模型", "ünïcode", "a b", "x[red]y", "<b>"])
def test_names_of_any_kind(tair, tmp_path, name):
    """Of folders and files: they are written as they are, and shown as they are."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "m.py").write_text(MODEL)
    code, said, _ = tair("summary", f"{name}/m.py:make", "-o", f"{name}/out/{name}.html")
    assert code == 0
    assert f"written: {name}/out/{name}.html" in said
    page = (tmp_path / name / "out" / f"{name}.html").read_text(encoding="utf-8")
    assert "<b>" not in page.replace("<b></b>", "")
