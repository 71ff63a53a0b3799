"""What the emulator's libraries call: one function for everything, told apart by a verb.

The libraries import this module when they need the first kernel. A verb gets bytes and a list of integers (sizes and
addresses); it returns an integer, negative for a failure, and may leave bytes as a reply. Calls come from the threads
of streams and from any thread of the program, so nothing here may depend on the caller's torch modes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any, Final

import torch

from ge_emulator import aclnn, graphs, schemas, single_op
from ge_emulator.refusal import Refusal
from ge_graph.errors import GeError

_log = logging.getLogger("ge_emulator")

Verb = Callable[[bytes, list[int]], "int | bytes"]

VERBS: Final[dict[bytes, Verb]] = {
    b"op.prepare": single_op.prepare,
    b"op.run": single_op.run,
    b"aclnn.prepare": aclnn.prepare,
    b"aclnn.run": aclnn.run,
    b"ge.read": graphs.read,
    b"ge.options": graphs.check_options,
    b"ge.compile": graphs.compile_graph,
    b"ge.run": graphs.run,
    b"ge.store": graphs.store,
    b"ge.drop": graphs.drop,
    b"schema.exists": schemas.exists,
    b"schema.input": schemas.has_input,
    b"schema.attrs": schemas.attributes,
    b"schema.ports": schemas.ports,
    b"schema.format": schemas.format_name,
}

_INTERNAL: Final = 500000
_CALLBACK: Final = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t
)


def _library() -> ctypes.CDLL:
    found = ctypes.CDLL("libascendcl.so")
    found.TairEmulatorReply.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found.TairEmulatorReply.restype = None
    found.TairEmulatorError.argtypes = [ctypes.c_int, ctypes.c_char_p]
    found.TairEmulatorError.restype = None
    return found


_native: Final = _library()


@_CALLBACK
def _call(verb: bytes, data: int | None, size: int, words: Any, count: int) -> int:
    try:
        payload = ctypes.string_at(data, size) if size else b""
        with torch.no_grad():
            answer = VERBS[verb](payload, words[:count])
        if isinstance(answer, bytes):
            # a reply that carries a number first: eight bytes, then the text
            _native.TairEmulatorReply(answer[8:], len(answer) - 8)
            return int.from_bytes(answer[:8], "little", signed=True)
        return answer
    except Refusal as refused:
        _native.TairEmulatorError(refused.code, str(refused).encode())
    except GeError as error:
        _native.TairEmulatorError(_INTERNAL, str(error).encode())
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into the library
        if os.environ.get("TAIR_EMULATOR_LOG"):
            traceback.print_exc()
        _native.TairEmulatorError(_INTERNAL, f"{type(error).__name__}: {error}".encode())
    return -1


_native.TairEmulatorRegister(_call)
