"""Between arrays, tensors and constants. torch is imported only where a tensor is made; importing this imports none."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from ge_graph.ir import Literal


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Sizes of an array or a tensor, None for anything else."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return tuple(value.shape)
    return None


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor; there is none before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def only_arrays(values: Iterable[Any]) -> bool:
    """Whether there are arrays among the values, and no tensors."""
    found = list(values)
    return any(isinstance(v, np.ndarray) for v in found) and not any(map(is_tensor, found))


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """A tensor as an array on the same memory; types that numpy lacks become float32."""
    import torch

    value = value.detach().cpu()
    if value.dtype.is_floating_point and value.dtype not in (torch.float16, torch.float32, torch.float64):
        value = value.float()
    found: np.ndarray[Any, Any] = value.numpy()
    return found


def to_torch(value: Literal, device: str) -> Any:
    """A tensor of its own with the value of a constant."""
    from ge_runtime.cpu.values import constant

    return constant(value).clone().to(device)


def in_order(value: Any, order: tuple[int, ...] | None) -> Any:
    """A result with its dimensions laid out in memory as the model has them, copied only if they are not."""
    if order is None:
        return value.contiguous()
    moved = value.permute(order).contiguous()
    return moved.permute(sorted(range(len(order)), key=order.__getitem__))
