"""Functions and index ops that are a formula in other ATen ops.

Half types are computed in float32 and rounded once where eager does so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.decompose.formulas.special import wide

_HALF: Final = (torch.float16, torch.bfloat16)


# -- special functions -----------------------------------------------------------------------------------------------


def hypot(self: Tensor, other: Tensor) -> Tensor:
    """sqrt(x² + y²) by the ratio of the smaller to the larger, so that no square overflows."""
    dtype = torch.result_type(self, other)
    inner = torch.float32 if dtype in _HALF else dtype
    a, b = self.to(inner).abs(), other.to(inner).abs()
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = small / torch.where(large == 0, torch.ones_like(large), large)
    length = large * torch.sqrt(1 + ratio * ratio)
    return torch.where(torch.isinf(a) | torch.isinf(b), torch.full_like(length, math.inf), length).to(dtype)


def lcm(self: Tensor, other: Tensor) -> Tensor:
    """Least common multiple; 0 if one of the two is 0."""
    divisor = torch.gcd(self, other)
    part = torch.div(self, torch.where(divisor == 0, torch.ones_like(divisor), divisor), rounding_mode="trunc")
    return torch.abs(part * other)


def bessel_i0(self: Tensor) -> Tensor:
    """Modified Bessel function of order 0 from the exponentially scaled one."""
    x, dtype = wide(self)
    return (aten.special_i0e(x) * torch.exp(x.abs())).to(dtype)


def bessel_i1(self: Tensor) -> Tensor:
    """Modified Bessel function of order 1 from the exponentially scaled one."""
    x, dtype = wide(self)
    return (aten.special_i1e(x) * torch.exp(x.abs())).to(dtype)


def _trigamma(x: Tensor) -> Tensor:
    """Reflection below 1/2, six steps of the recurrence, then the asymptotic series."""
    low = x < 0.5
    sine = torch.sin(math.pi * x)
    reflected = torch.where(low, -(math.pi * math.pi) / (sine * sine), torch.zeros_like(x))
    y = torch.where(low, 1 - x, x)
    total = reflected
    for _ in range(6):
        total = total + 1 / (y * y)
        y = y + 1
    z = 1 / (y * y)
    total = total + (1 + 1 / (2 * y) + z * (1 / 6 - z * (1 / 30 - z * (1 / 42)))) / y
    return torch.where(low, -total, total)


def polygamma(n: int, self: Tensor) -> Tensor:
    """Derivative of order n of digamma: by its series for n = 1, by the Hurwitz zeta function above."""
    x, dtype = wide(self)
    if n == 0:
        return aten.digamma(x).to(dtype)
    if n == 1:
        return _trigamma(x).to(dtype)
    factor = math.factorial(n) * (1 if n % 2 else -1)
    return (aten.special_zeta(torch.full_like(x, n + 1.0), x) * factor).to(dtype)


def frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa and exponent out of the bits; subnormal numbers are scaled into the normal range first."""
    x, dtype = wide(self)
    double = x.dtype is torch.float64
    bits, shift, mask, bias = (torch.int64, 52, 0x7FF, 1022) if double else (torch.int32, 23, 0xFF, 126)
    plain = (x == 0) | ~torch.isfinite(x)
    tiny = x.abs() < torch.finfo(x.dtype).tiny
    raw = torch.where(tiny, x * 2.0**shift, x).view(bits)
    exponent = ((raw >> shift) & mask) - bias - torch.where(tiny, shift, 0)
    mantissa = ((raw & ~(mask << shift)) | (bias << shift)).view(x.dtype)
    exponent = torch.where(plain, torch.zeros_like(exponent), exponent)
    return torch.where(plain, x, mantissa).to(dtype), exponent.to(torch.int32)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """A complex number from its length and angle."""
    return torch.complex(abs * torch.cos(angle), abs * torch.sin(angle))


# -- by index --------------------------------------------------------------------------------------------------------


