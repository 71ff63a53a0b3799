"""Build hook: a wheel made where a C++ compiler is at hand brings the native runner along, any other stays pure."""

from __future__ import annotations

import importlib.util
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeRunner(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the runner with the same commands as its first use does."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to a wheel; an editable installation builds it when it is first used."""
        library = _library(Path(self.root))
        command = library.compiler()
        if self.target_name != "wheel" or version == "editable" or command is None or sys.platform != "linux":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="ge_runtime-")
        target = Path(self._folder.name, library.NAME)
        library.build(target, command)
        build_data["force_include"][str(target)] = f"ge_runtime/native/{library.NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{library.tag(target) or f'linux_{platform.machine()}'}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()


def _library(root: Path) -> Any:
    """The module that knows how to compile; its package need not be importable while it is built."""
    spec = importlib.util.spec_from_file_location("runner_build", root / "src" / "ge_runtime" / "cann" / "building.py")
    if spec is None or spec.loader is None:
        raise ImportError("ge_runtime/cann/building.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
