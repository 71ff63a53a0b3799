"""Which operator functions of CANN (``aclnn*``) a torch_npu wheel names, and which of them the emulator computes.

``python -m labs.aclnn wheelhouse/torch_npu-*.whl``; with ``--missing`` the names of the others.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ge_emulator import aclnn

_NAME: Final = re.compile(rb"(?<!\w)aclnn[A-Z]\w*")


def named(wheel: Path) -> set[str]:
    """The functions that the wheel's libraries name."""
    with zipfile.ZipFile(wheel) as archive:
        texts = [archive.read(n) for n in archive.namelist() if n.endswith(".so")]
    found = {name.decode() for text in texts for name in _NAME.findall(text)}
    return {name for name in found if not name.endswith("GetWorkspaceSize")}


def main(arguments: Sequence[str]) -> int:
    """The command; exit code 2 without a wheel."""
    wheels = [Path(a) for a in arguments if not a.startswith("-")]
    if len(wheels) != 1 or not wheels[0].is_file():
        sys.stderr.write("python -m labs.aclnn [--missing] torch_npu-*.whl\n")
        return 2
    names, served = named(wheels[0]), aclnn.served()
    sys.stdout.write(f"{len(names & served)} of {len(names)} functions\n")
    if "--missing" in arguments:
        sys.stdout.write("\n".join(sorted(names - served)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