def take(self: Tensor, index: Tensor) -> Tensor:
    """Elements by their row-major position, counted from the end if negative."""
    return aten.index(aten.reshape(self, [-1]), [index])


def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements written by their row-major position."""
    flat = aten.index_put(aten.reshape(self, [-1]), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(self.shape)


def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices written at a 1-d index, in which eager counts nothing from the end: its negative places become larger than
    any dim, so that who writes them says so. One node for all writes by one index. The result is contiguous."""
    places = aten.bitwise_and(index, torch.iinfo(torch.int64).max).reshape(-1)
    if self.dim() == 0:
        return aten.index_put(self.reshape(1), [places], source.reshape(-1)).reshape(())
    return aten.index_put(self.contiguous(), [None] * (dim % self.dim()) + [places], source)


def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Slices reduced into those that a 1-d index names: a scatter_reduce whose index is the same along other dims."""
    if self.dim() == 0:
        row, places, values = self.reshape(1), index.reshape(-1), source.reshape(-1)
        return aten.scatter_reduce(row, 0, places, values, reduce, include_self=include_self).reshape(())
    shape = [1] * self.dim()
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    return aten.scatter_reduce(self, dim, places, source, reduce, include_self=include_self)


def masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The gradient of the source: elements of the gradient under the mask, one after the other, zeros after them."""
    taken = mask.expand(grad_output.shape).reshape(-1)
    count = math.prod(sizes)
    places = torch.cumsum(taken, 0) - 1
    places = torch.where(taken, places, torch.full_like(places, count))  # one place more for what is not taken
    values = aten.new_zeros(grad_output, [count + 1]).scatter(0, places, grad_output.reshape(-1))
    return values[:count].reshape(sizes)


def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Distinct values in order, and where each element went."""
    values, inverse, _ = aten._unique2(self, sorted, return_inverse)
    return values, inverse


def zero_tensor(size: Sequence[Any], **kwargs: Any) -> Tensor:
    """Zeros that torch does not store."""
    return torch.zeros(size, **{k: v for k, v in kwargs.items() if v is not None})


def searchsorted_scalar(
    sorted_sequence: Tensor,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The place of one number."""
    dtype = torch.result_type(sorted_sequence, self)
    value = torch.full((), self, dtype=dtype, device=sorted_sequence.device)
    return aten.searchsorted(
        sorted_sequence.to(dtype), value, out_int32=out_int32, right=right, side=side, sorter=sorter
    )


def empty_permuted(size: Sequence[Any], physical_layout: Sequence[int], **kwargs: Any) -> Tensor:
    """Uninitialised memory in an order of dims."""
    made = torch.empty([size[d] for d in physical_layout], **{k: v for k, v in kwargs.items() if v is not None})
    return made.permute([list(physical_layout).index(d) for d in range(len(size))])


def addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * self + alpha * the outer product; every step rounds to the type of the result, as in eager."""
    dtype = torch.promote_types(self.dtype, torch.promote_types(vec1.dtype, vec2.dtype))
    if dtype is torch.bool:
        outer = vec1.unsqueeze(1) & vec2
        outer = outer if alpha else torch.zeros_like(outer)
        return outer | self if beta else outer
    first, second = vec1.to(dtype), vec2.to(dtype)
    scaled = first if alpha == 1 else first * torch.full((), alpha, dtype=dtype)
    outer = scaled.unsqueeze(1) * second
    if beta == 0:
        return outer
    return outer + (self.to(dtype) if beta == 1 else self.to(dtype) * torch.full((), beta, dtype=dtype))


def cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product; every step rounds to the type of the operands, as in eager."""
    a, b = torch.broadcast_tensors(self, other)
    return torch.roll(a, -1, dim) * torch.roll(b, -2, dim) - torch.roll(a, -2, dim) * torch.roll(b, -1, dim)


# -- matrices --------------------------------------------------------------------------------------------------------


