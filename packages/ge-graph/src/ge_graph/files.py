"""Files: written whole or not at all, read only if they are plain ones, and the package's own data."""

from __future__ import annotations

import argparse
import contextlib
import os
import pkgutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ge_graph.errors import GraphError


def package_data(name: str) -> bytes:
    """A file of ``ge_graph/data``.

    Raises:
        GraphError: GE3011 if a loader cannot read package data.
    """
    content = pkgutil.get_data("ge_graph", f"data/{name}")
    if content is None:
        raise GraphError("GE3011", f"package data ge_graph/data/{name} cannot be read", next="reinstall ge-graph")
    return content


@contextlib.contextmanager
def plain(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A plain file, open for reading; pipes, sockets and devices, which may have no end, are never opened to wait.

    Raises:
        OSError: It cannot be read or is no plain file.
        ValueError: The name is none.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("not a regular file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # another one by now
            raise OSError("not a regular file")
        yield file


def read_plain(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a plain file.

    Raises:
        OSError: As ``plain``, or it has more than ``most`` bytes.
        ValueError: The name is none.
    """
    with plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"{size} bytes, more than {most}")
        return file.read(most)


def others_may_write(path: str | os.PathLike[str]) -> str:
    """Who else can change a file or the names in a folder, in words; empty if only this user and root can.

    Raises:
        OSError: It is not there.
    """
    status = os.stat(path)
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
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
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


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
