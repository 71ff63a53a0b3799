"""Gradients of slices and selections: the gradient with zeros around it.

torch's own formulas write into a tensor of zeros: three operators, one of them in place, where a PadV3 does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor

from ge_converters.base import torch_compat
from ge_converters.base.operators import aten


def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Tensor:
    """Zeros of ``input_sizes`` with the gradient at ``start``; its size says where it ends.

    torch's own serves steps, complex numbers, nothing at all, and a start that counts from an end not known yet.
    """
    axis = dim % len(input_sizes)
    size, length = input_sizes[axis], grad_output.shape[axis]
    begins = isinstance(start, int) and (start >= 0 or isinstance(size, int))
    if not begins or step != 1 or (isinstance(length, int) and not length) or grad_output.is_complex():
        return torch_compat.slice_backward(grad_output, input_sizes, dim, start, end, step)
    before = start if start >= 0 else max(start + size, 0)
    return _between_zeros(grad_output, axis, before, size - before - length)


def select_backward(grad_output: Tensor, input_sizes: Sequence[Any], dim: int, index: Any) -> Tensor:
    """Zeros of ``input_sizes`` with the gradient at one place."""
    axis = dim % len(input_sizes)
    size = input_sizes[axis]
    if not isinstance(index, int) or grad_output.is_complex():
        return torch_compat.select_backward(grad_output, input_sizes, dim, index)
    before = index if index >= 0 else index + size
    return _between_zeros(grad_output.unsqueeze(axis), axis, before, size - before - 1)


def _between_zeros(x: Tensor, axis: int, before: Any, after: Any) -> Tensor:
    widths = [0, 0] * (x.dim() - axis - 1) + [before, after]
    return aten.constant_pad_nd.default(x.contiguous(), widths, 0)


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "select_backward.default": select_backward,
    "slice_backward.default": slice_backward,
}
