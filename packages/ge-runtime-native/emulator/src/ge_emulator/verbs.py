"""The table of what the emulator's libraries ask for, and how an answer is made from a verb.

A verb gets bytes and a list of integers (sizes and addresses); it returns an integer, negative for a failure, or bytes
that carry a number and a reply. Calls come from the threads of streams and from any thread of the program, so nothing
here may depend on the caller's torch modes.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from ge_emulator import aclnn, graphs, profile, schemas, single_op
from ge_emulator.refusal import INTERNAL, CannRefusal
from ge_graph.errors import GeError

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
    b"profile.task": profile.task,
    b"schema.exists": schemas.exists,
    b"schema.input": schemas.has_input,
    b"schema.attrs": schemas.attributes,
    b"schema.ports": schemas.ports,
    b"schema.format": schemas.format_name,
}


class Response(NamedTuple):
    """What the library gets.

    Attributes:
        value: Negative for a failure.
        reply: Bytes besides.
        error: Error number of CANN, 0 for none.
    """

    value: int
    reply: bytes = b""
    error: int = 0


def answer(verb: bytes, data: bytes, words: list[int]) -> Response:
    """Run a verb; a failure is an answer too, its reply the text."""
    try:
        with torch.no_grad():
            given = VERBS[verb](data, words)
    except CannRefusal as refused:
        return Response(-1, str(refused).encode(), refused.code)
    except GeError as error:
        return Response(-1, str(error).encode(), INTERNAL)
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into the library
        if os.environ.get("TAIR_EMULATOR_LOG"):
            traceback.print_exc()
        return Response(-1, f"{type(error).__name__}: {error}".encode(), INTERNAL)
    if isinstance(given, bytes):  # a number first: eight bytes, then the reply
        return Response(int.from_bytes(given[:8], "little", signed=True), given[8:])
    return Response(given)
