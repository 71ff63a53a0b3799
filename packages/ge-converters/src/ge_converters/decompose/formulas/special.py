"""Special functions as rational and Chebyshev approximations: a row of coefficients and where it holds.

The arithmetic follows the order of eager's own code, so that large arguments, whose phase is sensitive to rounding,
give the same numbers. What is computed outside of the range of an approximation is not selected.

Source: Cephes Mathematical Library, as torch evaluates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.decompose.formulas import special_coefficients as rows
from ge_converters.decompose.formulas.special_coefficients import Row

_HALF: Final = (torch.float16, torch.bfloat16)
_SQRT_2_OVER_PI: Final = 0.797884560802865355879892119868763737
_2_OVER_PI: Final = 0.636619772367581343075535053490057448
_1_OVER_SQRT_PI: Final = 5.64189583547756286948e-01


def wide(x: Tensor) -> tuple[Tensor, torch.dtype]:
    """Operand in the type to compute in, and the type of the result."""
    result = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return x.to(torch.float32 if result in _HALF else result), result


def _polynomial(row: Row, x: Tensor) -> Tensor:
    """The highest power first, by Horner's rule."""
    total = x * row[0] + row[1]
    for coefficient in row[2:]:
        total = total * x + coefficient
    return total


def _ratio(top: Row, bottom: Row, x: Tensor) -> Tensor:
    return _polynomial(top, x) / _polynomial(bottom, x)


def _chebyshev(row: Row, y: Tensor) -> Tensor:
    """A Chebyshev series in y / 2, the highest order first, by Clenshaw's recurrence."""
    last, before = torch.full_like(y, row[0]), torch.zeros_like(y)
    oldest = before
    for coefficient in row[1:]:
        oldest, before = before, last
        last = y * before - oldest + coefficient
    return 0.5 * (last - oldest)


# -- Bessel functions ------------------------------------------------------------------------------------------------


def _wave_0(x: Tensor, *, second: bool) -> Tensor:
    """J0, or Y0 if ``second``, above 5."""
    z = 25.0 / (x * x)
    even = _ratio(rows.BESSEL_0_COSINE_TOP, rows.BESSEL_0_COSINE_BOTTOM, z)
    odd = 5.0 / x * _ratio(rows.BESSEL_0_SINE_TOP, rows.BESSEL_0_SINE_BOTTOM, z)
    return _wave(x, x - math.pi / 4, even, odd, second)


def _wave_1(x: Tensor, *, second: bool) -> Tensor:
    """J1, or Y1 if ``second``, above 5."""
    z = 5.0 / x * (5.0 / x)
    even = _ratio(rows.BESSEL_1_COSINE_TOP, rows.BESSEL_1_COSINE_BOTTOM, z)
    odd = 5.0 / x * _ratio(rows.BESSEL_1_SINE_TOP, rows.BESSEL_1_SINE_BOTTOM, z)
    return _wave(x, x - 3 * math.pi / 4, even, odd, second)


def _wave(x: Tensor, phase: Tensor, even: Tensor, odd: Tensor, second: bool) -> Tensor:
    cosine, sine = torch.cos(phase), torch.sin(phase)
    mixed = even * sine + odd * cosine if second else even * cosine - odd * sine
    return mixed * _SQRT_2_OVER_PI / torch.sqrt(x)


def _j0(x: Tensor) -> Tensor:
    x = x.abs()
    z = x * x
    zeros = (z - 5.78318596294678452118e00) * (z - 3.04712623436620863991e01)
    near = zeros * _polynomial(rows.BESSEL_0_NEAR_TOP, z) / _polynomial(rows.BESSEL_0_NEAR_BOTTOM, z)
    near = torch.where(x < 1e-5, 1.0 - z / 4.0, near)
    return torch.where(x <= 5.0, near, _wave_0(x, second=False))


def _j1(x: Tensor) -> Tensor:
    size = x.abs()
    z = size * size
    near = _ratio(rows.BESSEL_1_NEAR_TOP, rows.BESSEL_1_NEAR_BOTTOM, z) * size
    near = near * (z - 1.46819706421238932572e01) * (z - 4.92184563216946036703e01)
    y = torch.where(size <= 5.0, near, _wave_1(size, second=False))
    return torch.where(x < 0, -y, y)


def _defined_above_zero(x: Tensor, y: Tensor, pole: float) -> Tensor:
    """The pole at zero, and nothing below it."""
    y = torch.where(x < 0, math.nan, y)
    return torch.where(x == 0, pole, y)


def _y0(x: Tensor) -> Tensor:
    z = x * x
    near = _ratio(rows.BESSEL_0_SECOND_TOP, rows.BESSEL_0_SECOND_BOTTOM, z) + _2_OVER_PI * torch.log(x) * _j0(x)
    return _defined_above_zero(x, torch.where(x <= 5.0, near, _wave_0(x, second=True)), -math.inf)


def _y1(x: Tensor) -> Tensor:
    z = x * x
    near = x * _ratio(rows.BESSEL_1_SECOND_TOP, rows.BESSEL_1_SECOND_BOTTOM, z)
    near = near + _2_OVER_PI * (_j1(x) * torch.log(x) - 1.0 / x)
    return _defined_above_zero(x, torch.where(x <= 5.0, near, _wave_1(x, second=True)), -math.inf)


