"""An archive of a compiled graph as one piece of bytes, for files and bundles that others write."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Final

from ge_graph.errors import ArchiveError
from tair_export.manifest import SUFFIX

KIND: Final = "torchair"
"""What torch's bundles call our entries."""
NAME: Final = "graph"
"""Base name of the files of an archive that can be packed."""
_FILES: Final = (f"{NAME}.air", NAME + SUFFIX)
_LIMIT: Final = 1 << 32


def pack(folder: Path) -> bytes:
    """The archive in a folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        for name in _FILES:
            out.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes())
    return packed.getvalue()


def unpack(content: bytes, folder: Path) -> Path:
    """Put what ``pack`` gave into a folder; returns its manifest.

    Errors: ArchiveError GE5021 if it is none.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            entries = packed.infolist()
            if sorted(e.filename for e in entries) != sorted(_FILES):
                raise damaged(f"it holds {', '.join(sorted(e.filename for e in entries))[:200]}")
            if sum(e.file_size for e in entries) > _LIMIT:
                raise damaged("it is larger than a graph can be")
            for entry in entries:
                (folder / entry.filename).write_bytes(packed.read(entry))
    except ArchiveError:
        raise
    except Exception as error:  # zipfile and zlib have many ways to say that bytes are none of theirs
        raise damaged(f"{type(error).__name__}: {str(error)[:200]}") from error
    return folder / (NAME + SUFFIX)


def damaged(why: str) -> ArchiveError:
    """GE5021: packed artifacts are none."""
    return ArchiveError("GE5021", f"the artifacts are damaged: {why}", next="compile the graph again")
