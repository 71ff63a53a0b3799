"""Between GE and ATen: element types and constants."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ge_graph.dtypes import DataType
from ge_graph.ir import Literal
from ge_runtime import errors
from ge_runtime.cpu.torch_compat import is_fake

TORCH_OF = {d: getattr(torch, d.torch_name) for d in DataType if d.torch_name and hasattr(torch, d.torch_name)}
GE_OF = {t: d for d, t in TORCH_OF.items()}
TORCH_OF[DataType.DT_INT4] = torch.int8  # one number per element (kernels.int4); torch's own type has no arithmetic

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**62  # bytes


def too_large(sizes: Sequence[Any], dtype: DataType | int) -> str:
    """Why a tensor of these sizes cannot exist on this host; empty if it may, or if a size is not a number yet."""
    if not all(isinstance(d, int) for d in sizes) or DataType(dtype) not in TORCH_OF:
        return ""
    wanted = math.prod(sizes) * torch_dtype(dtype).itemsize
    return f"a result of {list(sizes)} takes {wanted} bytes, this host has {MEMORY}" if wanted > MEMORY else ""


def torch_dtype(dtype: DataType | int) -> torch.dtype:
    """The ATen type of a GE type.

    Errors:
        EngineError GE4009 if this torch has no such type.
    """
    try:
        return TORCH_OF[DataType(dtype)]
    except (KeyError, ValueError):
        raise errors.refused("dtype", f"{dtype!r} has no partner in torch {torch.__version__}") from None


def from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor on the array's memory, read-only arrays included; the engine never writes to constants."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    if any(s < 0 for s in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def constant(value: Any) -> torch.Tensor:
    """The tensor of a Const node's ``value``, without copying its bytes."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Literal):
        flat = from_numpy(value.data)
        dtype = torch_dtype(value.dtype)
        if dtype is torch.bool:
            return flat.view(torch.bool).reshape(value.shape)
        return (flat.view(dtype) if flat.numel() else flat.to(dtype)).reshape(value.shape)
    return from_numpy(np.asarray(value))


def describe(value: Any) -> str:
    """``f32[2, 3]`` for messages."""
    if isinstance(value, torch.Tensor):
        ge = GE_OF.get(value.dtype)
        return f"{value.dtype if ge is None else ge.short}{list(value.shape)}"
    return repr(value)


def traced(value: Any) -> bool:
    """Whether a kernel is only traced: nothing is known of the elements then."""
    return is_fake(value)


NUMBER = "ge_number"  # attribute of a tensor in a trace: the symbolic number, or list of them, that it holds


def whole(value: Any) -> Any:
    """The int of a number or one-element tensor. What is symbolic, in a trace with open sizes, stays symbolic."""
    if type(value) is int or isinstance(value, torch.SymInt):
        return value
    symbol = getattr(value, NUMBER, None)
    if symbol is None:
        return value.item() if traced(value) else int(value)
    return one(symbol) if isinstance(symbol, list) else symbol


def of_numbers(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A scalar from a number or a vector from a list of them; symbolic ones stay symbolic."""
    if not any(isinstance(n, (torch.SymInt, torch.SymBool)) for n in (value if isinstance(value, list) else (value,))):
        return torch.tensor(value, dtype=dtype)
    if isinstance(value, list):
        made = torch.stack([of_numbers(n, dtype) for n in value])
    else:
        made = torch.scalar_tensor(
            torch.sym_ite(value, 1, 0) if isinstance(value, torch.SymBool) else value, dtype=dtype
        )
    setattr(made, NUMBER, value)
    return made


def numbers_of(value: torch.Tensor) -> Any:
    """The elements as numbers and lists; in a trace those that are known by symbols.

    Errors: RuntimeError in a trace that knows nothing of them.
    """
    known = getattr(value, NUMBER, None)
    return value.tolist() if known is None else known


def listed(value: Any) -> list[int]:
    """A number, a list or a small tensor as a list of ints; nested lists are flattened."""
    if isinstance(value, torch.Tensor):
        value = numbers_of(value)
    if isinstance(value, (list, tuple)):
        return [v for item in value for v in listed(item)]
    return [whole(value)]


def one(value: Any) -> int:
    """The int of a one-element operand, whether it came with rank 0 or 1."""
    numbers = listed(value)
    if len(numbers) != 1:
        raise errors.refused("operand", f"one element expected, got {numbers}")
    return numbers[0]
