"""Arithmetic rules that the kernels of neural-network operators share.

16-bit floats are widened to float32, computed there and rounded once, unless the ATen operator does that itself. Which
forms of an operator are not implemented is said by ``errors.refused``, never by a wrong number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

HALVES: Final = (torch.float16, torch.bfloat16)
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


def wide(x: Tensor) -> Tensor:
    """``x`` in the type its arithmetic is done in: float32 for 16-bit floats, else its own."""
    return x.float() if x.dtype in HALVES or x.dtype in FLOAT8 else x


def rounded(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A kernel that computes ``formula`` on widened operands and rounds once, to the type of the first operand."""

    @wraps(formula)
    def run(*operands: Any, **attrs: Any) -> Tensor:
        widened = (wide(x) if isinstance(x, Tensor) else x for x in operands)
        return formula(*widened, **attrs).to(operands[0].dtype)

    return run


def number(value: Any) -> float:
    """The number of a one-element operand."""
    return float(value.reshape(-1)[0].item() if isinstance(value, Tensor) else value)


def axis_list(axes: Sequence[int], rank: int) -> list[int]:
    """Non-negative, sorted, unique axes; an empty list means every axis."""
    return sorted({a % max(rank, 1) for a in axes}) if axes else list(range(rank))


def keep_bits(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The first bits of a byte array, least significant first, as booleans of ``shape``."""
    bits = (mask.reshape(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.reshape(-1)[: math.prod(shape)].reshape(tuple(shape)).bool()


def sum_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum ``x`` over the axes along which an operand of ``shape`` was broadcast."""
    lead = x.dim() - len(shape)
    axes = [*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1)]
    return (x.sum(axes, keepdim=True) if axes else x).reshape(tuple(shape))


def saturate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round half to even and clamp to the range of an integer type; 8-bit floats are only rounded to their format."""
    if dtype in FLOAT8:
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype)
    info = torch.iinfo(dtype)
    return torch.nan_to_num(torch.round(x)).clamp(info.min, info.max).to(dtype)


def unpack_quant_parameter(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and offset out of the 64-bit form: float32 bits below, a signed 9-bit offset at bit 37.

    16- and 32-bit float scales come back widened, with offset 0.
    """
    if scale.dtype not in (torch.int64, torch.uint64):
        return scale.float(), torch.zeros((), dtype=torch.float32)
    bits = scale.contiguous().view(torch.int64)
    low = (bits & 0xFFFFFFFF).to(torch.int64)
    low = torch.where(low >= 2**31, low - 2**32, low).to(torch.int32)
    offset = (bits >> 37) & 0x1FF
    offset = torch.where(offset >= 256, offset - 512, offset).float()
    return low.view(torch.float32), offset
