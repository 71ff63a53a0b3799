"""Truth, bits and signs: what the comparison tables do not cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.support import BF16, BOOL, C64, C128, F16, F32, F64, I32, I64, U8, Support
from ge_converters.emit.arithmetic import arithmetic, select
from ge_converters.emit.compute_types import carried
from ge_converters.registry import declare_supported, define, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten
_D = DataType
_INF, _NAN = float("inf"), float("nan")


@declare_supported(
    [
        Support(x)
        for x in (
            BOOL(2, 3),
            F32(value=[0.0, _NAN, -0.0, 2.0]),
            F16(value=[0.0, 1.0]),
            BF16(value=[0.0, 1.0]),
            I64(2, 3, low=-1, high=2),
            I32(3),
            BOOL(),
            F32(0, 2),
            U8(3, high=2),
        )
    ]
)
@register_fx_node_ge_converter(aten.logical_not.default, source="aten logical_not; GE LogicalNot, Equal")
def logical_not(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """True where self is zero.

    Dtypes: any -> bool.
    Emits:  LogicalNot for bool, Equal to 0 for numbers.
    """
    if self.dtype == _D.DT_BOOL:
        return ge.LogicalNot(self)
    (x,), _ = carried("Equal", self)
    return ge.Equal(x, dtype_promote(0, target_dtype=x.dtype))


@declare_supported([Support(x) for x in (BOOL(2, 3), I64(2, 3), I32(3), U8(3), I64(), I64(0, 2))])
@register_fx_node_ge_converter(aten.bitwise_not.default, source="aten bitwise_not; GE Invert, LogicalNot")
def bitwise_not(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """All bits inverted; bool is negated."""
    return ge.LogicalNot(self) if self.dtype == _D.DT_BOOL else ge.Invert(self)


# -- shifts ----------------------------------------------------------------------------------------------------------


def _shift(op: str) -> Callable[..., Tensor]:
    """GE leaves counts outside [0, bits) undefined; eager shifts everything out."""
    left = op == "LeftShift"

    def convert(self: Any, other: Any, *, meta_outputs: TensorSpec) -> Tensor:
        dtype = meta_outputs.dtype
        if isinstance(other, int) and 0 <= other < dtype.bits:
            return getattr(ge, op)(*dtype_promote(self, other, target_dtype=dtype))  # type: ignore[no-any-return]
        x, count, low, bits, last = dtype_promote(self, other, 0, dtype.bits, dtype.bits - 1, target_dtype=dtype)
        outside = ge.LogicalOr(ge.Less(count, low), ge.GreaterEqual(count, bits))
        shifted = getattr(ge, op)(x, select(outside, low if left else last, count, dtype))
        return select(outside, low, shifted, dtype) if left else shifted

    return convert


_COUNTS = [0, 1, 5, 70, -1, 40]
_SHIFTS = [Support(f(6, low=-50, high=50), f(value=_COUNTS)) for f in (I64, I32)] + [
    Support(I64(2, 3), I64()),
    Support(I64(0), I64(0)),
]
_SHIFT_NUMBERS = [Support(f(6, low=-50, high=50), n) for f in (I64, I32) for n in (0, 3)]
for _name, _op in (("bitwise_left_shift", "LeftShift"), ("bitwise_right_shift", "RightShift")):
    _packet = getattr(aten, _name)
    define(_packet.Tensor, _op, _shift(_op), _SHIFTS, "Dtypes: integers, promoted.")
    define(_packet.Tensor_Scalar, _op, _shift(_op), _SHIFT_NUMBERS, "Dtypes: integers, promoted.")
for _name, _op in (("__lshift__", "LeftShift"), ("__rshift__", "RightShift")):
    _packet = getattr(aten, _name)
    define(_packet.Tensor, _op, _shift(_op), _SHIFTS, "Dtypes: integers, promoted.")
    define(_packet.Scalar, _op, _shift(_op), _SHIFT_NUMBERS, "Dtypes: integers, promoted.")


# -- signs -----------------------------------------------------------------------------------------------------------


_BITS = {_D.DT_FLOAT: _D.DT_INT32, _D.DT_FLOAT16: _D.DT_INT16, _D.DT_DOUBLE: _D.DT_INT64}


def sign_bit(x: Tensor) -> Tensor:
    """True for negative numbers, -0.0 and negative NaN."""
    if x.dtype == _D.DT_BF16:
        x = cast(x, _D.DT_FLOAT)
    if x.dtype in _BITS:
        x = ge.Bitcast(x, type=_BITS[x.dtype])
    (x,), _ = carried("Less", x)
    return ge.Less(x, dtype_promote(0, target_dtype=x.dtype))


_SIGNED = [f(value=[0.0, -0.0, 1.5, -2.0, _INF, -_INF]) for f in (F32, F16, BF16, F64)] + [
    I64(5),
    I32(3),
    BOOL(2),
    F32(),
]


@declare_supported([Support(x) for x in _SIGNED])
@register_fx_node_ge_converter(aten.signbit.default, source="aten signbit; GE Bitcast, Less")
def signbit(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Whether the sign bit is set."""
    return sign_bit(self)


