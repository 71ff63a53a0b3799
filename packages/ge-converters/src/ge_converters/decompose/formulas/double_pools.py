"""Pools of float64, which no GE pooling operator takes: averages as products, gradients of maxima as sums by position.

Everything else is given back as NotImplemented, and stays whole for the converter. The forward pass of maximum pools
is in ``windows``, where the integers have the same formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.torch_compat import order_of_memory
from ge_converters.decompose.formulas.windows import scattered


def _averages(length: Any, count: Any, like: Tensor) -> Tensor:
    """Weights [count, length] of the mean over each adaptive window.

    Source: ``torch.nn.AdaptiveAvgPool2d``; window i is [floor(i n / m), ceil((i + 1) n / m)).
    """
    window = torch.arange(count, device=like.device).unsqueeze(1)
    begin = torch.div(window * length, count, rounding_mode="floor")
    end = -torch.div(-(window + 1) * length, count, rounding_mode="floor")
    place = torch.arange(length, device=like.device)
    inside = (place >= begin) & (place < end)
    return inside.to(like.dtype) / (end - begin)


def _along(x: Tensor, axis: int, weights: Tensor) -> Tensor:
    """``weights`` [m, n] times one axis of length n."""
    return (x.movedim(axis, -1) @ weights.mT).movedim(-1, axis)


def _mean(count: int) -> Callable[..., Any]:
    def pool(self: Tensor, output_size: Sequence[Any]) -> Any:
        """The mean of each adaptive window, axis by axis."""
        if self.dtype != torch.float64:
            return NotImplemented
        pooled = self
        for axis, size in zip(range(-count, 0), output_size):
            pooled = _along(pooled, axis, _averages(self.shape[axis], size, self))
        return pooled.contiguous(memory_format=order_of_memory(self))

    return pool


def _mean_gradient(count: int) -> Callable[..., Any]:
    def backward(grad_output: Tensor, self: Tensor) -> Any:
        """The same weights, transposed."""
        if self.dtype != torch.float64:
            return NotImplemented
        for axis in range(-count, 0):
            weights = _averages(self.shape[axis], grad_output.shape[axis], self)
            grad_output = _along(grad_output, axis, weights.mT)
        return grad_output.contiguous(memory_format=order_of_memory(self))

    return backward


def _largest_gradient(count: int) -> Callable[..., Any]:
    def backward(grad_output: Tensor, self: Tensor, *window: Any, indices: Tensor | None = None) -> Any:
        """The gradient of each window goes to the element that was its largest."""
        if self.dtype != torch.float64:
            return NotImplemented
        return scattered(grad_output, self, window[-1] if indices is None else indices, count)

    return backward


BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = {
    "_adaptive_avg_pool2d.default": _mean(2),
    "_adaptive_avg_pool3d.default": _mean(3),
    "_adaptive_avg_pool2d_backward.default": _mean_gradient(2),
    "_adaptive_avg_pool3d_backward.default": _mean_gradient(3),
    "max_pool2d_with_indices_backward.default": _largest_gradient(2),
    "max_pool3d_with_indices_backward.default": _largest_gradient(3),
}
