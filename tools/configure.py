"""Choose the Python and the Ascend SDK for `make wheels`, `install` and tests, without questions.

TARGET_PYTHON_PATH names the interpreter (default: the one that runs this), ASCEND_SDK_PATH the SDK folder,
NO_ASCEND_SDK says that there is none. The choice is written to build/config.env.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFIG = Path(__file__).resolve().parent.parent / "build" / "config.env"


def read() -> dict[str, str]:
    """The recorded choice; empty before the first `make configure`."""
    if not CONFIG.exists():
        return {}
    return dict(line.split("=", 1) for line in CONFIG.read_text().splitlines() if "=" in line)


def version_of(python: str) -> str | None:
    """``3.11``; None for what is not a Python interpreter."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        probe = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    found = probe.stdout.strip()
    return found if probe.returncode == 0 and found.replace(".", "", 1).isdigit() else None


def main() -> None:
    python = os.environ.get("TARGET_PYTHON_PATH") or sys.executable
    version = version_of(python)
    if version is None:
        sys.exit(f"configure: TARGET_PYTHON_PATH={python} is not a Python interpreter")
    sdk = "" if os.environ.get("NO_ASCEND_SDK") else os.environ.get("ASCEND_SDK_PATH", "")
    if sdk and not Path(sdk).is_dir():
        sys.exit(f"configure: ASCEND_SDK_PATH={sdk} is not a folder; correct it or set NO_ASCEND_SDK=1")
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(f"TARGET_PYTHON_PATH={python}\nASCEND_SDK_PATH={sdk}\n")
    engine = sdk or "none, the embedded engine runs the graphs"
    print(f"configure: Python {version} at {python}; Ascend SDK: {engine}")


if __name__ == "__main__":
    main()
