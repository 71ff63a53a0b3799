"""Many ranks in one process, with real numbers: faults of distributed models found before a cluster is asked.

``check_ranks`` and what it returns; the command is ``tair ranks``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_HOMES: Final = {
    "Fault": "problems",
    "RanksError": "problems",
    "RanksReport": "run",
    "check_ranks": "run",
}

__all__ = ["Fault", "RanksError", "RanksReport", "check_ranks"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"torchair.ranks.{_HOMES[name]}"), name)
