"""What tracing has to know of operators of torch_npu that come without it: sizes and types of their results.

Source: torch_npu's documentation of each. An operator of which the wheel at hand knows more is left to it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.torch_compat import is_traceable

__all__ = ["register"]


def _cast_of_format(
    input: Tensor, acl_format: Any, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """The layout changes, what the tensor holds does not."""
    return input.new_empty(input.shape)


def _packs_of_int4(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    """[.., 8 n] -> [.., n]: eight numbers in one element."""
    return weight.new_empty([*weight.shape[:-1], weight.shape[-1] // 8])


def _signs_of_bits(input: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[n] of bytes -> [size, 8 n / size]."""
    return input.new_empty([size, input.shape[0] * 8 // size], dtype=dtype)


def _anchors(input: Tensor, featmap_size: Any, stride: Any, num_base_anchors: int) -> Tensor:
    """A flag for each anchor of each cell."""
    return input.new_empty([featmap_size[0] * featmap_size[1] * num_base_anchors], dtype=torch.uint8)


def _pooled_back(
    output_grad: Tensor, rois: Tensor, spatial_scale: float, group_size: int, output_dim: int, input_size: Any
) -> Tensor:
    """[images, channels, height, width]."""
    return output_grad.new_empty([rois.shape[0], output_dim * group_size**2, *input_size])


def _sums(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Two numbers a channel."""
    return tuple(input.new_empty([input.shape[1]], dtype=torch.float32) for _ in range(2))


def _both_axes(x: Tensor, dst_type: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eight bits for each element and a power of two for each 32 along the last axis; then along the last but one."""
    *lead, rows, columns = x.shape
    dtype = torch.float8_e5m2 if dst_type in (23, 291) else torch.float8_e4m3fn

    def scales(*sizes: Any) -> Tensor:
        return x.new_empty([*lead, *sizes, 2], dtype=torch.float8_e8m0fnu)

    y1, y2 = (torch.empty_like(x, dtype=dtype) for _ in range(2))
    return y1, scales(rows, (columns + 63) // 64), y2, scales((rows + 63) // 64, columns)


def _gated_both_axes(x: Tensor, *, dst_type: int = 24, **_: Any) -> Any:
    """Of half the columns."""
    return _both_axes(x.new_empty([*x.shape[:-1], x.shape[-1] // 2]), dst_type)


def _gate_slope_both_axes(x: Tensor, y_grad: Tensor, *, dst_type: int = 24, **_: Any) -> Any:
    """Of all columns."""
    return _both_axes(x, dst_type)


def _limited(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """As the scores."""
    return torch.empty_like(logits)


_UNLIKE_ITS_SCHEMA: Final[dict[str, Callable[..., Any]]] = {"npu_top_k_top_p": _limited}
"""Those of which the wheel's own is called without arguments that it wants, as torch leaves out what is a default."""

_FAKES: Final[dict[str, Callable[..., Any]]] = {
    "batch_norm_reduce": _sums,
    "npu_anchor_response_flags": _anchors,
    "npu_format_cast_": lambda input, *_, **__: input,
    "npu_format_cast_.acl_format": lambda input, *_, **__: input,
    "npu_masked_fill_range": lambda input, *_, **__: input.new_empty(input.shape),
    "npu_ps_roi_pooling_backward": _pooled_back,
    "npu_scatter": lambda input, *_, **__: input.new_empty(input.shape),
    "npu_swiglu_mx_quant_with_dual_axis": _gated_both_axes,
    "_npu_swiglu_backward_mx_quant_with_dual_axis": _gate_slope_both_axes,
    "npu_format_cast": _cast_of_format,
    "npu_format_cast.Tensor": _cast_of_format,
    "npu_convert_weight_to_int4pack": _packs_of_int4,
    "npu_sign_bits_unpack": _signs_of_bits,
}


@functools.cache
def register() -> Any:
    """Once in a process, after torch_npu has defined its operators; the library keeps what it registers."""
    library = torch.library.Library("npu", "FRAGMENT")
    for name, fake in _FAKES.items():
        operator, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.npu, operator, None), overload or "default", None)
        if op is not None and not is_traceable(op):
            torch.library.register_fake(f"npu::{name}", fake, lib=library)
    may = "allow_override" in inspect.signature(library.impl).parameters  # since torch 2.8
    for name, fake in _UNLIKE_ITS_SCHEMA.items():
        if may and _fails(getattr(torch.ops.npu, name, None)):
            library.impl(name, fake, "Meta", allow_override=True)
    return library


def _fails(operator: Any) -> bool:
    """Whether the wheel's function does not take the schema's own defaults."""
    if operator is None or not is_traceable(operator.default):
        return False
    try:
        operator(torch.empty(1, 2, device="meta"), torch.empty(1, device="meta"))
    except TypeError:
        return True
    return False
