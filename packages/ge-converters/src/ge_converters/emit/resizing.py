"""What interpolation and its gradients share: matrices of single axes, and how GE writes sizes and scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.interpolation import linear_interpolation, selection
from ge_converters.emit.shapes import Size, places, scalar
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_I64: Final = DataType.DT_INT64


def _single(value: float) -> Tensor:
    return ge.Const(float(np.float32(value)), dtype=_F32)


def _step(length: Size, count: Size, factor: float | None, align_corners: bool) -> Tensor:
    """Distance of the sources of two neighbouring results, float32."""
    if align_corners:
        span = ge.RealDiv(cast(ge.Sub(scalar(length), 1), _F32), cast(ge.Maximum(ge.Sub(scalar(count), 1), 1), _F32))
        return ge.SelectV2(ge.Greater(scalar(count), 1), span, _single(0.0))
    if factor is not None and factor > 0:
        return _single(1.0 / factor)
    ratio: Tensor = ge.RealDiv(cast(scalar(length), _F32), cast(scalar(count), _F32))
    return ratio


def nearest_matrix(length: Size, count: Size, factor: float | None, half: float) -> Tensor:
    step = _step(length, count, factor, False)
    source = ge.Mul(ge.Add(cast(places(count, 0), _F32), _single(half)), step)
    return selection(length, cast(ge.Floor(source), _I64))


def linear_matrix(length: Size, count: Size, factor: float | None, align_corners: bool) -> Tensor:
    step = _step(length, count, factor, align_corners)
    place = cast(places(count, 0), _F32)
    if align_corners:
        return linear_interpolation(length, count, ge.Mul(place, step))
    half = _single(0.5)
    return linear_interpolation(length, count, ge.Sub(ge.Mul(ge.Add(place, half), step), half))


def cubic_matrix(length: Size, count: Size, factor: float | None, align_corners: bool) -> Tensor:
    """Four taps of the cubic kernel with a = -0.75, places outside clamped to the ends."""
    step = _step(length, count, factor, align_corners)
    place, half = cast(places(count, 0), _F32), _single(0.5)
    source = ge.Mul(place, step) if align_corners else ge.Sub(ge.Mul(ge.Add(place, half), step), half)
    floor = ge.Floor(source)
    t = ge.Sub(source, floor)
    base, zero = cast(floor, _I64), ge.Const(0, dtype=_I64)
    total = None
    for tap, distance in ((-1, ge.Add(t, 1.0)), (0, t), (1, ge.Sub(1.0, t)), (2, ge.Sub(2.0, t))):
        weight = _cubic_far(distance) if tap in (-1, 2) else _cubic_near(distance)
        picked = selection(length, ge.Maximum(ge.Add(base, tap), zero))
        part = ge.Mul(picked, weight)
        total = part if total is None else ge.Add(total, part)
    assert total is not None  # four taps
    return total


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    value = _single(coefficients[0])
    for c in coefficients[1:]:
        value = ge.Add(ge.Mul(value, x), _single(c))
    return value


def _cubic_near(x: Tensor) -> Tensor:
    a = -0.75
    return _polynomial(x, (a + 2, -(a + 3), 0.0, 1.0))


def _cubic_far(x: Tensor) -> Tensor:
    a = -0.75
    return _polynomial(x, (a, -5 * a, 8 * a, -4 * a))


def steps_agree(factors: Sequence[float | None]) -> bool:
    """Whether size ratios are the steps that torch takes: no factor given, or a whole one."""
    return all(f is None or (f >= 1 and float(f).is_integer()) for f in factors)


def through_float32(x: Tensor, op: str) -> Tensor:
    if x.dtype not in (_F32, DataType.DT_FLOAT16, DataType.DT_BF16):
        raise Refusal(f"{op} of {x.dtype.name} has no GE operator; cast to float32")
    return cast(x, _F32)


def fixed(output_size: Sequence[Size]) -> TypeGuard[Sequence[int]]:
    """Whether the sizes are numbers, so that an attribute holds them."""
    return not any(isinstance(s, Tensor) for s in output_size)


def scale_of(factor: float | None) -> float:
    """A scale as GE writes it: 0 if there is none."""
    return float(factor) if factor is not None and factor > 0 else 0.0
