"""Element by element, with something to decide: alpha, rounding modes, bounds, selection, activations, casts."""

from __future__ import annotations

import math
from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote, part_type, to_torch
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten, prims
from ge_converters.base.support import BF16, BOOL, C64, C128, F16, F32, F64, I32, I64, U8, Support
from ge_converters.emit.arithmetic import HALF_TYPES, arithmetic, as_content, as_number, compute_type, select
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_NUMBERS = (bool, int, float)


# -- add, sub --------------------------------------------------------------------------------------------------------


_ADD_TENSOR = [
    Support(F32(2, 2), F32(2, 2)),
    Support(F32(2, 2), F32(2, 1)),
    Support(F32(2, 2), F16(2, 1)),
    Support(F32(2, 2), F16(2, 2), alpha=2),
    Support(F32(2, 2), 2.0),
    Support(F32(2, 2), 2),
    Support(F32(2, 2), 2, alpha=2.0),
    Support(F32(2, 2), F32(2, 2), alpha=0.5),
    Support(F16(2, 3), F16(3)),
    Support(F16(2, 3), 0.1),
    Support(F16(4, 16), F16(4, 16), alpha=0.1),
    Support(BF16(4, 16), BF16(4, 16), alpha=3),
    Support(BF16(2, 3), 0.3),
    Support(I64(2, 3), I64(3), alpha=2),
    Support(I32(2, 3), 2),
    Support(I64(2, 3), 1.5),
    Support(I64(2, 3), I32(2, 3)),
    Support(F32(), F32()),
    Support(F32(0, 3), F32(3)),
    Support(F32(2, 3), I64(2, 3)),
    Support(F64(2, 3), F64(2, 3), alpha=2),
]
_NO_BOOL_SCALARS = [
    Support(F32(2, 3), 2),
    Support(F32(2, 3), 2.5, 2),
    Support(F16(2, 3), 0.1),
    Support(BF16(2, 3), 0.1),
    Support(I64(2, 3), 3, 2),
    Support(I32(2, 3), 2.5),
    Support(F32(), 1),
]


@register_fx_node_ge_converter(
    {
        aten.add.Tensor: [*_ADD_TENSOR, Support(BOOL(2, 3), BOOL(3)), Support(BOOL(2), I64(2))],
        aten.add.Scalar: [*_NO_BOOL_SCALARS, Support(BOOL(2, 3), True)],
    },
    source="aten add; GE Add, AxpyV2",
)
def add(self: Any, other: Any, alpha: Any = 1, *, meta_outputs: TensorSpec) -> Tensor:
    """self + alpha * other.

    Dtypes: promoted as eager does; bool + bool is a logical or.
    Emits:  Add; AxpyV2 if alpha != 1 and the result is a float; LogicalOr for bool.
    """
    dtype = meta_outputs.dtype
    if not isinstance(alpha, Tensor) and alpha == 1:
        if dtype == _D.DT_BOOL:
            result: Tensor = ge.LogicalOr(*dtype_promote(self, other, target_dtype=dtype))
            return result
        return arithmetic("Add", self, other, dtype)
    if dtype == _D.DT_BOOL:
        x, y, flag = dtype_promote(self, other, alpha, target_dtype=dtype)
        return ge.LogicalOr(x, ge.LogicalAnd(y, flag))
    if dtype in HALF_TYPES:  # eager rounds a number before it adds
        self, other = dtype_promote(self, other, target_dtype=dtype)
    if isinstance(other, _NUMBERS) and isinstance(alpha, _NUMBERS):
        return arithmetic("Add", self, other * alpha, dtype)
    # Eager rounds alpha to the element type, multiplies and adds with one rounding; so does AxpyV2.
    inner = compute_type(dtype, self, other)
    if inner in (_D.DT_FLOAT, *HALF_TYPES):
        x, y, factor = dtype_promote(self, other, alpha, target_dtype=inner)
        return cast(ge.AxpyV2(x, y, factor), dtype)
    factor = dtype_promote(as_number(alpha, dtype), target_dtype=dtype)  # eager refuses one that the type does not hold
    return arithmetic("Add", self, arithmetic("Mul", other, factor, dtype), dtype)


