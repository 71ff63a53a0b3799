"""Import path of existing scripts; the code is in ``torchair._ge_concrete_graph.utils``."""

from __future__ import annotations

from typing import Any

from torchair._ge_concrete_graph import utils


def __getattr__(name: str) -> Any:
    return getattr(utils, name)


def __dir__() -> list[str]:
    return sorted(utils.__all__)
