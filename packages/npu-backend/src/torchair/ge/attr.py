"""Typed attribute values: ``attr.Int(3)``, ``attr.Str("sum")``, ``attr.DataType(ge.DataType.DT_FLOAT)`` …"""

from __future__ import annotations

from typing import Any

from ge_graph import attrs as _attrs
from ge_graph.attrs import (
    Attr,
    Bool,
    Float,
    Int,
    ListBool,
    ListDataType,
    ListFloat,
    ListInt,
    ListListFloat,
    ListListInt,
    ListStr,
    Str,
    Tensor,
)
from ge_graph.dtypes import BY_WIRE
from torchair.names import door

__all__ = [
    "Attr",
    "Bool",
    "DataType",
    "Float",
    "Int",
    "ListBool",
    "ListDataType",
    "ListFloat",
    "ListInt",
    "ListListFloat",
    "ListListInt",
    "ListStr",
    "Str",
    "String",
    "Tensor",
    "Type",
]

__getattr__ = door(__name__)

String = Str
"""Older name of ``Str``."""


def DataType(value: Any) -> Attr:
    """A typed element type; numbers of GE's files, which ``_ge_graph`` gives out, are taken for what they mean."""
    from torchair.oplib.converter_forms.op_builder import WireType

    return _attrs.DataType(BY_WIRE[int(value)] if isinstance(value, WireType) else value)


Type = DataType
