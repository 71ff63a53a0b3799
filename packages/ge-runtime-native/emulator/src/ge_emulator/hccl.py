"""The emulator's communicators, for kernels: those of this process, or of the program that this process serves."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol


class Communicators(Protocol):
    """Open communicators by HCCL's name."""

    def place(self, name: str) -> tuple[int, int] | None:
        """Rank of the program and number of ranks; None if none is called so."""

    def exchange(self, name: str, header: tuple[int, ...], data: bytes, room: int) -> tuple[int, bytes]:
        """One collective: kind, peer, type and operation, what the rank gives, bytes that it gets.

        Returns:
            0 and the bytes, or an error number and a text.
        """


class Here:
    """The communicators of libhccl in this process."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL("libhccl.so")
        self._library.TairEmulatorExchange.argtypes = [
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]

    def place(self, name: str) -> tuple[int, int] | None:
        rank, size = ctypes.c_uint32(), ctypes.c_uint32()
        unknown = self._library.TairEmulatorGroup(name.encode(), ctypes.byref(rank), ctypes.byref(size))
        return None if unknown else (rank.value, size.value)

    def exchange(self, name: str, header: tuple[int, ...], data: bytes, room: int) -> tuple[int, bytes]:
        got, text = ctypes.create_string_buffer(max(room, 1)), ctypes.create_string_buffer(512)
        code = self._library.TairEmulatorExchange(name.encode(), *header, data, len(data), got, room, text, len(text))
        return (code, text.value) if code else (0, got.raw[:room])
