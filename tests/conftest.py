"""Cross-package tests run the public API in one process; dynamo's caches are cleared between tests."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
WHEELHOUSE = ROOT / "wheelhouse"


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@dataclass
class Host:
    """A machine that only runs saved graphs: an environment with the tair-export wheel and what it declares.

    Nothing here reaches a network: wheels come from the wheelhouse and from this tree.
    """

    folder: Path
    wheels: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv/bin/python"

    def install(self, *names):
        links = ["--no-index", "--find-links", WHEELHOUSE, "--find-links", self.wheels]
        self.run(UV, "pip", "install", "-q", "--python", self.python, *links, *names)

    def run(self, *command, env=None, **more):
        """What a command prints; a command that fails fails the test."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, env={**kept, **(env or {})}, timeout=900, **more
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    if not WHEELHOUSE.is_dir() or not UV.exists():
        pytest.skip("needs the wheelhouse and uv")
    folder = tmp_path_factory.mktemp("host")
    made = Host(folder, folder / "dist")
    for package in ("ge-graph", "ge-runtime-native", "tair-export"):
        made.run(
            UV,
            "build",
            "-q",
            "--wheel",
            "--no-sources",
            "--no-index",
            "--find-links",
            WHEELHOUSE,
            "-o",
            made.wheels,
            ROOT / "packages" / package,
        )
    made.run(UV, "venv", "-q", "--python", sys.executable, folder / "venv")
    made.install("tair-export")
    return made
