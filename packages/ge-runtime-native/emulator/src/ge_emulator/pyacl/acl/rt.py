"""``acl.rt``: each name calls the C function of its row; results come first, the error code last."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_SIZE, _INT, _POINTER = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p

# Name: C function, what the caller gives, what the function writes, and whether that comes first in C.
_ROWS: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...], bool]] = {
    "free": ("aclrtFree", (_POINTER,), (), False),
    "free_host": ("aclrtFreeHost", (_POINTER,), (), False),
    "get_device": ("aclrtGetDevice", (), (_INT,), False),
    "get_device_count": ("aclrtGetDeviceCount", (), (ctypes.c_uint32,), False),
    "get_mem_info": ("aclrtGetMemInfo", (_INT,), (_SIZE, _SIZE), False),
    "malloc": ("aclrtMalloc", (_SIZE, _INT), (_POINTER,), True),
    "malloc_host": ("aclrtMallocHost", (_SIZE,), (_POINTER,), True),
    "memcpy": ("aclrtMemcpy", (_POINTER, _SIZE, _POINTER, _SIZE, _INT), (), False),
    "memset": ("aclrtMemset", (_POINTER, _SIZE, ctypes.c_int32, _SIZE), (), False),
    "reset_device": ("aclrtResetDevice", (ctypes.c_int32,), (), False),
    "set_device": ("aclrtSetDevice", (ctypes.c_int32,), (), False),
    "synchronize_device": ("aclrtSynchronizeDevice", (), (), False),
}


def function(name: str, result: Any = _INT) -> Any:
    """A function of the emulator's library that gives ``result``."""
    found = getattr(ctypes.CDLL("libascendcl.so"), name)
    found.restype = result
    return found


def _made(called: str, name: str, gives: tuple[Any, ...], writes: tuple[Any, ...], first: bool) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if len(arguments) != len(gives):
            raise TypeError(f"{called} takes {len(gives)} arguments, got {len(arguments)}")
        given = [kind(value) for kind, value in zip(gives, arguments)]
        written = [kind() for kind in writes]
        places = [ctypes.byref(w) for w in written]
        code = function(name)(*(places + given if first else given + places))
        return (*(w.value for w in written), code) if written else code

    return call


globals().update({name: _made(name, *row) for name, row in _ROWS.items()})
