"""Compiling the native runner: nothing but g++, and nothing of this package, so that the build hook can use it."""

from __future__ import annotations

import os
import re
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

_MACHINES: Final = {"X86-64": "x86_64", "AArch64": "aarch64"}
# PEP 600's policies name the oldest glibc with which a wheel runs; each also bounds what may be asked of libstdc++. By
# policy: the newest GLIBCXX and CXXABI that it permits (auditwheel's table; versions between two rows are the lower's).
_POLICIES: Final = (
    (17, (3, 4, 19), (1, 3, 7)),
    (24, (3, 4, 22), (1, 3, 10)),
    (28, (3, 4, 24), (1, 3, 11)),
    (31, (3, 4, 28), (1, 3, 12)),
    (34, (3, 4, 29), (1, 3, 13)),
    (35, (3, 4, 30), (1, 3, 13)),
    (39, (3, 4, 33), (1, 3, 15)),
)


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
            stderr=subprocess.PIPE,
            text=True,
        )
        _check(linked.returncode == 0, linked.stderr)
        os.replace(library, target)


def tag(library: Path) -> str | None:
    """The platform tag of a wheel with this library, by what it asks of the system; None if there is none that fits.

    Asks ``readelf``, which comes with every compiler. ``manylinux_2_34_x86_64`` runs with glibc 2.34 and newer.
    """
    command = shutil.which("readelf")
    if command is None:
        return None
    done = subprocess.run(
        [command, "-hV", "--wide", str(library)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return None if done.returncode else tag_of(done.stdout)


def tag_of(said: str) -> str | None:
    """``tag`` from the words of ``readelf -hV``."""
    machines = [name for name in _MACHINES if re.search(rf"Machine:.*\b{name}\b", said)]
    needs: dict[str, tuple[int, ...]] = {"GLIBC": (2, 17), "GLIBCXX": (0,), "CXXABI": (0,)}
    for name, version in re.findall(r"Name: ([A-Z]+)_([0-9.]+)", said):
        needs[name] = max(needs.get(name, (0,)), tuple(map(int, version.split("."))))
    fitting = [glibc for glibc, cxx, abi in _POLICIES if needs["GLIBCXX"] <= cxx and needs["CXXABI"] <= abi]
    if not machines or not fitting or needs["GLIBC"][0] != 2:
        return None
    return f"manylinux_2_{max(fitting[0], needs['GLIBC'][1])}_{_MACHINES[machines[0]]}"


def _check(fine: bool, complaints: str) -> None:
    if not fine:
        raise RuntimeError(complaints.strip()[-2000:])
