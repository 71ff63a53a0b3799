"""mypy, strict, over the parts that have no untyped torch in them: graph, runtime, export, configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRICT = (
    "packages/ge-graph/src/ge_graph",
    "packages/ge-runtime-native/src/ge_runtime",
    "packages/tair-export/src/tair_export",
    "packages/npu-backend/src/torchair/config.py",
    "packages/npu-backend/src/torchair/options.py",
)


def main() -> None:
    targets = [t for t in STRICT if (ROOT / t).exists()]
    done = subprocess.run([sys.executable, "-m", "mypy", *targets], cwd=ROOT)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
