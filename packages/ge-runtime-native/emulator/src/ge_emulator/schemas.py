"""Questions about operators that libgraph answers, from the same schemas as everything else."""

from __future__ import annotations

from ge_emulator.refusal import INVALID, CannRefusal, reply
from ge_graph import schema
from ge_graph.dtypes import Format


def _names(pairs: list[tuple[str, str]]) -> bytes:
    return b"".join(f"{name}\0{kind}\0".encode() for name, kind in pairs)


def exists(data: bytes, words: list[int]) -> int:
    """1 if there is such an operator."""
    return int(schema.get(data.decode()) is not None)


def has_input(data: bytes, words: list[int]) -> int:
    """1 if the operator of the first line has the input of the second."""
    op, _, name = data.decode().partition("\n")
    op_schema = schema.get(op)
    return int(op_schema is not None and op_schema.input(name) is not None)


def attributes(data: bytes, words: list[int]) -> bytes:
    """Names and kinds of an operator's attributes."""
    return reply(0, _names([(a.name, f"VT_{_upper(a.kind.value)}") for a in schema.require(data.decode()).attrs]))


def _upper(kind: str) -> str:
    """``ListInt`` is ``LIST_INT``."""
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(kind)).upper()


def ports(data: bytes, words: list[int]) -> bytes:
    """Inputs, outputs and attributes of an operator, each list with its kinds."""
    op_schema = schema.require(data.decode())
    lists = (
        [(p.name, p.kind) for p in op_schema.inputs],
        [(p.name, p.kind) for p in op_schema.outputs],
        [(a.name, f"VT_{_upper(a.kind.value)}") for a in op_schema.attrs],
    )
    return reply(0, b"".join(_names(entries) + b"\0" for entries in lists))


def format_name(data: bytes, words: list[int]) -> bytes:
    """The name of a layout number, ``ND``."""
    try:
        return reply(0, Format(words[0]).name.removeprefix("FORMAT_").encode())
    except ValueError:
        raise CannRefusal(INVALID, f"{words[0]} is not a layout") from None
