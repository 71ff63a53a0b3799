"""Tests of bytes and text forms on the oldest and newest protobuf that ge-graph declares, in environments of their own.

python tools/protobuf_matrix.py            the versions below
python tools/protobuf_matrix.py 5.29.5     some other
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.20.3", "4.25.8", "5.29.5", "6.31.1")
TESTS = ("test_serde.py", "test_text_forms.py")


def main() -> None:
    failed = []
    for version in sys.argv[1:] or VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            python = f"{folder}/bin/python"
            install = [python, "-m", "pip", "install", "-qq", f"protobuf=={version}", "numpy", "pytest", "hypothesis"]
            subprocess.run([*install, str(ROOT / "packages" / "ge-graph")], check=True)
            tests = [str(ROOT / "packages" / "ge-graph" / "tests" / t) for t in TESTS]
            done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=folder)
            print(f"protobuf {version}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
            if done.returncode:
                failed.append(version)
    if failed:
        sys.exit(f"protobuf {', '.join(failed)} failed")


if __name__ == "__main__":
    main()
