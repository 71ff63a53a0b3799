"""Wrappers of 1 GE operators, made from custom_reg_op.h by `python -m ge_graph.codegen`; do not edit.

Importing the module makes the operators known to `ge_graph`.
"""

# ruff: noqa
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ge_graph.calling import plan_of as _plan_of
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Literal, Node, Tensor
from ge_graph.schema import register_schema as _register_schema

TensorLike: TypeAlias = "Tensor | int | float | bool | complex | Sequence[Any] | np.ndarray[Any, Any] | Literal"

__all__ = ['ScaleShift']

_ROWS: list[dict[str, Any]] = [
    {'op': 'ScaleShift', 'in': ['x f32,f16,bf16', 'shift? f32,f16,bf16'], 'out': ['y f32,f16,bf16'], 'attr': [['scale', 'Float', 1.0]], 'source': 'custom_reg_op.h'},
]
for _row in _ROWS:
    _register_schema(_row, replace=False)


def ScaleShift(x: TensorLike, shift: TensorLike | None = None, *, scale: float = 1.0, dependencies: Sequence[Tensor] = (), node_name: str | None = None) -> Tensor:
    """y = x * scale + shift, where shift may be left out.

    Args:
        x: Tensor. Dtypes: DT_FLOAT, DT_FLOAT16, DT_BF16.
        shift: Tensor, optional. Dtypes: DT_FLOAT, DT_FLOAT16, DT_BF16.
        scale: Float, default 1.0.

    Returns:
        y. Dtypes: DT_FLOAT, DT_FLOAT16, DT_BF16.

    Raises:
        GraphError: if the call breaks the signature above.
    """
    found: Tensor = _plan_of('ScaleShift').call((x, shift, ), {'scale': scale, 'dependencies': dependencies, 'node_name': node_name})
    return found
