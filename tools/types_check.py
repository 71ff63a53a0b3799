"""mypy, strict, over all packages and tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("packages/*/src")),
    "packages/ge-runtime-native/emulator/src",
    "testing/src",
    "tools",
    "labs",
    "benchmarks",
)


def main() -> None:
    missing = [s for s in SOURCES if not (ROOT / s).is_dir()]
    if missing:
        sys.exit(f"types: no folder {', '.join(missing)}; correct SOURCES in {Path(__file__).name}")
    done = subprocess.run([sys.executable, "-m", "mypy", *SOURCES], cwd=ROOT)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
