"""Tensors on addresses. The memory belongs to the program that runs on the emulator and outlives the call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from ge_emulator.refusal import INVALID, Refusal


def flat(address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """``count`` elements from an address on."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if address == 0:
        raise Refusal(INVALID, f"a null address stands for {count} elements of {dtype}")
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype)


def contiguous(address: int, dtype: torch.dtype, dims: Sequence[int]) -> torch.Tensor:
    """A dense tensor at an address."""
    return flat(address, dtype, math.prod(dims)).view(tuple(dims))


def strided(address: int, dtype: torch.dtype, dims: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """A view at an address; strides and offset in elements."""
    if 0 in dims:
        return torch.empty(tuple(dims), dtype=dtype)
    reach = sum((d - 1) * s for d, s in zip(dims, strides)) + 1
    return flat(address + offset * dtype.itemsize, dtype, reach).as_strided(tuple(dims), tuple(strides))
