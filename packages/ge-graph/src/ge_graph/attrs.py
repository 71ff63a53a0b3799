"""Attribute values: the kinds GE knows, each a typed constructor (``Int(3)``, ``ListInt([1, 2])``).

Schema attributes get their kind from the schema; only attributes that no schema lists need a constructor.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ge_graph import dtypes
from ge_graph.errors import GraphError


class Kind(enum.Enum):
    """Kind of an attribute; the value is the name in op schemas."""

    INT = "Int"
    FLOAT = "Float"
    BOOL = "Bool"
    STRING = "String"
    TYPE = "Type"
    TENSOR = "Tensor"
    LIST_INT = "ListInt"
    LIST_FLOAT = "ListFloat"
    LIST_BOOL = "ListBool"
    LIST_STRING = "ListString"
    LIST_TYPE = "ListType"
    LIST_LIST_INT = "ListListInt"
    LIST_LIST_FLOAT = "ListListFloat"

    __hash__ = object.__hash__  # one object a kind; Enum's own hashes the name in Python, and attributes are keys


class Attr(NamedTuple):
    """A typed attribute value. Lists are tuples; a Tensor is a numpy array or a ``ge_graph.ir.Literal``."""

    kind: Kind
    value: Any


def _int(v: Any) -> int:
    if isinstance(v, (bool, np.bool_)):
        raise TypeError
    if hasattr(v, "__index__"):
        return v.__index__()  # type: ignore[no-any-return]
    raise TypeError


def _float(v: Any) -> float:
    if isinstance(v, (bool, np.bool_)) or not isinstance(v, (int, float, np.floating, np.integer)):
        raise TypeError
    return float(v)


def _bool(v: Any) -> bool:
    if isinstance(v, (bool, np.bool_)):
        return bool(v)
    raise TypeError


def _string(v: Any) -> str | bytes:
    if isinstance(v, (str, bytes)):
        return v
    raise TypeError


def _type(v: Any) -> dtypes.DataType:
    return dtypes.as_dtype(v)


def _list(item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def convert(v: Any) -> tuple[Any, ...]:
        if isinstance(v, (str, bytes)) or not isinstance(v, (Sequence, np.ndarray)):
            raise TypeError
        return tuple(item(x) for x in v)

    return convert


CONVERT: Final[dict[Kind, Callable[[Any], Any]]] = {
    Kind.INT: _int,
    Kind.FLOAT: _float,
    Kind.BOOL: _bool,
    Kind.STRING: _string,
    Kind.TYPE: _type,
    Kind.TENSOR: lambda v: v,
    Kind.LIST_INT: _list(_int),
    Kind.LIST_FLOAT: _list(_float),
    Kind.LIST_BOOL: _list(_bool),
    Kind.LIST_STRING: _list(_string),
    Kind.LIST_TYPE: _list(_type),
    Kind.LIST_LIST_INT: _list(_list(_int)),
    Kind.LIST_LIST_FLOAT: _list(_list(_float)),
}


def make(kind: Kind, value: Any, name: str = "attribute") -> Attr:
    """Convert a Python value to a typed attribute.

    Raises:
        GraphError: GE3002 if the value is not of that kind; bool is never taken for Int or Float.
    """
    try:
        return Attr(kind, CONVERT[kind](value))
    except (TypeError, ValueError):
        raise GraphError(
            "GE3002", f"{name} must be {kind.value}, got {type(value).__name__} {value!r}", next=dtypes.spelling(value)
        ) from None


def _constructor(kind: Kind, name: str) -> Callable[[Any], Attr]:
    def construct(value: Any) -> Attr:
        return make(kind, value)

    construct.__name__ = construct.__qualname__ = name
    construct.__doc__ = f"A typed {kind.value} attribute."
    return construct


Int = _constructor(Kind.INT, "Int")
Float = _constructor(Kind.FLOAT, "Float")
Bool = _constructor(Kind.BOOL, "Bool")
Str = _constructor(Kind.STRING, "Str")
DataType = Type = _constructor(Kind.TYPE, "DataType")
Tensor = _constructor(Kind.TENSOR, "Tensor")
ListInt = _constructor(Kind.LIST_INT, "ListInt")
ListFloat = _constructor(Kind.LIST_FLOAT, "ListFloat")
ListBool = _constructor(Kind.LIST_BOOL, "ListBool")
ListStr = _constructor(Kind.LIST_STRING, "ListStr")
ListDataType = _constructor(Kind.LIST_TYPE, "ListDataType")
ListListInt = _constructor(Kind.LIST_LIST_INT, "ListListInt")
ListListFloat = _constructor(Kind.LIST_LIST_FLOAT, "ListListFloat")
