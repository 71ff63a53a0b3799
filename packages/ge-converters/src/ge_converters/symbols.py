"""Sizes as graph values."""

from __future__ import annotations

from collections.abc import Sequence

from ge_graph import DataType, Tensor


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
    if not any(isinstance(s, Tensor) for s in sizes):
        return [int(s) for s in sizes]  # type: ignore[arg-type]
    from ge_graph import ops as ge

    from ge_converters.dtypes import dtype_promote

    scalars = [dtype_promote(s, target_dtype=dtype) for s in sizes]
    packed: Tensor = ge.Pack(scalars, N=len(scalars), axis=0)
    packed.record_shape((len(scalars),))
    return packed
