"""Linear maps along single axes: adaptive means and interpolation as products with small matrices.

The matrix of an axis is computed in the graph from the sizes, so it serves every size; rows are results, columns are
inputs. The gradient is the product with the transposed matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge_converters.base.dtypes import cast
from ge_converters.emit.shapes import Size, places, scalar
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_F32 = DataType.DT_FLOAT


def adaptive_mean(length: Size, count: Size) -> Tensor:
    """Matrix [count, length]; row i averages floor(i * length / count) up to ceil((i + 1) * length / count)."""
    n, m = scalar(length), scalar(count)
    row, column = places(count, 0), places(length, 1)
    begin = ge.FloorDiv(ge.Mul(row, n), m)
    end = ge.FloorDiv(ge.Add(ge.Mul(ge.Add(row, 1), n), ge.Sub(m, 1)), m)
    inside = ge.LogicalAnd(ge.GreaterEqual(column, begin), ge.Less(column, end))
    weights: Tensor = ge.RealDiv(cast(inside, _F32), cast(ge.Sub(end, begin), _F32))
    return weights


def linear_interpolation(length: Size, count: Size, source: Tensor) -> Tensor:
    """Matrix [count, length] that mixes the two places around ``source`` [count, 1], clamped to the ends."""
    last = cast(ge.Sub(scalar(length), 1), _F32)
    at = ge.Minimum(ge.Maximum(source, ge.Const(0.0, dtype=_F32)), last)
    distance = ge.Abs(ge.Sub(cast(places(length, 1), _F32), at))
    weights: Tensor = ge.Relu(ge.Sub(ge.Const(1.0, dtype=_F32), distance))
    return weights


def selection(length: Size, source: Tensor) -> Tensor:
    """Matrix [count, length] that picks place ``source`` [count, 1] (int64), clamped to the last one."""
    at = ge.Minimum(source, ge.Sub(scalar(length), 1))
    weights: Tensor = cast(ge.Equal(places(length, 1), at), _F32)
    return weights


def _leading(matrix: Tensor, rank: int) -> Tensor:
    return ge.Unsqueeze(matrix, axes=list(range(rank - 2))) if rank > 2 else matrix


def apply_to_axes(x: Tensor, matrices: Sequence[tuple[int, Tensor]], rank: int, *, transposed: bool = False) -> Tensor:
    """Map each named axis of ``x`` by its matrix.

    Args:
        x: float32.
        matrices: (axis, matrix) pairs.
        rank: Rank of ``x``.
        transposed: Use the transposed matrices: the gradient.
    """
    for axis, matrix in matrices:
        if axis == rank - 2:
            x = ge.BatchMatMulV2(_leading(matrix, rank), x, adj_x1=transposed)
            continue
        order: list[Any] = [*range(rank)]
        order[axis], order[-1] = order[-1], order[axis]
        moved = x if axis == rank - 1 else ge.Transpose(x, order)
        moved = ge.BatchMatMulV2(moved, _leading(matrix, rank), adj_x2=not transposed)
        x = moved if axis == rank - 1 else ge.Transpose(moved, order)
    return x
