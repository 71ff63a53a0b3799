"""Which of a vocabulary's scores may still be drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.errors import refused


@kernel("ApplyTopKTopPWithSorted", source="torch_npu: npu_top_k_top_p, documentation")
def apply_top_k_top_p_with_sorted(
    sorted_value: Tensor,
    sorted_indices: Tensor,
    p: Tensor | None = None,
    k: Tensor | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """Scores (B, V) in their own order, -inf for those outside the k largest or the probability p.

    ``sorted_value`` rises along the last axis. Of the probabilities, summed from the least, those up to ``1 - p`` go;
    the largest stays.
    """
    if logits is not None:
        raise refused("ApplyTopKTopPWithSorted", "logits is fed; the definition does not say what it is for")
    x, size = wide(sorted_value), sorted_value.shape[-1]
    if k is not None:
        if ((k < 1) | (k > size)).any():
            raise refused("ApplyTopKTopPWithSorted", f"k is {k.tolist()} of {size} scores", "give 1 to that many")
        least = x.gather(1, (size - k.long()).unsqueeze(1))
        x = x.masked_fill(x < least, float("-inf"))
    if p is not None:
        total = torch.softmax(x, -1).cumsum(-1)
        gone = total <= 1 - wide(p).unsqueeze(1)
        gone[:, -1] = False
        x = x.masked_fill(gone, float("-inf"))
    return torch.empty_like(x).scatter_(1, sorted_indices.long(), x).to(sorted_value.dtype)
