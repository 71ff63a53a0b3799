"""Arithmetic rules that the kernels of neural-network operators share.

16-bit floats are widened to float32, computed there and rounded once, unless the ATen operator does that itself. Which
forms of an operator are not implemented is said by ``refuse``, never by a wrong number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_graph.errors import EngineError
from ge_runtime import errors

HALVES: Final = (torch.float16, torch.bfloat16)
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


def wide(x: Tensor) -> Tensor:
    """``x`` in the type its arithmetic is done in: float32 for 16-bit floats, else its own."""
    return x.float() if x.dtype in HALVES or x.dtype in FLOAT8 else x


def torch_dtype(code: int) -> torch.dtype:
    """The torch type of a GE header number, as attributes such as ``dst_type`` carry it.

    Raises:
        EngineError: GE4009 if torch has no such type.
    """
    name = DataType(code).torch_name
    dtype = getattr(torch, name, None) if name else None
    if not isinstance(dtype, torch.dtype):
        raise refuse("element type", f"{DataType(code).name} has no torch type")
    return dtype


def refuse(op: str, what: str, next: str = "") -> EngineError:
    """The error for a form of ``op`` that is not defined or that the CPU engine does not compute."""
    return errors.refused(op, f"{what}; {next}" if next else what)


def ints(value: Any) -> list[int]:
    """Numbers of a small integer operand, which reaches a kernel as a tensor or as plain Python ints."""
    if isinstance(value, Tensor):
        return [int(v) for v in value.reshape(-1).tolist()]
    if isinstance(value, (int, float)):
        return [int(value)]
    return [int(v) for v in value]


def number(value: Any) -> float:
    """The number of a one-element operand."""
    return float(value.reshape(-1)[0].item() if isinstance(value, Tensor) else value)


def axis_list(axes: Sequence[int], rank: int) -> list[int]:
    """Non-negative, sorted, unique axes; an empty list means every axis."""
    return sorted({a % max(rank, 1) for a in axes}) if axes else list(range(rank))


def reduced(loss: Tensor, reduction: str, dtype: torch.dtype) -> Tensor:
    """Apply a ``none``/``mean``/``sum`` attribute to a loss in its arithmetic type, then round to ``dtype``."""
    if reduction == "mean":
        return loss.mean().to(dtype)
    if reduction == "sum":
        return loss.sum().to(dtype)
    if reduction != "none":
        raise refuse("loss", f"reduction is {reduction!r}, accepted: none, mean, sum")
    return loss.to(dtype)


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


def volume(shape: Sequence[int]) -> int:
    """Number of elements."""
    return math.prod(shape)


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
