"""Arithmetic, comparison, logic, bits, functions of one number: one ATen function each where possible.

Types are never promoted: operands of one operator carry one type, and the result has the type that the graph
declares. 16-bit floats are computed in float32 and rounded once, as ATen does on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu.registry import Call, PlanContext, PlanHook, Ref, kernel, plan, rows
from ge_runtime.cpu.values import torch_dtype

_HALF = (torch.float16, torch.bfloat16)
_FULL = (DataType.DT_FLOAT, DataType.DT_DOUBLE)


def wide(x: Tensor) -> Tensor:
    """16-bit floats as float32, everything else as it is."""
    return x.float() if x.dtype in _HALF else x


def keeping(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``fn`` with integer operands computed in double and the result truncated to the operand's type."""

    @wraps(fn)
    def run(x: Tensor, *rest: Tensor) -> Tensor:
        if x.is_floating_point() or x.is_complex():
            return fn(x, *rest)
        return fn(x.double(), *(r.double() for r in rest)).to(x.dtype)

    return run


def _direct(fn: Callable[..., Any], *, ints: bool = False) -> PlanHook:
    """Call ``fn`` itself when the operand is a float (or complex), where no type needs care."""

    def hook(ctx: PlanContext) -> Call | None:
        names = ctx.ports
        dtype = ctx.dtype(names[0])
        if dtype is None or not (dtype.is_float or dtype.is_complex or ints):
            return None
        return Call(fn, tuple(ctx.tensor(p) for p in names))

    return hook


def _floating(table: dict[str, Callable[..., Any]], inplace: bool = True) -> None:
    for op, fn in table.items():
        name = getattr(fn, "__name__", "")
        method = f"{name}_" if inplace and hasattr(Tensor, f"{name}_") else ""
        rows({op: keeping(fn)}, inplace=method, plan=_direct(fn))


