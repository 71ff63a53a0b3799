"""``ge.MatMulV2(x1, x2, transpose_x2=True)``: one function an operator, made from its schema on first use.

Inputs are positional or keyword, in schema order; attributes are keyword-only. ``ops.pyi`` has every signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge_graph import builder as _builder
from ge_graph import calling as _calling
from ge_graph import schema as _schema
from ge_graph.custom import Clone, custom_op
from ge_graph.dtypes import DataType as _DataType
from ge_graph.dtypes import as_dtype as _as_dtype
from ge_graph.errors import GraphError as _GraphError
from ge_graph.ir import Shape as _Shape
from ge_graph.ir import Tensor as _Tensor
from ge_graph.ir import current_graph as _current_graph

__all__ = ["Clone", "Const", "Data", "custom_op"]


class _UnknownOperator(_GraphError, AttributeError):
    """``hasattr`` and ``from ge_graph.ops import X`` expect an AttributeError."""


def Const(
    value: Any, dtype: _DataType | int | None = None, *, node_name: str | None = None, readable: bool = True
) -> _Tensor:
    """A constant, the same for every execution.

    Args:
        value: Number, (nested) list of numbers, numpy array or ``Literal``.
        dtype: Element type; without it an array keeps its own, ints become INT64, floats FLOAT, bools BOOL.
        node_name: Name of the node; without it equal constants share a node.
        readable: Keep the value as text beside the bytes.
    """
    wanted = None if dtype is None else _as_dtype(dtype)
    return _builder.constant(_current_graph(), value, node_name, dtype=wanted, readable=readable)


def Data(
    *,
    index: int,
    dtype: _DataType,
    shape: _Shape | None = None,
    placement: str = "NPU",
    node_name: str | None = None,
) -> _Tensor:
    """A graph input; see ``ge_graph.builder.data``."""
    return _builder.data(_current_graph(), index=index, dtype=dtype, shape=shape, placement=placement, name=node_name)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if (
        name.startswith("_") and not name[1:2].isupper()
    ):  # tools look for such names; operators alike are not looked for
        raise _UnknownOperator("GE3019", f"GE has no operator '{name}'", next="names of operators are capitalised")
    try:
        wrapper = _calling.wrapper(name)
    except _GraphError as error:
        raise _UnknownOperator(error.code, error.what, next=error.next) from None
    globals()[name] = wrapper
    return wrapper


def __dir__() -> Sequence[str]:
    return sorted({*__all__, *_schema.names()})
