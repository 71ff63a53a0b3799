"""Import path of existing scripts; one function per GE operator, the code is in ``ge_graph.ops``."""

from __future__ import annotations

from typing import Any

from torchair._ge_concrete_graph import ge_apis


def __getattr__(name: str) -> Any:
    return getattr(ge_apis, name)


def __dir__() -> list[str]:
    return dir(ge_apis)
