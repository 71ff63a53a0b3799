"""Jagged tensors: rows of several lengths one after the other, and the padded form that most operators want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor


def padded(values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[Any], padding_value: float = 0.0) -> Tensor:
    """Each row as long as the longest; longer ones are cut.

    Shapes: values [total, ...], offsets one of [rows + 1] -> [rows, max_lengths[0], ...].
    """
    if len(offsets) != 1:
        return NotImplemented
    (ends,), (longest,) = offsets, max_lengths
    ends = ends.to(torch.int64)
    start, length = ends[:-1].unsqueeze(1), ends.diff().unsqueeze(1)
    column = torch.arange(longest, device=values.device)
    inside = column < length
    # an empty place reads the row before all others, which is padding
    pad = values.new_full((1, *values.shape[1:]), padding_value)
    at = torch.where(inside, start + column + 1, 0)
    return torch.cat([pad, values]).index_select(0, at.reshape(-1)).reshape(*at.shape, *values.shape[1:])


def jagged(dense: Tensor, offsets: Sequence[Tensor], total_L: Any = None) -> Tensor:
    """The rows one after the other; what lies beyond a padded row is zero.

    Shapes: dense [rows, longest, ...], offsets one of [rows + 1] -> [total_L, ...].
    """
    if len(offsets) != 1 or total_L is None:
        return NotImplemented
    ends = offsets[0].to(torch.int64)
    place = torch.arange(total_L, device=dense.device)
    row = (place.unsqueeze(1) >= ends[1:]).sum(1)
    column = place - ends.index_select(0, row)
    longest = dense.shape[1]
    inside = (column < longest).reshape(-1, *[1] * (dense.dim() - 2))
    at = row * longest + column.clamp(max=longest - 1)
    return torch.where(inside, dense.flatten(0, 1).index_select(0, at), 0)


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "_jagged_to_padded_dense_forward.default": padded,
    "_padded_dense_to_jagged_forward.default": jagged,
}
