"""Files that dumps leave behind: time stamps, rank folders, and writing so that what is there is complete.

A file gets its name when it is whole: it is written beside under a hidden name and renamed. What fails half way leaves
nothing, and what was written before stays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

import torch

from ge_graph.errors import ConfigError

OWNER_ONLY: Final = 0o600
SHARED: Final = 0o644
_lock = threading.Lock()
_last = datetime.min


def stamp() -> str:
    """The time as 20 digits, year to microsecond; every call in a process gives a later one."""
    global _last
    with _lock:
        _last = max(datetime.now(), _last + timedelta(microseconds=1))
        return _last.strftime("%Y%m%d%H%M%S%f")


def is_distributed() -> bool:
    """Whether a process group is up."""
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
    reason = error.strerror or str(error) or type(error).__name__
    return ConfigError(
        "GE1041", f"{option}: cannot write {os.fspath(path)}: {reason}",
        next="give a folder that exists, may be written and has room; files written before are complete",
    )  # fmt: skip


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


def write(
    path: str | os.PathLike[str], fill: Callable[[IO[bytes]], Any], option: str, *, mode: int = OWNER_ONLY
) -> None:
    """Write a file whole or not at all.

    Args:
        path: Its name; an existing file is replaced.
        fill: Writes the content.
        option: Who asked for it, for the error.
        mode: Permissions.

    Errors: ConfigError GE1041 naming option and path; the half-written file is gone then.
    """
    target = os.fspath(path)
    head, tail = os.path.split(target)
    temporary = os.path.join(head, f".{tail}.{os.getpid()}.{threading.get_native_id()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb", buffering=0) as file:
            fill(file)
        os.replace(temporary, target)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError):
            raise no_file(option, target, error) from error
        raise


def write_text(path: str | os.PathLike[str], text: str, option: str, *, mode: int = OWNER_ONLY) -> None:
    """``write`` for UTF-8 text."""
    write(path, lambda file: _all(file, text.encode()), option, mode=mode)


def _all(file: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
