"""Files as memory: mapped read-only without a file handle left open, or copied.

Python's own ``mmap`` keeps a handle for each mapping until 3.13, and an archive may have thousands of weight files. So
the system's call is made directly where it is at hand.

A mapped file that is cut short by somebody later takes its pages away: reading them then ends the process (SIGBUS).
Where files may change under a running process, copy them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tair_export import errors

_FAILED: Final = ctypes.c_void_p(-1).value


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], more: int = 0) -> Iterator[int]:
    """A handle for reading a file or a folder; with ``O_NONBLOCK`` in ``more`` no pipe holds us up."""
    handle = os.open(path, os.O_RDONLY | more)
    try:
        yield handle
    finally:
        os.close(handle)


def system_says(error: BaseException) -> str:
    """Why the system refused, in its own words."""
    return getattr(error, "strerror", None) or str(error)


def map_file(handle: int, name: str, size: int, where: Path, *, copy: bool = False) -> memoryview:
    """The content of an open file of the given size; the handle may be closed afterwards.

    Args:
        name: Its name, for errors.
        size: Bytes that it must have.
        copy: Read it instead of mapping it.

    Raises:
        ArchiveError: GE5023 if it has another size, is not a plain file, or cannot be mapped or read.
    """
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise errors.checksum(name, f"has {status.st_size} bytes, not {size}", where)
    if size == 0:
        return memoryview(b"")
    try:
        return _read(handle, size) if copy else _map(handle, size)
    except (OSError, ValueError, MemoryError) as error:
        raise errors.checksum(name, f"cannot be {'read' if copy else 'mapped'}: {error}", where) from error


def _read(handle: int, size: int) -> memoryview:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = os.preadv(handle, [view[at : at + (1 << 30)]], at)
        if count == 0:
            raise OSError(f"ends at byte {at} of {size}")
        at += count
    return view.toreadonly()


def _map(handle: int, size: int) -> memoryview:
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_READ, trackfd=False))
    calls = _system()
    if calls is None:
        return memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_READ))
    address = calls.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    array = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(array, calls.munmap, address, size).atexit = False
    return memoryview(array).cast("B").toreadonly()


@functools.cache
def _system() -> Any:
    """The C library with the two calls declared; None where there is no such library or addresses are short."""
    if ctypes.sizeof(ctypes.c_void_p) < 8:
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        )  # fmt: skip
        library.munmap.restype = ctypes.c_int
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    except (OSError, AttributeError):
        return None
    return library
