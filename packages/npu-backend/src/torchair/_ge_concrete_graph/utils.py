"""Import path of existing scripts; the code is in ``ge_converters``."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import dtype_promote
from ge_graph import Tensor
from ge_graph import ops as ge
from torchair.names import door

__all__ = ["dtype_promote", "is_arch35", "normalize_reduceop_type", "specific_op_input_layout"]

__getattr__ = door(__name__)


def specific_op_input_layout(op: Any, *, indices: Any = None, layout: str = "ND") -> None:
    """Layouts are decided by the engine; the call changes nothing."""


def normalize_reduceop_type(op: str) -> str:
    """The name of a reduction as collectives of a graph have it: ``avg`` is ``mean``, all are lower case."""
    name = str(op).lower()
    return {"avg": "mean", "product": "prod"}.get(name, name)


def is_arch35() -> bool:
    """Whether the chip is of the newest architecture; unknown where no device is."""
    return False


def _identity(x: Tensor) -> Tensor:
    made: Tensor = ge.Identity(x)
    return made
