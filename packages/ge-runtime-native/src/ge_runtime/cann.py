"""The Ascend engine's place: says what a host lacks. The native runner that would use a complete CANN is not built yet.

Libraries are looked up by plain name on the loader's path, as torch_npu does, and closed again by nobody: a library
that loads stays loaded, one that does not costs nothing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ge_graph.ir import Graph
from ge_runtime import errors
from ge_runtime.api import Capability, Executable

# What the runner would open, and what each is for.
LIBRARIES: Final = {
    "libascendcl.so": "device, memory and streams",
    "libge_runner.so": "graph sessions",
    "libgraph.so": "graph objects",
    "libacl_op_compiler.so": "operator compilation",
    "libhccl.so": "collectives",
}
_NOT_BUILT: Final = "this release of ge-runtime-native has no native runner; graphs run on the cpu engine only"


def _missing_library(name: str) -> str | None:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        text = str(error)
        absent = text.startswith(name) and "No such file" in text
        return f"{name} ({LIBRARIES[name]}) {'is not on the loader path' if absent else f'cannot be loaded: {text}'}"
    return None


def _environment() -> list[str]:
    """Complaints about the CANN variables: a home that is set must be whole."""
    home = os.environ.get("ASCEND_HOME_PATH")
    if not home:
        return ["ASCEND_HOME_PATH is not set; source CANN's set_env.sh"]
    needed = [Path(home), Path(home) / "runtime", Path(home) / "compiler"]
    found = [f"{p} does not exist, although ASCEND_HOME_PATH points there" for p in needed if not p.exists()]
    if "ASCEND_OPP_PATH" not in os.environ:
        found.append("ASCEND_OPP_PATH is not set; source CANN's set_env.sh")
    return found


def missing() -> list[str]:
    """Everything that keeps the engine from running here, one sentence each."""
    libraries = [text for name in LIBRARIES if (text := _missing_library(name)) is not None]
    return [*libraries, *(_environment() if libraries else []), _NOT_BUILT]


class CannEngine:
    """Ascend graph engine; reports what is missing and refuses to compile."""

    name = "cann"

    def probe(self) -> Capability:
        """Not available; the reason lists libraries, variables and the runner itself."""
        return Capability(False, "; ".join(missing()), ("npu",))

    def compile(self, graph: Graph, options: Mapping[str, str]) -> Executable:
        """Refuse.

        Errors:
            EngineError GE4010, always, naming everything that is missing.
        """
        raise errors.cann_missing(missing())
