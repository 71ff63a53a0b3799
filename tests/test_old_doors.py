"""The doors of older build and test instructions lead to the make targets, and the page about moving says so."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ge_graph import escape
from tools.docs import moving

ROOT = Path(__file__).resolve().parent.parent


def run(*command, cwd=ROOT, **environment):
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


@pytest.fixture
def doors(tmp_path):
    """The scripts beside a Makefile that tells what it was asked for."""
    for name in ("configure", "build.sh"):
        shutil.copy(ROOT / name, tmp_path)
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    lines = [f"{t}:\n\t@echo {t} CXX=$$CXX jobs=$$CMAKE_BUILD_PARALLEL_LEVEL" for t in targets]
    (tmp_path / "Makefile").write_text("\n".join([f".PHONY: {' '.join(targets)}", *lines]) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("switches", "made"),
    [
        ("-c", ["wheels"]),
        ("-i", ["install"]),
        ("-u -s", ["unit", "system"]),
        ("-us", ["unit", "system"]),
        ("", []),
    ],
)
def test_doors(switches, made, doors):
    done = run("bash", str(doors / "build.sh"), *switches.split(), cwd=doors.parent)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if "CXX=" in line] == made
    assert ("usage" in done.stdout) == (not made)
    assert (doors / "output").is_dir() == (switches == "-c")
    assert run("bash", str(doors / "configure"), cwd=doors.parent).stdout.startswith("configure ")


def test_switches_with_values(doors):
    compiler = shutil.which("g++") or sys.executable
    done = run("bash", "build.sh", "-c", "-j4", "-g", compiler, cwd=doors)
    assert f"CXX={compiler} jobs=4" in done.stdout
    assert run("bash", "build.sh", "-c", "-g", "/no/such", cwd=doors).returncode == 2
    wrong = run("bash", "build.sh", "-x", cwd=doors)
    assert (wrong.returncode, "usage" in wrong.stderr) == (2, True)


def test_a_bad_python_is_one_line():
    done = run("bash", "configure", TARGET_PYTHON_PATH="/no/such")
    assert done.returncode
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == ["configure: TARGET_PYTHON_PATH=/no/such is not a Python interpreter"]


@pytest.mark.slow
def test_converter_test():
    done = run(sys.executable, "smoke/converter_test.py", "aten.add.Tensor")
    assert done.returncode == 0, done.stderr
    assert "aten.add.Tensor" in done.stdout


def test_generated_operators(tmp_path):
    header = ROOT / "examples" / "example_custom_op_register" / "custom_reg_op.h"
    made = tmp_path / "auto_generated_ge_raw_custom_ops.py"
    assert run(sys.executable, "-m", "ge_graph.codegen", str(header), "-o", str(made)).returncode == 0
    assert made.read_text() == (header.parent / made.name).read_text()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_up_to_date(language):
    text = (ROOT / "docs" / moving.PAGES[language]).read_text(encoding="utf-8")
    assert text == moving.page(language)
    assert text == escape.block(text)


def test_what_the_page_names_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = moving.page("en")
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_env_sh(shell, tmp_path):
    """Sourced from any folder: the Python of the tree, and the SDK that was configured."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    for folder in ("tools", "build", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "env.sh", tmp_path / "tools")
    show = f"source '{tmp_path}/tools/env.sh'; echo \"${{PATH%%:*}} $LD_LIBRARY_PATH\""
    assert run(shell, "-c", show, cwd="/", LD_LIBRARY_PATH="").stdout == f"{tmp_path}/.venv/bin \n"
    (tmp_path / "build" / "config.env").write_text("TARGET_PYTHON_PATH=python\nASCEND_SDK_PATH=/opt/sdk\n")
    told = run(shell, "-c", show, cwd="/", LD_LIBRARY_PATH="/lib")
    assert told.stdout == f"{tmp_path}/.venv/bin /opt/sdk/lib64:/lib\n"
    (tmp_path / ".venv" / "bin").rmdir()
    assert "run make setup" in run(shell, "-c", show, cwd="/").stderr


def test_public_addresses_are_stated():
    """Those in the sources that are installed, and no others."""
    suffixes = {".py", ".j2", ".js", ".cpp", ".h", ".css"}
    files = [p for p in (ROOT / "packages").glob("*/src/**/*") if p.suffix in suffixes]
    held = {a for p in files for a in re.findall(r"https?://[\w./-]+[\w/]", p.read_text(encoding="utf-8"))}
    for name in ("public_address_statement.md", "public_address_statement.zh.md"):
        assert set(re.findall(r"`(https?://[^`]+)`", (ROOT / name).read_text(encoding="utf-8"))) == held
