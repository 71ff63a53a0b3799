"""Files that dumps leave behind: time stamps, rank folders, and writing so that what is there is complete.

A file gets its name when it is whole: it is written beside under a hidden name and renamed. What fails half way leaves
nothing, and what was written before stays. A process that was killed leaves one hidden file at most, named
``.tair-<host>-<process>-<thread>.part``; a later one that writes into the folder removes it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

import torch

from ge_graph.errors import ConfigError
from ge_graph.files import create, replace, runs

_OWNER_ONLY: Final = 0o600
_STALE: Final = 600.0  # seconds; a file that is being written is younger
_PART: Final = re.compile(r"\.tair-([0-9a-f]{8})-(\d{1,10})-\d+\.part", re.ASCII)
_lock = threading.Lock()
_last = datetime.min


def stamp() -> str:
    """The time as 20 digits, year to microsecond; every call in a process gives a later one."""
    global _last
    with _lock:
        _last = max(datetime.now(), _last + timedelta(microseconds=1))
        return _last.strftime("%Y%m%d%H%M%S%f")


def is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def rank() -> int:
    """Global rank; 0 outside a distributed run."""
    return int(torch.distributed.get_rank()) if is_distributed() else 0


def world_size() -> int:
    """Number of processes; 1 outside a distributed run."""
    return int(torch.distributed.get_world_size()) if is_distributed() else 1


def rank_folder() -> str:
    """``worldsize<W>_global_rank<R>``."""
    return f"worldsize{world_size()}_global_rank{rank()}"


def no_file(option: str, path: str | os.PathLike[str], error: OSError) -> ConfigError:
    """The error for a file or folder that could not be written, from an option that asked for it."""
    where = os.fspath(path)
    reason = error.strerror or str(error) or type(error).__name__
    in_place = isinstance(error, FileExistsError | NotADirectoryError)
    return ConfigError(
        "GE1041",
        f"{option}: cannot write {where}: a file stands where a folder should"
        if in_place
        else f"{option}: cannot write {where}: {reason}",
        next="give a folder that exists, may be written and has room; files written before are complete",
    )


def folder(path: str | os.PathLike[str], option: str) -> Path:
    """Make a folder.

    Errors: ConfigError GE1041 naming option and path.
    """
    made = Path(path)
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_file(option, made, error) from error
    return made


def fresh_folder(path: str | os.PathLike[str], option: str) -> bool:
    """Make a folder that nobody has made before, with those above it; False if there is one.

    Errors: ConfigError GE1041 naming option and path.
    """
    made = folder(Path(path).parent, option) / Path(path).name
    try:
        made.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise no_file(option, made, error) from error
    return True


def write(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], Any], option: str) -> None:
    """Write a file whole or not at all, readable by its owner only.

    Args:
        path: Its name; an existing file is replaced.
        option: Who asked for it, for the error.

    Errors: ConfigError GE1041 naming option and path; the half-written file is gone then.
    """
    target = os.fspath(path)
    head = os.path.dirname(target)
    _sweep(head)
    temporary = os.path.join(head, f".tair-{_host()}-{os.getpid()}-{threading.get_native_id()}.part")
    file = None
    try:
        file = _Whole(create(temporary, _OWNER_ONLY, existing="empty"), "wb")
        with file:
            fill(file)
        replace(temporary, target)
    except BaseException as error:
        _remove(temporary)
        reason = error if isinstance(error, OSError) else None if file is None else file.failure
        if reason is not None:
            raise no_file(option, target, reason) from error
        raise


def claim(path: str | os.PathLike[str]) -> None:
    """Make a file for its owner only, if it is not there; a link that somebody put in its place is refused.

    Raises:
        OSError: It cannot be made, or is a link.
    """
    os.close(create(path, _OWNER_ONLY, existing="keep"))


class _Whole(io.FileIO):
    """A file that writes all it is given, and remembers why it could not: writers such as torch.save tell only that."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        left = memoryview(data) if len(data) == 0 else memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
            raise
        return size


def write_text(path: str | os.PathLike[str], text: str, option: str) -> None:
    """``write`` for UTF-8 text; what UTF-8 has no form for is written as an escape."""
    write(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")), option)


@functools.cache
def _host() -> str:
    return hashlib.sha256(platform.node().encode("utf-8", "replace")).hexdigest()[:8]


@functools.lru_cache(256)
def _sweep(place: str) -> None:
    """Once a folder and process: remove what processes of this host left when they were killed."""
    try:
        for entry in os.scandir(place or "."):
            match = _PART.fullmatch(entry.name)
            dead = match is not None and match[1] == _host() and not runs(int(match[2]))
            if dead and time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE:
                _remove(entry.path)
    except OSError:
        pass  # the writing that follows says what is wrong with the folder


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
