"""Compiling the emulator's libraries: once for each state of the sources, with g++ alone."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from ge_emulator import trampolines
from ge_graph.errors import EngineError

_FLAGS: Final = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra")
_FOLDERS: Final = ("runtime", "compiler", "opp")  # torch_npu wants to see them beside lib64


class Library(NamedTuple):
    """A line of ``libraries.txt``: name without ``lib``, libraries it depends on, sources without ``.cpp``."""

    name: str
    needs: tuple[str, ...]
    sources: tuple[str, ...]


def sources() -> Path:
    """The folder of the C++ sources, in the wheel or in the source tree."""
    here = Path(__file__).resolve().parent
    for folder in (here / "native", here.parents[1] / "native"):
        if (folder / "libraries.txt").is_file():
            return folder
    raise EngineError("GE4061", f"the emulator's sources are not beside {here}", next="reinstall ge-emulator")


def libraries(folder: Path) -> list[Library]:
    """What is to be built, in an order that dependencies permit."""
    listed = []
    for line in (folder / "libraries.txt").read_text().splitlines():
        parts = re.fullmatch(r"([a-z_]+) <([a-z_ ]*)> (.+)", line)
        if parts:
            listed.append(Library(parts[1], tuple(parts[2].split()), tuple(parts[3].split())))
    return listed


def compiler() -> str:
    """The C++ compiler: ``$CXX``, else g++."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise EngineError("GE4061", f"no C++ compiler '{name}' found", next="install g++ or set CXX")
    return path


def home() -> Path:
    """Where the libraries of these sources and this compiler are, built or not: what ASCEND_HOME_PATH will name.

    ``TAIR_EMULATOR_HOME`` names another place, such as one built with CMake and a sanitizer.
    """
    given = os.environ.get("TAIR_EMULATOR_HOME")
    if given:
        return Path(given).resolve()
    folder = sources()
    digest = hashlib.sha256()
    for path in [*sorted(folder.iterdir()), Path(trampolines.__file__)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = subprocess.run([compiler(), "--version"], capture_output=True, check=False).stdout
    digest.update(version + " ".join(_FLAGS).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tair" / "emulator" / digest.hexdigest()[:16]


def is_built(place: Path) -> bool:
    """Whether the libraries are there."""
    return (place / "lib64" / "libascendcl.so").is_file()


def build() -> Path:
    """Build the libraries unless they are there, and give their home.

    Errors:
        EngineError GE4061 with the compiler's words if it fails.
    """
    place = home()
    if is_built(place):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # several processes would all build the same, each at a fraction of the speed
        if is_built(place):
            return place
        work = Path(tempfile.mkdtemp(prefix="build-", dir=place.parent))
        try:
            _build_in(work, sources())
            work.rename(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return place


def _build_in(work: Path, folder: Path) -> None:
    for name in ("lib64", "objects", *_FOLDERS):
        (work / name).mkdir()
    wanted = libraries(folder)
    units = sorted({s for library in wanted for s in library.sources})
    written = {}
    for table in trampolines.TABLES:
        written[f"{table}_functions"] = source = work / "objects" / f"{table}_functions.cpp"
        source.write_text(trampolines.generate(folder / f"{table}.tsv"))
    with ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 1)) as pool:
        sources = {u: written.get(u, folder / f"{u}.cpp") for u in units}
        list(pool.map(lambda u: _compile(sources[u], work / "objects" / f"{u}.o", folder), units))
    for library in wanted:
        objects = [str(work / "objects" / f"{s}.o") for s in library.sources]
        needs = [f"-l{n}" for n in library.needs]
        target = str(work / "lib64" / f"lib{library.name}.so")
        _run(
            [
                compiler(),
                "-shared",
                "-pthread",
                "-o",
                target,
                *objects,
                f"-L{work / 'lib64'}",
                "-Wl,--no-as-needed",
                "-Wl,-z,defs",
                "-Wl,-rpath,$ORIGIN",
                f"-Wl,-soname,lib{library.name}.so",
                *needs,
                "-ldl",
            ]
        )
    shutil.rmtree(work / "objects")


def _compile(source: Path, target: Path, folder: Path) -> None:
    old = ["-D_GLIBCXX_USE_CXX11_ABI=0"] if source.stem == "old_abi" else []
    _run([compiler(), *_FLAGS, *old, f"-I{folder}", "-c", str(source), "-o", str(target)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(
            "GE4061",
            f"{Path(command[0]).name} failed:\n{done.stderr.strip()[-2000:]}",
            next="g++ 9 or newer is needed; set CXX to another compiler",
        )
