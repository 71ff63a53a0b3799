"""Compiling the native runner: nothing but g++, and nothing of this package, so that the build hook can use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

NAME: Final = "libge_cann_runner.so"
SOURCES: Final = Path(__file__).resolve().parent.parent / "native"
# The file that speaks the old C++ ABI of libstdc++; see CMakeLists.txt.
OLD_ABI: Final = "error_text.cc"
FLAGS: Final = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


def compiler() -> str | None:
    """The C++ compiler to build with: ``CXX``, else g++."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else shutil.which("g++")


def build(target: Path, command: str) -> None:
    """Compile the runner into ``target``, which appears whole or not at all.

    Raises:
        RuntimeError: With the compiler's words.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        compiling = []
        for source in sorted(SOURCES.glob("*.cc")):
            old = ["-D_GLIBCXX_USE_CXX11_ABI=0"] if source.name == OLD_ABI else []
            made = str(Path(folder, source.stem + ".o"))
            arguments = [command, *FLAGS, *old, "-c", str(source), "-o", made]
            compiling.append((made, subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)))
        complaints = "".join(done.communicate()[1] for _, done in compiling)
        _check(all(done.returncode == 0 for _, done in compiling), complaints)
        library = Path(folder, NAME)
        linked = subprocess.run(
            [command, "-shared", *(made for made, _ in compiling), "-pthread", "-ldl", "-o", str(library)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        _check(linked.returncode == 0, linked.stderr)
        os.replace(library, target)


def _check(fine: bool, complaints: str) -> None:
    if not fine:
        raise RuntimeError(complaints.strip()[-2000:])
