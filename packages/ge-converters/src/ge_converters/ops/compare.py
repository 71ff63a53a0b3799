"""Truth, bits and signs: what the comparison tables do not cover."""

from __future__ import annotations

from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, C64, C128, F16, F32, F64, I32, I64, U8, Support
from ge_converters.emit.arithmetic import arithmetic, select
from ge_converters.emit.compute_types import carried
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_INF, _NAN = float("inf"), float("nan")


@declare_supported(
    [
        Support(BOOL(2, 3)),
        Support(F32(value=[0.0, _NAN, -0.0, 2.0])),
        Support(F16(value=[0.0, 1.0])),
        Support(BF16(value=[0.0, 1.0])),
        Support(I64(2, 3, low=-1, high=2)),
        *(Support(x) for x in (I32(3), BOOL(), F32(0, 2), U8(3, high=2))),
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


_COUNTS = [0, 1, 5, 70, -1, 40]
_SHIFTS = [Support(f(6, low=-50, high=50), f(value=_COUNTS)) for f in (I64, I32)] + [
    Support(I64(2, 3), I64()),
    Support(I64(0), I64(0)),
]
_SHIFT_NUMBERS = [Support(f(6, low=-50, high=50), n) for f in (I64, I32) for n in (0, 3)]


@register_fx_node_ge_converter(
    {
        aten.bitwise_left_shift.Tensor: _SHIFTS,
        aten.bitwise_left_shift.Tensor_Scalar: _SHIFT_NUMBERS,
        aten.__lshift__.Tensor: _SHIFTS,
        aten.__lshift__.Scalar: _SHIFT_NUMBERS,
    },
    source="native_functions.yaml: bitwise_left_shift; GE LeftShift",
    fixed={"op": "LeftShift"},
)
@register_fx_node_ge_converter(
    {
        aten.bitwise_right_shift.Tensor: _SHIFTS,
        aten.bitwise_right_shift.Tensor_Scalar: _SHIFT_NUMBERS,
        aten.__rshift__.Tensor: _SHIFTS,
        aten.__rshift__.Scalar: _SHIFT_NUMBERS,
    },
    source="native_functions.yaml: bitwise_right_shift; GE RightShift",
    fixed={"op": "RightShift"},
)
def shift(self: Any, other: Any, *, op: str, meta_outputs: TensorSpec) -> Tensor:
    """Bits shifted by other; GE leaves counts outside [0, bits) undefined, eager shifts everything out.

    Dtypes: integers, promoted.
    """
    dtype, left = meta_outputs.dtype, op == "LeftShift"
    if isinstance(other, int) and 0 <= other < dtype.bits:
        return getattr(ge, op)(*dtype_promote(self, other, target_dtype=dtype))  # type: ignore[no-any-return]
    x, count, low, bits, last = dtype_promote(self, other, 0, dtype.bits, dtype.bits - 1, target_dtype=dtype)
    outside = ge.LogicalOr(ge.Less(count, low), ge.GreaterEqual(count, bits))
    shifted = getattr(ge, op)(x, select(outside, low if left else last, count, dtype))
    return select(outside, low, shifted, dtype) if left else shifted


# -- signs -----------------------------------------------------------------------------------------------------------


_BITS = {_D.DT_FLOAT: _D.DT_INT32, _D.DT_FLOAT16: _D.DT_INT16, _D.DT_DOUBLE: _D.DT_INT64}


@declare_supported(
    [Support(f(value=[0.0, -0.0, 1.5, -2.0, _INF, -_INF])) for f in (F32, F16, BF16, F64)]
    + [Support(I64(5)), Support(I32(3)), Support(BOOL(2)), Support(F32())]
)
@register_fx_node_ge_converter(aten.signbit.default, source="aten signbit; GE Bitcast, Less")
def signbit(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """True for negative numbers, -0.0 and negative NaN."""
    x = cast(self, _D.DT_FLOAT) if self.dtype == _D.DT_BF16 else self
    if x.dtype in _BITS:
        x = ge.Bitcast(x, type=_BITS[x.dtype])
    (x,), _ = carried("Less", x)
    return ge.Less(x, dtype_promote(0, target_dtype=x.dtype))


_COPIED = [(f(value=[1.0, -0.0, 2.0]), f(value=[-1.0, 1.0, -0.0])) for f in (F32, F16, BF16, F64)]


@register_fx_node_ge_converter(
    {
        aten.copysign.Tensor: [
            *(Support(*pair) for pair in _COPIED),
            Support(I64(3), I64(3)),
            Support(F32(2, 3), F32(3)),
        ],
        aten.copysign.Scalar: [Support(x, n) for x, _ in _COPIED for n in (-1, 2.0)],
    },
    source="native_functions.yaml: copysign; GE Bitcast, SelectV2",
)
def copysign(self: Tensor, other: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """The size of self with the sign of other.

    Dtypes: floats kept, integers as eager promotes them.
    """
    dtype = meta_outputs.dtype
    magnitude = ge.Abs(cast(self, dtype))
    sign = dtype_promote(other, target_dtype=dtype)
    return select(signbit(sign, meta_outputs=meta_outputs), ge.Neg(magnitude), magnitude, dtype)


_PAIRS = [Support(f(value=[1.0, _NAN, 3.0, _NAN]), f(value=[2.0, 5.0, _NAN, _NAN])) for f in (F32, F16, BF16, F64)]
_PAIRS += [Support(I64(4), I64(4)), Support(BOOL(4), BOOL(4)), Support(F32(2, 3), F32(3)), Support(F32(), F32())]


@register_fx_node_ge_converter(
    {aten.fmax.default: _PAIRS},
    source="native_functions.yaml: fmax; GE Maximum, SelectV2",
    fixed={"op": "Maximum", "on_bool": "LogicalOr"},
)
@register_fx_node_ge_converter(
    {aten.fmin.default: _PAIRS},
    source="native_functions.yaml: fmin; GE Minimum, SelectV2",
    fixed={"op": "Minimum", "on_bool": "LogicalAnd"},
)
def ignoring_nan(self: Tensor, other: Tensor, *, op: str, on_bool: str, meta_outputs: TensorSpec) -> Tensor:
    """The larger or smaller of two; NaN loses to a number."""
    dtype = meta_outputs.dtype
    if dtype == _D.DT_BOOL:
        return getattr(ge, on_bool)(self, other)  # type: ignore[no-any-return]
    chosen = arithmetic(op, self, other, dtype)
    if not dtype.is_float:
        return chosen
    a, b = cast(self, dtype), cast(other, dtype)
    return select(ge.NotEqual(a, a), b, select(ge.NotEqual(b, b), a, chosen, dtype), dtype)


@declare_supported(
    [Support(F32(value=[1.0, -2.0, 0.0, _NAN, -_INF]))]
    + [Support(x) for x in (F16(4), BF16(4), F64(4), I64(4), BOOL(2), F32(), C64(2, 3), C128(4), C64())]
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
