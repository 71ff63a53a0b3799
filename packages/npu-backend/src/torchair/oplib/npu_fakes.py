"""What tracing has to know of operators of torch_npu that come without it: sizes and types of their results.

Source: torch_npu's documentation of each. An operator of which the wheel at hand knows more is left to it.
"""

from __future__ import annotations

import functools
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


_FAKES: Final[dict[str, Callable[..., Any]]] = {
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
    return library