@register_fx_node_ge_converter(
    {aten.sub.Tensor: _ADD_TENSOR, aten.sub.Scalar: _NO_BOOL_SCALARS}, source="aten sub; GE Sub, AxpyV2"
)
def sub(self: Any, other: Any, alpha: Any = 1, *, meta_outputs: TensorSpec) -> Tensor:
    """self - alpha * other.

    Dtypes: promoted as eager does; eager refuses bool.
    Emits:  Sub; AxpyV2 with -alpha if alpha != 1 and the result is a float.
    """
    dtype = meta_outputs.dtype
    if isinstance(alpha, Tensor):
        return arithmetic("Sub", self, arithmetic("Mul", other, alpha, dtype), dtype)
    if alpha == 1:
        return arithmetic("Sub", self, other, dtype)
    return add(self, other, -alpha, meta_outputs=meta_outputs)


@register_fx_node_ge_converter(
    {
        aten.rsub.Tensor: [s for s in _ADD_TENSOR if not isinstance(s.args[1], _NUMBERS)],
        aten.rsub.Scalar: _NO_BOOL_SCALARS,
    },
    source="aten rsub; GE Sub, AxpyV2",
)
def rsub(self: Tensor, other: Any, alpha: Any = 1, *, meta_outputs: TensorSpec) -> Tensor:
    """other - alpha * self."""
    if any(v.dtype == _D.DT_BOOL if isinstance(v, Tensor) else isinstance(v, bool) for v in (self, other)):
        raise Refusal("Subtraction, the `-` operator, with a bool tensor is not supported; use ~ or logical_not()")
    return sub(other, self, alpha, meta_outputs=meta_outputs)


# -- division --------------------------------------------------------------------------------------------------------


def _truncated(x: Tensor) -> Tensor:
    """Towards zero; ``Trunc`` takes no float64."""
    if x.dtype == _D.DT_DOUBLE:
        negative = ge.Less(x, ge.Const(0.0, dtype=x.dtype))
        return ge.SelectV2(negative, ge.Ceil(x), ge.Floor(x))
    (inner,), back = carried("Trunc", x)
    return back(ge.Trunc(inner))


def _floored(a: Tensor, b: Any) -> Tensor:
    """Python's floor division of floats: exact remainder first, so that 1.0 // 0.1 is 9; ``FloorDiv`` gives 10."""
    largest = float(torch.finfo(to_torch(a.dtype)).max)  # for an infinite divisor, whose remainder has no quotient
    if isinstance(b, _NUMBERS):
        divisor = dtype_promote(max(-largest, min(largest, b)) if b == b else b, target_dtype=a.dtype)
    else:
        bounds = dtype_promote(-largest, largest, target_dtype=a.dtype)
        divisor = ge.ClipByValue(cast(b, a.dtype), *bounds)
    quotient: Tensor = ge.Round(ge.RealDiv(ge.Sub(a, ge.FloorMod(a, divisor)), divisor))
    if isinstance(b, _NUMBERS) and b:
        return quotient
    return ge.SelectV2(ge.Equal(divisor, 0.0), ge.RealDiv(a, divisor), quotient)


