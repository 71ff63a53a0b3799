"""``tair emulate`` finds things, says what is missing, and passes the program's exit code and arguments on."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ge_emulator import launch
from ge_graph.errors import EngineError


def test_commands():
    assert launch.command(["train.py", "--x"], None) == [sys.executable, "train.py", "--x"]
    assert launch.command(["-k", "a"], "pytest") == [sys.executable, "-m", "pytest", "-k", "a"]
    assert launch.command(["pytest", "tests"], None) == [sys.executable, "-m", "pytest", "tests"]
    assert launch.command(["python", "-c", "1"], None) == [sys.executable, "-c", "1"]
    with pytest.raises(EngineError, match="GE4063"):
        launch.command(["no-such-command-anywhere"], None)


@pytest.mark.parametrize(
    ("line", "own", "program"),
    [
        ("-m tools.demo --device npu", "-m tools.demo", "--device npu"),
        ("--torch-npu a.whl -m pytest -m slow", "--torch-npu a.whl -m pytest", "-m slow"),
        ("--torch-npu a.whl train.py --check", "--torch-npu a.whl", "train.py --check"),
        ("--bundled-torchair -- pytest -- -x", "--bundled-torchair", "pytest -- -x"),
        ("--check", "--check", ""),
    ],
)
def test_what_follows_the_program_is_the_programs(line, own, program):
    assert launch._split(line.split()) == (own.split(), program.split())


def test_no_torch_npu(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(launch.VARIABLE, raising=False)
    with pytest.raises(EngineError, match="GE4062"):
        launch.find_torch_npu(str(tmp_path))


def test_a_wheel_without_torch_npu_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TAIR_EMULATOR_HOME", str(tmp_path / "cache" / "emulator" / "x"))
    wheel = tmp_path / "torch_npu-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../escaped.py", "")
        archive.writestr("other/__init__.py", "")
    with pytest.raises(EngineError, match="GE4062"):
        launch.find_torch_npu(str(wheel))
    assert not list(tmp_path.rglob("../escaped.py"))


def test_usage_and_errors_have_exit_code_2(capsys):
    assert launch.main([]) == 2
    assert launch.main(["--torch-npu", "/nowhere", "x.py"]) == 2
    assert "GE4062" in capsys.readouterr().err


@pytest.mark.slow
def test_a_program_gets_its_arguments_and_gives_its_code(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import sys, os\nprint(sys.argv[1:], os.environ['ASCEND_HOME_PATH'])\nsys.exit(7)\n")
    line = [sys.executable, "-m", "tair_debug.cli", "emulate", str(script), "--epochs", "1"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "['--epochs', '1']" in done.stdout
