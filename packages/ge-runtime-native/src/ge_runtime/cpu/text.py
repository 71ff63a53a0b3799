"""Tensors as text, the way StringFormat writes them, and text as tensors.

The engine's values are torch tensors, and torch has no text: a scalar of type DT_STRING travels as the uint8 tensor of
its UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_DIGITS = {"float32": (6, 9), "float64": (15, 17), "float16": (6, 9)}


def summarize(value: torch.Tensor, ends: int) -> str:
    """``[0 1 2 ... 7 8 9]``: the elements, at most ``ends`` at either end of each dimension.

    Args:
        value: Any real type.
        ends: -1 shows every element; so does a number that covers a dimension.
    """
    plain = value.detach().cpu()
    array = (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()
    return _dim(array, 0, array.ndim, max(array.shape, default=1) if ends < 0 else ends)


def _dim(array: np.ndarray[Any, Any], depth: int, dims: int, ends: int) -> str:
    if depth == dims:
        return element(array)
    gap = " " if depth == dims - 1 else "\n" * (dims - 1 - depth) + " " * (depth + 1)
    return f"[{gap.join(_parts(array, depth, dims, ends))}]"


def _parts(array: np.ndarray[Any, Any], depth: int, dims: int, ends: int) -> Iterator[str]:
    count = array.shape[0]
    for i in range(min(ends, count)):
        yield _dim(array[i], depth + 1, dims, ends)
    if count > 2 * ends:
        yield "..."
    for i in range(max(ends, count - ends), count):
        yield _dim(array[i], depth + 1, dims, ends)


def element(value: Any) -> str:
    """One number; a float in the fewest of the two usual numbers of digits that keep its value."""
    kind = np.asarray(value).dtype
    if kind.kind != "f":
        return str(value)
    few, enough = _DIGITS[kind.name]
    text = f"{float(value):.{few}g}"
    return text if np.isnan(value) or kind.type(text) == value else f"{float(value):.{enough}g}"


def encode(text: str) -> torch.Tensor:
    """A text as a value of the engine."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def decode(value: torch.Tensor) -> str:
    """The text of a value."""
    return bytes(value.tolist()).decode()
