"""Every error about archives, built in one place so that codes, wording and next steps stay consistent."""

from __future__ import annotations

import os
from pathlib import Path

from ge_graph.errors import ArchiveError

AGAIN = "the file is damaged: copy or write the archive again"


def missing(what: str, where: Path | str, next: str) -> ArchiveError:
    """GE5020: no archive there."""
    return ArchiveError("GE5020", what, where=os.fspath(where), next=next)


def bad_manifest(what: str, where: Path | str) -> ArchiveError:
    """GE5021: the manifest is not what a manifest must be."""
    return ArchiveError("GE5021", what, where=os.fspath(where), next=AGAIN)


def version(found: int, writer: str, newest: int, where: Path | str) -> ArchiveError:
    """GE5022: a format that this version does not read."""
    by = f", written by {writer}" if writer else ""
    return ArchiveError(
        "GE5022",
        f"archive format {found}{by}; this version reads formats 1 to {newest}",
        where=os.fspath(where),
        next=f"install the tair-export that wrote it ({writer or 'unknown'}) or a newer one, or save the model again",
    )


def checksum(name: str, what: str, where: Path | str) -> ArchiveError:
    """GE5023: a file is not the one that was written."""
    return ArchiveError("GE5023", f"'{name}': {what}", where=os.fspath(where), next=AGAIN)


def unsafe_name(name: str, why: str, where: Path | str) -> ArchiveError:
    """GE5024: a name leads out of the archive."""
    return ArchiveError(
        "GE5024", f"name {name!r} {why}", where=os.fspath(where),
        next="take the archive from its source again; allow_outside=True permits such names if you trust it",
    )  # fmt: skip


def too_large(what: str, where: Path | str) -> ArchiveError:
    """GE5025: a count or a size is beyond what such a file can have."""
    return ArchiveError("GE5025", what, where=os.fspath(where), next=AGAIN)


def weight(name: str, what: str, where: Path | str) -> ArchiveError:
    """GE5026: graph, manifest and weight files contradict each other."""
    return ArchiveError("GE5026", f"weight '{name}': {what}", where=os.fspath(where), next=AGAIN)


def unwritable(what: str, next: str) -> ArchiveError:
    """GE5030: something of the model has no form in an archive."""
    return ArchiveError("GE5030", what, next=next)


def no_capture(reason: str) -> ArchiveError:
    """GE5031: nothing here can trace a model."""
    return ArchiveError(
        "GE5031", f"no package here can trace a model: {reason}",
        next="save graphs where torchair is installed; hosts that only run them need tair-export alone",
    )  # fmt: skip


def bad_call(what: str, expected: str) -> ArchiveError:
    """GE5040: the arguments of a call are not those that the graph was saved for."""
    return ArchiveError(
        "GE5040", what, where=f"expected {expected}", next="`tair-run --info ARCHIVE` shows the signature"
    )


def foreign(what: str, where: Path | str, next: str) -> ArchiveError:
    """GE5041: a graph file of others lacks what running it needs."""
    return ArchiveError("GE5041", what, where=os.fspath(where), next=next)
