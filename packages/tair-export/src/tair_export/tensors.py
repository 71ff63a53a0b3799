"""Between arrays, tensors and constants. torch is imported only where a tensor is made; importing this imports none."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from ge_graph import escape, npy
from tair_export import errors


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Sizes of an array, a tensor or what speaks DLPack, None for anything else."""
    if isinstance(value, np.ndarray) or is_tensor(value) or hasattr(value, "__dlpack__"):
        return tuple(value.shape)
    return None


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor; there is none before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def only_arrays(values: Iterable[Any]) -> bool:
    """Whether there are arrays among the values, and no tensors."""
    listed = list(values)
    return any(isinstance(v, np.ndarray) for v in listed) and not any(map(is_tensor, listed))


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """A result as an array, on the same memory if it is on the host; bfloat16 and the like become float32."""
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value):
        array: np.ndarray[Any, Any] = value.numpy()
        return array
    import torch

    value = value.detach().cpu()
    if value.dtype.is_floating_point and value.dtype not in (torch.float16, torch.float32, torch.float64):
        value = value.float()
    result: np.ndarray[Any, Any] = value.numpy()
    return result


def read_npy(path: str) -> np.ndarray[Any, Any]:
    """The array of a ``.npy`` file.

    Raises:
        ArchiveError: GE5045 if it is no such file, is cut off or holds objects.
    """
    try:
        return npy.read_npy(path)[1]
    except ValueError as error:
        raise errors.array(path, escape.line(str(error), 300)) from None


def in_order(value: Any, order: tuple[int, ...] | None) -> Any:
    """A result with its dimensions laid out in memory as the model has them, copied only if they are not.

    Arrays on a device of an engine without torch are always row-major and stay so.
    """
    if isinstance(value, np.ndarray):
        if order is None:
            return np.ascontiguousarray(value).reshape(value.shape)
        back = sorted(range(len(order)), key=order.__getitem__)
        return np.ascontiguousarray(value.transpose(order)).transpose(back)
    if not is_tensor(value):
        return value
    if order is None:
        return value.contiguous()
    moved = value.permute(order).contiguous()
    return moved.permute(sorted(range(len(order)), key=order.__getitem__))
