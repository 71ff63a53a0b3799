"""Print, as a JSON list, the package folders that changed since a commit and those that depend on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# folder -> folders that need it, directly or not (architecture: packages depend in one direction)
DEPENDENTS = {
    "ge-graph": ("ge-converters", "ge-runtime-native", "tair-debug", "tair-export", "npu-backend"),
    "ge-converters": ("tair-debug", "npu-backend"),
    "ge-runtime-native": ("ge-converters", "tair-export", "npu-backend"),
    "tair-debug": ("npu-backend",),
    "tair-export": ("npu-backend",),
    "npu-backend": (),
}


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else ""
    diff = subprocess.run(["git", "diff", "--name-only", f"{base}...HEAD"], cwd=ROOT, capture_output=True, text=True)
    files = diff.stdout.split() if base and diff.returncode == 0 else None
    changed = {f.split("/")[1] for f in files or [] if f.startswith("packages/")}
    if files is None or any(f in ("uv.lock", "pyproject.toml", "Makefile") or f.startswith("tools/") for f in files):
        changed = set(DEPENDENTS)
    affected = changed | {d for c in changed for d in DEPENDENTS.get(c, ())}
    print(json.dumps(sorted(affected)))


if __name__ == "__main__":
    main()
