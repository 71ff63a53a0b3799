"""Import path of existing scripts: what converter files are written with, under its older names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import torch

from ge_converters.base.dtypes import to_ge
from ge_graph import DataType as _DataType
from ge_graph import Format, Graph, GraphError, TensorSpec, building, current_graph
from ge_graph import Tensor as _Tensor
from torchair.ge import Const, DataType
from torchair.names import missing
from torchair.oplib.converter_forms import tensor_names
from torchair.oplib.converter_forms.op_builder import Desc, OpDef, OpList, WireType, wire_type

__all__ = [
    "DataType",
    "Format",
    "GeGraph",
    "Tensor",
    "TensorSpec",
    "TensorType",
    "auto_convert_to_tensor",
    "compat_as_bytes",
    "compat_as_bytes_list",
    "get_default_ge_graph",
    "get_invalid_desc",
    "next_unique_name",
    "torch_dtype_value_to_ge_proto_type",
    "torch_dtype_value_to_ge_type",
    "trans_to_list_list_float",
    "trans_to_list_list_int",
]

tensor_names.install()


class _AnyTensor(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _Tensor)

    def __call__(cls, op: Any, output_index: int = 0, *more: Any) -> Any:
        if not isinstance(op, OpDef):
            raise GraphError(
                "GE3013",
                f"Tensor takes an operator of graph.op.add(), got {type(op).__name__}",
                next="call a function of torchair.ge: it returns tensors",
            )
        return op.output(output_index)


class Tensor(metaclass=_AnyTensor):
    """``ge.Tensor`` as a name for annotations and ``isinstance``; ``Tensor(op, 0)`` is an output of an ``OpDef``."""


class GeGraph:
    """A GE graph: ``with GeGraph() as graph:`` builds one, ``graph.op.add()`` adds an operator to it.

    Args:
        graph: The graph; None makes one.
        name: Name of a new graph.
    """

    def __init__(self, graph: Graph | None = None, name: str = "graph") -> None:
        self.graph = Graph(name) if graph is None else graph
        self.op = OpList()
        self._building: Any = None

    def __enter__(self) -> GeGraph:
        self._building = building(self.graph)
        self._building.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._building.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["graph"], name)


def get_default_ge_graph() -> GeGraph:
    """The graph that ``ge.*`` calls append to.

    Errors: GraphError GE3006 if none is being built.
    """
    return GeGraph(current_graph())


def get_invalid_desc() -> Desc:
    """The description of an optional input that is not fed."""
    return Desc()


def next_unique_name(name: str | None, op: str) -> str:
    """A name for a node: the given one, else one that nobody has."""
    return name if name else current_graph().unique_name(op)


def compat_as_bytes(value: Any) -> bytes:
    """A text as bytes, bytes as they are."""
    return value if isinstance(value, bytes) else str(value).encode()


def compat_as_bytes_list(values: Sequence[Any]) -> list[bytes]:
    """Texts as bytes."""
    return [compat_as_bytes(v) for v in values]


def trans_to_list_list_int(values: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows of ints, for attributes of that kind."""
    return [[int(v) for v in row] for row in values]


def trans_to_list_list_float(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Rows of floats, for attributes of that kind."""
    return [[float(v) for v in row] for row in values]


# c10::ScalarType: the numbers by which operators of torch_npu say an element type.
_SCALAR_TYPES: Final = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "bool",
    12: "qint8",
    13: "quint8",
    14: "qint32",
    15: "bfloat16",
    16: "quint4x2",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    27: "uint16",
    28: "uint32",
    29: "uint64",
    44: "float8_e8m0fnu",
}
# Numbers of torch_npu's own, for types that torch has under another number, or not at all.
_NPU_TYPES: Final = {
    285: _DataType.DT_INT4,
    290: _DataType.DT_HIFLOAT8,
    291: _DataType.DT_FLOAT8_E5M2,
    292: _DataType.DT_FLOAT8_E4M3FN,
    293: _DataType.DT_FLOAT8_E8M0,
    296: _DataType.DT_FLOAT4_E2M1,
    297: _DataType.DT_FLOAT4_E1M2,
}


def torch_dtype_value_to_ge_type(value: Any) -> _DataType:
    """The GE type of a torch type given as a number of torch's or torch_npu's, or as itself.

    Errors: GraphError GE3001 for a number that neither has.
    """
    if type(value) is int and value in _NPU_TYPES:
        return _NPU_TYPES[value]
    if isinstance(value, (torch.dtype, _DataType)):
        return to_ge(value)
    name = _SCALAR_TYPES.get(value)
    if name is None or not hasattr(torch, name):
        raise GraphError("GE3001", f"{value!r} is not a number of a torch type", next="pass the torch.dtype itself")
    return to_ge(getattr(torch, name))


def torch_dtype_value_to_ge_proto_type(value: Any) -> WireType:
    """As ``torch_dtype_value_to_ge_type``, in the numbering of GE's files."""
    return wire_type(torch_dtype_value_to_ge_type(value))


def _ge_dtype_to_ge_proto_dtype(dtype: Any) -> WireType:
    return wire_type(_DataType(int(dtype)))


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


def auto_convert_to_tensor(value: Any, optional: Any = None) -> Any:
    """Plain values as constants, in two uses.

    ``auto_convert_to_tensor(3, dtype)`` gives a GE tensor. ``@auto_convert_to_tensor([False, True], [True, False])``
    decorates a generated operator function: one entry per input says whether it is dynamic, and whether it is optional.
    """
    if isinstance(value, list) and all(isinstance(v, bool) for v in value) and isinstance(optional, list):
        return functools.partial(_converting, value)
    return _tensor(value, optional)


def _tensor(value: Any, dtype: Any = None) -> Any:
    return value if isinstance(value, _Tensor) else Const(value, dtype)


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


def __getattr__(name: str) -> Any:
    raise missing("torchair.ge._ge_graph", name, __all__)
