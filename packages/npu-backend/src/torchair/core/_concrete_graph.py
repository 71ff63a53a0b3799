"""Import path of existing scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchair.names import door

__all__ = ["ValuePack"]

__getattr__ = door(__name__)


@dataclass
class ValuePack:
    """A value of the ATen graph beside what it became.

    Attributes:
        meta: The fake tensor or number.
        npu: The tensor of the GE graph, None if there is none.
    """

    meta: Any
    npu: Any = None


def _is_symlist(arg: Any) -> bool:
    """Whether an argument is a list that holds a symbolic number."""
    return isinstance(arg, (list, tuple)) and any(isinstance(v, torch.SymInt) for v in arg)
