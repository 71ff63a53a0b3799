"""What a float32 becomes in each number format of the chip, as a float32.

Published codings: HF32 (CANN's ``--allow_hf32``: 8 exponent bits, 11 mantissa bits; ``SetHF32`` of its kernels: to
nearest, ties to even or away from zero), HiFloat8 (arXiv 2409.16626: tapered mantissa, ties away from zero), FP8, FP6
and FP4 of the OCP microscaling specification 1.0, E1M2 of the same build.

Every function is elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ge_graph.dtypes import DataType

Rounded = Callable[[Tensor], Tensor]

_DROPPED: Final = 12  # of the 23 mantissa bits of float32, in HF32
_NO_EXPONENT: Final = -1000  # of zero: below every format


def hf32(x: Tensor, *, away: bool = False) -> Tensor:
    """float32 rounded to HF32.

    Args:
        away: Ties go away from zero; by default to an even mantissa.
    """
    bits = x.contiguous().view(torch.int32)
    half = 1 << (_DROPPED - 1)
    more = half if away else half - 1 + ((bits >> _DROPPED) & 1)
    kept = ((bits + more) >> _DROPPED) << _DROPPED  # a carry goes into the exponent, up to infinity
    return torch.where(torch.isfinite(x), kept.view(torch.float32), x)


class Mini(NamedTuple):
    """A format of OCP's build without infinity and NaN.

    Attributes:
        mantissa: Bits of the mantissa.
        lowest: Exponent of the least normal number.
        largest: The largest number.
    """

    mantissa: int
    lowest: int
    largest: float


def _exponent(x: Tensor) -> Tensor:
    """floor(log2 |x|) as int32."""
    _, power = torch.frexp(x)
    return torch.where(x == 0, torch.full_like(power, _NO_EXPONENT), power - 1)


def mini(x: Tensor, form: Mini) -> Tensor:
    """float32 rounded to a format of OCP's build: ties to even; too large becomes the largest number, NaN becomes 0."""
    held = torch.nan_to_num(x, nan=0.0, posinf=form.largest, neginf=-form.largest).clamp(-form.largest, form.largest)
    return _to_even(held, form)


def _to_even(x: Tensor, form: Mini) -> Tensor:
    quantum = torch.clamp(_exponent(x), min=form.lowest) - form.mantissa
    return torch.ldexp(torch.round(torch.ldexp(x.double(), -quantum)), quantum).float()


def e4m3(x: Tensor) -> Tensor:
    """float32 rounded to FP8 E4M3, which has no infinity: too large becomes NaN. torch's releases differ here."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    held = torch.nan_to_num(x, nan=0.0).clamp(-2 * largest, 2 * largest)
    rounded = _to_even(held, Mini(3, -6, largest))
    nan = torch.full_like(x, torch.nan)
    return torch.where(torch.isnan(x) | (rounded.abs() > largest), nan, rounded)


# Exponents of HiFloat8 up to 3, 7 and 15 leave 3, 2 and 1 bits of mantissa; below -15 powers of two stand alone.
_HIF8_LARGEST: Final = 2.0**15
_HIF8_LEAST: Final = -22
_HIF8_POWERS: Final = -15


def hif8(x: Tensor) -> Tensor:
    """float32 rounded to HiFloat8: ties away from zero; from 1.25 * 2**15 on infinity; one zero, which is positive."""
    finite = torch.isfinite(x)
    held = torch.where(finite, x, torch.zeros_like(x)).clamp(-2 * _HIF8_LARGEST, 2 * _HIF8_LARGEST)
    e = torch.clamp(_exponent(held), min=_HIF8_LEAST)
    mantissa = 1 + (e.abs() <= 7).to(torch.int32) + (e.abs() <= 3).to(torch.int32)
    quantum = e - torch.where(e < _HIF8_POWERS, torch.zeros_like(mantissa), mantissa)
    steps = torch.ldexp(held.double(), -quantum)
    rounded = torch.ldexp(torch.trunc(steps + torch.copysign(torch.full_like(steps, 0.5), steps)), quantum).float()
    infinite = torch.copysign(torch.full_like(x, torch.inf), x)
    return torch.where(finite, torch.where(rounded.abs() > _HIF8_LARGEST, infinite, rounded), x) + 0.0


def _through(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


FORMATS: Final[Mapping[DataType, Rounded]] = {
    DataType.DT_FLOAT: lambda x: x,
    DataType.DT_FLOAT16: partial(_through, dtype=torch.float16),
    DataType.DT_BF16: partial(_through, dtype=torch.bfloat16),
    DataType.DT_FLOAT8_E4M3FN: e4m3,
    DataType.DT_FLOAT8_E5M2: partial(_through, dtype=torch.float8_e5m2),
    DataType.DT_HIFLOAT8: hif8,
    DataType.DT_FLOAT6_E3M2: partial(mini, form=Mini(2, -2, 28.0)),
    DataType.DT_FLOAT6_E2M3: partial(mini, form=Mini(3, 0, 7.5)),
    DataType.DT_FLOAT4_E2M1: partial(mini, form=Mini(1, 0, 6.0)),
    DataType.DT_FLOAT4_E1M2: partial(mini, form=Mini(2, 0, 1.75)),
}
"""How a float32 is rounded to each floating type of GE that the chip computes in, as a float32."""


def in_range(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What the mode of saturation makes of a result: the largest number of ``dtype`` for infinity, 0 for NaN.

    Source: CANN, environment variable INF_NAN_MODE_ENABLE.
    """
    largest = torch.finfo(dtype).max
    return torch.nan_to_num(x, nan=0.0, posinf=largest, neginf=-largest)