# Same function for every type.
rows({"Add": torch.add, "AddV2": torch.add}, inplace="add_")
rows({"Sub": torch.sub}, inplace="sub_")
rows({"Mul": torch.mul}, inplace="mul_")
rows({"Maximum": torch.maximum, "Minimum": torch.minimum, "Gcd": torch.gcd})
rows({"FloorMod": torch.remainder}, inplace="remainder_")
rows({"Mod": torch.fmod, "TruncateMod": torch.fmod}, inplace="fmod_")
rows({"Pow": torch.pow}, inplace="pow_")
rows({"Neg": torch.neg}, inplace="neg_")
rows({"Abs": torch.abs}, inplace="abs_")
rows({"Sign": torch.sgn})
rows({"Square": torch.square}, inplace="square_")
rows({"BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor})
rows({"Invert": torch.bitwise_not, "LogicalNot": torch.logical_not})
rows({"LogicalAnd": torch.logical_and, "LogicalOr": torch.logical_or})
rows({
    "Equal": torch.eq, "NotEqual": torch.ne, "Less": torch.lt, "LessEqual": torch.le, "Greater": torch.gt,
    "GreaterEqual": torch.ge, "IsNan": torch.isnan, "IsInf": torch.isinf, "IsFinite": torch.isfinite,
})  # fmt: skip
rows({"Relu": torch.relu}, inplace="relu_")

# Floating functions; integer operands that a header lists keep their type.
_floating({
    "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan,
    "Atanh": torch.atanh, "Cos": torch.cos, "Cosh": torch.cosh, "Sin": torch.sin, "Sinh": torch.sinh,
    "Tan": torch.tan, "Tanh": torch.tanh, "Erf": torch.erf, "Erfc": torch.erfc, "Erfinv": torch.erfinv,
    "Expm1": torch.expm1, "Log1p": torch.log1p, "Lgamma": torch.lgamma, "Digamma": torch.digamma,
    "Sqrt": torch.sqrt, "Rsqrt": torch.rsqrt, "Reciprocal": torch.reciprocal, "Inv": torch.reciprocal,
    "Sigmoid": torch.sigmoid, "Ceil": torch.ceil, "Floor": torch.floor, "Trunc": torch.trunc,
    "Rint": torch.round, "BesselI0e": torch.special.i0e, "BesselI1e": torch.special.i1e,
    "Ndtri": torch.special.ndtri, "Atan2": torch.atan2, "Igamma": torch.special.gammainc,
    "Igammac": torch.special.gammaincc, "Zeta": torch.special.zeta, "NextAfter": torch.nextafter,
})  # fmt: skip


def truncated(x1: Tensor, x2: Tensor) -> Tensor:
    """Quotient of integers rounded towards zero; the least one by -1 is itself, where ATen ends the process."""
    if not x1.dtype.is_signed:
        return torch.div(x1, x2, rounding_mode="trunc")
    turned = x2 == -1
    return torch.where(turned, torch.neg(x1), torch.div(x1, x2.masked_fill(turned, 1), rounding_mode="trunc"))


@kernel("Div", inplace="div_", source="quotient; signed integers round towards minus infinity")
def div(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2; integers give the floor of the quotient."""
    if x1.is_floating_point() or x1.is_complex():
        return torch.div(x1, x2)
    return torch.div(x1, x2, rounding_mode="floor")


@kernel("RealDiv", inplace="div_", source="quotient; integers truncate")
def real_div(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2; integers drop the fraction."""
    if x1.is_floating_point() or x1.is_complex():
        return torch.div(x1, x2)
    return truncated(x1, x2)


plan("Div", "RealDiv")(_direct(torch.div))


@kernel("TruncateDiv")
def truncate_div(x1: Tensor, x2: Tensor) -> Tensor:
    """The quotient rounded towards zero, floats included."""
    return torch.div(x1, x2, rounding_mode="trunc") if x1.is_floating_point() else truncated(x1, x2)


@kernel("FloorDiv", source="floor of the rounded quotient; 1.0 by 0.1 gives 10")
def floor_div(x1: Tensor, x2: Tensor) -> Tensor:
    """floor(x1 / x2)."""
    if x1.is_floating_point():
        return torch.floor_(torch.div(wide(x1), wide(x2))).to(x1.dtype)
    return torch.div(x1, x2, rounding_mode="floor")


@kernel("DivNoNan")
def div_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, and 0 where x2 is 0."""
    return torch.where(
        x2 == 0, torch.zeros((), dtype=x1.dtype), real_div(x1, torch.where(x2 == 0, torch.ones_like(x2), x2))
    )


@kernel("Xlogy", source="operator documentation of xlogy: NaN where x2 is NaN, 0 where x1 is 0")
def xlogy(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 * log(x2), 0 where x1 is 0 (NaN of x2 passes)."""
    return torch.special.xlogy(x1, x2)


@kernel("Xdivy")
def xdivy(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, 0 where x1 is 0."""
    return torch.where(x1 == 0, torch.zeros((), dtype=x1.dtype), torch.div(x1, x2))


@kernel("SquaredDifference")
def squared_difference(x1: Tensor, x2: Tensor) -> Tensor:
    """(x1 - x2)²."""
    return torch.square(wide(x1) - wide(x2)).to(x1.dtype)


@kernel("LeftShift")
def left_shift(x: Tensor, y: Tensor) -> Tensor:
    """x << y."""
    return torch.bitwise_left_shift(x, y)


@kernel("RightShift")
def right_shift(x: Tensor, y: Tensor) -> Tensor:
    """x >> y, sign bits shifted in."""
    return torch.bitwise_right_shift(x, y)


def _scaled_int(x: Tensor, value: Tensor) -> Tensor:
    """Integers go through float32; int64 rounds half away from zero, the shorter ones truncate."""
    product = value
    if x.dtype is torch.int64:
        product = torch.sign(product) * torch.floor(torch.abs(product) + 0.5)
    return product.to(x.dtype)


@kernel("Muls", source="value is a float32 attribute; integers go through float32")
def muls(x: Tensor, *, value: float) -> Tensor:
    """x * value."""
    factor = torch.tensor(value, dtype=torch.float32)
    if x.dtype is torch.float64 or x.is_complex():
        return x * factor.to(x.dtype)
    if x.is_floating_point():
        return (x.float() * factor).to(x.dtype)
    return _scaled_int(x, x.float() * factor)


@kernel("Adds", source="value is a float32 attribute; integers go through float32")
def adds(x: Tensor, *, value: float) -> Tensor:
    """x + value."""
    term = torch.tensor(value, dtype=torch.float32)
    if x.dtype is torch.float64 or x.is_complex():
        return x + term.to(x.dtype)
    if x.is_floating_point():
        return (x.float() + term).to(x.dtype)
    return _scaled_int(x, x.float() + term)


@kernel("Axpy")
def axpy(x1: Tensor, x2: Tensor, *, alpha: float) -> Tensor:
    """x1 + alpha * x2, rounded once."""
    if x1.is_floating_point() or x1.is_complex():
        return (wide(x1) + wide(x2) * alpha).to(x1.dtype)
    return x1 + x2 if alpha == 1 else (x1.float() + x2.float() * alpha).to(x1.dtype)


@kernel("AxpyV2")
def axpy_v2(x1: Tensor, x2: Tensor, alpha: Tensor) -> Tensor:
    """x1 + alpha * x2 with alpha a one-element tensor, rounded once."""
    factor = alpha.reshape(())
    if x1.is_floating_point():
        factor = factor.to(wide(x1).dtype)
    return (wide(x1) + wide(x2) * factor).to(x1.dtype)


@kernel("Sxpy")
def sxpy(x1: Tensor, x2: Tensor, alpha: Tensor | None = None) -> Tensor:
    """x1 - alpha * x2, types promoted."""
    factor = torch.ones((), dtype=x1.dtype) if alpha is None else alpha.reshape(())
    dtype = torch.result_type(torch.empty(0, dtype=torch.result_type(x1.reshape(-1)[:0], x2.reshape(-1)[:0])), factor)
    return (wide(x1) - wide(x2) * wide(factor)).to(dtype)


@kernel("Addcmul")
def addcmul(input_data: Tensor, x1: Tensor, x2: Tensor, value: Tensor) -> Tensor:
    """input_data + value * x1 * x2, rounded once."""
    v = value.reshape(()).to(wide(input_data).dtype)
    return _plus(input_data, v * wide(x1) * wide(x2))


def _plus(x: Tensor, term: Tensor) -> Tensor:
    """x + term, in the memory of term where it has the size of the sum."""
    wide_x = wide(x)
    fits = term.dtype is wide_x.dtype and term.shape == torch.broadcast_shapes(term.shape, x.shape)
    return (term.add_(wide_x) if fits else wide_x + term).to(x.dtype)


@kernel("Addcdiv", inplace="addcdiv_")
def addcdiv(input_data: Tensor, x1: Tensor, x2: Tensor, value: Tensor) -> Tensor:
    """input_data + value * (x1 / x2), rounded once."""
    v = value.reshape(()).to(wide(input_data).dtype)
    return _plus(input_data, real_div(wide(x1), wide(x2)) * v)


@plan("Addcdiv")
def _addcdiv_plan(ctx: PlanContext) -> Call | None:
    """ATen multiplies x1 before it divides, which is the same for 1."""
    value = ctx.const("value")
    if ctx.dtype("input_data") not in _FULL or (value[0] if isinstance(value, list) and value else value) != 1:
        return None
    return Call(torch.addcdiv, tuple(ctx.tensor(p) for p in ("input_data", "x1", "x2")))


@kernel("AddN", "AccumulateNV2", ignores=("N",))
def add_n(x: list[Tensor]) -> Tensor:
    """The sum of a list."""
    total = wide(x[0]).clone() if len(x) == 1 else wide(x[0]) + wide(x[1])
    for term in x[2:]:
        total = total + wide(term)
    return total.to(x[0].dtype)


@kernel("Lerp", inplace="lerp_")
def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """start + weight * (end - start)."""
    a, b, w = torch.broadcast_tensors(wide(start), wide(end), wide(weight))
    return torch.lerp(a, b, w).to(start.dtype)


@plan("Lerp")
def _lerp_plan(ctx: PlanContext) -> Call | None:
    weight = ctx.const("weight")
    if not isinstance(weight, float) or ctx.dtype("start") not in _FULL:
        return None
    return Call(torch.lerp, (ctx.tensor("start"), ctx.tensor("end"), weight))


@kernel("ClipByValue", "ClipByValueV2", source="min(max(x, low), high): high wins")
def clip_by_value(x: Tensor, clip_value_min: Tensor, clip_value_max: Tensor) -> Tensor:
    """x limited to [clip_value_min, clip_value_max]; NaN of x stays."""
    return torch.minimum(torch.maximum(x, clip_value_min), clip_value_max)


@kernel("NanToNum")
def nan_to_num(x: Tensor, *, nan: float, posinf: float, neginf: float) -> Tensor:
    """Replacements for NaN and the infinities, float32 values."""
    if not x.is_floating_point():
        return x.clone()
    return torch.nan_to_num(wide(x), nan, posinf, neginf).to(x.dtype)


@kernel("Exp")
def exp(x: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """base ** (scale * x + shift); base -1 means e."""
    inner = wide(x) if x.is_floating_point() or x.is_complex() else x.double()
    if scale != 1.0 or shift != 0.0:
        inner = inner * scale + shift
    result = torch.exp(inner) if base == -1.0 else torch.exp2(inner) if base == 2.0 else torch.pow(base, inner)
    return result.to(x.dtype)


@kernel("Log")
def log(x: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """log(scale * x + shift) to the base; base -1 means e. Integers give float32."""
    real = x.is_floating_point() or x.is_complex()
    inner = wide(x) if real else x.float()
    if scale != 1.0 or shift != 0.0:
        inner = inner * scale + shift
    known = {-1.0: torch.log, 2.0: torch.log2, 10.0: torch.log10}.get(base)
    result = known(inner) if known is not None else torch.log(inner) / torch.log(torch.tensor(base, dtype=inner.dtype))
    return result.to(x.dtype) if real else result


def _plain(fn: Callable[..., Any]) -> PlanHook:
    def hook(ctx: PlanContext) -> Call | None:
        defaults = (ctx.attr("base", -1.0), ctx.attr("scale", 1.0), ctx.attr("shift", 0.0))
        dtype = ctx.dtype("x")
        return Call(fn, (ctx.tensor("x"),)) if defaults == (-1.0, 1.0, 0.0) and dtype and dtype.is_float else None

    return hook


plan("Exp")(_plain(torch.exp))
plan("Log")(_plain(torch.log))


@kernel("Power")
def power(x: Tensor, *, power: float = 1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """(scale * x + shift) ** power."""
    return torch.pow(wide(x) * scale + shift, power).to(x.dtype)


@kernel("Logit", source="operator prototypes of CANN 2026: log(x / (1 - x)), x held to [eps, 1 - eps] unless eps is -1")
def logit(x: Tensor, *, eps: float = -1.0) -> Tensor:
    """Logarithm of the odds."""
    return torch.logit(wide(x), None if eps < 0 else eps).to(x.dtype)


@kernel("LogAddExp")
def log_add_exp(x1: Tensor, x2: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """log(exp(x1) + exp(x2)) to the base."""
    a, b = wide(x1) * scale + shift, wide(x2) * scale + shift
    if base == 2.0:
        return torch.logaddexp2(a, b).to(x1.dtype)
    factor = 1.0 if base == -1.0 else float(torch.log(torch.tensor(base, dtype=torch.float64)))
    return (torch.logaddexp(a * factor, b * factor) / factor).to(x1.dtype)


@kernel("Round", source="operator documentation of round: round(x * 10**d) / 10**d, for negative d too")
def round_half_even(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Nearest integer (or decimal place), ties to even."""
    if decimals == 0:
        return torch.round(x) if x.is_floating_point() else x.clone()
    if not x.is_floating_point():
        return torch.round(x.double(), decimals=decimals).to(x.dtype) if decimals < 0 else x.clone()
    scale = 10.0**decimals
    return (torch.round(wide(x) * scale) / scale).to(x.dtype)


@kernel("ApproximateEqual")
def approximate_equal(x1: Tensor, x2: Tensor, *, tolerance: float = 1e-5) -> Tensor:
    """|x1 - x2| < tolerance."""
    return torch.abs(wide(x1) - wide(x2)) < tolerance


@kernel("IsClose")
def is_close(x1: Tensor, x2: Tensor, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """|x1 - x2| <= atol + rtol * |x2|."""
    return torch.isclose(x1, x2, rtol, atol, equal_nan)


@kernel("TensorEqual")
def tensor_equal(input_x: Tensor, input_y: Tensor) -> Tensor:
    """One bool in a rank-1 tensor: all elements equal, NaN equal to nothing."""
    return torch.eq(input_x, input_y).all().reshape(1)


# Complex numbers. Tout only names the part's type, which follows from the operand's.
@kernel("Complex")
def complex_(real: Tensor, imag: Tensor, *, Tout: int = 16) -> Tensor:
    """real + i * imag."""
    a, b = torch.broadcast_tensors(real, imag)
    return torch.complex(a, b).to(torch_dtype(Tout))


@kernel("Real", ignores=("Tout",))
def real_part(input: Tensor) -> Tensor:
    """Real part, a tensor of its own."""
    return torch.real(input).clone()


@kernel("Imag", ignores=("Tout",))
def imaginary_part(input: Tensor) -> Tensor:
    """Imaginary part, a tensor of its own; zeros for real numbers."""
    return torch.imag(input).clone() if input.is_complex() else torch.zeros_like(input)


@kernel("ComplexAbs", ignores=("Tout",))
def complex_abs(x: Tensor) -> Tensor:
    """Modulus."""
    return torch.abs(x)


@kernel("Angle", ignores=("Tout",))
def angle(input: Tensor) -> Tensor:
    """Argument in radians."""
    return torch.angle(input)


@kernel("Conj")
def conj(input: Tensor) -> Tensor:
    """Complex conjugate, computed rather than marked."""
    return torch.conj_physical(input.resolve_conj()) if input.is_complex() else input.clone()


# Conversion and choice
@kernel("Cast", source="float to int truncates, NaN gives 0; narrowing ints wraps; to bool is x != 0")
def cast(x: Tensor, *, dst_type: int) -> Tensor:
    """x in another element type."""
    dtype = torch_dtype(dst_type)
    if x.dtype is dtype:
        return x.clone()
    if x.is_floating_point() and not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        return torch.where(torch.isnan(x), torch.zeros((), dtype=x.dtype), x).to(dtype)
    if x.is_complex() and not dtype.is_complex:
        return torch.view_as_real(x.resolve_conj()).select(-1, 0).to(dtype) if dtype is not torch.bool else x != 0
    return x.to(dtype)


@plan("Cast")
def _cast_plan(ctx: PlanContext) -> Call | Ref | None:
    source, target = ctx.dtype("x"), ctx.out_dtype()
    if source is target:
        x: Ref = ctx.tensor("x")
        return x
    if source is None or source.is_complex or (source.is_float and not target.is_float):
        return None
    return Call(Tensor.to, (ctx.tensor("x"), torch_dtype(target)))


@kernel("Select")
def select(condition: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    """x1 where condition else x2; a vector condition chooses whole rows, a scalar chooses all."""
    if condition.dim() == 1 and x1.dim() > 1:
        condition = condition.reshape([-1] + [1] * (x1.dim() - 1))
    return torch.where(condition, x1, x2)


rows({"SelectV2": torch.where})


@kernel("MaskedFill")
def masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """value where mask else x; the mask may be larger than x."""
    return torch.where(
        mask, value.to(x.dtype) if value.dim() == 0 or value.numel() != 1 else value.reshape(()).to(x.dtype), x
    )
