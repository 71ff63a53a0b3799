"""Which versions of torch this was tested with: the bounds of the package's own metadata, nowhere written twice."""

from __future__ import annotations

import importlib.metadata
import re
from functools import lru_cache
from typing import Final

_BOUNDS: Final = re.compile(r"torch>=([\d.]+),<([\d.]+)|torch<([\d.]+),>=([\d.]+)")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@lru_cache(maxsize=1)
def bounds() -> tuple[str, str] | None:
    """The oldest version and the first one beyond, ``("2.7", "2.16")``; None if nothing was installed."""
    try:
        requirements = importlib.metadata.requires("ge-converters") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        found = _BOUNDS.match(requirement.replace(" ", ""))
        if found:
            return (found[1], found[2]) if found[1] else (found[4], found[3])
    return None


def untested(version: str) -> str:
    """What to say of a version outside the bounds; empty for one within.

    Args:
        version: ``2.16.0+cpu``.
    """
    known = bounds()
    if known is None:
        return ""
    oldest, beyond = known
    if _numbers(version) < _numbers(oldest):
        return f"torch {version} is older than {oldest}, the oldest with which this was tested"
    if _numbers(version) >= _numbers(beyond):
        return f"torch {version} is newer than what this was tested with, which ends before {beyond}"
    return ""