_DIV = [
    Support(F32(2, 3), F32(3, low=0.5)),
    Support(F16(2, 3), F16(2, 3, low=0.5)),
    Support(BF16(2, 3), BF16(2, 1, low=0.5)),
    Support(I64(2, 3), I64(2, 3, low=1)),
    Support(I32(2, 3), I32(low=1)),
    Support(BOOL(2, 3), BOOL(2, 3, value=[[True] * 3] * 2)),
    Support(F32(2, 3), I64(2, 3, low=1)),
    Support(F32(value=[1.0, -1.0, 0.0]), F32(value=[0.0, 0.0, 0.0])),
    Support(F64(2, 3), F64(2, 3, low=0.5)),
    Support(F32(0, 3), F32(3)),
]
_DIV_NUMBER = [
    Support(F32(2, 3), 3),
    Support(F16(2, 3), 0.3),
    Support(BF16(2, 3), 0.7),
    Support(I64(2, 3), 2),
    Support(I32(2, 3), 2.5),
    Support(F32(), 0.5),
    Support(BOOL(2), 2),
]
_MODES = [
    (F32(8), F32(8, low=0.5)),
    (F32(8), F32(8, low=-2, high=-0.5)),
    (F16(8), F16(8, low=0.5)),
    (BF16(8), BF16(8, low=0.5)),
    (I64(8, low=-9, high=9), I64(8, low=1, high=4)),
    (I32(8, low=-9, high=9), I32(8, low=-4, high=0)),
    (U8(8, high=50), U8(8, low=1)),
    (F32(value=[1.0, -1.0, 0.0, 1.0]), F32(value=[0.0, 0.0, 0.0, 0.1])),
    (F64(8), F64(8, low=0.5)),
    (F32(value=[1.0, -1.0, 0.0, math.inf]), F32(value=[math.inf, math.inf, -math.inf, math.inf])),
]


@register_fx_node_ge_converter(
    {
        aten.div.Tensor: [*_DIV, *_DIV_NUMBER],
        aten.div.Scalar: _DIV_NUMBER,
        aten.div.Tensor_mode: [Support(*p, rounding_mode=m) for p in _MODES for m in (None, "floor", "trunc")],
        aten.div.Scalar_mode: [
            Support(p[0], n, rounding_mode=m) for p in _MODES for n in (3, -2) for m in (None, "floor", "trunc")
        ][:42],
    },
    source="aten div; GE RealDiv, FloorDiv, TruncateDiv",
)
@register_fx_node_ge_converter(
    {
        aten.floor_divide.default: [
            *(Support(*p) for p in _MODES),
            Support(F32(4), 2),
            Support(I64(4), 3),
            Support(F32(4), -math.inf),
        ]
    },
    source="aten floor_divide; GE FloorDiv",
    fixed={"rounding_mode": "floor"},
)
def div(self: Any, other: Any, *, rounding_mode: str | None = None, meta_outputs: TensorSpec) -> Tensor:
    """True division; with a rounding mode rounded down ('floor') or towards zero ('trunc').

    Dtypes: promoted as eager does; integers and bool divide as floats, and stay integers with a rounding mode.
    Emits:  RealDiv; rounded FloorDiv or RealDiv for integers, for floats TruncateDiv (halves: RealDiv, Trunc) or
            Python's floor division.
    """
    dtype = meta_outputs.dtype
    if rounding_mode is None:
        return arithmetic("RealDiv", self, other, dtype)
    if rounding_mode not in ("floor", "trunc"):
        raise Refusal(f"rounding_mode={rounding_mode!r}: only None, 'floor' and 'trunc' exist")
    if dtype.is_integer:
        return arithmetic("FloorDiv" if rounding_mode == "floor" else "RealDiv", self, other, dtype)
    # Beside a number eager divides in float32, two half tensors divide in their own type.
    number = not (isinstance(self, Tensor) and isinstance(other, Tensor))
    inner = _D.DT_FLOAT if dtype in HALF_TYPES and number else dtype
    if rounding_mode == "floor":
        divisor = cast(other, inner) if isinstance(other, Tensor) else other
        return cast(_floored(dtype_promote(self, target_dtype=inner), divisor), dtype)
    operands = dtype_promote(self, other, target_dtype=inner)
    if inner in HALF_TYPES:  # eager rounds the quotient to the half type before it truncates
        return _truncated(ge.RealDiv(*operands))
    return cast(ge.TruncateDiv(*operands), dtype)


