"""Composite operators in programs that a device captures: its own kernels run them, unless one stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ge_converters.base.device_composites import attention_of_products, decomposition_rules, device_kernel
from ge_converters.base.torch_compat import surely

_CAUSAL_MASK: Final = (2048, 2048)  # what the fused operator asks for with sparse_mode 2, whatever the sizes

WHOLE: Final = (torch.ops.aten.index_copy.default,)
"""What is composed for GE alone: the device's own kernel is one task, and writes in place."""


def rules() -> dict[Any, Callable[..., Any]]:
    """For a table of decompositions of programs that a device captures: where its kernel stands in the way.

    The others stay whole. Measured on torch_npu 2.13: these fix sizes that are symbolic, launch what no capture takes,
    or cannot be traced.
    """
    aten = torch.ops.aten
    in_the_way = (
        aten._weight_norm.default,
        aten.fill_diagonal_.default,
        aten.flatten_dense_tensors.default,
        aten.gru.data,
        aten.gru.input,
        aten.gru_cell.default,
        aten.lstm.data,
        aten.lstm.input,
        aten.lstm_cell.default,
    )
    composed = decomposition_rules()
    found = {op: composed[op] for op in in_the_way if op in composed}
    sdpa = aten.scaled_dot_product_attention.default
    return {**found, sdpa: _attention} if sdpa in composed else found


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The device's kernel; where it would fix a size, the operators that it takes, as seen in torch_npu 2.13.

    Those are its fused attention without a mask, with a mask of bool or a causal one, else products and a softmax.
    """
    aten = torch.ops.aten
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if all(type(size) is int for t in tensors for size in (*t.shape, *t.stride())):
        return device_kernel(
            aten.scaled_dot_product_attention.default,
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    fused = getattr(torch.ops.npu, "npu_fusion_attention_v3", None)
    if fused is None or dropout_p or enable_gqa or not _fused(query, key, value, attn_mask, is_causal):
        return attention_of_products(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    more: dict[str, Any] = {}
    if is_causal:
        hidden = torch.ones(_CAUSAL_MASK, dtype=torch.bool, device=query.device).triu(1)
        more = {"atten_mask": hidden, "next_tockens": 0, "sparse_mode": 2}
    elif attn_mask is not None:
        more = {"atten_mask": attn_mask.logical_not(), "inner_precise": 2}
    width = query.shape[3]
    return fused.default(
        query, key, value, query.shape[1], "BNSD", scale=width**-0.5 if scale is None else scale, **more
    )[0]


def _fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> bool:
    """Whether the fused attention takes operands of these looks: [batch, heads, tokens, width]; a mask for each
    batch, or one for all."""
    if any(t.dim() != 4 or t.dtype is not query.dtype for t in (query, key, value)):
        return False
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if any(type(t.shape[dim]) is not int for t in (query, key, value) for dim in (1, 3)):
        return False
    if not query.shape[1] == key.shape[1] == value.shape[1] or not query.shape[3] == key.shape[3] == value.shape[3]:
        return False
    if mask is None:
        return True
    if causal or mask.dtype is not torch.bool or mask.dim() not in (2, 4):
        return False
    if mask.dim() == 4 and (not surely(mask.shape[0] == query.shape[0]) or mask.shape[1] not in (1, query.shape[1])):
        return False
    return surely(mask.shape[-2] == query.shape[2]) and surely(mask.shape[-1] == key.shape[2])
