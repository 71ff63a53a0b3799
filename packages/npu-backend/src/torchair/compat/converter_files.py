"""Helpers that converter files written for the torchair inside torch_npu import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ge_graph import Tensor
from ge_graph import ops as ge


def specific_op_input_layout(op: Any, *, indices: Any = None, layout: str = "ND") -> None:
    """Layouts are decided by the engine; the call changes nothing."""


def normalize_reduceop_type(op: str) -> str:
    """The name of a reduction as collectives of a graph have it: ``avg`` is ``mean``, all are lower case."""
    name = str(op).lower()
    return {"avg": "mean", "product": "prod"}.get(name, name)


def is_arch35() -> bool:
    """Whether the chip is of the newest architecture; unknown where no device is."""
    return False


def identity(x: Tensor) -> Tensor:
    """The same tensor as the result of an operator."""
    made: Tensor = ge.Identity(x)
    return made


@dataclass
class ValuePack:
    """A value of the ATen graph beside what it became.

    Attributes:
        meta: The fake tensor or number.
        npu: The tensor of the GE graph, None if there is none.
    """

    meta: Any
    npu: Any = None


def is_symlist(arg: Any) -> bool:
    """Whether an argument is a list that holds a symbolic number."""
    return isinstance(arg, (list, tuple)) and any(isinstance(v, torch.SymInt) for v in arg)


def get_npu_default_decompositions() -> dict[Any, Callable[..., Any]]:
    """The functions that replace ATen ops while a graph is traced for this backend, by op."""
    from ge_converters.decompose.table import decomposition_table

    return dict(decomposition_table({}))
