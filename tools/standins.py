"""Stand-in libraries, so that a torch built for CUDA imports on a host that has only a CPU.

The package index has torch for x86_64 as CUDA builds only. Their libraries ask the loader for CUDA's, several gigabytes
that no test here calls. A stand-in is an empty library of the same name that defines the symbols asked for, each a
function that answers "no device".

python tools/standins.py path/to/site-packages
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice
SETTINGS = (b"segment_size_mb", b"memory_fraction")  # how the names end: compilers keep them in pieces
FOREIGN = re.compile(r"Requires-Dist: (nvidia|cuda|triton|pytorch-triton)", re.IGNORECASE)


def _out(*command: str, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environment})
    return done.stdout


def _symbols(file: Path | str, which: str) -> set[tuple[str, str]]:
    """Names and versions of a library's dynamic symbols, ``which`` being ``--defined-only`` or ``--undefined-only``."""
    found = set()
    for line in _out("nm", "-D", which, str(file)).splitlines():
        *_, kind, symbol = line.split()
        if which == "--defined-only" or kind == "U":  # a weak symbol may stay away
            name, _, version = symbol.partition("@")
            found.add((name, version.lstrip("@")))
    return found


def _versions_asked(file: Path) -> dict[str, str]:
    """The library that each symbol version is asked of."""
    asked, library = {}, ""
    for line in _out("readelf", "-VW", str(file)).splitlines():
        library = m[1] if (m := re.search(r"File: (\S+)", line)) else library
        if m := re.search(r"Name: (\S+)\s+Flags", line):
            asked[m[1]] = library
    return asked


def make(site: Path) -> list[str]:
    """Write the stand-ins that the torch in ``site`` needs beside its own libraries.

    Args:
        site: A ``site-packages`` folder with an unpacked torch in it.

    Returns:
        Names of the libraries that were written; empty for a CPU build.
    """
    folder = site / "torch" / "lib"
    files = [*folder.glob("*.so*"), *site.glob("torch/_C*.so")]
    missing: set[str] = set()
    there: set[str] = set()
    for file in files:
        for line in _out("ldd", str(file), LD_LIBRARY_PATH=str(folder)).splitlines():
            name, _, place = line.strip().partition(" => ")
            if place == "not found":
                missing.add(name)
            elif place.startswith("/"):
                there.add(place.split(" (")[0])
    if not missing:
        return []
    python = Path(sysconfig.get_config_var("LIBDIR") or "/").glob("libpython3*.so*")
    owners: list[Path | str] = [*files, *sorted(there), sys.executable, *python]
    defined = {name for file in owners for name, _ in _symbols(file, "--defined-only")}
    # library -> version -> names; what has no version is found in whichever library comes first
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in sorted(missing)}
    first = min(missing, key=lambda name: (not name.startswith("libcudart"), name))
    for file in files:
        asked = _versions_asked(file)
        for name, version in _symbols(file, "--undefined-only"):
            library = asked.get(version, "") if version else first
            if library in wanted and (version or name not in defined):
                wanted[library][version].add(name)
    for library, versions in wanted.items():
        _compile(folder / library, versions)
    return sorted(wanted)


def _compile(library: Path, versions: dict[str, set[str]]) -> None:
    names = sorted({name for each in versions.values() for name in each})
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch) / "standin.c", Path(scratch) / "standin.map"
        code.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names) or "\n")
        command = ["gcc", "-w", "-fno-builtin", "-fPIC", "-shared", "-nostdlib", f"-Wl,-soname,{library.name}"]
        if any(versions):
            groups = (
                f"{v} {{ global: {' '.join(f'{n};' for n in sorted(each))} }};" for v, each in versions.items() if v
            )
            script.write_text("\n".join(groups) + "\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(library), str(code)], check=True)


def free_settings(site: Path) -> None:
    """Give the settings of CUDA's allocator other names, of the same length.

    Since 2.10 torch refuses, while libraries load, that a second device registers a setting; torch_npu's builds for
    x86_64 are made for a torch without CUDA and register these.
    """
    library = site / "torch" / "lib" / "libc10_cuda.so"
    if library.is_file():
        content = library.read_bytes()
        for name in SETTINGS:
            content = content.replace(name, name[:-1] + name[-1:].upper())
        library.write_bytes(content)


def forget_cuda(site: Path) -> None:
    """Take CUDA's packages out of what the installed torch asks pip for; what else it asks for stays."""
    for metadata in site.glob("torch-*.dist-info/METADATA"):
        lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
        metadata.write_text("".join(line for line in lines if not FOREIGN.match(line)), encoding="utf-8")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(*make(place), sep="\n")
    free_settings(place)
    forget_cuda(place)
