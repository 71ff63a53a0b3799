"""Environments for other versions of torch and Python, from the package index alone.

One has a torch from the index, a CUDA build made importable by stand-in libraries (``tools/standins.py``), and our
wheels installed by their metadata: pip refuses there what it would refuse for a user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import configure, standins

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "matrix"
TESTING = ("pytest", "hypothesis", "expecttest")


class CannotInstall(Exception):
    """pip refused; the first line of its error."""


def interpreter(version: str) -> str:
    """Path of a Python of this version on this machine; empty if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, versions.glob(f"{version}.*/bin/python")))]
    return next((python for python in candidates if python and configure.version_of(python) == version), "")


class Environment:
    """A Python environment in a folder of its own under ``build/matrix``.

    Args:
        python: ``3.11``.
        torch: ``2.15.0``, or ``2.15`` for its newest release.
    """

    def __init__(self, python: str, torch: str) -> None:
        self.folder = BUILD / f"{python}-{torch}"
        self.python = str(self.folder / "bin" / "python")
        self.site = self.folder / "lib" / f"python{python}" / "site-packages"
        self._base = interpreter(python)
        self._torch = f"torch=={torch}" if torch.count(".") > 1 else f"torch=={torch}.*"

    def make(self, wheels: list[Path], others: tuple[str, ...] = ()) -> None:
        """Set it up anew.

        Args:
            wheels: Our packages.
            others: Further requirements, of the tests.

        Raises:
            CannotInstall: pip refuses something.
        """
        self.remove()
        subprocess.run([self._base, "-m", "venv", str(self.folder)], check=True)
        fetched = self.folder / "fetched"
        self._pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(fetched), self._torch)
        self._pip("install", "--no-deps", "--no-compile", *map(str, fetched.glob("torch-*.whl")))
        shutil.rmtree(fetched)
        if sys.platform == "linux":
            standins.make(self.site)
            standins.forget_cuda(self.site)
        self._pip("install", *self._asked(wheels), *others)

    def _asked(self, wheels: list[Path]) -> list[str]:
        """Our wheels, the engine's with its torch."""
        return [f"{w}[cpu]" if w.name.startswith(("ge_runtime_native-", "tair_export-")) else str(w) for w in wheels]

    def _pip(self, *arguments: str) -> None:
        nothing = BUILD / "no-constraints.txt"  # whatever pip is told to keep to on this host is not for these versions
        nothing.write_text("")
        done = subprocess.run(
            [self.python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], capture_output=True, text=True,
            env={**os.environ, "PIP_CONSTRAINT": str(nothing)},
        )  # fmt: skip
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
            raise CannotInstall((errors or ["pip failed"])[0][:200])

    def pytest(self, tests: tuple[str, ...], log: Path, *options: str) -> tuple[int, str]:
        """Run test files of this tree from a copy beside the environment, where no source of ours is found.

        Returns:
            Exit code and what pytest printed, which also stands in ``log``.
        """
        copied = self.folder / "tests"
        for name in tests:
            source = ROOT / name
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            for file in (source, *source.parent.glob("conftest.py"), *source.parent.glob("*_formulas.py")):
                shutil.copy(file, (copied / name).parent)
        for data in ROOT.glob("packages/*/tests/data"):
            shutil.copytree(data, copied / data.relative_to(ROOT), dirs_exist_ok=True)
        command = [self.python, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--tb=short"]
        ran = subprocess.run(
            [*command, *options, *tests], cwd=copied, capture_output=True, text=True,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(ran.stdout + ran.stderr, encoding="utf-8")
        return ran.returncode, ran.stdout

    def remove(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def build_wheels(into: Path) -> list[Path]:
    """Wheels of all packages that users get, and of what the tests share."""
    from tools import workspace

    into.mkdir(parents=True, exist_ok=True)
    for package in workspace.packages().values():
        if package.is_released or package.name == "tair-testing":
            command = ["-m", "build", "--wheel", "--no-isolation", "-o", str(into), str(ROOT / package.folder)]
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return sorted(into.glob("*.whl"))
