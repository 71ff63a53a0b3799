"""Reading a GE graph that somebody hands to a command: bytes or text, never a program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ge_graph import Graph, escape
from ge_graph.errors import ArchiveError, ConfigError, GeError
from ge_graph.files import read_plain

_MOST_BYTES: Final = 2 << 30  # protobuf's own limit


def read_graph(path: Path) -> Graph:
    """A graph from a file.

    Errors: ConfigError GE1046 if it cannot be read; ArchiveError 5xxx for what it says.
    """
    from ge_graph import serde, txt

    shown = escape.line(os.fspath(path))
    if path.suffix == ".py":
        raise ConfigError(
            "GE1046",
            f"{shown} is a program, and reading it would run it",
            next="dump as txt, or give FILE.py:factory for a model",
        )
    if path.suffix == ".pbtxt":
        raise ConfigError(
            "GE1046",
            f"{shown} is a dump for TensorBoard and Netron, without data of constants; nothing reads it",
            next="dump as txt (config.debug.graph_dump.type, or tair dump --type txt), or open it in one of the two",
        )
    try:
        data = read_plain(path, _MOST_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            "GE1046", f"cannot read {shown}: {reason}", next="give a .air, .pb or .txt graph, or FILE.py:factory"
        ) from error
    try:
        return txt.from_txt(data.decode("utf-8", "replace")) if path.suffix == ".txt" else serde.from_bytes(data)
    except GeError:
        raise
    except Exception as error:
        raise ArchiveError(
            "GE5001",
            f"{shown} holds no graph: {type(error).__name__}: {escape.line(str(error), 500)}",
            next="write the file again",
        ) from error
