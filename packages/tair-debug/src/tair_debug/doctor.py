"""What is installed here, what runs, and what does not fit together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.base.torch_kept import FEATURES, lacks
from ge_converters.base.torch_versions import untested
from ge_converters.registry import REGISTRY

_PACKAGES: Final = (
    "torch",
    "torch_npu",
    "torchair",
    "ge-graph",
    "ge-converters",
    "ge-runtime-native",
    "tair-debug",
    "tair-export",
    "numpy",
    "protobuf",
    "transformers",
)
_CANN_HOMES: Final = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_CUSTOM_PATH")
_VERSION_FILES: Final = ("version.cfg", "version.info", "ascend_toolkit_install.info", "compiler/version.info")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that does not fit, and its cure."""

    what: str
    cure: str


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine that is installed.

    Attributes:
        name: As TAIR_ENGINE names it.
        available: Whether it can run here.
        reason: Why (not).
        devices: Types of tensors it takes.
    """

    name: str
    available: bool
    reason: str
    devices: tuple[str, ...] = ()


def versions() -> dict[str, str | None]:
    """Distribution to version, None if it is not installed."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    installed["CANN"] = cann_version()
    return installed


def cann_home() -> Path | None:
    """Where CANN is, from the environment."""
    for variable in _CANN_HOMES:
        if os.environ.get(variable):
            return Path(os.environ[variable])
    default = Path("/usr/local/Ascend/ascend-toolkit/latest")
    return default if default.is_dir() else None


def cann_version() -> str | None:
    """Version text of the CANN that the environment names."""
    home = cann_home()
    if home is None or not home.is_dir():
        return None
    for name in _VERSION_FILES:
        for path in (home / name, *home.glob(f"*/{name}")):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                match = re.search(r"(?im)^\s*(?:version|\w*version)\s*=\s*\[?([^\s\]]+)", text)
                if match:
                    return match[1]
    return None


def engines() -> list[EngineState]:
    """Every installed engine and what it says of itself."""
    states = []
    for point in sorted(importlib.metadata.entry_points(group="ge_runtime.engines"), key=lambda e: e.name):
        try:
            capability = point.load()().probe()
            state = EngineState(point.name, bool(capability.available), capability.reason, tuple(capability.devices))
        except Exception as error:  # noqa: BLE001 - the point is to say what is wrong with it
            state = EngineState(point.name, False, f"cannot be loaded: {type(error).__name__}: {error}")
        states.append(state)
    return states


def mismatches(installed: dict[str, str | None], states: list[EngineState]) -> Iterator[Mismatch]:
    """What does not fit together."""
    ours, npu = installed.get("torch") or "", installed.get("torch_npu")
    if npu and _minor(npu) != _minor(ours):
        yield Mismatch(
            f"torch_npu {npu} is built for torch {_minor(npu)}, installed is torch {ours}",
            f"pip install torch=={_minor(npu)}.*, or the torch_npu of torch {_minor(ours)}",
        )
    yield from _torch(ours)
    if npu and installed.get("CANN") is None:
        yield Mismatch(
            "torch_npu is installed, CANN is not found",
            "source set_env.sh of the CANN toolkit, so that ASCEND_HOME_PATH names its folder",
        )
    home = cann_home()
    if home is not None and not home.is_dir():
        yield Mismatch(f"the environment names CANN in {home}, which does not exist", "repair ASCEND_HOME_PATH")
    program = os.environ.get("TAIR_CPU_PROGRAM") or "aten"
    if program not in ("aten", "inductor"):
        yield Mismatch(f"TAIR_CPU_PROGRAM={program} names no program of the embedded engine", "set aten or inductor")
    elif program == "inductor" and shutil.which(os.environ.get("CXX") or "g++") is None:
        yield Mismatch("TAIR_CPU_PROGRAM=inductor, but there is no C++ compiler", "install g++, or unset the variable")
    forced = os.environ.get("TAIR_ENGINE", "auto")
    if forced != "auto":
        state = next((s for s in states if s.name == forced), None)
        if state is None:
            yield Mismatch(f"TAIR_ENGINE={forced} names no installed engine", "unset TAIR_ENGINE or install it")
        elif not state.available:
            yield Mismatch(f"TAIR_ENGINE={forced}, but that engine cannot run: {state.reason}", "unset TAIR_ENGINE")
    if not any(s.available for s in states):
        yield Mismatch("no engine can run here", "pip install ge-runtime-native[cpu]")
    if not installed.get("torchair"):
        yield Mismatch("torchair is not installed: torch.compile(backend='npu') is unknown", "pip install torchair")
    elif "npu" not in torch.compiler.list_backends():
        yield Mismatch("torchair is installed, but dynamo does not know the backend 'npu'", "reinstall torchair")
    yield from _siblings(installed)
    level = os.environ.get("TNG_LOG_LEVEL")
    if level is not None and level not in ("0", "1", "2", "3", "4"):
        yield Mismatch(f"TNG_LOG_LEVEL={level} is none of 0 to 4", "unset it, or set 0 (debug) to 4 (event)")


def _torch(version: str) -> Iterator[Mismatch]:
    """A torch that nobody tried, and operators that it has in another form than our converters know."""
    if outside := untested(version) if version else "":
        yield Mismatch(outside, "install a version that docs/versions.md lists")
    for row in REGISTRY.left_out() if version else ():
        if not row.absent:
            yield Mismatch(
                f"torch {version} has another form of {row.name}: {row.reason}",
                "graphs with this operator are refused; install a version of torch that docs/versions.md lists",
            )


def _siblings(installed: dict[str, str | None]) -> Iterator[Mismatch]:
    """The packages that this torchair asks for, against those that are installed."""
    for requirement in importlib.metadata.requires("torchair") or () if installed.get("torchair") else ():
        name = re.match(r"[\w-]+", requirement)
        version = installed.get(name[0]) if name is not None and name[0] != "torch" else None
        bounds = re.findall(r"(>=|<)\s*([\d.]+)", requirement.partition(";")[0])
        if (
            name is not None
            and version
            and not all((_numbers(version) >= _numbers(limit)) is (sign == ">=") for sign, limit in bounds)
        ):
            wanted = ",".join(sign + limit for sign, limit in sorted(bounds, reverse=True))
            yield Mismatch(
                f"torchair {installed['torchair']} asks for {name[0]} {wanted}, installed is {version}",
                f"pip install '{name[0]}{wanted}'",
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def examine() -> dict[str, Any]:
    """Everything, for the command and for JSON."""
    installed, states = versions(), engines()
    problems = [*mismatches(installed, states)]
    return {
        "versions": installed,
        "engines": [
            {"name": s.name, "available": s.available, "reason": s.reason, "devices": list(s.devices)} for s in states
        ],
        "mismatches": [{"what": p.what, "cure": p.cure} for p in problems],
        "torch_lacks": {name: why for name in FEATURES if (why := lacks(name))},
        "left_out": [{"name": r.name, "reason": r.reason} for r in REGISTRY.left_out()],
        "ok": not problems,
    }
