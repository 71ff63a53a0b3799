"""Files on every system: the one module that opens, locks, replaces and flushes them.

What systems lack is dealt with here and nowhere else. Windows has no handles of folders and no ``fcntl``, translates
line ends unless told otherwise, and neither replaces nor removes a file that is open or mapped somewhere.

Locks are the system's own, so they end with the process that holds them. Where a folder can be opened the folder itself
is locked and nothing is left behind; elsewhere a hidden file in it is.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal

from ge_graph.errors import GraphError

_PAUSE: Final = 0.005  # seconds between two tries for a lock or for a file that is in use
_IN_USE: Final = 2.0  # seconds that a file may be in use before replacing it fails


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_FCNTL: Final = _module("fcntl")
_HELD: Final[type[OSError]] = BlockingIOError if _FCNTL is not None else PermissionError  # says a lock that is not free
LOCK_FILE: Final = ".lock"  # in a folder, where the folder itself cannot be locked
REPLACES_OPEN: Final = _FCNTL is not None
"""Whether a file that somebody has open or mapped can be replaced and removed."""


def package_data(name: str) -> bytes:
    """A file of ``ge_graph/data``.

    Raises:
        GraphError: GE3011 if a loader cannot read package data.
    """
    content = pkgutil.get_data("ge_graph", f"data/{name}")
    if content is None:
        raise GraphError("GE3011", f"package data ge_graph/data/{name} cannot be read", next="reinstall ge-graph")
    return content


# --- reading ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[int]:
    """A handle for reading bytes as they are; pipes and devices do not hold us up, but may be what was opened.

    Args:
        follow: Whether the last part of the path may be a link.

    Raises:
        OSError: It cannot be opened.
        ValueError: The name is none.
    """
    handle = os.open(path, _flags("O_RDONLY", "O_NONBLOCK", "O_BINARY", *_no_link(path, follow)))
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def plain(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[IO[bytes]]:
    """A plain file, open for reading; pipes, sockets and devices, which may have no end, are never read.

    Raises:
        OSError: It cannot be read or is no plain file.
        ValueError: The name is none.
    """
    if not stat.S_ISREG((os.stat if follow else os.lstat)(path).st_mode):  # opening one may do something already
        raise OSError("not a regular file")
    with opened(path, follow=follow) as handle, open(handle, "rb", closefd=False) as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # another one by now
            raise OSError("not a regular file")
        yield file


def read_plain(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes:
    """The bytes of a plain file.

    Raises:
        OSError: As ``plain``, or it has more than ``most`` bytes.
        ValueError: The name is none.
    """
    with plain(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"{size} bytes, more than {most}")
        return file.read(most)


def others_may_write(path: str | os.PathLike[str]) -> str:
    """Who else can change a file or the names in a folder, in words; empty if only this user and root can.

    Raises:
        OSError: It is not there.
    """
    status, named = os.stat(path), os.lstat(path)
    if not hasattr(os, "geteuid"):  # Windows: users' folders are theirs, and modes say nothing of others
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    if named.st_uid not in (os.geteuid(), 0):
        return f"it is a link of user {named.st_uid}"
    if status.st_mode & stat.S_IWOTH:
        return "everybody may write it"
    return "its group may write it" if status.st_mode & stat.S_IWGRP else ""


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, for this user alone.

    Raises:
        OSError: One cannot be made.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(each, 0o700)


def _flags(*names: str) -> int:
    """Flags of ``os.open``, as far as the system has them. Handles are never inherited: Python sees to that."""
    flags = 0
    for name in names:
        flags |= getattr(os, name, 0)
    return flags


def _no_link(path: str | os.PathLike[str], follow: bool) -> tuple[str, ...]:
    """The flag that refuses a link; where there is none, the link is looked for before."""
    if follow:
        return ()
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
        raise OSError(f"'{os.fspath(path)}' is a link")
    return ("O_NOFOLLOW",)


# --- writing ---------------------------------------------------------------------------------------------------------


def create(
    path: str | os.PathLike[str], mode: int = 0o666, *, existing: Literal["refuse", "empty", "keep"] = "refuse"
) -> int:
    """A handle for writing bytes as they are; a link in the place of the file is never followed.

    Args:
        mode: Permissions of a new file, less the process's mask.
        existing: What to do with a file that is there: an error, cut it to nothing, or write from its beginning.

    Raises:
        OSError: It cannot be made, or is a link.
    """
    how = {"refuse": ("O_EXCL",), "empty": ("O_TRUNC",), "keep": ()}[existing]
    return os.open(path, _flags("O_WRONLY", "O_CREAT", "O_BINARY", *how, *_no_link(path, False)), mode)


@contextlib.contextmanager
def whole(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file that appears under its name, on disk, when the block ends without an error; else what was there stays.

    Raises:
        OSError: It cannot be written.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(handle)
        os.chmod(temporary, mode)
        replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename in one step, onto a file that may be there; a link in its place is replaced, not followed.

    Where a file that somebody reads cannot be replaced, the reader is given two seconds to be done.

    Raises:
        OSError: The system refuses.
    """
    end = time.monotonic() + (0.0 if REPLACES_OPEN else _IN_USE)
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if time.monotonic() >= end:
                raise
        time.sleep(_PAUSE)


