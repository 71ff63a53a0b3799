"""Sizes as operands, and the moves of elements that many converters need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.emit.arithmetic import as_content
from ge_converters.emit.compute_types import carrier, carry, move
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge
from ge_graph.builder import ONLY_INT

Size: TypeAlias = "int | Tensor"
_F32 = DataType.DT_FLOAT
_I64 = DataType.DT_INT64


def shape_operand(sizes: Sequence[int | Tensor], dtype: DataType = DataType.DT_INT64) -> list[int] | Tensor:
    """An int-list argument for a tensor port or an attribute.

    Shapes: n entries -> a list of n ints, or a 1-d tensor [n].
    Dtypes: ints and 0-d INT64 tensors -> ``dtype``.

    Args:
        sizes: As the converter got it: ints, 0-d INT64 tensors, or both.
        dtype: Type of the tensor; INT32 or INT64.

    Returns:
        The list itself if all entries are ints (a constant, once it reaches a tensor port), else one packed tensor.
    """
    if set(map(type, sizes)) == ONLY_INT:
        return list(sizes)  # type: ignore[arg-type]
    if not any(isinstance(s, Tensor) for s in sizes):
        return [int(s) for s in sizes]
    scalars = [dtype_promote(s, target_dtype=dtype) for s in sizes]
    packed: Tensor = ge.Pack(scalars, N=len(scalars), axis=0)
    packed.record_shape((len(scalars),))
    return packed


def ints(values: Sequence[int]) -> Tensor:
    """A 1-d INT64 constant, empty lists included."""
    return ge.Const([int(v) for v in values], dtype=_I64)


def int_operand(sizes: Sequence[Any]) -> Any:
    """An int-list argument for a tensor port, empty lists included."""
    return shape_operand(sizes) if len(sizes) else ints([])


def axis_size(x: Tensor, axis: int) -> Tensor:
    """Size of an axis as a 0-d int64 tensor."""
    size: Tensor = ge.GatherV2(ge.Shape(x, dtype=int(_I64)), ge.Const(axis, dtype=_I64), ge.Const(0, dtype=_I64))
    size.record_shape(())
    return size


def places(size: Size, axis: int) -> Tensor:
    """0 .. size - 1 as int64, along ``axis`` of a matrix."""
    if isinstance(size, Tensor):
        return ge.Unsqueeze(ge.Range(0, size, 1), axes=[1 - axis])
    return ge.Const(np.expand_dims(np.arange(size, dtype=np.int64), 1 - axis))


def scalar(size: Size) -> Tensor:
    """A size as a 0-d int64 tensor."""
    return size if isinstance(size, Tensor) else ge.Const(size, dtype=_I64)


def permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """Dims in another order; nothing if it is the same order."""
    order = [d % x.rank for d in order] if x.rank else []
    if order == list(range(x.rank)):
        return x
    moved = move("Transpose", x, ints(order))
    if x.known_shape is not None:  # what reads memory next asks for the rank
        moved.record_shape(tuple(x.known_shape[d] for d in order))
    return moved


def broadcast(x: Tensor, sizes: Any) -> Tensor:
    """``BroadcastTo`` in a type that it takes."""
    return move("BroadcastTo", x, sizes)


def own(x: Tensor) -> Tensor:
    """A copy that an operator may write into."""
    inner = carrier("TensorMove", x.dtype, moves=True)
    return carry(ge.TensorMove(carry(x, inner)), x.dtype)


def filled(sizes: Sequence[Any], value: Any, dtype: DataType) -> Tensor:
    """A tensor of these sizes with one value; a scalar is a plain constant."""
    scalar: Tensor = dtype_promote(as_content(value, dtype), target_dtype=dtype)
    return ge.Fill(shape_operand(sizes), scalar) if len(sizes) else scalar


def has_nothing(x: Tensor) -> bool:
    """Whether a tensor is known to have no elements; gradients that are sums over it are zeros, for which GE's
    operators take none."""
    return 0 in (x.known_shape or ())


def zeros_of(spec: TensorSpec, like: Tensor) -> Tensor:
    """Zeros as a result, whose sizes are those of ``like``."""
    sizes = [s for s in spec.size if isinstance(s, int)]
    if len(sizes) == len(spec.size):
        return filled(sizes, 0, spec.dtype)
    zeros: Tensor = cast(ge.ZerosLike(like), spec.dtype)
    return zeros


def filled_constant(sizes: Sequence[Any], value: float, dtype: DataType = _F32) -> Tensor:
    """A tensor of one value: a constant if the sizes are numbers, else Fill."""
    shape = shape_operand(sizes)
    if isinstance(shape, Tensor):
        result: Tensor = ge.Fill(shape, ge.Const(value, dtype=dtype))
        return result
    return ge.Const(np.full(shape, value, np.float32), dtype=dtype)
