"""Tensors on addresses. The memory belongs to the program that runs on the emulator and outlives the call.

That program is this process, or another one (``look_into``): then tensors are copies, and what was changed in them is
written back when the call ends.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from ge_emulator.refusal import INTERNAL, INVALID, CannRefusal

_other: int | None = None
_copies: Final[list[tuple[int, torch.Tensor, torch.Tensor]]] = []  # address, copy, what it was


def look_into(process: int) -> None:
    """From now on addresses are those of another process."""
    global _other
    _other = process


def flat(address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """``count`` elements from an address on."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if address == 0:
        raise CannRefusal(INVALID, f"a null address stands for {count} elements of {dtype}")
    size = count * dtype.itemsize
    if _other is not None:
        copy = torch.empty(size, dtype=torch.uint8)
        _move("process_vm_readv", _other, copy.data_ptr(), address, size)
        _copies.append((address, copy, copy.clone()))
        return copy.view(dtype)
    raw = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(raw, dtype=dtype)


def raw_bytes(address: int, size: int) -> bytes:
    """A copy of the bytes at an address."""
    return bytes(flat(address, torch.uint8, size).numpy().tobytes())


def write_back() -> None:
    """Write what was changed since the last time to the other process, in the order in which it was looked at."""
    for address, copy, before in _copies:
        if _other is not None and not torch.equal(copy, before):
            _move("process_vm_writev", _other, copy.data_ptr(), address, copy.numel())
    _copies.clear()


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _move(function: str, process: int, here: int, there: int, size: int) -> None:
    library: Any = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, function)
    call.restype = ctypes.c_ssize_t
    at = 0
    while at < size:
        mine, others = _Piece(here + at, size - at), _Piece(there + at, size - at)
        one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
        moved = call(process, ctypes.byref(mine), one, ctypes.byref(others), one, none)
        if moved <= 0:
            raise CannRefusal(INTERNAL, f"{function} on {size} bytes at {there:#x}: error {ctypes.get_errno()}")
        at += moved


def contiguous(address: int, dtype: torch.dtype, dims: Sequence[int]) -> torch.Tensor:
    """A dense tensor at an address."""
    return flat(address, dtype, math.prod(dims)).view(tuple(dims))


def strided(address: int, dtype: torch.dtype, dims: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """A view at an address; strides and offset in elements."""
    if 0 in dims:
        return torch.empty(tuple(dims), dtype=dtype)
    reach = sum((d - 1) * s for d, s in zip(dims, strides)) + 1
    return flat(address + offset * dtype.itemsize, dtype, reach).as_strided(tuple(dims), tuple(strides))
