"""Attention whose sequence lengths are tensors on the device: the graph needs no number from the host.

The two ops take the arguments of torch_npu's ops of the same names; ``actual_*`` are int64 tensors in place of lists.
They exist in graphs only.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from ge_graph.errors import EngineError

__all__ = ["npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"]

_SPACE: Final = "torchair"
_SCHEMAS: Final = {
    "npu_fused_infer_attention_score": (
        "Tensor query, Tensor key, Tensor value, *",
        "pse_shift atten_mask actual_seq_lengths actual_seq_lengths_kv dequant_scale1 quant_scale1 dequant_scale2 "
        "quant_scale2 quant_offset2 antiquant_scale antiquant_offset key_antiquant_scale key_antiquant_offset "
        "value_antiquant_scale value_antiquant_offset block_table query_padding_size kv_padding_size key_shared_prefix "
        "value_shared_prefix actual_shared_prefix_len query_rope key_rope key_rope_antiquant_scale",
        "int num_heads=1, float scale=1.0, int pre_tokens=2147483647, int next_tokens=2147483647, "
        'str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, '
        "int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0, bool softmax_lse_flag=False",
    ),
    "npu_fused_infer_attention_score_v2": (
        "Tensor query, Tensor key, Tensor value, *",
        "query_rope key_rope pse_shift atten_mask actual_seq_qlen actual_seq_kvlen block_table dequant_scale_query "
        "dequant_scale_key dequant_offset_key dequant_scale_value dequant_offset_value dequant_scale_key_rope "
        "quant_scale_out quant_offset_out learnable_sink",
        "int num_query_heads=1, int num_key_value_heads=0, float softmax_scale=1.0, int pre_tokens=2147483647, "
        'int next_tokens=2147483647, str input_layout="BSH", int sparse_mode=0, int block_size=0, '
        "int query_quant_mode=0, int key_quant_mode=0, int value_quant_mode=0, int inner_precise=0, "
        "bool return_softmax_lse=False, "
        + ", ".join(
            f"int? {name}_dtype=None"
            for name in (
                "query",
                "key",
                "value",
                "query_rope",
                "key_rope",
                "key_shared_prefix",
                "value_shared_prefix",
                "dequant_scale_query",
                "dequant_scale_key",
                "dequant_scale_value",
                "dequant_scale_key_rope",
                "out",
            )
        ),
    ),
}


def _schema(name: str) -> str:
    first, tensors, rest = _SCHEMAS[name]
    optional = ", ".join(f"Tensor? {t}=None" for t in tensors.split())
    return f"{name}({first}, {optional}, {rest}) -> (Tensor, Tensor)"


def _eager(*args: Any, **kwargs: Any) -> Any:
    raise EngineError(
        "GE4032",
        "attention with lengths as tensors exists in compiled graphs only",
        next="call it inside torch.compile, or torch_npu's op with lists of lengths",
    )


def _fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any) -> Any:
    """Sizes of the results: the layout of the output is what stands after an underscore, else that of the input."""
    source, _, target = str(kwargs.get("input_layout", "BSH")).partition("_")
    heads = kwargs.get("num_heads", kwargs.get("num_query_heads", 1))
    sizes = dict(zip(source, query.shape))
    if "H" in sizes:
        sizes["N"], sizes["D"] = heads, sizes["H"] // heads
    if kwargs.get("block_table") is None and "D" in source and len(value.shape) == len(source):
        sizes["D"] = value.shape[source.index("D")]
    sizes["H"] = sizes["N"] * sizes["D"]
    quantised = kwargs.get("quant_scale2", kwargs.get("quant_scale_out")) is not None
    output = query.new_empty([sizes[d] for d in target or source], dtype=torch.int8 if quantised else query.dtype)
    if not kwargs.get("softmax_lse_flag", kwargs.get("return_softmax_lse", False)):
        return output, query.new_empty([1], dtype=torch.float32)
    rows = [sizes["T"], sizes["N"]] if "T" in sizes else [sizes["B"], sizes["N"], sizes["S"]]
    return output, query.new_empty([*rows, 1], dtype=torch.float32)


@functools.cache
def _library() -> Any:
    library = torch.library.Library(_SPACE, "FRAGMENT")
    for name in _SCHEMAS:
        library.define(_schema(name))
        library.impl(name, _eager, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_SPACE}::{name}", _fake, lib=library)
    return library


_library()


def npu_fused_infer_attention_score(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch_npu.npu_fused_infer_attention_score`` with lengths as tensors.

    Args:
        query: In the layout ``input_layout``.
        key: Same, or blocks of a paged cache with ``block_table``.
        value: Same.
        **kwargs: The other arguments of that op; ``actual_seq_lengths``, ``actual_seq_lengths_kv`` and
            ``actual_shared_prefix_len`` are int64 tensors.

    Returns:
        The attention, and the log-sum-exp of the scores, float32, of one element unless ``softmax_lse_flag``.

    Errors: EngineError GE4032 outside of a graph.
    """
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.torchair.npu_fused_infer_attention_score(
        query, key, value, **kwargs
    )
    return result


def npu_fused_infer_attention_score_v2(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch_npu.npu_fused_infer_attention_score_v2`` with ``actual_seq_qlen`` and ``actual_seq_kvlen`` as tensors.

    Args and errors as above; the log-sum-exp is asked for by ``return_softmax_lse``.
    """
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.torchair.npu_fused_infer_attention_score_v2(
        query, key, value, **kwargs
    )
    return result
