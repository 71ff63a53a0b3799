"""Runs a command with torchvision beside the torch of .venv, which has no CUDA.

python -m tools.torchvision_here WHEEL pytest tests/test_torchvision.py

The only wheel for this platform is built against CUDA. Its operators have kernels for the CPU too, so it is enough
that the loader finds the libraries it names: stand-ins of their symbols are built, which end a process that calls one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "torchvision"
_OF_CUDA = re.compile(r"_Z\w*(?:2at|3c10)4cuda\w*")


def _missing(library: Path) -> set[str]:
    """Symbols of torch's CUDA libraries that a library asks for."""
    told = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True)
    return {name for name in (line.split()[-1] for line in told.stdout.splitlines()) if _OF_CUDA.fullmatch(name)}


def unpack(wheel: Path) -> tuple[Path, Path]:
    """The folder to import torchvision from, and that of the stand-ins."""
    site, libraries = BUILD / "site", BUILD / "lib"
    shutil.rmtree(BUILD, ignore_errors=True)
    libraries.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    names = sorted(set().union(*map(_missing, (site / "torchvision").glob("*.so"))))
    source = BUILD / "stand_ins.c"
    lines = [f'void s{i}(void) __asm__("{n}"); void s{i}(void) {{ __builtin_trap(); }}' for i, n in enumerate(names)]
    source.write_text("\n".join(lines) + "\n")
    for library in ("libc10_cuda.so", "libtorch_cuda.so"):
        files = [str(source)] if library == "libc10_cuda.so" else ["-x", "c", os.devnull]
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(libraries / library), *files], check=True)
    for found in (site / "torchvision.libs").glob("libcudart.*.so.*"):
        (libraries / f"libcudart.so.{found.name.rpartition('.')[2]}").symlink_to(found)
    return site, libraries


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    site, libraries = unpack(Path(sys.argv[1]))
    env = {**os.environ, "PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(libraries)}
    sys.exit(subprocess.run([sys.executable, "-m", *sys.argv[2:]], cwd=ROOT, env=env).returncode)


if __name__ == "__main__":
    main()
