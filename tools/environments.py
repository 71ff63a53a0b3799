"""Environments for other versions of torch and Python, from the package index alone.

One has a torch from the index, a CUDA build made importable by stand-in libraries (``tools/standins.py``), and our
wheels installed by their metadata: pip refuses there what it would refuse for a user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tools import configure, release, standins

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "matrix"
TESTING = ("tair-testing", "pytest", "hypothesis", "expecttest")
PATIENCE = 420  # seconds for one command of pip, which is some 30 where the index answers
_VARIABLES = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}


class CannotInstall(Exception):
    """pip refused or did not end; in one line."""


@dataclass(frozen=True)
class Outcome:
    """What tests said.

    Attributes:
        code: pytest's.
        passed: Those that passed, as ``test_gears::test_one[a]``.
        failed: Those that did not; the module alone if it cannot be imported.
        printed: What pytest printed.
    """

    code: int
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    printed: str


def interpreter(version: str) -> str:
    """Path of a Python of this version on this machine; empty if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, versions.glob(f"{version}.*/bin/python")))]
    return next((python for python in candidates if python and configure.version_of(python) == version), "")


class Environment:
    """A Python environment in a folder of its own.

    Args:
        python: ``3.11``.
        torch: ``2.15.0``, or ``2.15`` for its newest release.
        folder: Where; None for a folder under ``build/matrix``.
    """

    def __init__(self, python: str, torch: str, folder: Path | None = None) -> None:
        self.folder = folder or BUILD / f"{python}-{torch}"
        self.python = str(self.folder / "bin" / "python")
        self.site = self.folder / "lib" / f"python{python}" / "site-packages"
        self._base = interpreter(python)
        self._torch = f"torch=={torch}" if torch.count(".") > 1 else f"torch=={torch}.*"

    def make(self, wheels: list[Path], others: tuple[str, ...] = (), *, again: bool = False) -> None:
        """Set it up anew.

        Args:
            wheels: Our packages.
            others: Further requirements, of the tests.
            again: Take one that is there already, with our packages anew.

        Raises:
            CannotInstall: pip refuses something.
        """
        if again and (self.site / "torchair").is_dir():
            self._pip("install", "--no-deps", "--force-reinstall", *map(str, wheels))
            return
        self.remove()
        subprocess.run([self._base, "-m", "venv", str(self.folder)], check=True)
        fetched = self.folder / "fetched"
        self._pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(fetched), self._torch)
        self._pip("install", "--no-deps", "--no-compile", *map(str, fetched.glob("torch-*.whl")))
        shutil.rmtree(fetched)
        if sys.platform == "linux":
            standins.make(self.site)
            standins.free_settings(self.site)
            standins.forget_cuda(self.site)
        found = {f"--find-links={wheel.parent}" for wheel in wheels}  # as README says
        self._pip("install", *found, "torchair[emulator]", *others)

    def install(self, *arguments: str) -> None:
        """``pip install`` with these arguments.

        Raises:
            CannotInstall: pip refuses.
        """
        self._pip("install", *arguments)

    def _pip(self, *arguments: str) -> None:
        nothing = BUILD / "no-constraints.txt"  # whatever pip is told to keep to on this host is not for these versions
        nothing.write_text("")
        command = [self.python, "-m", "pip", "-q", "--disable-pip-version-check", "--retries", "2", *arguments]
        env = {**os.environ, "PIP_CONSTRAINT": str(nothing), "PIP_DEFAULT_TIMEOUT": "60"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise CannotInstall(f"pip {arguments[0]} {arguments[-1]} did not end within {PATIENCE} s") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
            raise CannotInstall((errors or ["pip failed"])[0][:200])

    def run(self, *command: str) -> tuple[int, str]:
        """Run its Python on a program in an empty folder of its own; exit code, and what was printed."""
        elsewhere = self.folder / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        elsewhere.mkdir()
        done = subprocess.run([self.python, *command], cwd=elsewhere, capture_output=True, text=True, env=_VARIABLES)
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")

    def fetch(self, requirement: str) -> Path:
        """The wheel of a requirement, not installed.

        Raises:
            CannotInstall: pip has none.
        """
        place = self.folder / "wheels"
        shutil.rmtree(place, ignore_errors=True)
        self._pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(place), requirement)
        return next(place.glob("*.whl"))

    def pytest(self, tests: tuple[str, ...], log: Path, *options: str, under: tuple[str, ...] = ()) -> Outcome:
        """Run tests of this tree from a copy beside the environment, where no source of ours is found.

        Args:
            tests: Files, or tests in them as pytest names them.
            log: Where to write what pytest prints.
            options: Of pytest.
            under: Arguments of Python before those that run pytest, such as ``-m ge_emulator --``.
        """
        copied = self.folder / "tests"
        shutil.rmtree(copied, ignore_errors=True)
        for folder in {Path(test.split("::")[0]).parent for test in tests}:  # with what tests read beside themselves
            nothing_compiled = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, copied / folder, ignore=nothing_compiled, dirs_exist_ok=True)
        shutil.copy(ROOT / "README.md", copied)
        release.write_settings(copied / "pytest.ini")
        report = log.with_suffix(".xml").resolve()
        report.unlink(missing_ok=True)
        start = [self.python, *under, "pytest"] if under else [self.python, "-m", "pytest"]
        command = [*start, "-c", "pytest.ini", "-p", "no:cacheprovider", f"--junitxml={report}"]
        ran = subprocess.run([*command, *options, *tests], cwd=copied, capture_output=True, text=True, env=_VARIABLES)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(ran.stdout + ran.stderr, encoding="utf-8")
        passed, failed = read_report(report) if report.is_file() else ((), ())
        return Outcome(ran.returncode, passed, failed, ran.stdout)

    def remove(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def read_report(report: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which tests of a report passed, and which failed."""
    passed, failed = [], []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        module = case.get("classname", "").rpartition(".")[2]
        name = f"{module}::{case.get('name')}" if module else str(case.get("name")).rpartition(".")[2]
        if kinds & {"failure", "error"}:
            failed.append(name)
        elif "skipped" not in kinds:
            passed.append(name)
    return tuple(passed), tuple(failed)


def build_wheels(into: Path) -> list[Path]:
    """Wheels of all packages that users get, and of what the tests share."""
    from tools import workspace

    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as made:
        for package in workspace.packages().values():
            if package.is_released or package.name == "tair-testing":
                command = ["-m", "build", "--wheel", "--no-isolation", "-o", made, str(ROOT / package.folder)]
                subprocess.run([sys.executable, *command], check=True, capture_output=True)
        for wheel in Path(made).glob("*.whl"):
            os.replace(wheel, into / wheel.name)  # whoever installs at this moment gets the old one or the new one
    return sorted(into.glob("*.whl"))
