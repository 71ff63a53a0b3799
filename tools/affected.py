"""Print, as a JSON list, the packages that changed since a commit and those whose tests install one that did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.workspace import ROOT, Package, affected_by, packages

_EVERYTHING = ("uv.lock", "pyproject.toml", "Makefile")


def owner(file: str, known: dict[str, Package]) -> str | None:
    """The package that a file belongs to: the one whose folder is the deepest around it."""
    around = [p for p in known.values() if Path(file).is_relative_to(p.folder)]
    return max(around, key=lambda p: len(p.folder.parts)).name if around else None


def affected(files: list[str] | None, known: dict[str, Package]) -> list[str]:
    """Names for ``make package-test PKG=``; all of them if files are unknown or one concerns everything."""
    if files is None or any(f in _EVERYTHING or f.startswith("tools/") for f in files):
        changed = set(known)
    else:
        changed = {o for f in files if (o := owner(f, known))}
    return [p.label for p in affected_by(changed, known) if p.is_released]


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else ""
    diff = subprocess.run(["git", "diff", "--name-only", f"{base}...HEAD"], cwd=ROOT, capture_output=True, text=True)
    print(json.dumps(affected(diff.stdout.split() if base and diff.returncode == 0 else None, packages())))


if __name__ == "__main__":
    main()