@register_fx_node_ge_converter(
    {
        aten.xlogy.Tensor: [
            Support(F32(value=[0.0, 0.0, 0.0, -1.0]), F32(value=[0.0, math.nan, -1.0, 2.0])),
            Support(F32(2, 3), F32(3, low=0.1)),
            *(Support(f(4), f(4, low=0.1)) for f in (F64, F16, BF16)),
            Support(I64(3), F32(2, 3, low=0.1)),
            Support(I64(3), I64(3, low=1)),
            Support(F32(), F32(0)),
        ],
        aten.xlogy.Scalar_Other: [Support(F32(4), 2.0), Support(I64(4), 3), Support(F16(4), 0.5)],
        aten.xlogy.Scalar_Self: [
            Support(2.0, F32(4, low=0.1)),
            Support(0, F32(value=[0.0, math.nan])),
            Support(3, I64(4, low=1)),
        ],
    },
    source="native_functions.yaml: xlogy; GE Xlogy",
)
def xlogy(self: Any, other: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """self * log(other), 0 where self is 0, NaN where other is.

    Dtypes: promoted as eager does; bfloat16 is computed in float32.
    Emits:  Xlogy.
    """
    dtype = meta_outputs.dtype
    return cast(ge.Xlogy(*dtype_promote(self, other, target_dtype=carrier("Xlogy", dtype))), dtype)


@declare_supported(
    # eager rounds 1 - x and the quotient to the half type
    [Support(F32(2, 3, low=0.1, high=0.9)), Support(F32(4, low=0, high=1), 0.2)]
    + [Support(f(2, 3, low=0.1, high=0.9)).within(3e-2, 2e-2) for f in (F16, BF16)]
    + [Support(F16(4, low=0, high=1), 0.2).within(1e-2, 2e-3)]
)
@register_fx_node_ge_converter(aten.logit.default, source="aten logit; GE Logit", takes=Takes("Logit"))
def logit(self: Tensor, eps: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """log(x / (1 - x)), x first held between eps and 1 - eps.

    Dtypes: float32, float16, bfloat16; halves are computed in float32 and rounded once. Other types are decomposed.
    Emits:  Logit.
    """
    (x,), back = carried("Logit", self)
    return back(ge.Logit(x, eps=-1.0 if eps is None else float(eps)))


_ROUNDED = [f(2, 3, low=-900, high=900) for f in (F32, BF16, F64)] + [F16(2, 3, low=-9, high=9)]


@declare_supported([Support(x, decimals=d) for x in _ROUNDED for d in (0, 2, -1)])
@register_fx_node_ge_converter(aten.round.decimals, source="aten round.decimals; GE Round, Mul, RealDiv")
def round_decimals(self: Tensor, *, decimals: int, meta_outputs: TensorSpec) -> Tensor:
    """Rounded to decimals, half to even; negative decimals round to tens, hundreds, ..."""
    if not self.dtype.is_float:
        return self
    if decimals == 0:
        (x,), back = carried("Round", self)
        return back(ge.Round(x))
    if decimals > 0 and self.dtype not in HALF_TYPES:
        return ge.Round(self, decimals=decimals)
    # Beside a half tensor eager rounds the power of ten to that type and computes in float32.
    inner = carrier("Round", _D.DT_FLOAT if self.dtype in HALF_TYPES else self.dtype)
    scale = cast(ge.Const(float(10 ** abs(decimals)), dtype=self.dtype), inner)
    x = cast(self, inner)
    if decimals > 0:
        return cast(ge.RealDiv(ge.Round(ge.Mul(x, scale)), scale), self.dtype)
    return cast(ge.Mul(ge.Round(ge.RealDiv(x, scale)), scale), self.dtype)


@declare_supported(
    [
        Support(F32(2, 3, low=-9, high=9)),
        Support(F16(4)),
        Support(BF16(4)),
        Support(F64(4)),
        Support(I64(3)),
        Support(F32()),
    ]
)
@register_fx_node_ge_converter(aten.trunc.default, source="aten trunc; GE Trunc")
def trunc(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Towards zero; integers pass through."""
    return self if self.dtype.is_integer else _truncated(self)


# -- powers ----------------------------------------------------------------------------------------------------------


_POWERS = {2: "Square", 0.5: "Sqrt", -0.5: "Rsqrt", -1: "Reciprocal"}


@declare_supported(
    [Support(f(2, 3, low=0.1), e) for f in (F32, F16, BF16) for e in (2, 3, 0.5, -0.5, -1, -2, 1.7, 0, 1)]
    + [Support(I64(2, 3), e) for e in (0, 1, 2, 3)]
    + [
        Support(I32(2, 3), 2.0),
        Support(I64(2, 3, low=1), 0.5),
        Support(BOOL(2, 3), 2),
        Support(F32(), 2),
        Support(F32(0, 2), 3),
    ]
)
@register_fx_node_ge_converter(
    aten.pow.Tensor_Scalar, source="aten pow.Tensor_Scalar; GE Pow, Square, Sqrt, Rsqrt, Reciprocal"
)
def pow_scalar(self: Tensor, exponent: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """self ** exponent.

    Emits:  Square, Sqrt, Rsqrt or Reciprocal for exponents 2, 0.5, -0.5, -1, as eager computes them; else Pow.
    """
    dtype = meta_outputs.dtype
    if isinstance(exponent, (int, float)):
        if exponent < 0 and not (dtype.is_float or dtype.is_complex):
            raise Refusal(f"exponent {exponent}: Integers to negative integer powers are not allowed.")
        if exponent == 1:
            return cast(self, dtype)
        special = _POWERS.get(exponent)
        if special == "Square" or (special and dtype.is_float):
            return cast(getattr(ge, special)(cast(self, carrier(special, dtype))), dtype)
    return power(self, exponent, meta_outputs=meta_outputs)


@register_fx_node_ge_converter(
    {
        aten.pow.Tensor_Tensor: [
            *(Support(f(2, 3, low=0.1), f(3)) for f in (F32, F16, BF16)),
            Support(I64(2, 3), I64(2, 3, low=0, high=4)),
            Support(I32(2), I64(2, low=0, high=3)),
            Support(F32(2, low=0.1), I64(2)),
            Support(F32(low=0.1), F32()),
        ],
        aten.pow.Scalar: [
            *(Support(n, f(2, 3)) for n in (2, 1.5) for f in (F32, F16, BF16)),
            Support(2, I64(2, 3, low=0, high=5)),
            Support(1.5, I64(2, 3)),
            Support(3, I32(4, low=0, high=4)),
            Support(2, BOOL(3)),
        ],
    },
    source="aten pow; GE Pow",
)
def power(self: Any, exponent: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """self ** exponent, element by element; self may be a number."""
    dtype = meta_outputs.dtype
    x, y = dtype_promote(self, exponent, target_dtype=carrier("Pow", dtype))
    return cast(ge.Pow(x, y), dtype)


# -- bounds and selection --------------------------------------------------------------------------------------------


_BOUNDS = [Support(F32(2, 3), 0), Support(F16(4), 0.5), Support(BF16(4), 0), Support(I64(4), 1), Support(I64(4), 0.5)]
_FLOATS = [F32(2, 3), F16(2, 3), BF16(2, 3), F64(2, 3), F32(), F32(0, 2)]


@register_fx_node_ge_converter(
    {
        aten.clamp.default: [
            *(Support(f(2, 3), -0.5, 0.5) for f in (F32, F16, BF16, F64)),
            Support(F32(2, 3), min=-0.5),
            Support(F16(2, 3), max=0.5),
            Support(I64(2, 3), -1, 2),
            Support(I32(2, 3), 0),
            Support(BF16(2), None, 1),
            Support(I64(2, 3), -0.5, 1.5),
            Support(F32(), 0, 1),
            Support(F32(0, 2), 0, 1),
            Support(F32(value=[math.nan, 3.0]), 0, 1),
            Support(F32(4), 1, -1),
        ],
        aten.clamp_min.default: _BOUNDS,
        aten.clamp_max.default: _BOUNDS,
    },
    source="aten clamp; GE ClipByValueV2, Maximum, Minimum",
)
@register_fx_node_ge_converter(
    {
        aten.hardtanh.default: [
            *(Support(x, *a) for x in _FLOATS for a in ((), (0.0, 6.0), (-0.5, 0.5))),
            Support(I64(2, 3), -2, 2),
        ]
    },
    source="aten hardtanh; GE ClipByValueV2",
    names={"min_val": "min", "max_val": "max"},
)
def clamp(self: Tensor, min: Any = None, max: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Values held between two bounds, either of which may be missing; NaN stays.

    Emits:  ClipByValueV2 with two numbers; Maximum or Minimum with one.
    """
    dtype = meta_outputs.dtype
    low, high = as_content(min, dtype), as_content(max, dtype)
    if isinstance(low, Tensor) or isinstance(high, Tensor) or low is None or high is None:
        x = self if low is None else arithmetic("Maximum", self, low, dtype)
        return cast(x if high is None else arithmetic("Minimum", x, high, dtype), dtype)
    x, low, high = dtype_promote(self, low, high, target_dtype=carrier("ClipByValueV2", dtype))
    return cast(ge.ClipByValueV2(x, low, high), dtype)


@declare_supported(
    [Support(f(2, 3), f(3, high=0), f(2, 1, low=0)) for f in (F32, F16, BF16)]
    + [
        Support(F32(2, 3), F32(3)),
        Support(F32(2, 3), None, F32()),
        Support(I64(2, 3), I64(3), I64(3)),
        Support(F32(3), F32(2, 3)),
        Support(I32(2), F32(2)),
    ]
)
@register_fx_node_ge_converter(aten.clamp.Tensor, source="aten clamp.Tensor; GE ClipByValueV2")
def clamp_tensor(self: Tensor, min: Any = None, max: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Values held between two tensors that broadcast with self.

    Emits:  ClipByValueV2, which keeps the shape of self; Maximum, Minimum if the result is larger, or for one bound.
    """
    kept = self.known_shape is not None and tuple(self.known_shape) == tuple(meta_outputs.size)
    if isinstance(min, Tensor) and isinstance(max, Tensor) and kept:
        dtype = meta_outputs.dtype
        (x, low, high), back = carried("ClipByValueV2", *dtype_promote(self, min, max, target_dtype=dtype))
        return back(ge.ClipByValueV2(x, low, high))
    return clamp(self, min, max, meta_outputs=meta_outputs)


@declare_supported(
    [Support(BOOL(2, 3), f(2, 3), f(3)) for f in (F32, F16, BF16, F64, I64, I32, BOOL)]
    + [
        Support(BOOL(2, 1), F32(3), F32()),
        Support(BOOL(), F32(2), F32(2)),
        Support(BOOL(2), F32(2), I64(2)),
        Support(BOOL(0, 2), F32(2), F32(2)),
    ]
)
@register_fx_node_ge_converter(aten.where.self, source="aten where.self; GE SelectV2")
def where(condition: Tensor, self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """self where the condition holds, else other.

    Emits:  SelectV2.
    """
    return select(condition, self, other, meta_outputs.dtype)


_FILLS = [(f(2, 3), BOOL(2, 3), v) for f in (F32, F16, BF16, F64) for v in (0, -1.5, -math.inf)] + [
    (I64(2, 3), BOOL(3), 7),
    (I32(2, 3), BOOL(2, 1), -1),
    (BOOL(2, 3), BOOL(3), True),
    (F32(), BOOL(), 1.0),
    (F32(0, 3), BOOL(3), 1),
]


@register_fx_node_ge_converter(
    {
        aten.masked_fill.Scalar: [Support(*f) for f in _FILLS],
        aten.masked_fill.Tensor: [
            Support(F32(2, 3), BOOL(2, 3), F32()),
            Support(F16(2), BOOL(2), F32()),
            Support(I64(2), BOOL(2), I64()),
            Support(BOOL(2), BOOL(2), BOOL()),
        ],
    },
    source="aten masked_fill; GE MaskedFill",
)
def masked_fill(self: Tensor, mask: Tensor, value: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """The number or 0-d tensor where the mask holds, else self.

    Emits:  MaskedFill; SelectV2 for types that MaskedFill does not take.
    """
    dtype = meta_outputs.dtype
    value = as_content(value, dtype)
    try:
        inner = carrier("MaskedFill", dtype)
    except Refusal:
        return select(mask, value, self, dtype)
    x, fill = dtype_promote(cast(self, dtype), value, target_dtype=inner)
    return cast(ge.MaskedFill(x, cast(mask, _D.DT_BOOL), fill), dtype)


# -- three operands --------------------------------------------------------------------------------------------------


_THREE = [Support(f(2, 3), f(2, 3), f(3, low=0.5), value=v) for f in (F32, F16, BF16, F64) for v in (1, 0.1)]


@register_fx_node_ge_converter(
    {aten.addcmul.default: [*_THREE, Support(I64(2, 3), I64(3), I64(2, 1), value=2), Support(F32(), F32(2), F32(2))]},
    source="aten addcmul; GE Addcmul",
    fixed={"op": "Addcmul"},
)
@register_fx_node_ge_converter(
    {aten.addcdiv.default: [*_THREE, Support(F32(), F32(2), F32(2, low=0.5))]},
    source="aten addcdiv; GE Addcdiv",
    fixed={"op": "Addcdiv"},
)
def fused(
    self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1, op: str, meta_outputs: TensorSpec
) -> Tensor:
    """self + value times the product or the quotient of two tensors."""
    dtype = meta_outputs.dtype
    inner = carrier(op, compute_type(dtype, value))
    x, y, z, factor = dtype_promote(self, tensor1, tensor2, value, target_dtype=inner)
    return cast(getattr(ge, op)(x, y, z, factor), dtype)


@register_fx_node_ge_converter(
    {
        aten.lerp.Scalar: [Support(f(2, 3), f(3), w) for f in (F32, F16, BF16, F64) for w in (0.3, 0.5, 2)],
        aten.lerp.Tensor: [Support(f(2, 3), f(3), f(2, 1)) for f in (F32, F16, BF16, F64)],
    },
    source="aten lerp; GE Lerp",
)
def lerp(self: Tensor, end: Tensor, weight: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """self + weight * (end - self), the weight being a number or one for each element."""
    dtype = meta_outputs.dtype
    inner = compute_type(dtype, weight)
    a, b, w = dtype_promote(self, end, weight, target_dtype=inner)
    if inner in (_D.DT_FLOAT, *HALF_TYPES):
        return cast(ge.Lerp(a, b, w), dtype)
    return cast(ge.Add(a, ge.Mul(w, ge.Sub(b, a))), dtype)


@declare_supported(
    [Support(f(2, 3)) for f in (F32, F16, BF16, F64, I64, I32, U8, C64, C128)] + [Support(F32()), Support(F32(0, 2))]
)
@register_fx_node_ge_converter(aten.abs.default, source="aten abs; GE Abs, ComplexAbs")
def abs_default(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """The size of each element.

    Dtypes: numbers, kept; complex64 -> float32, complex128 -> float64.
    Emits:  Abs; ComplexAbs for complex numbers.
    """
    if self.dtype.is_complex:
        size: Tensor = ge.ComplexAbs(self, Tout=meta_outputs.dtype)
        return size
    (x,), back = carried("Abs", self)
    return back(ge.Abs(x))


# -- casts -----------------------------------------------------------------------------------------------------------


_CASTS = [
    (x, d)
    for x in (F32(2, 3), F16(2), BF16(2), I64(2), I32(), BOOL(2, 3), F64(0, 2))
    for d in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.float64)
]


@register_fx_node_ge_converter(
    {
        aten._to_copy.default: [
            *(Support(x, dtype=d) for x, d in _CASTS),
            *(Support(C64(2, 3), dtype=d) for d in (torch.float32, torch.float16, torch.int64, torch.bool)),
            Support(C64(2, 3), dtype=torch.complex128),
            Support(F32(2, 3)),
            Support(F32(2, 3), dtype=torch.float16, memory_format=torch.contiguous_format),
        ],
        prims.convert_element_type.default: [Support(x, d) for x, d in _CASTS],
    },
    source="aten _to_copy, torch._prims convert_element_type; GE Cast",
    names={"a": "self"},
)
def to_copy(
    self: Tensor, dtype: torch.dtype | None = None, *, non_blocking: bool = False, meta_outputs: TensorSpec
) -> Tensor:
    """The same values in another type, complex numbers without their imaginary part; device and memory layout are the
    engine's business.

    Emits:  Cast, or nothing if the type stays.
    """
    kind = meta_outputs.dtype
    if self.dtype.is_complex and not kind.is_complex and kind != _D.DT_BOOL:
        self = ge.Real(self, Tout=part_type(self.dtype))
    return cast(self, kind)


@declare_supported([Support(F32(2, 3), torch.device("cpu"))])
@register_fx_node_ge_converter(prims.device_put.default, source="torch._prims: device_put")
def device_put(a: Tensor, device: Any, non_blocking: bool = False, *, meta_outputs: TensorSpec) -> Tensor:
    """The value itself: a graph lives on one device."""
    return a


# Registered by name: it exists once torch's compiler module of it is loaded, which dynamo does for addcmul_ and others.
@register_fx_node_ge_converter("prims.fma.default", source="torch._inductor.inductor_prims: fma; GE Mul, Add")
def fma(a: Tensor, b: Tensor, c: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """a * b + c without rounding in between, as near as the type allows: half types compute in float32.

    Emits:  Mul, Add: FusedMulAdd takes neither bfloat16 nor float64 nor operands that broadcast.
    """
    dtype = meta_outputs.dtype
    inner = _D.DT_FLOAT if dtype in HALF_TYPES else dtype
    product = arithmetic("Mul", dtype_promote(a, target_dtype=inner), dtype_promote(b, target_dtype=inner), inner)
    return cast(arithmetic("Add", product, dtype_promote(c, target_dtype=inner), inner), dtype)


# -- activations -----------------------------------------------------------------------------------------------------


@declare_supported([Support(x) for x in _FLOATS])
@register_fx_node_ge_converter(aten.silu.default, source="aten silu; GE Swish")
def silu(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """x * sigmoid(x).

    Emits:  Swish; Mul and Sigmoid for float64, which Swish does not take.
    """
    if self.dtype == _D.DT_DOUBLE:
        return ge.Mul(self, ge.Sigmoid(self))
    (x,), back = carried("Swish", self)
    return back(ge.Swish(x))


@declare_supported([Support(x, approximate=a) for x in _FLOATS for a in ("none", "tanh")] + [Support(F32(3))])
@register_fx_node_ge_converter(aten.gelu.default, source="aten gelu; GE GeluV2")
def gelu(self: Tensor, *, approximate: str = "none", meta_outputs: TensorSpec) -> Tensor:
    """x * Phi(x), or its tanh form.

    Emits:  GeluV2; the formula for float64, which GeluV2 does not take.
    """
    if self.dtype != _D.DT_DOUBLE:
        (x,), back = carried("GeluV2", self)
        return back(ge.GeluV2(x, approximate=approximate))
    if approximate == "none":
        inner = ge.Erf(arithmetic("Mul", self, 0.5**0.5, self.dtype))
    else:
        cubic = arithmetic("Mul", ge.Mul(ge.Square(self), self), 0.044715, self.dtype)
        inner = ge.Tanh(arithmetic("Mul", ge.Add(self, cubic), 0.7978845608028654, self.dtype))
    half = arithmetic("Mul", self, 0.5, self.dtype)
    return ge.Mul(half, arithmetic("Add", inner, 1.0, self.dtype))
