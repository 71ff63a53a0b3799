"""The native runner as a shared library: finding or building it, and its functions through ctypes.

A wheel built where g++ was at hand brings the library along. Any other installation builds it when a graph is first
compiled for a device, into the user's cache folder: a few files, a few seconds, nothing but g++ needed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import Any, Final

from ge_graph.files import make_private, others_may_write
from ge_runtime import errors
from ge_runtime.cann import building
from ge_runtime.cann.building import FLAGS, NAME, SOURCES, compiler

VERSION: Final = 4

OK, MISSING, DEVICE, ENGINE, STATE, ARGUMENT, MEMORY = range(7)
ON_DEVICE, ON_HOST = 0, 1
MAX_RANK: Final = 25
ROOT_BYTES: Final = 4108
NAME_BYTES: Final = 128


class Value(ctypes.Structure):
    """``gec_value``: a result's place and description."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("placement", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("owner", ctypes.c_void_p),
    ]


REPORT: Final = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_char_p,
)
MALLOC: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
FREE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_P, _TEXTS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
_SIZE, _INT, _I32, _U64 = ctypes.c_size_t, ctypes.c_int, ctypes.c_int32, ctypes.c_uint64
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "gec_open": (REPORT, _P),
    "gec_device_count": (ctypes.POINTER(ctypes.c_uint32),),
    "gec_session_open": (_I32, _TEXTS, _SIZE, _TEXTS, _SIZE),
    "gec_session_close": (_INT,),
    "gec_session_is_open": (),
    "gec_device_facts": (
        ctypes.c_char_p,
        _SIZE,
        ctypes.c_char_p,
        _SIZE,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_int64),
    ),
    "gec_use_allocator": (MALLOC, FREE, _P),
    "gec_graph_add": (
        ctypes.c_char_p,
        ctypes.c_char_p,
        _SIZE,
        _TEXTS,
        _SIZE,
        _SIZE,
        _SIZE,
        ctypes.POINTER(_P),
    ),
    "gec_graph_compile": (_P,),
    "gec_graph_info": (
        _P,
        ctypes.POINTER(_INT),
        ctypes.POINTER(_SIZE),
        ctypes.POINTER(_U64),
        ctypes.POINTER(_U64),
    ),
    "gec_graph_output": (_P, _SIZE, ctypes.POINTER(Value)),
    "gec_graph_load": (_P, _P, _TEXTS, _SIZE),
    "gec_graph_describe": (_P, _SIZE, _I32, _I32, _I32, ctypes.POINTER(ctypes.c_int64)),
    "gec_graph_run": (_P, _P, _P, _P, _P),
    "gec_group_root": (_P,),
    "gec_group_open": (ctypes.c_uint32, _P, ctypes.c_uint32, ctypes.POINTER(_P), ctypes.c_char_p),
    "gec_group_close": (_P,),
    "gec_stream_new": (ctypes.POINTER(_P),),
    "gec_stream_free": (_P,),
    "gec_stream_wait": (_P,),
    "gec_stream_idle": (_P, ctypes.POINTER(_INT)),
    "gec_memory_new": (_P, _U64, ctypes.POINTER(_P)),
    "gec_memory_free": (_P,),
    "gec_copy": (_P, _P, _U64, _INT, _P),
}


class TensorFunctions(ctypes.Structure):
    """``gec_tensor_functions``."""

    _fields_ = [
        *((name, _P) for name in ("item", "type_of", "is_subtype", "release", "type", "describe")),
        ("device_type", ctypes.c_int64),
    ]


LOOK: Final = 2 + MAX_RANK
"""Numbers that say how a tensor looks, at most."""


def build(target: Path, command: str) -> None:
    """Compile the runner into ``target``, which appears whole or not at all.

    Errors: EngineError GE4010 with the compiler's words.
    """
    try:
        building.build(target, command)
    except RuntimeError as error:
        raise errors.engine_missing("cann", [f"the native runner cannot be built: {error}"]) from None


def cached() -> Path:
    """Where a library that was built at first use lies: its name depends on the sources and the processor."""
    digest = hashlib.sha256(f"{VERSION} {platform.machine()} {FLAGS}".encode())
    for source in sorted(SOURCES.glob("*.[ch]*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "ge_runtime", digest.hexdigest()[:24], NAME)


def lacking() -> str | None:
    """Why there is no native runner and none can be built; None if there is one, or one can be built."""
    if (SOURCES / NAME).is_file() or cached().is_file() or compiler():
        return None
    return "the native runner is not in this installation, and there is no C++ compiler (g++) to build it with"


def at_hand() -> bool:
    """Whether the native runner is there without building it."""
    return native.cache_info().currsize > 0 or (SOURCES / NAME).is_file() or cached().is_file()


def _find() -> Path:
    shipped = SOURCES / NAME
    if shipped.is_file():
        return shipped
    target = cached()
    if not target.is_file():
        command = compiler()
        if command is None:
            raise errors.engine_missing("cann", [lacking() or ""])
        make_private(target.parent)
        build(target, command)
    for path in (target.parent, target):
        if why := others_may_write(path):
            what = f"{path} can be written by others than its user ({why}), and is not loaded"
            raise errors.engine_missing("cann", [what])
    return target


@functools.lru_cache(maxsize=1)
def native() -> Any:
    """The library with its functions declared.

    Errors: EngineError GE4010 if there is none, it cannot be built, or it is another version.
    """
    path = _find()
    library = ctypes.CDLL(str(path))
    if library.gec_version() != VERSION:
        raise errors.engine_missing("cann", [f"{path} has interface {library.gec_version()}, {VERSION} is needed"])
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.gec_error.argtypes, library.gec_error.restype = (), ctypes.c_char_p
    for name in ("gec_graph_free", "gec_result_free"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.c_void_p,), None
    return library


@functools.lru_cache(maxsize=1)
def reads_tensors() -> Any:
    """``gec_tensors_read``, called with Python's lock held.

    Errors: EngineError GE4010 as ``native``.
    """
    function = ctypes.PyDLL(native()._name).gec_tensors_read
    function.argtypes = (ctypes.py_object, _SIZE, ctypes.POINTER(TensorFunctions), _INT, _P, _P)
    function.restype = _INT
    return function


def last_error() -> str:
    """The text of this thread's last failure."""
    text: bytes = native().gec_error()
    return text.decode(errors="replace")


def pairs(options: dict[str, str]) -> tuple[Any, int]:
    """Options as the runner takes them: key, value, key, value, ..., and how many there are."""
    flat = [text.encode() for item in sorted(options.items()) for text in item]
    return (ctypes.c_char_p * len(flat))(*flat), len(options)
