"""Embedding bags and gradients of embedding tables."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_MODES: Final = {"sum": 0, "mean": 1, "max": 2}


@kernel("EmbeddingDenseGrad", source="ops-nn: index/embedding_dense_grad, documentation and kernel")
def embedding_dense_grad(
    grad: Tensor, indices: Tensor, *, num_weights: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Tensor:
    """Sum of gradient rows by index into (num_weights, D); the row ``padding_idx`` stays zero, negative: none."""
    if scale_grad_by_freq and indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < num_weights:
        raise refused("EmbeddingDenseGrad", f"an index lies outside of the {num_weights} rows, whose uses are counted")
    rows = grad.reshape(indices.numel(), grad.shape[-1])
    table = _ATEN.embedding_dense_backward.default(
        wide(rows), indices.reshape(-1).long(), num_weights, padding_idx, scale_grad_by_freq
    )
    return table.to(grad.dtype)  # type: ignore[no-any-return]


@kernel("EmbeddingBag", ignores=("scale_grad_by_freq", "sparse"), source="ops-nn: index/embedding_bag, documentation")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str = "mean",
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, offset2bag, bag_size, max_indices); 2-D indices are one bag a row. An empty bag is zero."""
    if mode not in _MODES:
        raise refused("EmbeddingBag", f"mode is {mode!r}, accepted: {', '.join(_MODES)}")
    if indices.dim() == 2:
        count = indices.shape[1]
        offsets = torch.arange(0, indices.numel(), max(count, 1), dtype=indices.dtype)
        indices, include_last_offset = indices.reshape(-1), False
        per_sample_weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    if offsets is None:
        raise refused("EmbeddingBag", "1-D indices need offsets", "feed offsets")
    if (
        indices.numel() and offsets.numel() <= include_last_offset
    ):  # ATen writes the greatest of a bag that it has not made
        raise refused("EmbeddingBag", f"{indices.numel()} indices in no bag", "begin offsets with 0")
    if offsets.numel() and (offsets[0] != 0 or (offsets.diff() < 0).any() or offsets[-1] > indices.numel()):
        raise refused(
            "EmbeddingBag", f"offsets {offsets.tolist()[:8]}", "begin with 0 and go up to the count of indices"
        )
    # ATen reads indices and offsets as if they were contiguous.
    indices, offsets = indices.contiguous(), offsets.to(indices.dtype).contiguous()
    y, bag_of, size, top = _ATEN._embedding_bag.default(
        weight,
        indices,
        offsets,
        False,
        _MODES[mode],
        False,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    if bag_of.shape != indices.shape:  # ATen leaves it empty where its own gradient does not need it
        bag_of = torch.searchsorted(offsets, torch.arange(indices.numel(), dtype=offsets.dtype), right=True) - 1
    return y, bag_of.to(indices.dtype), size, top
