"""Functions of two numbers that GE has operators for, in the types that those take."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, I8, I16, I32, U8, Support
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_POSITIVE = {"low": 0.5, "high": 3.0}


def _pairs(kinds: Any, **bounds: float) -> list[Support]:
    made = [Support(f(2, 3, **bounds), f(2, 3, **bounds)) for f in kinds]
    return [*made, Support(F32(2, 1, **bounds), F32(3, **bounds)), Support(F32(**bounds), F32(0, **bounds))]


@register_fx_node_ge_converter(
    {aten.igamma.default: _pairs((F32, F16, BF16, F64), **_POSITIVE)},
    source="native_functions.yaml: igamma; GE Igamma",
    fixed={"op": "Igamma"},
)
@register_fx_node_ge_converter(
    {aten.igammac.default: _pairs((F32, F16, BF16, F64), **_POSITIVE)},
    source="native_functions.yaml: igammac; GE Igammac",
    fixed={"op": "Igammac"},
)
@register_fx_node_ge_converter(
    {
        aten.special_zeta.default: _pairs((F32, F64), low=1.5, high=4.0),
        aten.special_zeta.other_scalar: [Support(F32(3, low=1.5), 2.5)],
        aten.special_zeta.self_scalar: [Support(2.5, F32(3, low=1.5))],
    },
    source="native_functions.yaml: special_zeta; GE Zeta",
    fixed={"op": "Zeta"},
)
def by_operator(self: Any, other: Any, *, op: str, meta_outputs: TensorSpec) -> Tensor:
    """Dtypes: promoted as eager does; halves through float32.
    Emits:  Igamma, Igammac, Zeta.
    """
    return arithmetic(op, self, other, meta_outputs.dtype)


_EDGES = [1.0, -1.0, 0.0, 0.0, 2.5, float("inf"), float("nan"), 65504.0, 3.0]
_TOWARDS = [2.0, -2.0, 1.0, -1.0, 2.5, 0.0, 1.0, float("inf"), float("nan")]


@declare_supported(
    [Support(f(value=_EDGES), f(value=_TOWARDS)) for f in (F32, F64, F16, BF16)]
    + [Support(F32(2, 3), F32(3)), Support(F16(2, 1), F16(3)), Support(F32(), F32())]
)
@register_fx_node_ge_converter(aten.nextafter.default, source="aten nextafter; GE NextAfter, Bitcast")
def nextafter(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """The next number that the type can hold from self towards other.

    Dtypes: floats.
    Emits:  NextAfter for float32 and float64; for halves, which it does not take, one step on the bits.
    """
    dtype = meta_outputs.dtype
    a, b = dtype_promote(self, other, target_dtype=dtype)
    if dtype in (_D.DT_FLOAT, _D.DT_DOUBLE):
        result: Tensor = ge.NextAfter(a, b)
        return result
    x, y = cast(a, _D.DT_FLOAT), cast(b, _D.DT_FLOAT)
    zero, unit = ge.Const(0.0, dtype=_D.DT_FLOAT), 1 if dtype == _D.DT_FLOAT16 else 1 << 16
    bits_of = _half_bits if dtype == _D.DT_FLOAT16 else _single_bits
    step = ge.SelectV2(ge.Equal(ge.Greater(y, x), ge.Greater(x, zero)), _number(unit), _number(-unit))
    # next to zero: the smallest number, with the sign bit of where it goes
    first = ge.SelectV2(ge.Greater(y, zero), _number(unit), _number(unit - 2**15 * unit))
    bits = ge.SelectV2(ge.Equal(x, zero), first, ge.Add(bits_of(x), step))
    bits = ge.SelectV2(ge.Equal(x, y), bits_of(y), bits)
    for operand in (x, y):
        bits = ge.SelectV2(ge.IsNan(operand), bits_of(operand), bits)
    if dtype == _D.DT_FLOAT16:
        return ge.Bitcast(cast(bits, _D.DT_INT16), type=dtype)
    return cast(ge.Bitcast(bits, type=_D.DT_FLOAT), dtype)


def _number(value: int) -> Tensor:
    return ge.Const(value, dtype=_D.DT_INT32)


def _half_bits(x: Tensor) -> Tensor:
    """Bits of a float16 number that is given in float32."""
    return cast(ge.Bitcast(cast(x, _D.DT_FLOAT16), type=_D.DT_INT16), _D.DT_INT32)


def _single_bits(x: Tensor) -> Tensor:
    """Bits of a float32 number; those of a bfloat16 one are the upper half."""
    bits: Tensor = ge.Bitcast(x, type=_D.DT_INT32)
    return bits


@declare_supported(
    [Support(f(2, 3, low=0.05, high=0.95)) for f in (F32, F64)] + [Support(I32(value=[0, 1])), Support(F32())]
)
@register_fx_node_ge_converter(aten.special_ndtri.default, source="aten special_ndtri; GE Ndtri")
def special_ndtri(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Inverse of the cumulative normal distribution; integers and bool become float32."""
    result: Tensor = ge.Ndtri(cast(self, meta_outputs.dtype))
    return result


@declare_supported(
    [Support(f(2, 3, low=-40, high=40), f(3, low=-40, high=40)) for f in (I32, I16, I8)]
    + [Support(U8(4, high=50), U8(4, high=50)), Support(I32(value=[0, 0, 6]), I32(value=[0, 5, 0]))]
)
@register_fx_node_ge_converter(aten.gcd.default, source="aten gcd; GE Gcd")
def gcd(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Greatest common divisor.

    Dtypes: int32, int16; int8 and uint8 through int16.
    Errors: Refusal for int64, which Gcd does not take.
    """
    dtype = meta_outputs.dtype
    if dtype == _D.DT_INT64:
        raise Refusal("GE Gcd takes DT_INT32 and DT_INT16, not DT_INT64; cast the operands if their values fit int32")
    inner = dtype if dtype in (_D.DT_INT32, _D.DT_INT16) else _D.DT_INT16
    a, b = dtype_promote(self, other, target_dtype=inner)
    return cast(ge.Gcd(a, b), dtype)
