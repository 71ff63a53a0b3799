"""``tair emulate`` finds things, says what is missing, and passes the program's exit code and arguments on."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ge_emulator import build, launch
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
    wheel = tmp_path / f"torch_npu-{importlib.metadata.version('torch')}-py3-none-any.whl"
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


def stand_in(folder: Path, version: str) -> Path:
    """A folder with a package torch_npu that says its version and is never imported."""
    (folder / "torch_npu").mkdir(parents=True)
    (folder / "torch_npu" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "torch_npu" / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder


FITTING = [  # torch, what belongs to it of the versions that were published
    ("2.7.1", "2.7.1.post11"),
    ("2.8.0", "2.8.0.post5"),
    ("2.9.1+cpu", "2.9.1"),
    ("2.10.0", "2.10.0.post7"),
    ("2.11.0", "2.11.0.post3"),
    ("2.12.1", "2.12.0.post3"),
    ("2.13.0+cpu", "2.13.0"),
    ("2.14.1", "2.14.0"),
]


def torch_is(monkeypatch, version: str) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "torch" else real(name))


@pytest.mark.parametrize(("torch", "npu"), FITTING)
def test_the_torch_npu_of_each_torch_is_taken_and_its_neighbours_are_refused(torch, npu, tmp_path, monkeypatch):
    torch_is(monkeypatch, torch)
    for other in (n for _, n in FITTING):
        folder = stand_in(tmp_path / other, other)
        if other == npu:
            assert launch.find_torch_npu(str(folder)) == folder
            continue
        with pytest.raises(EngineError, match="GE4064") as caught:
            launch.find_torch_npu(str(folder))
        assert f"torch_npu {other} belongs to torch" in caught.value.what
        assert f"here is torch {torch}" in caught.value.what
        assert f"torch_npu=={'.'.join(npu.split('.')[:2])}.*" in caught.value.next


def test_advice_names_the_version_that_belongs_to_the_torch(tmp_path, monkeypatch):
    monkeypatch.delenv(launch.VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    torch_is(monkeypatch, "2.10.0+cpu")
    with pytest.raises(EngineError, match=r"(?s)GE4062.*torch_npu==2\.10\.\*"):
        launch.find_torch_npu()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch_npu-2.14.0-{own}-{own}-manylinux_2_28_x86_64.whl", "torch_npu 2.14.0 belongs to torch 2.14"),
        ("torch_npu-2.13.0-1-cp39-cp39-manylinux_2_28_x86_64.whl", "the wheel is for cp39"),
    ],
)
def test_a_wheel_is_refused_by_its_name_before_anything_is_unpacked(name, said, tmp_path, monkeypatch):
    torch_is(monkeypatch, "2.13.0")
    wheel = tmp_path / name.format(own=f"cp{sys.version_info[0]}{sys.version_info[1]}")
    wheel.write_bytes(b"no archive")
    with pytest.raises(EngineError, match="GE4064") as caught:
        launch.find_torch_npu(str(wheel))
    assert said in caught.value.what


def test_a_mismatch_is_one_error_and_nothing_is_run(tmp_path, monkeypatch, capsys):
    torch_is(monkeypatch, "2.13.0")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("the process was replaced"))
    monkeypatch.setattr(build, "build", lambda: pytest.fail("it was compiled for nothing"))
    assert launch.main(["--torch-npu", str(stand_in(tmp_path / "a", "2.14.0")), "x.py"]) == 2
    assert capsys.readouterr().err.count("GE4064") == 1


@pytest.mark.parametrize(("torch", "refused"), [("2.10.0", True), ("2.14.1", True), ("2.9.1", False)])
def test_a_torch_whose_settings_clash_is_refused(tmp_path, monkeypatch, torch, refused):
    """Its build for CUDA and torch_npu register settings of the same names, which ends the process since torch 2.10."""
    library = tmp_path / "torch" / "lib" / "libc10_cuda.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0_segment_size_mb\0")
    torch_is(monkeypatch, torch)
    monkeypatch.setattr(launch, "_torch_folder", lambda: tmp_path / "torch")
    site = stand_in(tmp_path / "site", torch)
    if refused:
        with pytest.raises(EngineError, match=rf"(?s)GE4064.*built for CUDA.*torch=={torch}\+cpu"):
            launch.find_torch_npu(str(site))
        library.unlink()  # as in a build for CPUs
    assert launch.find_torch_npu(str(site)) == site


def test_without_a_compiler_it_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("TAIR_EMULATOR_HOME", raising=False)
    site = stand_in(tmp_path / "site", importlib.metadata.version("torch"))
    assert launch.main(["--torch-npu", str(site), "x.py"]) == 2
    said = capsys.readouterr().err
    assert "GE4061" in said
    assert "no C++ compiler 'g++' found" in said
    assert "install g++" in said


@pytest.mark.slow
def test_a_program_gets_its_arguments_and_gives_its_code(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import sys, os\nprint(sys.argv[1:], os.environ['ASCEND_HOME_PATH'])\nsys.exit(7)\n")
    line = [sys.executable, "-m", "tair_debug.cli", "emulate", str(script), "--epochs", "1"]
    site = stand_in(tmp_path / "site", importlib.metadata.version("torch"))
    env = {**os.environ, launch.VARIABLE: str(site), "PYTHONPATH": ""}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 7, done.stderr
    assert "['--epochs', '1']" in done.stdout