def flush_folder(path: str | os.PathLike[str]) -> None:
    """Have the names in a folder on disk, where the system lets folders be flushed."""
    if hasattr(os, "O_DIRECTORY"):
        with opened(path) as handle:
            os.fsync(handle)


def runs(process: int) -> bool:
    """Whether a process of this host may still run; on Windows, where asking could end it, always."""
    if _FCNTL is None:
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike[str], *, shared: bool = False, wait: float | None = None, follow: bool = True
) -> Iterator[None]:
    """Hold the lock of a folder; it ends with the process at the latest.

    Args:
        shared: Only keep out those who want it for themselves. Windows has no such locks and keeps out everybody.
        wait: Seconds to wait for others; None waits for as long as it takes, 0 not at all.
        follow: Whether the folder may be named by a link.

    Raises:
        BlockingIOError: Others held it all the time.
        OSError: The folder cannot be locked.
    """
    place = folder if _FCNTL is not None else os.path.join(folder, LOCK_FILE)
    access = "O_RDONLY" if _FCNTL is not None else "O_RDWR"
    more = () if _FCNTL is not None else ("O_CREAT", "O_BINARY")
    handle = os.open(place, _flags(access, *more, *_no_link(folder, follow)), 0o600)
    try:
        _lock(handle, shared, wait)
        try:
            yield
        finally:
            _unlock(handle)
    finally:
        os.close(handle)
        if _FCNTL is None:
            with contextlib.suppress(OSError):  # others have it open: the last of them removes it
                os.unlink(place)


def _lock(handle: int, shared: bool, wait: float | None) -> None:
    if wait is None and _FCNTL is not None:
        _FCNTL.flock(handle, _FCNTL.LOCK_SH if shared else _FCNTL.LOCK_EX)  # in turn with all who wait
        return
    end = None if wait is None else time.monotonic() + wait
    while True:
        try:
            if _FCNTL is not None:
                _FCNTL.flock(handle, (_FCNTL.LOCK_SH if shared else _FCNTL.LOCK_EX) | _FCNTL.LOCK_NB)
            else:
                _byte_lock(handle, "LK_NBLCK")
            return
        except _HELD as error:
            if end is not None and time.monotonic() >= end:
                raise BlockingIOError("locked by another process") from error
        time.sleep(_PAUSE)


def _unlock(handle: int) -> None:
    if _FCNTL is None:
        _byte_lock(handle, "LK_UNLCK")
    # elsewhere closing the handle does


def _byte_lock(handle: int, how: str) -> None:
    msvcrt = _module("msvcrt")
    if msvcrt is None:
        raise OSError("this system has no locks for files")
    os.lseek(handle, 0, os.SEEK_SET)
    msvcrt.locking(handle, getattr(msvcrt, how), 1)


def write_text(path: Path, text: str) -> None:
    """Write a generated file.

    Raises:
        GraphError: GE3042 if it cannot be written; an existing file is left as it was.
    """
    try:
        with whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise GraphError(
            "GE3042", f"cannot write {path}: {error.strerror}", next="choose a writable directory"
        ) from error


def generate(
    module: str, default: Path, pages: Callable[[Path], Mapping[Path, str]], argv: Sequence[str] | None = None
) -> int:
    """The command line of a module that writes files from data: it writes them, or with ``--check`` compares them.

    Args:
        module: What is run, for the help and the advice.
        default: The file if none is named.
        pages: From that file to all files and their texts.
        argv: Arguments; None takes those of the process.

    Returns:
        The exit status, 1 for files that are out of date.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"Write {default.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.add_argument("file", nargs="?", type=Path, default=default)
    options = parser.parse_args(argv)
    texts = pages(options.file)
    if not options.check:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
        return 0
    stale = [str(f) for f, text in texts.items() if not f.is_file() or f.read_text(encoding="utf-8") != text]
    if stale:
        sys.stderr.write(f"{', '.join(stale)}: out of date, run python -m {module}\n")
    return 1 if stale else 0