def _k0(x: Tensor, *, scaled: bool) -> Tensor:
    """Modified Bessel function of the second kind, times exp(x) if ``scaled``."""
    near = _chebyshev(rows.BESSEL_K0_NEAR, x * x - 2.0) - torch.log(0.5 * x) * _i(aten.special_i0e, x)
    return _second_kind(x, near, _chebyshev(rows.BESSEL_K0_FAR, 8.0 / x - 2.0), scaled)


def _k1(x: Tensor, *, scaled: bool) -> Tensor:
    near = torch.log(0.5 * x) * _i(aten.special_i1e, x) + _chebyshev(rows.BESSEL_K1_NEAR, x * x - 2.0) / x
    return _second_kind(x, near, _chebyshev(rows.BESSEL_K1_FAR, 8.0 / x - 2.0), scaled)


def _i(scaled: Callable[..., Tensor], x: Tensor) -> Tensor:
    return scaled(x) * torch.exp(x.abs())


def _second_kind(x: Tensor, near: Tensor, far: Tensor, scaled: bool) -> Tensor:
    near = near * torch.exp(x) if scaled else near
    far = far if scaled else torch.exp(-x) * far
    return _defined_above_zero(x, torch.where(x <= 2.0, near, far / torch.sqrt(x)), math.inf)


def _spherical_j0(x: Tensor) -> Tensor:
    near = _polynomial(_SPHERICAL, x * x)
    y = torch.where(x.abs() < 0.5, near, torch.sin(x) / x)
    return torch.where(torch.isinf(x), 0.0, y)


_SPHERICAL: Final[Row] = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in reversed(range(7)))


# -- Airy function ---------------------------------------------------------------------------------------------------


def _airy_series(first: int) -> Row:
    """One of the two solutions of y'' = x y as a power series in x³: each term over the product of two numbers."""
    terms = [1.0]
    for k in range(1, 17):
        terms.append(terms[-1] / ((3 * k + first) * (3 * k + first - 1)))
    return tuple(reversed(terms))


_AIRY_EVEN: Final = _airy_series(0)
_AIRY_ODD: Final = _airy_series(1)


def _airy(x: Tensor) -> Tensor:
    cube = x * x * x
    y = 0.355028053887817239260 * _polynomial(_AIRY_EVEN, cube)
    y = y - 0.258819403792806798405 * (x * _polynomial(_AIRY_ODD, cube))
    y = torch.where(x < -2.09, _airy_wave(x), y)
    y = torch.where(x >= 2.09, _airy_decay(x), y)
    y = torch.where(x > 103.892, 0.0, y)
    return torch.where(torch.isfinite(x), y, math.nan)


def _airy_wave(x: Tensor) -> Tensor:
    """Below -2.09."""
    root = torch.sqrt(-x)
    angle = -2.0 * x * root / 3.0
    z = 1.0 / angle
    square = z * z
    sine = 1.0 + square * _polynomial(rows.AIRY_SINE_TOP, square) / _polynomial(rows.AIRY_SINE_BOTTOM, square)
    cosine = z * _polynomial(rows.AIRY_COSINE_TOP, square) / _polynomial(rows.AIRY_COSINE_BOTTOM, square)
    phase = angle + 0.25 * math.pi
    return _1_OVER_SQRT_PI / torch.sqrt(root) * (torch.sin(phase) * sine - torch.cos(phase) * cosine)


def _airy_decay(x: Tensor) -> Tensor:
    """Above 2.09."""
    root = torch.sqrt(x)
    zeta = 2.0 * x * root / 3.0
    ratio = _ratio(rows.AIRY_TOP, rows.AIRY_BOTTOM, 1.0 / zeta)
    return _1_OVER_SQRT_PI * ratio / (2.0 * torch.sqrt(root) * torch.exp(zeta))


# -- error function --------------------------------------------------------------------------------------------------


def _erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x): one series over all positive x, and the reflection below zero."""
    size = x.abs()
    place = 1.0 - 7.5 / (size + 3.75)
    right = 0.5 * _chebyshev(rows.ERFCX, 2.0 * place) / (size + 0.5)
    return torch.where(x < 0, 2.0 * torch.exp(x * x) - right, right)


def _of_one(function: Callable[..., Tensor], **fixed: Any) -> Callable[[Tensor], Tensor]:
    def apply(self: Tensor) -> Tensor:
        x, dtype = wide(self)
        return function(x, **fixed).to(dtype)

    return apply


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "special_bessel_j0.default": _of_one(_j0),
    "special_bessel_j1.default": _of_one(_j1),
    "special_bessel_y0.default": _of_one(_y0),
    "special_bessel_y1.default": _of_one(_y1),
    "special_modified_bessel_k0.default": _of_one(_k0, scaled=False),
    "special_modified_bessel_k1.default": _of_one(_k1, scaled=False),
    "special_scaled_modified_bessel_k0.default": _of_one(_k0, scaled=True),
    "special_scaled_modified_bessel_k1.default": _of_one(_k1, scaled=True),
    "special_spherical_bessel_j0.default": _of_one(_spherical_j0),
    "special_airy_ai.default": _of_one(_airy),
    "special_erfcx.default": _of_one(_erfcx),
}
