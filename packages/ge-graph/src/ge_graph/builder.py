"""Appending nodes: constants (deduplicated), graph inputs, nodes whose result types no rule can tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ge_graph import attrs as attr_kinds
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType, as_dtype, from_numpy
from ge_graph.errors import GraphError
from ge_graph.infer import value_dtype
from ge_graph.ir import Graph, Literal, Node, Operand, Shape, Tensor

_SHARED_BYTES: Final = (
    64 * 1024
)  # above that a constant is recognised by identity: hashing weights costs more than it saves
_READABLE_ITEMS: Final = 64
ONLY_INT: Final = {int}  # the types in a list of plain ints: neither bools nor symbols


def as_value(value: Any, dtype: DataType | None = None) -> np.ndarray[Any, Any] | Literal:
    """A Python number, list, array or ``Literal`` as the value of a constant.

    Without ``dtype`` an array keeps its type, ints become INT64, floats FLOAT, bools BOOL.

    Raises:
        GraphError: GE3015 if the value does not fit the type (a fraction for an integer, an overflow), or is not
            an array.
    """
    if isinstance(value, Literal):
        if dtype is not None and dtype != value.dtype:
            raise GraphError("GE3015", f"constant is {value.dtype.name}, wanted {dtype.name}", next="add ge.Cast")
        return value
    array = value if isinstance(value, np.ndarray) else _array(value)
    if dtype is None:
        if not isinstance(value, (np.ndarray, np.generic)) and array.dtype == np.float64:
            array = array.astype(np.float32)
        from_numpy(array.dtype)  # refuses types that GE lacks
        return array
    if dtype is DataType.DT_BF16:
        return _bfloat16(array)
    target = dtype.numpy
    if array.dtype == target:
        return array
    real = array.real if array.dtype.kind == "c" and target.kind != "c" else array
    with np.errstate(all="ignore"):
        converted = real.astype(target)
    if (target.kind in "iub" or real is not array) and not np.array_equal(
        converted, array, equal_nan=target.kind == "f"
    ):
        raise GraphError(
            "GE3015",
            f"constant {value!r} does not fit {dtype.name}",
            next="choose a type that holds the value, or cast the other operand",
        )
    return converted


def _array(value: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.array(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        advice = (
            "give numbers, lists of numbers, numpy arrays; of a torch tensor x.detach().float().numpy() and a dtype"
        )
        raise GraphError("GE3015", f"{value!r} is not a constant: {error}", next=advice) from None
    if array.dtype.kind not in "biufc":
        raise GraphError(
            "GE3015",
            f"{type(value).__name__} {value!r} is not a constant",
            next="give numbers, lists of numbers, numpy arrays",
        )
    return array.astype(np.int64) if array.size == 0 and isinstance(value, (list, tuple)) else array


def _bfloat16(array: np.ndarray[Any, Any]) -> Literal:
    """Round to nearest even, NaN stays NaN."""
    with np.errstate(all="ignore"):
        single = np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)
    bits = single.view(np.uint32) if single.ndim else single.reshape(1).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    rounded = np.where(np.isnan(single.reshape(bits.shape)), (bits >> 16) | 0x0040, rounded).astype("<u2")
    return Literal(DataType.DT_BF16, tuple(array.shape), rounded.reshape(-1).view(np.uint8))


def constant(
    graph: Graph, value: Any, name: str | None = None, *, dtype: DataType | None = None, readable: bool = False
) -> Tensor:
    """The Const node of a value; the same value in the same graph gives the same node.

    Values up to 64 KiB are the same if type, shape and bytes are; above that, if they are one object. A node that is
    given a ``name`` is never shared.

    Args:
        graph: Where the node lives.
        value: numpy array, ``Literal``, number or (nested) list of numbers. Large arrays are not copied.
        name: Node name.
        dtype: Element type to convert to.
        readable: Also keep the value as text in the attribute ``_readable_value``.
    """
    known: dict[Any, Tensor] | None = graph.memo.get("constants")
    if known is None:
        known = graph.memo["constants"] = {}
    key = shortcut = None
    if name is None:
        # 0.0 equals -0.0 and True equals 1, so the type is part of the key and zero takes the long way
        kind = type(value)
        if kind in (int, float, bool) and value:
            shortcut = (kind, value, dtype)
        elif kind is list and len(value) <= _READABLE_ITEMS and set(map(type, value)) == ONLY_INT:
            shortcut = (kind, tuple(value), dtype)
        if shortcut is not None:
            existing = known.get(shortcut)
            if existing is not None and _alive(graph, existing):
                return _with_text(existing) if readable else existing
        converted = as_value(value, dtype)
        key = _key(converted)
        existing = known.get(key)
        if existing is not None and _alive(graph, existing):
            return _with_text(existing) if readable else existing
    else:
        converted = as_value(value, dtype)
    if isinstance(converted, np.ndarray) and converted is value and converted.nbytes <= _SHARED_BYTES:
        converted = converted.copy()  # the caller may go on writing to it
    node = graph.add(
        "Const",
        (),
        {"value": Attr(Kind.TENSOR, converted)},
        ((value_dtype(converted), tuple(converted.shape)),),
        name=name,
    )
    for scoped in graph.scope_attrs:  # a constant runs on no stream, and other scopes share it
        node.attrs.pop(scoped, None)
    if readable:
        _with_text(node.outputs[0])
    if key is not None:
        known[key] = node.outputs[0]
    if shortcut is not None:
        known[shortcut] = node.outputs[0]
    return node.outputs[0]


def _alive(graph: Graph, tensor: Tensor) -> bool:
    """Passes may have dropped the node meanwhile."""
    return graph._names.get(tensor.node.name) is tensor.node


def _key(value: np.ndarray[Any, Any] | Literal) -> tuple[Any, ...]:
    data = value.data if isinstance(value, Literal) else value
    kind = value.dtype if isinstance(value, Literal) else value.dtype.num
    if data.nbytes > _SHARED_BYTES:
        return (id(value), kind)
    return (kind, value.shape, data.tobytes())


def _with_text(tensor: Tensor) -> Tensor:
    attrs = tensor.node.attrs
    if "_readable_value" not in attrs:
        attrs["_readable_value"] = Attr(Kind.STRING, _readable(attrs["value"].value))
    return tensor


def _readable(value: np.ndarray[Any, Any] | Literal) -> str:
    if isinstance(value, Literal):
        return f"{value.dtype.name} {list(value.shape)}"
    if value.size > _READABLE_ITEMS:
        return f"{value.dtype.name} {list(value.shape)}, first {value.reshape(-1)[:8].tolist()}"
    return repr(value.tolist())


def data(
    graph: Graph, *, index: int, dtype: DataType, shape: Shape | None, placement: str = "NPU", name: str | None = None
) -> Tensor:
    """A graph input.

    Args:
        graph: Where the node lives.
        index: Position among the graph's inputs.
        dtype: Element type.
        shape: One int or symbolic text a dimension; None where not even their number is known.
        placement: ``NPU``, or ``CPU`` for sizes that the host knows.
        name: Node name.

    Raises:
        GraphError: GE3016 for another placement or a negative index.
    """
    if placement not in ("NPU", "CPU") or index < 0:
        raise GraphError(
            "GE3016",
            f"Data with index {index} and placement {placement!r}: index must be 0 or more, placement NPU or CPU",
        )
    attrs = {"index": attr_kinds.Int(index), "_placement": attr_kinds.Str(placement)}
    node = graph.add("Data", (None,), attrs, ((as_dtype(dtype), None if shape is None else tuple(shape)),), name=name)
    for scoped in graph.scope_attrs:
        node.attrs.pop(scoped, None)
    return node.outputs[0]


def add_node(
    graph: Graph,
    op: str,
    inputs: Sequence[Operand],
    attrs: Mapping[str, Attr],
    output_dtypes: Iterable[DataType],
    *,
    name: str | None = None,
    dependencies: Iterable[Tensor] = (),
) -> Node:
    """Append a node with given result types, for operators whose result types no rule can tell.

    ``ge_graph.verify`` checks it as any other node.
    """
    node = graph.add(op, inputs, dict(attrs), [(d, None) for d in output_dtypes], name=name)
    node.control.extend(dict.fromkeys(t.node for t in dependencies))
    return node
