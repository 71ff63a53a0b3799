"""Between arrays, tensors and constants. torch is imported only where a tensor is made; importing this imports none."""

from __future__ import annotations

import math
import os
import stat
import sys
import tokenize
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from ge_graph import escape
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


# numpy reads the header, a Python literal, with Python's own tokenizer and parser.
_NPY_FAULTS: Final = (
    OSError, ValueError, EOFError, TypeError, OverflowError, MemoryError, SyntaxError, RecursionError, KeyError,
    tokenize.TokenError,
)  # fmt: skip


def read_npy(path: str) -> np.ndarray[Any, Any]:
    """The array of a ``.npy`` file, its size compared with the file's before memory is taken.

    Raises:
        ArchiveError: GE5045 if it is no such file, is cut off or holds objects.
    """
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a plain file")
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"its version is {version}")
            shape, _, dtype = read(file)
            left = os.fstat(file.fileno()).st_size - file.tell()
            if dtype.hasobject or dtype.kind not in "biufc" or min(shape, default=0) < 0:
                raise ValueError(f"it holds {dtype}{list(shape)}")
            if math.prod(shape) * dtype.itemsize != left:
                raise ValueError(f"{dtype}{list(shape)} takes {math.prod(shape) * dtype.itemsize} bytes, it has {left}")
            file.seek(0)
            array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except _NPY_FAULTS as error:
        raise errors.array(escape.line(path), escape.line(str(error), 300)) from None


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
