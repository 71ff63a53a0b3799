"""Finding an engine: entry points, the environment, and the reason for each that is passed over."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ge_graph.errors import EngineError
from ge_runtime import errors
from ge_runtime.api import Capability, Engine

GROUP: Final = "ge_runtime.engines"
VARIABLE: Final = "TAIR_ENGINE"
# What torch_npu's maker has matched to the user's CANN comes before our own runner.
_PREFERRED: Final = ("cpu", "torch_npu", "cann")


def installed() -> dict[str, EntryPoint]:
    """Engine names and their entry points, those to prefer first; nothing is imported."""
    return _installed(tuple(sys.path))


@cache
def _installed(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Read once for a search path: it opens a file of every installed distribution, twice in each compilation."""
    first = {name: rank for rank, name in enumerate(_PREFERRED)}
    found = sorted(entry_points(group=GROUP), key=lambda e: (first.get(e.name, len(first)), e.name))
    return {e.name: e for e in found}


def load(name: str) -> Engine:
    """The engine of that name, available or not.

    Errors:
        EngineError GE4001 if no such engine is installed, GE4002 if its module cannot be imported.
    """
    known = installed()
    if name not in known:
        raise errors.no_such_engine(name, list(known))
    try:
        engine = known[name].load()()
    except ImportError as error:
        raise errors.no_engine("any device", [(name, f"cannot be imported: {error}")]) from error
    if not isinstance(engine, Engine):
        raise errors.no_engine("any device", [(name, f"{known[name].value} does not implement ge_runtime.api.Engine")])
    return engine


def survey(device: str) -> Iterator[tuple[str, Engine | None, Capability]]:
    """Every installed engine with what it says about itself; engines that cannot be loaded have none."""
    for name in installed():
        try:
            engine = load(name)
        except EngineError as error:
            yield name, None, Capability(False, error.what.partition(f"\n  {name}: ")[2] or error.what)
            continue
        capability = engine.probe()
        if capability.available and device not in capability.devices:
            serves = ", ".join(capability.devices) or "no device"
            capability = Capability(False, f"serves tensors on {serves}, not on {device}", capability.devices)
        yield name, engine, capability


def choose(device: str = "cpu", forced: str | None = None) -> Engine:
    """The engine to use.

    Args:
        device: Device type of the inputs, ``"cpu"`` or ``"npu"``.
        forced: Name of an engine from the configuration; the variable TAIR_ENGINE stands in if it is None. ``"auto"``
            forces nothing.

    Errors:
        EngineError GE4001 for an unknown name, GE4002 if the forced engine, or every engine, is unavailable; the
        message gives the reason for each.
    """
    name = forced if forced is not None else os.environ.get(VARIABLE) or "auto"
    if name != "auto":
        engine = load(name)
        probed = engine.probe()
        if not probed.available:
            raise errors.no_engine(device, [(name, f"forced, but {probed.reason}")])
        return engine
    rejected = []
    for candidate, found_engine, capability in survey(device):
        if found_engine is not None and capability.available:
            return found_engine
        rejected.append((candidate, capability.reason))
    raise errors.no_engine(device, rejected)
