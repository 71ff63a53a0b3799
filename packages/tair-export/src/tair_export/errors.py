"""Every error about archives, built in one place so that codes, wording and next steps stay consistent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ge_graph import escape
from ge_graph.errors import ArchiveError

AGAIN = "the file is damaged: copy or write the archive again"


def _about(code: str, what: str, where: Path | str, next: str = AGAIN) -> ArchiveError:
    """An error about a file; what a file or a name says is shown on one line."""
    return ArchiveError(code, escape.line(what), where=escape.line(os.fspath(where)), next=next)


def system_says(error: BaseException) -> str:
    """Why the system refused, in its own words."""
    return getattr(error, "strerror", None) or str(error)


def missing(what: str, where: Path | str, next: str) -> ArchiveError:
    """GE5020: no archive there."""
    return _about("GE5020", what, where, next)


def bad_manifest(what: str, where: Path | str) -> ArchiveError:
    """GE5021: the manifest is not what a manifest must be."""
    return _about("GE5021", what, where)


def version(got: int, writer: str, newest: int, where: Path | str) -> ArchiveError:
    """GE5022: a format that this version does not read."""
    writer = escape.line(writer)
    by = f", written by {writer}" if writer else ""
    advice = f"install the tair-export that wrote it ({writer or 'unknown'}) or a newer one, or save the model again"
    return _about("GE5022", f"archive format {got}{by}; this version reads formats 1 to {newest}", where, advice)


def checksum(name: str, what: str, where: Path | str) -> ArchiveError:
    """GE5023: a file is not the one that was written."""
    return _about("GE5023", f"'{name}': {what}", where)


def unsafe_name(name: str, why: str, where: Path | str) -> ArchiveError:
    """GE5024: a name leads out of the archive."""
    advice = "take the archive from its source again; allow_outside=True permits such names if you trust it"
    return _about("GE5024", f"name {name!r} {why}", where, advice)


def too_large(what: str, where: Path | str) -> ArchiveError:
    """GE5025: a count or a size is beyond what such a file can have."""
    return _about("GE5025", what, where)


def holes(name: str, size: int, stored: int, where: Path | str) -> ArchiveError:
    """GE5025: a file that claims to be large, but has next to nothing on the disk."""
    what = (
        f"'{name}' has {size} bytes, of which {stored} are on the disk: reading every byte would take long for nothing"
    )
    advice = "take the archive from its source again, or compare sizes alone with verify='sizes' if you trust it"
    return _about("GE5025", what, where, advice)


def weight(name: str, what: str, where: Path | str) -> ArchiveError:
    """GE5026: graph, manifest and weight files contradict each other."""
    return _about("GE5026", f"weight '{name}': {what}", where)


def unwritable(what: str, next: str) -> ArchiveError:
    """GE5030: something of the model has no form in an archive."""
    return ArchiveError("GE5030", what, next=next)


def io(error: OSError, what: str, where: Path | str) -> ArchiveError:
    """GE5033: the system refuses to write."""
    hints = {
        errno.ENOSPC: "free space on that disk, or save to another",
        errno.EDQUOT: "free space in your quota",
        errno.EFBIG: "the limit on file sizes (ulimit -f, or the file system) is too low",
        errno.EMFILE: "raise the limit on open files (ulimit -n)",
        errno.ENFILE: "close files on this host",
        errno.EACCES: "choose a folder that you may write to",
        errno.EPERM: "choose a folder that you may write to",
        errno.EROFS: "choose a folder that you may write to",
        errno.ENAMETOOLONG: "choose a shorter name or folder",
        errno.ENOENT: "the folder vanished while writing: choose one that stays",
        errno.ENOTDIR: "choose a folder",
        errno.EEXIST: "choose a folder",
    }
    place = error.filename if isinstance(error.filename, str) else os.fspath(where)
    code = errno.errorcode.get(error.errno or 0, "?")
    return ArchiveError(
        "GE5033",
        f"{what}: {error.strerror or error} ({code})",
        where=escape.line(place),
        next=hints.get(error.errno or 0, "choose another folder") + "; what was there before is as it was",
    )


def linked_out(name: str, where: Path | str) -> ArchiveError:
    """GE5034: a link in the folder would lead what is written elsewhere."""
    what = f"'{escape.line(name, 200)}' lies behind a link that leads out of the folder"
    return _about("GE5034", what, where, "remove the link, or save to another folder")


def no_capture(reason: str) -> ArchiveError:
    """GE5031: nothing here can trace a model."""
    return ArchiveError(
        "GE5031",
        f"no package here can trace a model: {reason}",
        next="save graphs where torchair is installed; hosts that only run them need tair-export alone",
    )


def bad_call(what: str, expected: str) -> ArchiveError:
    """GE5040: the arguments of a call are not those that the graph was saved for."""
    return _about("GE5040", what, f"expected {expected}", "`tair-run --info ARCHIVE` shows the signature")


def bad_argument(name: str, value: object, expected: str) -> ArchiveError:
    """GE5042: an argument of loading or saving is of a wrong kind."""
    shown = escape.line(repr(value), 80)
    return ArchiveError("GE5042", f"{name} is {type(value).__name__} {shown}", next=f"give {expected}")


def om(where: Path | str) -> ArchiveError:
    """GE5043: an offline model of ATC, which only a device runs."""
    what = "this is an .om, an offline model that ATC has compiled for one chip; it holds no graph to read"
    advice = "load the .air that ATC was given; an .om runs on its device, through ACL"
    return _about("GE5043", what, where, advice)


def untrusted(what: str, where: Path | str) -> ArchiveError:
    """GE5044: nobody known has signed the archive."""
    return _about("GE5044", what, where, "take the archive and its .sig from their source")


def array(path: str, what: str) -> ArchiveError:
    """GE5045: an array file is not what it must be."""
    return _about("GE5045", f"no array can be read: {what}", path, "write it with numpy.save")


def foreign(what: str, where: Path | str, next: str) -> ArchiveError:
    """GE5041: a graph file of others lacks what running it needs."""
    return _about("GE5041", what, where, next)
