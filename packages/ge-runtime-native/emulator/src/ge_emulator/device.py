"""What the emulator's libraries call: one function for everything, told apart by a verb.

The libraries import this module when they need the first kernel. Kernels run in this process, or, where
TAIR_EMULATOR_PYTHON names a Python, in a process of that one: then this one needs no torch.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

if os.environ.get("TAIR_EMULATOR_PYTHON"):
    from ge_emulator.apart import answer
else:
    from ge_emulator.verbs import answer  # type: ignore[assignment]

_CALLBACK: Final = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t
)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libascendcl.so")
    library.TairEmulatorReply.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.TairEmulatorReply.restype = None
    library.TairEmulatorError.argtypes = [ctypes.c_int, ctypes.c_char_p]
    library.TairEmulatorError.restype = None
    return library


_native: Final = _library()


def _call(verb: bytes, data: int | None, size: int, words: Any, count: int) -> int:
    value, reply, error = answer(verb, ctypes.string_at(data, size) if data and size else b"", words[:count])
    if error:
        _native.TairEmulatorError(error, reply)
    elif reply:
        _native.TairEmulatorReply(reply, len(reply))
    return int(value)


_callback: Final = _CALLBACK(_call)  # the libraries keep its address
_native.TairEmulatorRegister(_callback)
