"""Discrete Fourier transforms and the views of complex numbers that come with them.

GE transforms the last dim: ``FFT`` without a factor, ``IFFT`` with 1/n, ``RFFT`` and ``IRFFT`` for real sides in
single precision. Other dims are moved there, one after the other, and torch's normalisation is multiplied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import C64, C128, F32, F64, Support
from ge_converters.emit.compute_types import move
from ge_converters.emit.shapes import ints
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_NUMPY: Final = {_D.DT_FLOAT: np.float32, _D.DT_DOUBLE: np.float64}
_POWERS: Final = (0.0, -0.5, -1.0)  # of the number of elements: torch's normalisation none, by_root_n, by_n


def _long(value: int) -> Tensor:
    return ge.Const(value, dtype=_D.DT_INT64)


def _along(op: Any, x: Tensor, axis: int, rank: int) -> Tensor:
    """An operator of the last dim applied to another one of a tensor of this rank."""
    if axis == rank - 1:
        result: Tensor = op(x)
        return result
    order = ints([*range(axis), *range(axis + 1, rank), axis])
    back = ints([*range(axis), rank - 1, *range(axis, rank - 1)])
    return move("Transpose", op(move("Transpose", x, order)), back)


def _count(sizes: Sequence[Any], dims: Sequence[int]) -> int:
    lengths = [sizes[d] for d in dims]
    if not all(isinstance(s, int) for s in lengths):
        raise Refusal(
            f"a transform over dims of symbolic sizes {lengths}; lengths and factors are constants, mark them static"
        )
    return int(np.prod(lengths)) if lengths else 1


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    kind = {_D.DT_COMPLEX64: np.complex64, _D.DT_COMPLEX128: np.complex128, **_NUMPY}[x.dtype]
    return ge.Mul(x, ge.Const(np.asarray(factor, dtype=kind)))


def _transformed(x: Tensor, dims: Sequence[int], forward: bool, rank: int) -> Tensor:
    for d in dims:
        x = _along(ge.FFT if forward else ge.IFFT, x, d, rank)
    return x


def _dims(dim: Sequence[int], rank: int) -> list[int]:
    return [d % rank for d in dim]


_FORMS = [(C64(4, 5), [1]), (C64(4, 5), [0, 1]), (C128(2, 3, 4), [0, 2])]


@declare_supported([Support(x, d, n, f).fixed_sizes() for x, d in _FORMS for n in (0, 1, 2) for f in (True, False)])
@register_fx_node_ge_converter(aten._fft_c2c.default, source="aten _fft_c2c; GE FFT, IFFT")
def _fft_c2c(
    self: Tensor, dim: Sequence[Any], normalization: int, forward: bool, *, meta_outputs: TensorSpec
) -> Tensor:
    """Complex to complex over several dims.

    Dtypes: complex64, complex128.
    Errors: Refusal for symbolic sizes of the transformed dims.
    Emits:  FFT or IFFT a dim, Transpose where it is not the last one, Mul.
    """
    dims = _dims(dim, self.rank)
    count = _count(meta_outputs.size, dims)
    inverse = 0.0 if forward else 1.0  # IFFT has divided by n already
    return _scaled(_transformed(self, dims, forward, self.rank), float(count) ** (_POWERS[normalization] + inverse))


@declare_supported(
    [
        Support(x, d, n, o).fixed_sizes()
        for x, d in ((F32(4, 5), [1]), (F32(4, 6), [1, 0]), (F64(2, 3, 4), [2, 0]))
        for n in (0, 1, 2)
        for o in (True, False)
    ]
)
@register_fx_node_ge_converter(aten._fft_r2c.default, source="aten _fft_r2c; GE RFFT, FFT")
def _fft_r2c(
    self: Tensor, dim: Sequence[int], normalization: int, onesided: bool, *, meta_outputs: TensorSpec
) -> Tensor:
    """Real to complex; of the last of ``dim`` only the first half if onesided.

    Dtypes: float32, float64.
    Errors: Refusal for symbolic sizes of the transformed dims.
    Emits:  RFFT for onesided float32, else Complex and FFT; Mul.
    """
    dims = _dims(dim, self.rank)
    sizes = self.known_shape or ()
    count, length = _count(sizes, dims), _count(sizes, dims[-1:])
    if onesided and self.dtype == _D.DT_FLOAT:
        size = ge.Const(np.asarray([length], dtype=np.int32))
        half = _along(lambda x: ge.RFFT(x, size), self, dims[-1], self.rank)
    else:
        half = _along(ge.FFT, ge.Complex(self, ge.ZerosLike(self), Tout=meta_outputs.dtype), dims[-1], self.rank)
        if onesided:
            half = ge.GatherV2(half, ge.Const(np.arange(length // 2 + 1, dtype=np.int64)), _long(dims[-1]))
    return _scaled(_transformed(half, dims[:-1], True, self.rank), float(count) ** _POWERS[normalization])


@declare_supported(
    [Support(C64(4, 4), [1], n, 6) for n in (0, 1, 2)]
    + [Support(C64(4, 4), [0, 1], n, 7).fixed_sizes() for n in (0, 1, 2)]
    + [Support(C128(5, 3, 4), [0, 2], n, 7).fixed_sizes() for n in (0, 1, 2)]
)
@register_fx_node_ge_converter(aten._fft_c2r.default, source="aten _fft_c2r; GE IRFFT, IFFT")
def _fft_c2r(
    self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: Any, *, meta_outputs: TensorSpec
) -> Tensor:
    """The half of a spectrum to real numbers, ``last_dim_size`` of them along the last of ``dim``.

    Dtypes: complex64, complex128.
    Errors: Refusal for symbolic sizes of the transformed dims.
    Emits:  IRFFT for complex64, else IFFT of the spectrum completed by its mirror image; Mul.
    """
    dims = _dims(dim, self.rank)
    count, length = _count(meta_outputs.size, dims), _count(meta_outputs.size, dims[-1:])
    x = _transformed(self, dims[:-1], False, self.rank)
    if self.dtype == _D.DT_COMPLEX64:
        size = ge.Const(np.asarray([length], dtype=np.int32))
        result = _along(lambda y: ge.IRFFT(y, size), x, dims[-1], self.rank)
    else:
        result = _along(
            lambda y: ge.Real(ge.IFFT(_mirrored(y, length, self.rank - 1)), Tout=_D.DT_DOUBLE), x, dims[-1], self.rank
        )
    return _scaled(result, float(count) ** (_POWERS[normalization] + 1.0))


def _mirrored(half: Tensor, length: int, axis: int) -> Tensor:
    """A whole spectrum from its first half: what is missing is the conjugate from the other end."""
    kept = length // 2 + 1
    places = np.concatenate([np.arange(kept), length - np.arange(kept, length)]).astype(np.int64)
    signs = np.where(np.arange(length) < kept, 1.0, -1.0)
    whole = ge.GatherV2(half, ge.Const(places), _long(axis))
    real, imaginary = (op(whole, Tout=_D.DT_DOUBLE) for op in (ge.Real, ge.Imag))
    return ge.Complex(real, ge.Mul(imaginary, ge.Const(signs)), Tout=_D.DT_COMPLEX128)


_COMPLEX = [Support(C64(2, 3)), Support(C128(3)), Support(C64())]


@register_fx_node_ge_converter(
    dict.fromkeys((aten._conj.default, aten._conj_physical.default, aten.conj_physical.default), _COMPLEX),
    source="native_functions.yaml: _conj, conj_physical; GE Conj",
)
def conjugate(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Dtypes: complex; real numbers pass through.
    Emits:  Conj.
    """
    # a complex constant may be narrower than torch says
    return cast(ge.Conj(self), meta_outputs.dtype) if self.dtype.is_complex else self


@declare_supported([Support(F32(2, 3)), Support(F64(3)), Support(C64(2))])
@register_fx_node_ge_converter(aten._neg_view.default, source="aten _neg_view; GE Neg")
def _neg_view(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """The negative of a tensor whose sign bit torch keeps beside it."""
    result: Tensor = ge.Neg(self)
    return cast(result, meta_outputs.dtype)
