"""``prims``, which torch's reference decompositions end in, by the ATen op of the same meaning.

Prims neither promote types nor broadcast, so the ATen op does at least as much. The table is derived: a prim goes to
the ATen op of its own name where there is one, the rows below say what the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import primitive_names

# prims name: ATen name, where they differ.
_NAMES: Final = {
    "bessel_i0": "i0",
    "bessel_i0e": "special_i0e",
    "bessel_i1": "special_i1",
    "bessel_i1e": "special_i1e",
    "bessel_j0": "special_bessel_j0",
    "bessel_j1": "special_bessel_j1",
    "erf_inv": "erfinv",
    "erfcx": "special_erfcx",
    "ndtri": "special_ndtri",
    "spherical_bessel_j0": "special_spherical_bessel_j0",
    "zeta": "special_zeta",
    "rev": "flip",
    "shift_left": "bitwise_left_shift",
    "shift_right_arithmetic": "bitwise_right_shift",
    "transpose": "permute",
    "fft_r2c": "_fft_r2c",
}
_REDUCTIONS: Final = ("amax", "amin", "prod", "sum")


def div(self: Tensor, other: Tensor) -> Tensor:
    """Quotient; that of integers is cut off towards zero."""
    return aten.div(self, other, rounding_mode=None if self.is_floating_point() or self.is_complex() else "trunc")


def cbrt(self: Tensor) -> Tensor:
    """The real cube root."""
    return torch.sign(self) * torch.pow(self.abs(), 1.0 / 3.0)


def broadcast_in_dim(a: Tensor, shape: Sequence[Any], broadcast_dimensions: Sequence[int]) -> Tensor:
    """Dims of ``a`` placed among those of ``shape``, the others repeated."""
    placed: list[Any] = [1] * len(shape)
    for size, dim in zip(a.shape, broadcast_dimensions):
        placed[dim] = size
    return aten.expand(aten.view(a, placed) if len(shape) != a.dim() else a, shape)


def collapse(a: Tensor, start: int, end: int) -> Tensor:
    """Dims ``start`` to ``end`` as one."""
    return torch.flatten(a, start, end) if a.dim() else a.reshape(1)


def split_dim(a: Tensor, dim: int, outer_length: Any) -> Tensor:
    """One dim as two, the outer one of ``outer_length``."""
    return aten.view(a, [*a.shape[:dim], outer_length, a.shape[dim] // outer_length, *a.shape[dim + 1 :]])


def copy_strided(a: Tensor, stride: Sequence[Any]) -> Tensor:
    """A copy in another memory order: the values are the same."""
    return aten.clone(a)


def squeeze(a: Tensor, dimensions: Sequence[int]) -> Tensor:
    """Dims of size 1 taken out."""
    return aten.squeeze.dims(a, list(dimensions))


def var(inp: Tensor, dims: Any, correction: Any = 1, *, output_dtype: Any = None) -> Tensor:
    """Variance over dims."""
    return aten.var.correction(inp, dims, correction=correction)


def svd(A: Tensor, *, full_matrices: bool) -> Any:
    """Singular values and vectors."""
    return aten._linalg_svd(A, full_matrices)


def full(shape: Sequence[Any], fill_value: Any, **kwargs: Any) -> Tensor:
    """A tensor of one value."""
    return aten.full(shape, fill_value, **_made(kwargs))


def full_like(a: Tensor, fill_value: Any, **kwargs: Any) -> Tensor:
    """A tensor of one value in the shape of another."""
    return aten.full_like(a, fill_value, **_made(kwargs))


def empty(shape: Sequence[Any], **kwargs: Any) -> Tensor:
    """Uninitialised memory."""
    return aten.empty(shape, **_made(kwargs))


def empty_permuted(shape: Sequence[Any], physical_layout: Sequence[int], **kwargs: Any) -> Tensor:
    """Uninitialised memory in an order of dims."""
    return aten.empty_permuted(shape, physical_layout, **_made(kwargs))


def empty_strided(shape: Sequence[Any], strides: Sequence[Any], **kwargs: Any) -> Tensor:
    """Uninitialised memory with strides."""
    return aten.empty_strided(shape, strides, **_made(kwargs))


def normal(
    shape: Sequence[Any], *, mean: Any, std: Any, dtype: Any, device: Any, requires_grad: bool, generator: Any = None
) -> Any:
    """Normal samples."""
    if generator is not None:
        return NotImplemented
    return aten.randn(shape, dtype=dtype, device=device) * std + mean


def uniform(
    shape: Sequence[Any], *, low: Any, high: Any, dtype: Any, device: Any, stride: Any, generator: Any = None
) -> Any:
    """Uniform samples."""
    if generator is not None:
        return NotImplemented
    return aten.rand(shape, dtype=dtype, device=device) * (high - low) + low


def _made(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in ("dtype", "device") and v is not None}


def _reduction(name: str) -> Callable[..., Any]:
    def reduce(inp: Tensor, dims: Any, *, output_dtype: Any = None) -> Tensor:
        x = inp if output_dtype is None or name in ("amax", "amin") else inp.to(output_dtype)
        if name == "prod":
            for dim in sorted((d % inp.dim() for d in (range(inp.dim()) if dims is None else dims)), reverse=True):
                x = aten.prod.dim_int(x, dim, dtype=x.dtype)
            return x
        reduced = aten.sum(x, dims, dtype=x.dtype) if name == "sum" else getattr(aten, name)(x, dims or [])
        return reduced if output_dtype is None else reduced.to(output_dtype)

    return reduce


_FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "div": div,
    "cbrt": cbrt,
    "broadcast_in_dim": broadcast_in_dim,
    "collapse": collapse,
    "collapse_view": collapse,
    "split_dim": split_dim,
    "copy_strided": copy_strided,
    "squeeze": squeeze,
    "var": var,
    "svd": svd,
    "full": full,
    "full_like": full_like,
    "empty": empty,
    "empty_permuted": empty_permuted,
    "empty_strided": empty_strided,
    "normal": normal,
    "uniform": uniform,
    "clone": lambda self, *, memory_format=None: aten.clone(self),
    "cat": lambda tensors, dim: aten.cat(list(tensors), dim),
    "fill": lambda self, value: aten.full_like(self, value),
    "reshape": lambda a, shape: aten.reshape(a, shape),
    "view_of_dtype": lambda a, dtype: aten.view(a, dtype),
    "scalar_tensor": lambda s, *, dtype=None, device=None: aten.scalar_tensor(s, dtype=dtype),
    "fft_c2c": lambda self, *, dim, forward: aten._fft_c2c(self, dim, 0, forward),
    "fft_r2c": lambda self, *, dim, onesided: aten._fft_r2c(self, dim, 0, onesided),
    "fft_c2r": lambda self, *, dim, last_dim_size: aten._fft_c2r(self, dim, 0, last_dim_size),
    "as_strided_scatter": lambda self, src, size, stride, storage_offset: aten.as_strided_scatter(
        self, src, size, stride, storage_offset
    ),
    "where": lambda pred, a, b: aten.where(pred, a, b),
    **{name: _reduction(name) for name in _REDUCTIONS},
}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Prims by overload, for the table of AOTAutograd."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in {*primitive_names(), *_FORMULAS}:
        op = getattr(getattr(torch.ops.prims, name, None), "default", None)
        if op is None or op._schema.is_mutable:
            continue
        named = getattr(torch.ops.aten, _NAMES.get(name, name), None)
        if name in _FORMULAS:
            table[op] = _FORMULAS[name]
        elif named is not None and _same_arguments(op, named):
            table[op] = named
    return table


def _same_arguments(op: Any, packet: Any) -> bool:
    """Whether an overload of the ATen op takes the tensors and lists of the prim in the same places."""
    wanted = [str(a.type) for a in op._schema.arguments if not a.kwarg_only]
    for name in packet.overloads():
        schema = getattr(packet, name)._schema
        given = schema.arguments[: len(wanted)]
        rest = [a for a in schema.arguments[len(wanted) :] if not a.has_default_value()]
        if [str(a.type) for a in given] == wanted and not rest and not schema.is_mutable:
            return True
    return False