def pinv(self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    """Pseudo-inverse by singular values, or by eigenvalues if the matrix is its own conjugate transpose."""
    if self.numel() == 0:
        return self.new_empty((*self.shape[:-2], self.shape[-1], self.shape[-2]))
    if hermitian:
        values, vectors = torch.linalg.eigh(self)
        left, right = vectors, vectors.mH
        size = values.abs()
        largest = size.amax(-1, keepdim=True)
    else:
        left, values, right = torch.linalg.svd(self, full_matrices=False)
        size, largest = values, values.narrow(-1, 0, 1)
    given_atol = values.new_zeros(()) if atol is None else atol
    default = max(self.shape[-2:]) * torch.finfo(self.dtype).eps if atol is None else 0.0
    given_rtol = values.new_full((), default) if rtol is None else rtol
    limit = torch.maximum(given_atol.unsqueeze(-1), given_rtol.unsqueeze(-1) * largest)
    inverse = torch.where(size > limit, values.reciprocal(), torch.zeros_like(values))
    return (right.mH * inverse.unsqueeze(-2)) @ left.mH


# -- layers ----------------------------------------------------------------------------------------------------------


def embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows looked up that are longer than allowed, scaled to that length; their norm rounds to the type of the rows."""
    places = indices.reshape(-1)
    rows = aten.index_select(self, 0, places)
    norm = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True)
    inner = torch.float32 if self.dtype in _HALF else self.dtype
    scaled = rows.to(inner) * (max_norm / (norm.to(inner) + 1e-7))
    return aten.index_put(self, [places], torch.where(norm > max_norm, scaled.to(self.dtype), rows))


def multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Margins between the classes that a row of ``target`` lists, up to its first negative number, and all others.

    torch's own formula counts a row that begins with a negative number as if it listed class 0.
    """
    x, classes = (self, target) if self.dim() > 1 else (self.reshape(1, -1), target.reshape(1, -1))
    listed = torch.cumsum(classes < 0, 1) == 0
    places = torch.where(listed, classes, torch.zeros_like(classes))
    numbers = torch.arange(x.shape[1], device=x.device)
    is_target = ((places.unsqueeze(-1) == numbers) & listed.unsqueeze(-1)).any(1)
    margins = (1 - x.gather(1, places).unsqueeze(-1) + x.unsqueeze(1)).clamp_min(0)
    counted = listed.unsqueeze(-1) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, margins, torch.zeros_like(margins)).sum((1, 2)) / x.shape[1]
    loss = loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss
    shape = loss.shape if reduction or self.dim() > 1 else ()
    return loss.reshape(shape), is_target.to(self.dtype).reshape(target.shape)


def rrelu_with_noise(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Negative numbers times a random slope, which becomes the noise; times the mean slope outside of training."""
    if not training:
        return aten.leaky_relu(self, (lower + upper) / 2), noise.clone()
    slope = aten.uniform(self, lower, upper, generator=generator)
    return torch.where(self <= 0, self * slope, self), torch.where(self <= 0, slope, 1.0)


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "embedding_renorm.default": embedding_renorm,
    "rrelu_with_noise_functional.default": rrelu_with_noise,
    "hypot.default": hypot,
    "lcm.default": lcm,
    "i0.default": bessel_i0,
    "special_i1.default": bessel_i1,
    "special_modified_bessel_i0.default": bessel_i0,
    "special_modified_bessel_i1.default": bessel_i1,
    "polygamma.default": polygamma,
    "frexp.Tensor": frexp,
    "polar.default": polar,
    "take.default": take,
    "put.default": put,
    "index_copy.default": index_copy,
    "index_reduce.default": index_reduce,
    "searchsorted.Scalar": searchsorted_scalar,
    "masked_scatter_backward.default": masked_scatter_backward,
    "_efficientzerotensor.default": zero_tensor,
    "_unique.default": unique,
    "empty_permuted.default": empty_permuted,
    "addr.default": addr,
    "linalg_cross.default": cross,
    "linalg_pinv.atol_rtol_tensor": pinv,
}
