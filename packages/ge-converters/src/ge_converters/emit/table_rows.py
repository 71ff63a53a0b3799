"""Rows added up by the row of a table that they belong to: gradients of embeddings."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import cast
from ge_converters.emit.compute_types import carried
from ge_graph import Tensor
from ge_graph import ops as ge


def rows_added(rows: Tensor, indices: Tensor, count: Any, padding_idx: Any, scale_grad_by_freq: bool) -> Tensor:
    """The gradient of a table from those of the rows that were read.

    EmbeddingDenseGrad has the number of rows as an attribute; where it is symbolic, UnsortedSegmentSum adds them up.

    Args:
        rows: ``[*n, d]``.
        indices: ``[*n]``, which row of the table each one is.
        count: Rows of the table; a number or a scalar.
        padding_idx: The row that has no gradient, negative for none; a number or a scalar.
        scale_grad_by_freq: Divide each row by how often it was read.
    """
    (x,), back = carried("EmbeddingDenseGrad", rows)
    if not isinstance(count, Tensor) and not isinstance(padding_idx, Tensor):
        return back(
            ge.EmbeddingDenseGrad(
                x, indices, num_weights=count, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq
            )
        )
    if scale_grad_by_freq:
        read = ge.UnsortedSegmentSum(cast(ge.OnesLike(indices), x.dtype), indices, count)
        x = ge.RealDiv(x, ge.Unsqueeze(ge.GatherV2(read, indices, 0), axes=[-1]))
    if isinstance(padding_idx, Tensor) or padding_idx >= 0:
        index = ge.Const(padding_idx, dtype=indices.dtype) if isinstance(padding_idx, int) else padding_idx
        padded = ge.Unsqueeze(ge.Equal(indices, cast(index, indices.dtype)), axes=[-1])
        x = ge.MaskedFill(x, padded, ge.Const(0.0, dtype=x.dtype))
    return back(ge.UnsortedSegmentSum(x, indices, count))