def _copysign() -> Callable[..., Tensor]:
    def convert(self: Tensor, other: Any, *, meta_outputs: TensorSpec) -> Tensor:
        dtype = meta_outputs.dtype
        magnitude = ge.Abs(cast(self, dtype))
        sign = dtype_promote(other, target_dtype=dtype)
        return select(sign_bit(sign), ge.Neg(magnitude), magnitude, dtype)

    return convert


_COPIED = [f(value=[1.0, -0.0, 2.0]) for f in (F32, F16, BF16, F64)]
define(
    aten.copysign.Tensor,
    "Bitcast, SelectV2",
    _copysign(),
    [Support(x, y) for x, y in zip(_COPIED, [f(value=[-1.0, 1.0, -0.0]) for f in (F32, F16, BF16, F64)])]
    + [Support(I64(3), I64(3)), Support(F32(2, 3), F32(3))],
    "Dtypes: floats kept, integers as eager promotes them.",
)
define(
    aten.copysign.Scalar,
    "Bitcast, SelectV2",
    _copysign(),
    [Support(x, n) for x in _COPIED for n in (-1, 2.0)],
    "Dtypes: as copysign.Tensor.",
)


def _ignoring_nan(op: str, on_bool: str) -> Callable[..., Tensor]:
    def convert(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
        dtype = meta_outputs.dtype
        if dtype == _D.DT_BOOL:
            return getattr(ge, on_bool)(self, other)  # type: ignore[no-any-return]
        chosen = arithmetic(op, self, other, dtype)
        if not dtype.is_float:
            return chosen
        a, b = cast(self, dtype), cast(other, dtype)
        return select(ge.NotEqual(a, a), b, select(ge.NotEqual(b, b), a, chosen, dtype), dtype)

    return convert


_PAIRS = [Support(f(value=[1.0, _NAN, 3.0, _NAN]), f(value=[2.0, 5.0, _NAN, _NAN])) for f in (F32, F16, BF16, F64)]
_PAIRS += [Support(I64(4), I64(4)), Support(BOOL(4), BOOL(4)), Support(F32(2, 3), F32(3)), Support(F32(), F32())]
define(aten.fmax.default, "Maximum, SelectV2", _ignoring_nan("Maximum", "LogicalOr"), _PAIRS, "NaN loses to a number.")
define(aten.fmin.default, "Minimum, SelectV2", _ignoring_nan("Minimum", "LogicalAnd"), _PAIRS, "NaN loses to a number.")


@declare_supported(
    [Support(x) for x in [F32(value=[1.0, -2.0, 0.0, _NAN, -_INF]), F16(4), BF16(4), F64(4), I64(4), BOOL(2), F32()]]
    + [Support(C64(2, 3)), Support(C128(4)), Support(C64())]
)
@register_fx_node_ge_converter(aten.angle.default, source="aten angle; GE SelectV2, Angle")
def angle(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Pi for negative numbers, 0 for the others, NaN for NaN; Angle for complex numbers."""
    dtype = meta_outputs.dtype
    if self.dtype.is_complex:
        return ge.Angle(self, Tout=dtype)
    x = cast(self, dtype)
    negative = ge.Less(x, dtype_promote(0, target_dtype=dtype))
    return select(negative, torch.pi, select(ge.NotEqual(x, x), x, 0.0, dtype), dtype)
