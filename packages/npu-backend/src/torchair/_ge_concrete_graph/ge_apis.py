"""Import path of existing scripts; one function per GE operator, the code is in ``ge_graph.ops``."""

from __future__ import annotations

from typing import Any

from ge_graph import ops
from ge_graph.python_source import net_output as NetOutput
from torchair.ge import Const, attr, custom_op

__all__ = ["Const", "NetOutput", "attr", "custom_op"]


def __getattr__(name: str) -> Any:
    return getattr(ops, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(ops)})
