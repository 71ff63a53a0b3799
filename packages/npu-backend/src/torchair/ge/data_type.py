"""Element types in all spellings that are in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ge_graph import DataType as _DataType
from torchair.names import missing

_SPELLINGS: Final = {
    "DT_FLOAT32": "DT_FLOAT",
    "DT_FLOAT64": "DT_DOUBLE",
    "DT_BFLOAT16": "DT_BF16",
    "DT_HALF": "DT_FLOAT16",
}


class _TypeNames(type):
    """Names of element types, in all spellings that are in use."""

    def __getattr__(cls, name: str) -> Any:
        dtype = getattr(_DataType, _SPELLINGS.get(name, name), None)
        if dtype is None or name.startswith("__"):
            raise missing("torchair.ge.DataType", name, [m.name for m in _DataType])
        return dtype

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _DataType)

    def __call__(cls, value: Any) -> Any:
        return _DataType(value)

    def __iter__(cls) -> Iterator[Any]:
        return iter(_DataType)


class DataType(metaclass=_TypeNames):
    """``ge.DataType`` with further spellings: ``DT_FLOAT32``, ``DT_BFLOAT16``; ``DT_MAX`` is the number of types."""

    DT_MAX = 42
