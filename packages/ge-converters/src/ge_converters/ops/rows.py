"""Converters that decide nothing: one row per op.

A row names the aten overload, the GE operator, and words for what differs from the plain pattern. Everything that has
something to decide is a function in a module beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ge_converters.base.dtypes import cast, dtype_promote, part_type
from ge_converters.base.operators import AbsentOperator, aten, prims
from ge_converters.base.support import BF16, BOOL, F16, F32, F64, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic, common_type, wrapped
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.registry import ABSENT, REGISTRY, define, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_BOOL = DataType.DT_BOOL


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        target: aten overload.
        op: GE operator.
        attrs: Attributes of the GE operator.
        words: ``key=value`` words of the line that are no attributes.
    """

    target: torch._ops.OpOverload
    op: str
    attrs: dict[str, Any] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


# Words that steer a pattern; every other key=value of a line is an attribute of the GE operator.
_WORDS: Final = frozenset({"types", "low", "high", "int", "bool", "mirror", "of", "rtol"})


_NAMESPACES: Final = {"aten": aten, "prims": prims}


def rows(text: str) -> Iterator[Row]:
    """Read a table: ``aten.log2.default  Log  base=2.0 low=0.1``."""
    for line in text.strip().splitlines():
        name, op, *rest = line.split()
        namespace, packet, overload = name.split(".")
        target = getattr(getattr(_NAMESPACES[namespace], packet), overload)
        if isinstance(target, AbsentOperator):
            REGISTRY.leave_out(target, ABSENT, f"{__file__}: {line}")
            continue
        pairs = dict(word.split("=", 1) for word in rest)
        words = {k: v for k, v in pairs.items() if k in _WORDS}
        attrs = {k: float(v) if "." in v else v for k, v in pairs.items() if k not in _WORDS}
        yield Row(target, op, attrs, words)


# -- unary -----------------------------------------------------------------------------------------------------------

# types: letters of the element types that eager takes beside float32/16 and bfloat16 (i int64 and int32, b bool).
# int=same: integers pass through. low/high bound the values of the declared cases.
UNARY: Final = """
aten.neg.default        Neg         types=i
aten.relu.default       Relu        types=i
aten.sign.default       Sign        types=ib bool=same
aten.ceil.default       Ceil        types=i  int=same
aten.floor.default      Floor       types=i  int=same
aten.round.default      Round       types=i  int=same
aten.exp.default        Exp         types=ib
aten.exp2.default       Exp         types=ib base=2.0
aten.expm1.default      Expm1       types=ib
aten.log.default        Log         types=ib low=0.1
aten.log2.default       Log         types=ib low=0.1 base=2.0
aten.log10.default      Log         types=ib low=0.1 base=10.0
aten.log1p.default      Log1p       types=ib low=-0.9
aten.sqrt.default       Sqrt        types=ib low=0
aten.rsqrt.default      Rsqrt       types=i  low=0.1
aten.reciprocal.default Reciprocal  types=ib
aten.erf.default        Erf         types=ib
aten.erfc.default       Erfc        types=ib
aten.erfinv.default     Erfinv      types=ib low=-0.9 high=0.9
aten.lgamma.default     Lgamma      types=ib low=0.1
aten.digamma.default    Digamma     types=ib low=0.1
aten.sin.default        Sin         types=ib
aten.cos.default        Cos         types=ib
aten.tan.default        Tan         types=ib high=1.4 low=-1.4
aten.sinh.default       Sinh        types=ib
aten.cosh.default       Cosh        types=ib
aten.tanh.default       Tanh        types=ib
aten.asin.default       Asin        types=ib low=-1 high=1
aten.acos.default       Acos        types=ib low=-1 high=1
aten.atan.default       Atan        types=ib
aten.asinh.default      Asinh       types=ib
aten.acosh.default      Acosh       types=ib low=1
aten.atanh.default      Atanh       types=ib low=-0.9 high=0.9
aten.sigmoid.default    Sigmoid     types=ib
aten.special_i0e.default BesselI0e  types=ib
aten.special_i1e.default BesselI1e  types=ib
aten.mish.default       Mish
"""


