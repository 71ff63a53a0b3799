"""Import path of existing scripts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

from ge_graph import DataType, Format, Graph, Tensor, TensorSpec, current_graph
from ge_graph.ops import Const

__all__ = [
    "DataType",
    "Format",
    "Tensor",
    "TensorSpec",
    "TensorType",
    "auto_convert_to_tensor",
    "get_default_ge_graph",
]


class TensorType(Enum):
    """Groups of element types in operator definitions."""

    TT_ALL = 1
    TT_UNKNOWN = 2
    TT_NUMBER = 3
    TT_INDEX_NUMBER = 4
    TT_FLOAT = 5
    TT_BASIC = 6
    TT_REAL_NUMBER = 7
    TT_INT = 8
    TT_STRING = 9


def get_default_ge_graph() -> Graph:
    """The graph that ``ge.*`` calls append to.

    Errors: GraphError GE3006 if none is being built.
    """
    return current_graph()


def auto_convert_to_tensor(value: Any, optional: Any = None) -> Any:
    """Plain values as constants, in two uses.

    ``auto_convert_to_tensor(3, dtype)`` gives a GE tensor. ``@auto_convert_to_tensor([False, True], [True, False])``
    decorates a generated operator function: one entry an input says whether it is dynamic, and whether it is optional.
    """
    if isinstance(value, list) and all(isinstance(v, bool) for v in value) and isinstance(optional, list):
        return functools.partial(_converting, value)
    return _tensor(value, optional)


def _tensor(value: Any, dtype: DataType | int | None = None) -> Tensor:
    return value if isinstance(value, Tensor) else Const(value, dtype)


def _converting(dynamic: list[bool], fn: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(fn)
    inputs = list(zip(list(signature.parameters)[: len(dynamic)], dynamic))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, is_list in inputs:
            given = bound.arguments.get(name)
            if given is not None:
                bound.arguments[name] = [_tensor(v) for v in given] if is_list else _tensor(given)
        return fn(*bound.args, **bound.kwargs)

    return call
