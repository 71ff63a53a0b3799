"""Formulas for complex arguments of ops whose converters take real ones; for real arguments NotImplemented.

Complex numbers go through GE as pairs of real ones wherever no operator takes them whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    """The pairs of real numbers added in their places; the axis counts from the front, where pairs change nothing."""
    if not self.is_complex():
        return NotImplemented
    whole, added = (torch.view_as_real(torch.atleast_1d(t)) for t in (self, source * alpha))
    summed = aten.index_add(whole, dim % max(self.dim(), 1), index.reshape(-1), added)
    return torch.view_as_complex(summed).reshape(self.shape)


def variance(self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The sum of the variances of both parts."""
    if not self.is_complex():
        return NotImplemented
    parts = [aten.var.correction(p, dim, correction=correction, keepdim=keepdim) for p in (self.real, self.imag)]
    return parts[0] + parts[1]


def variance_mean(self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """``variance`` and the mean."""
    var = variance(self, dim, correction=correction, keepdim=keepdim)
    return var if var is NotImplemented else (var, torch.mean(self, dim, keepdim=keepdim))


def deviation(self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The root of ``variance``."""
    var = variance(self, dim, correction=correction, keepdim=keepdim)
    return var if var is NotImplemented else torch.sqrt(var)


def nonzero(self: Tensor) -> Any:
    """Places where one of the parts is not zero."""
    return aten.nonzero(self != 0) if self.is_complex() else NotImplemented


def nonzero_static(self: Tensor, *, size: Any, fill_value: int = -1) -> Any:
    """As ``nonzero``."""
    return aten.nonzero_static(self != 0, size=size, fill_value=fill_value) if self.is_complex() else NotImplemented


def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Any:
    """self + value * tensor1 * tensor2."""
    if not any(t.is_complex() for t in (self, tensor1, tensor2)):
        return NotImplemented
    return self + value * tensor1 * tensor2


def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Any:
    """self + value * tensor1 / tensor2."""
    if not any(t.is_complex() for t in (self, tensor1, tensor2)):
        return NotImplemented
    return self + value * tensor1 / tensor2


def silu(self: Tensor) -> Any:
    """self * sigmoid(self)."""
    return self * torch.sigmoid(self) if self.is_complex() else NotImplemented


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    """Equal steps in both parts."""
    if not isinstance(start, complex) and not isinstance(end, complex) and not (dtype and dtype.is_complex):
        return NotImplemented
    start, end = complex(start), complex(end)
    dtype = dtype or torch.get_default_dtype().to_complex()
    real, imaginary = (
        torch.linspace(a, b, steps, dtype=dtype.to_real(), device=device)
        for a, b in ((start.real, end.real), (start.imag, end.imag))
    )
    return torch.complex(real, imaginary)


BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = {
    "index_add.default": index_add,
    "var.correction": variance,
    "var_mean.correction": variance_mean,
    "std.correction": deviation,
    "nonzero.default": nonzero,
    "nonzero_static.default": nonzero_static,
    "addcmul.default": addcmul,
    "addcdiv.default": addcdiv,
    "silu.default": silu,
    "linspace.default": linspace,
}
