"""Writing generated files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ge_graph.errors import GraphError


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name in the same directory, flush, rename.

    Raises:
        GraphError: GE3042 if the file cannot be written; an existing file is left as it was.
    """
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent, text=True)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise GraphError(
            "GE3042", f"cannot write {path}: {error.strerror}", next="choose a writable directory"
        ) from error
