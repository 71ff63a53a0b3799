"""Manifests of older format versions, brought to the current form step by step.

| Version | Written by | What changed |
|---|---|---|
| 1 | tair-export 0.1 | first |

A new version adds a row here and a step ``{old: function}`` below. Archives newer than this version are refused with
the name of the version that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1

# Version to the function that turns its manifest into one of the next version.
STEPS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}


def writer_of(manifest: Mapping[str, Any]) -> str:
    """Name and version of the package that wrote a manifest; empty if it does not say."""
    writer = manifest.get("writer")
    version = writer.get("tair-export") if isinstance(writer, Mapping) else None
    return f"tair-export {str(version)[:40]}" if version else ""


def to_current(manifest: dict[str, Any], where: Path) -> dict[str, Any]:
    """The manifest in the current form; the digest stays that of the file.

    Raises:
        ArchiveError: GE5022 if there is no way.
    """
    from tair_export import errors

    digest = manifest["digest"]
    while manifest["version"] < VERSION:
        step = STEPS.get(manifest["version"])
        if step is None:
            raise errors.version(manifest["version"], writer_of(manifest), VERSION, where)
        manifest = step(manifest) | {"version": manifest["version"] + 1}
    return manifest | {"digest": digest}
