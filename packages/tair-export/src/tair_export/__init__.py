"""Offline GE graphs: archive format, export, save_graph and load_graph. All that a deployment host installs.

Importing this imports neither torch nor protobuf; names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tair_export.archive import open_archive as open_archive
    from tair_export.foreign import load_air as load_air
    from tair_export.foreign import read_air as read_air
    from tair_export.load import CompiledModel as CompiledModel
    from tair_export.signature import Record as Record

__version__ = "0.1.0"

_HOMES: Final = {
    "CompiledModel": "tair_export.load",
    "Record": "tair_export.signature",
    "load_air": "tair_export.foreign",
    "open_archive": "tair_export.archive",
    "read_air": "tair_export.foreign",
}

__all__ = ["CompiledModel", "Record", "load_air", "open_archive", "read_air"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tair_export' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