def _unary(row: Row) -> Callable[..., Tensor]:
    same_int, same_bool = row.words.get("int") == "same", row.words.get("bool") == "same"
    op, attrs = row.op, row.attrs

    def convert(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
        if same_int and not (self.dtype.is_float or self.dtype.is_complex):
            return self
        if same_bool and self.dtype == _BOOL:
            return self
        dtype = meta_outputs.dtype
        x = cast(self, carrier(op, dtype))
        return cast(getattr(ge, op)(x, **attrs), dtype)

    return convert


def _bounds(row: Row) -> dict[str, float]:
    return {k: float(row.words[k]) for k in ("low", "high") if k in row.words}


def _unary_supports(row: Row) -> list[Support]:
    bounds, types = _bounds(row), row.words.get("types", "")
    made = [
        F32(2, 3, **bounds),
        F16(2, 3, **bounds),
        BF16(2, 3, **bounds),
        F32(**bounds),
        F32(0, 3, **bounds),
        F32(2, 3, strides=(1, 2), **bounds),
    ]
    if "i" in types:
        made += [I64(2, 3, **bounds), I32(2, 3, **bounds)]
    if "b" in types:
        made.append(BOOL(2, 3))
    return [Support(m) for m in made]


# -- predicates ------------------------------------------------------------------------------------------------------

# A test of each element. int=never / int=always: what integers and bool give; GE's operator takes floats only.
PREDICATE: Final = """
aten.isnan.default     IsNan     int=never
aten.isinf.default     IsInf     int=never
aten.isfinite.default  IsFinite  int=always
"""


def _predicate(row: Row) -> Callable[..., Tensor]:
    constant = ge_equal if row.words["int"] == "always" else ge_not_equal
    op = row.op

    def convert(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
        if self.dtype.is_complex:
            return _of_parts(op, self)
        if not self.dtype.is_float:
            (x,), _ = carried("NotEqual", self)
            return constant(x)
        (x,), _ = carried(op, self)
        result: Tensor = getattr(ge, op)(x)
        return result

    return convert


def _of_parts(op: str, x: Tensor) -> Tensor:
    """A predicate of complex numbers: finite if both parts are, not a number or infinite if one of them is."""
    part = part_type(x.dtype)
    real, imaginary = (getattr(ge, op)(carried(op, half(x, Tout=part))[0][0]) for half in (ge.Real, ge.Imag))
    result: Tensor = (ge.LogicalAnd if op == "IsFinite" else ge.LogicalOr)(real, imaginary)
    return result


def ge_equal(x: Tensor) -> Tensor:
    """True everywhere, for a type without NaN."""
    result: Tensor = ge.Equal(x, x)
    return result


def ge_not_equal(x: Tensor) -> Tensor:
    """False everywhere, for a type without NaN."""
    result: Tensor = ge.NotEqual(x, x)
    return result


_INF, _NAN = float("inf"), float("nan")


def _predicate_supports(row: Row) -> list[Support]:
    special = [[1.0, _INF, -_INF], [_NAN, 0.0, -2.0]]
    made = [f(value=special) for f in (F32, F16, BF16, F64)]
    return [Support(m) for m in [*made, F32(), F32(0, 2), I64(2, 3), I32(2), BOOL(2, 3)]]


# -- binary ----------------------------------------------------------------------------------------------------------

# types: f float, i integer, b bool. bool=: operator for bool operands. mirror: the aten op takes (number, tensor).
BINARY: Final = """
aten.mul.Tensor              Mul         types=fib bool=LogicalAnd
aten.mul.Scalar              Mul         types=fib bool=LogicalAnd
aten.maximum.default         Maximum     types=fib bool=LogicalOr
aten.minimum.default         Minimum     types=fib bool=LogicalAnd
aten.atan2.default           Atan2       types=fib
aten.fmod.Tensor             Mod         types=fi  low=1
aten.fmod.Scalar             Mod         types=fi  low=1
aten.remainder.Tensor        FloorMod    types=fi  low=1
aten.remainder.Scalar        FloorMod    types=fi  low=1
aten.remainder.Scalar_Tensor FloorMod    types=fi  low=1 mirror=yes
aten.bitwise_and.Tensor      BitwiseAnd  types=ib  bool=LogicalAnd
aten.bitwise_and.Scalar      BitwiseAnd  types=ib  bool=LogicalAnd
aten.bitwise_or.Tensor       BitwiseOr   types=ib  bool=LogicalOr
aten.bitwise_or.Scalar       BitwiseOr   types=ib  bool=LogicalOr
aten.bitwise_xor.Tensor      BitwiseXor  types=ib  bool=xor
aten.bitwise_xor.Scalar      BitwiseXor  types=ib  bool=xor
prims.add.default            Add         types=f
prims.mul.default            Mul         types=f
prims.maximum.default        Maximum     types=f
prims.minimum.default        Minimum     types=f
"""


def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    """Exclusive or of two bool tensors; GE has no such operator and ``NotEqual`` takes no bool."""
    result: Tensor = ge.LogicalNot(ge.Equal(a, b))
    return result


def _binary(row: Row) -> Callable[..., Tensor]:
    op, on_bool = row.op, row.words.get("bool", "")

    def convert(self: Any, other: Any, *, meta_outputs: TensorSpec) -> Tensor:
        dtype = meta_outputs.dtype
        if dtype == _BOOL and on_bool:
            a, b = dtype_promote(self, other, target_dtype=_BOOL)
            result: Tensor = logical_xor(a, b) if on_bool == "xor" else getattr(ge, on_bool)(a, b)
            return result
        if op == "Mul" and dtype == DataType.DT_FLOAT16 and _muls_serves(self, other):
            scaled: Tensor = ge.Muls(self, value=float(other))
            return scaled
        return arithmetic(op, self, other, dtype)

    return convert


def _muls_serves(x: Any, value: Any) -> bool:
    """Half tensor times a number: ``Muls`` multiplies in float32 as eager does."""
    from ge_converters.emit.arithmetic import is_exact

    half = isinstance(x, Tensor) and x.dtype == DataType.DT_FLOAT16
    return half and isinstance(value, float) and not is_exact(value, DataType.DT_FLOAT16)


def _scalar_overload(row: Row) -> bool:
    return "Scalar" in row.target._overloadname


def _binary_supports(row: Row) -> list[Support]:
    types, bounds = row.words["types"], _bounds(row)
    divisor = {"low": 1} if bounds else {}
    made: list[Any] = []
    if "f" in types:
        made += [(f(2, 3), f(2, 3, **divisor)) for f in (F32, F16, BF16)]
        made += [(F32(2, 3), F32(3, **divisor)), (F32(2, 1), F32(1, 3, **divisor)), (F32(), F32(**divisor))]
        made += [(F32(0, 3), F32(3, **divisor)), (F32(2, 3, strides=(1, 2)), F32(2, 3, **divisor))]
    if "i" in types:
        made += [(I64(2, 3), I64(2, 3, **divisor)), (I32(2, 3), I32(3, **divisor)), (I64(2), I32(2, **divisor))]
    if "b" in types:
        made.append((BOOL(2, 3), BOOL(3)))
    if row.target.namespace == "prims":
        made = [m for m in made if m[0].shape == m[1].shape]
    elif "f" in types and "i" in types:
        made += [(F32(2, 3), I64(3, **divisor)), (F16(2, 3), F32(3, **divisor)), (F16(2, 3), F32(**divisor))]
    if _scalar_overload(row):
        made = _with_numbers(made, types)
    elif row.target.namespace == "aten" and row.op == "Mul":
        made += _with_numbers(made[:3], types)
    if "mirror" in row.words:
        made = [(n, F32(2, 3, low=1) if t == "f" else I64(2, 3, low=1)) for n, t in ((7, "i"), (2.5, "f"), (-3, "i"))]
    return [Support(*m) for m in made]


def _with_numbers(pairs: list[Any], types: str) -> list[Any]:
    numbers: list[Any] = []
    for number in [3, 2.5, 0.1] if "f" in types else [3, True]:
        for left in ([F32(2, 3), F16(2, 3), BF16(2, 3)] if "f" in types else []) + [I64(2, 3), I32(2)]:
            if not (isinstance(number, bool) and left.dtype != torch.bool):
                numbers.append((left, number))
    if "b" in types:
        numbers.append((BOOL(2, 3), True))
    return numbers


# -- comparison and logic --------------------------------------------------------------------------------------------

COMPARE: Final = """
aten.eq.Tensor  Equal
aten.eq.Scalar  Equal
aten.ne.Tensor  NotEqual
aten.ne.Scalar  NotEqual
aten.lt.Tensor  Less
aten.lt.Scalar  Less
aten.le.Tensor  LessEqual
aten.le.Scalar  LessEqual
aten.gt.Tensor  Greater
aten.gt.Scalar  Greater
aten.ge.Tensor  GreaterEqual
aten.ge.Scalar  GreaterEqual
prims.lt.default Less
prims.le.default LessEqual
"""


def _compare(row: Row) -> Callable[..., Tensor]:
    op = row.op

    def convert(self: Any, other: Any, *, meta_outputs: TensorSpec) -> Tensor:
        common = common_type(self, other)
        if op == "NotEqual" and common == _BOOL:
            return logical_xor(*dtype_promote(self, other, target_dtype=_BOOL))
        a, b = dtype_promote(wrapped(self, common), wrapped(other, common), target_dtype=common)
        if op == "NotEqual" and common.is_complex:
            unequal: Tensor = ge.LogicalNot(ge.Equal(a, b))
            return unequal
        (a, b), _ = carried(op, a, b)
        result: Tensor = getattr(ge, op)(a, b)
        return result

    return convert


def _compare_supports(row: Row) -> list[Support]:
    if row.target.namespace == "prims":
        return [Support(F32(2, 3), F32(2, 3)), Support(I64(2), I64(2))]
    if _scalar_overload(row):
        lefts = [F32(2, 3), F16(2, 3), BF16(2, 3), I64(2, 3), I32(2, 3), F32(), F32(0, 2)]
        return [Support(x, n) for x in lefts for n in (1, 0.5)] + [Support(BOOL(2, 3), True), Support(BOOL(2), 1)]
    pairs = [(f(2, 3, low=-1, high=2), f(3, low=-1, high=2)) for f in (F32, F16, BF16, I64, I32)]
    pairs += [(BOOL(2, 3), BOOL(2, 3)), (I64(2, 3), F32(2, 1)), (F16(2, 3), F32()), (F32(0, 2), F32(2))]
    pairs += [(F32(value=[1.0, _NAN, _INF]), F32(value=[1.0, _NAN, _INF])), (I64(2), I32()), (BOOL(2), I64(2))]
    return [Support(*p) for p in pairs]


LOGICAL: Final = """
aten.logical_and.default  LogicalAnd
aten.logical_or.default   LogicalOr
aten.logical_xor.default  xor
"""


def _logical(row: Row) -> Callable[..., Tensor]:
    op = row.op

    def convert(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
        a, b = dtype_promote(self, other, target_dtype=_BOOL)
        result: Tensor = logical_xor(a, b) if op == "xor" else getattr(ge, op)(a, b)
        return result

    return convert


def _logical_supports(row: Row) -> list[Support]:
    pairs = [(BOOL(2, 3), BOOL(3)), (I64(2, 3, low=-1, high=2), BOOL(2, 3)), (I32(2), I32(2)), (BOOL(), BOOL())]
    pairs += [(F32(value=[0.0, _NAN, 0.5]), F32(value=[1.0, 0.0, 0.0])), (F16(2), BF16(2)), (BOOL(0), BOOL(1))]
    return [Support(*p) for p in pairs]


# -- values that pass through ----------------------------------------------------------------------------------------

# A graph edge is a value: a copy, an alias and a detached tensor are the edge itself. Where memory has to be distinct
# (graph outputs, mutated inputs) the engine or the aliasing rules see to it.
_VALUES = [Support(m) for m in (F32(2, 3), F16(2), BF16(2), I64(2), I32(), BOOL(0, 2), F32(2, 3, strides=(1, 2)))]


@register_fx_node_ge_converter(
    {
        **dict.fromkeys((aten.alias.default, aten.alias_copy.default, aten.detach.default), _VALUES),
        **dict.fromkeys((aten.detach_copy.default, aten.lift_fresh.default, aten.lift_fresh_copy.default), _VALUES),
        prims.view_of.default: _VALUES,
        aten.clone.default: [*_VALUES, Support(F32(2, 3), memory_format=torch.contiguous_format)],
    },
    source="native_functions.yaml: alias, clone, detach, lift_fresh; no GE operator",
    names={"a": "self"},
)
def pass_through(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Dtypes: any, kept.
    Emits:  nothing.
    """
    return self


def _install() -> None:
    patterns: tuple[tuple[str, Any, Any, str], ...] = (
        (UNARY, _unary, _unary_supports, "Dtypes: floats kept; integers and bool as eager promotes them."),
        (PREDICATE, _predicate, _predicate_supports, "Dtypes: any -> bool."),
        (BINARY, _binary, _binary_supports, "Dtypes: promoted as eager does; numbers keep float32 beside half."),
        (COMPARE, _compare, _compare_supports, "Dtypes: promoted as eager does -> bool."),
        (LOGICAL, _logical, _logical_supports, "Dtypes: any, nonzero is true -> bool."),
    )
    for text, make, supports, doc in patterns:
        for row in rows(text):
            define(row.target, row.op, make(row), supports(row), f"{doc}\nEmits:  {row.op}.")


_install()
