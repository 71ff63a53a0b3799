"""Files as memory: mapped read-only without a file handle left open, or copied.

Python's own ``mmap`` keeps a handle for each mapping until 3.13, and an archive may have thousands of weight files. So
the system's call is made directly where it is at hand.

A mapped file that is cut short by somebody later takes its pages away: reading them then ends the process (SIGBUS).
Where files may change under a running process, copy them. Windows can neither replace nor remove a mapped file, so
there they are always copied.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import stat
import sys
import weakref
from pathlib import Path
from typing import Any, Final

from ge_graph.files import REPLACES_OPEN
from tair_export import errors

_FAILED: Final = ctypes.c_void_p(-1).value
_PIECE: Final = 64 << 20  # read at a time; an interruption waits for one
_MAY_HAVE_HOLES: Final = 1 << 30
_LEAST_PART: Final = 64  # of a file that lies on the disk; a good compression of ordinary weights is 2


def map_file(handle: int, name: str, size: int, where: Path, *, copy: bool = False, whole: bool = False) -> memoryview:
    """The content of an open file of the given size; the handle may be closed afterwards.

    Args:
        handle: The file, at its beginning.
        name: Its name, for errors.
        size: Bytes that it must have.
        copy: Read it instead of mapping it.
        whole: Whether every byte will be read.

    Raises:
        ArchiveError: GE5023 if it has another size, is not a plain file, or cannot be mapped or read; GE5025 if every
            byte is to be read of a file that is nothing but holes: a terabyte of them takes no room on a disk.
    """
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise errors.checksum(name, f"has {status.st_size} bytes, not {size}", where)
    if size == 0:
        return memoryview(b"")
    copy = copy or not REPLACES_OPEN
    try:
        stored = getattr(status, "st_blocks", size) * 512
        if (copy or whole) and size >= _MAY_HAVE_HOLES and stored < size // _LEAST_PART and _has_holes(handle, size):
            raise errors.holes(name, size, stored, where)
        return _read(handle, size) if copy else _map(handle, size)
    except (OSError, ValueError, MemoryError) as error:
        raise errors.checksum(name, f"cannot be {'read' if copy else 'mapped'}: {error}", where) from error


def _has_holes(handle: int, size: int) -> bool:
    """Whether part of a file was never written; no room on the disk alone may also be compression, or a disk that lies
    on another host."""
    if not hasattr(os, "SEEK_HOLE"):
        return False
    hole = os.lseek(handle, 0, os.SEEK_HOLE)
    os.lseek(handle, 0, os.SEEK_SET)
    return hole < size


def _read(handle: int, size: int) -> memoryview:
    data = bytearray(size)
    view, at = memoryview(data), 0
    with open(handle, "rb", buffering=0, closefd=False) as file:
        while at < size:
            count = file.readinto(view[at : at + _PIECE])
            if not count:
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
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int64,
        )
        library.munmap.restype = ctypes.c_int
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    except (OSError, AttributeError):
        return None
    return library
