"""Set up the workspace: wheelhouse, uv, `.venv`. Runs on a bare Python 3.11 with pip; a second run returns at once.

`uv.lock` names wheels by file, found in `wheelhouse/`. This script lets pip download what is missing there (pip knows
the mirror, proxy and local wheel folders that this host is configured for), then uv installs from the folder alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELHOUSE = ROOT / "wheelhouse"
VENV = ROOT / ".venv"
STAMP = VENV / ".setup-stamp"


def fail(line: str) -> None:
    sys.exit(f"setup: {line}")


def check_host() -> str:
    """The interpreter to use; ends with one line if something is missing."""
    python = os.environ.get("TARGET_PYTHON_PATH") or sys.executable
    probe = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2] == (3, 11))"], capture_output=True, text=True
    )
    if probe.returncode or probe.stdout.strip() != "True":
        fail(f"{python} is not Python 3.11; install Python 3.11 or set TARGET_PYTHON_PATH to one")
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:
        fail(f"{python} has no pip; install it (Debian: apt-get install python3-pip python3-venv)")
    if shutil.which("g++") is None:
        fail("no g++ found; install it (Debian: apt-get install g++)")
    return python


def fingerprint() -> str:
    """Changes whenever the environment has to be made anew."""
    files = [
        ROOT / "uv.lock",
        ROOT / "pyproject.toml",
        *sorted(ROOT.glob("packages/**/pyproject.toml")),
        ROOT / "testing/pyproject.toml",
    ]
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files))
    digest.update(str(ROOT).encode())
    return digest.hexdigest()


def locked_wheels() -> dict[str, str]:
    """Wheel file in the lock -> requirement for pip."""
    wheels: dict[str, str] = {}
    for block in (ROOT / "uv.lock").read_text().split("[[package]]")[1:]:
        name = re.search(r'^name = "(.+)"', block, re.M)
        version = re.search(r'^version = "(.+)"', block, re.M)
        for path in re.findall(r'path = "([^"]+\.whl)"', block):
            if name and version:
                wheels[path] = f"{name[1]}=={version[1].split('+')[0]}"
    return wheels


def fill_wheelhouse(python: str) -> bool:
    """Download what the lock names and the folder lacks; True if the folder then satisfies the lock."""
    WHEELHOUSE.mkdir(exist_ok=True)
    missing = {f: r for f, r in locked_wheels().items() if not (WHEELHOUSE / f).exists()}
    if missing:
        print(f"setup: downloading {len(missing)} wheels into wheelhouse/", flush=True)
        command = [python, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", str(WHEELHOUSE)]
        if subprocess.run([*command, *missing.values()], cwd=ROOT).returncode:
            fail("pip could not download the wheels above; check the network or the configured package index")
    return all((WHEELHOUSE / f).exists() for f in locked_wheels())


def find_uv(python: str) -> str:
    """uv from PATH, else from a small environment of its own."""
    found = shutil.which("uv")
    if found:
        return found
    own = ROOT / ".bootstrap" / "bin" / "uv"
    if not own.exists():
        subprocess.run([python, "-m", "venv", str(ROOT / ".bootstrap")], check=True)
        pip = ROOT / ".bootstrap" / "bin" / "pip"
        if subprocess.run([str(pip), "install", "-q", "--find-links", str(WHEELHOUSE), "uv"]).returncode:
            fail("pip could not install uv; check the network or the configured package index")
    return str(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="set up anew even if nothing changed")
    force = parser.parse_args().force
    mark = fingerprint()
    if not force and STAMP.exists() and STAMP.read_text() == mark:
        return
    python = check_host()
    complete = fill_wheelhouse(python)
    uv = find_uv(python)
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    if not complete:
        # Another host may serve another build of the same torch version; resolve from what is in the folder.
        print("setup: the wheels found differ from uv.lock; resolving again from wheelhouse/", flush=True)
        if subprocess.run([uv, "lock", "-q", "--python", python], cwd=ROOT, env=env).returncode:
            fail("wheelhouse/ cannot satisfy pyproject.toml; remove wheelhouse/ and run again")
        mark = fingerprint()
    if subprocess.run([uv, "sync", "-q", "--frozen", "--python", python], cwd=ROOT, env=env).returncode:
        fail("uv could not install from wheelhouse/; remove wheelhouse/ and .venv/ and run again")
    STAMP.write_text(mark)
    print("setup: ready in .venv/", flush=True)


if __name__ == "__main__":
    main()
