"""What converters are written with: one function per GE operator, and the types they deal in.

``from torchair import ge`` gives ``ge.MatMulV2(x1, x2)``, ``ge.Const``, ``ge.Cast``, ``ge.Clone``, ``ge.custom_op``,
``ge.attr``, ``ge.Tensor``, ``ge.TensorSpec``, ``ge.DataType`` and ``ge.Format``.
"""

from __future__ import annotations

from typing import Any

from ge_graph import DataType, Format, Tensor, TensorSpec, ops
from ge_graph import attrs as attr
from ge_graph.ops import Clone, Const, Data, custom_op

__all__ = ["Clone", "Const", "Data", "DataType", "Format", "Tensor", "TensorSpec", "attr", "custom_op"]


def __getattr__(name: str) -> Any:
    return getattr(ops, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(ops)})
