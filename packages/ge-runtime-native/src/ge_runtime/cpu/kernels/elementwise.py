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
from ge_runtime.cpu.kernels.numerics import rounded, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, PlanHook, Ref, kernel, plan, rows
from ge_runtime.cpu.values import torch_dtype

_FULL = (DataType.DT_FLOAT, DataType.DT_DOUBLE)


def keeping(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``fn`` with integer operands computed in double and the result truncated to the operand's type."""

    @wraps(fn)
    def run(x: Tensor, *rest: Tensor) -> Tensor:
        if _real(x):
            return fn(x, *rest)
        return fn(x.double(), *(r.double() for r in rest)).to(x.dtype)

    return run


def _direct(fn: Callable[..., Any]) -> PlanHook:
    """Call ``fn`` itself when the operand is a float (or complex), where no type needs care."""

    def hook(ctx: PlanContext) -> Call | None:
        dtype = ctx.dtype(ctx.ports[0])
        floating = dtype is not None and (dtype.is_float or dtype.is_complex)
        return Call(fn, tuple(map(ctx.tensor, ctx.ports))) if floating else None

    return hook


# Same function for every type: those that may be computed into their first operand, and the others.
_IN_PLACE = {
    "Add AddV2": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "FloorMod": torch.remainder,
    "Mod TruncateMod": torch.fmod,
    "Pow": torch.pow,
    "Neg": torch.neg,
    "Abs": torch.abs,
    "Square": torch.square,
    "Relu": torch.relu,
}
for _op, _fn in _IN_PLACE.items():
    rows({_op: _fn}, inplace=f"{_fn.__name__}_")
rows(
    {
        "Maximum": torch.maximum,
        "Minimum": torch.minimum,
        "Gcd": torch.gcd,
        "Sign": torch.sgn,
        "SelectV2": torch.where,
        "BitwiseAnd": torch.bitwise_and,
        "BitwiseOr": torch.bitwise_or,
        "BitwiseXor": torch.bitwise_xor,
        "Invert": torch.bitwise_not,
        "LogicalNot": torch.logical_not,
        "LogicalAnd": torch.logical_and,
        "LogicalOr": torch.logical_or,
        "Equal": torch.eq,
        "NotEqual": torch.ne,
        "Less": torch.lt,
        "LessEqual": torch.le,
        "Greater": torch.gt,
        "GreaterEqual": torch.ge,
        "IsNan": torch.isnan,
        "IsInf": torch.isinf,
        "IsFinite": torch.isfinite,
    }
)


# Floating functions; integer operands that a header lists keep their type.
_FLOATING = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "Erf": torch.erf,
    "Erfc": torch.erfc,
    "Erfinv": torch.erfinv,
    "Expm1": torch.expm1,
    "Log1p": torch.log1p,
    "Lgamma": torch.lgamma,
    "Digamma": torch.digamma,
    "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt,
    "Reciprocal": torch.reciprocal,
    "Inv": torch.reciprocal,
    "Sigmoid": torch.sigmoid,
    "Ceil": torch.ceil,
    "Floor": torch.floor,
    "Trunc": torch.trunc,
    "Rint": torch.round,
    "BesselI0e": torch.special.i0e,
    "BesselI1e": torch.special.i1e,
    "Ndtri": torch.special.ndtri,
    "Atan2": torch.atan2,
    "Igamma": torch.special.gammainc,
    "Igammac": torch.special.gammaincc,
    "Zeta": torch.special.zeta,
    "NextAfter": torch.nextafter,
}
for _op, _fn in _FLOATING.items():
    _method = f"{_fn.__name__}_"
    rows({_op: keeping(_fn)}, inplace=_method if hasattr(Tensor, _method) else "", plan=_direct(_fn))


def _real(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def truncated(x1: Tensor, x2: Tensor) -> Tensor:
    """Quotient of integers rounded towards zero; the least one by -1 is itself, where ATen ends the process."""
    if not x1.dtype.is_signed:
        return torch.div(x1, x2, rounding_mode="trunc")
    turned = x2 == -1
    return torch.where(turned, torch.neg(x1), torch.div(x1, x2.masked_fill(turned, 1), rounding_mode="trunc"))


def quotient(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2; integers drop the fraction."""
    return torch.div(x1, x2) if _real(x1) else truncated(x1, x2)


def _distance(x1: Tensor, x2: Tensor) -> Tensor:
    """|x1 - x2|; of integers without the wrap of their own type."""
    if _real(x1):
        return torch.abs(wide(x1) - wide(x2))
    return torch.abs(x1.double() - x2.double())


# Quotients: those of integers differ in how they round.
rows(
    {
        "Div": lambda x1, x2: torch.div(x1, x2) if _real(x1) else torch.div(x1, x2, rounding_mode="floor"),
        "RealDiv": quotient,
    },
    inplace="div_",
    plan=_direct(torch.div),
)
rows(
    {
        "TruncateDiv": lambda x1, x2: (
            torch.div(x1, x2, rounding_mode="trunc") if x1.is_floating_point() else truncated(x1, x2)
        ),
        "Xdivy": lambda x1, x2: torch.where(x1 == 0, torch.zeros((), dtype=x1.dtype), torch.div(x1, x2)),
        "Xlogy": torch.special.xlogy,  # 0 where x1 is 0, but a NaN of x2 passes
        "LeftShift": torch.bitwise_left_shift,
        "RightShift": torch.bitwise_right_shift,  # sign bits are shifted in
        "ClipByValue ClipByValueV2": lambda x, clip_value_min, clip_value_max: (  # the maximum wins, NaN of x stays
            torch.minimum(torch.maximum(x, clip_value_min), clip_value_max)
        ),
        "ApproximateEqual": lambda x1, x2, *, tolerance=1e-5: _distance(x1, x2) < tolerance,
        "IsClose": lambda x1, x2, *, rtol=1e-5, atol=1e-8, equal_nan=False: torch.isclose(
            x1, x2, rtol, atol, equal_nan
        ),
        "TensorEqual": lambda x, y: torch.eq(x, y).all().reshape(1),  # NaN equals nothing
    }
)
_ROUNDED: dict[str, Callable[..., Tensor]] = {
    "SquaredDifference": lambda x1, x2: torch.square(x1 - x2),
    "Power": lambda x, *, power=1.0, scale=1.0, shift=0.0: torch.pow(x * scale + shift, power),
    "Logit": lambda x, *, eps=-1.0: torch.logit(x, None if eps < 0 else eps),  # x held to [eps, 1 - eps], -1: free
    "NanToNum": lambda x, *, nan, posinf, neginf: (
        torch.nan_to_num(x, nan, posinf, neginf) if x.is_floating_point() else x.clone()
    ),
    "AxpyV2": lambda x1, x2, alpha: (  # alpha is a one-element tensor
        x1 + x2 * (alpha.reshape(()).to(x1.dtype) if x1.is_floating_point() else alpha.reshape(()))
    ),
    "Addcmul": lambda input_data, x1, x2, value: _plus(input_data, value.reshape(()).to(input_data.dtype) * x1 * x2),
}
rows({op: rounded(formula) for op, formula in _ROUNDED.items()})


def _plus(x: Tensor, term: Tensor) -> Tensor:
    """x + term, in the memory of term where it has the size of the sum."""
    fits = term.dtype is x.dtype and term.shape == torch.broadcast_shapes(term.shape, x.shape)
    return term.add_(x) if fits else x + term


@kernel("Addcdiv", inplace="addcdiv_")
@rounded
def addcdiv(input_data: Tensor, x1: Tensor, x2: Tensor, value: Tensor) -> Tensor:
    """input_data + value * (x1 / x2), rounded once."""
    return _plus(input_data, quotient(x1, x2) * value.reshape(()).to(input_data.dtype))


def _with_number(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """x and a float32 attribute; integers go through float32: int64 rounds half away from zero, others truncate."""

    def run(x: Tensor, *, value: float) -> Tensor:
        number = torch.tensor(value, dtype=torch.float32)
        if x.dtype is torch.float64 or x.is_complex():
            return fn(x, number.to(x.dtype))
        result = fn(x.float(), number)
        if x.dtype is torch.int64:
            result = torch.sign(result) * torch.floor(torch.abs(result) + 0.5)
        return result.to(x.dtype)

    return run


rows({"Muls": _with_number(torch.mul), "Adds": _with_number(torch.add)})


@kernel("LogAddExp")
@rounded
def log_add_exp(x1: Tensor, x2: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """log(exp(x1) + exp(x2)) to the base."""
    a, b = x1 * scale + shift, x2 * scale + shift
    if base == 2.0:
        return torch.logaddexp2(a, b)
    factor = 1.0 if base == -1.0 else float(torch.log(torch.tensor(base, dtype=torch.float64)))
    return torch.logaddexp(a * factor, b * factor) / factor


@kernel("FloorDiv", source="floor of the rounded quotient; 1.0 by 0.1 gives 10")
def floor_div(x1: Tensor, x2: Tensor) -> Tensor:
    """floor(x1 / x2)."""
    if x1.is_floating_point():
        return torch.floor_(torch.div(wide(x1), wide(x2))).to(x1.dtype)
    return torch.div(x1, x2, rounding_mode="floor")


@kernel("DivNoNan")
def div_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, and 0 where x2 is 0."""
    none = x2 == 0
    return torch.where(none, torch.zeros((), dtype=x1.dtype), quotient(x1, torch.where(none, torch.ones_like(x2), x2)))


@kernel("Axpy")
def axpy(x1: Tensor, x2: Tensor, *, alpha: float) -> Tensor:
    """x1 + alpha * x2, rounded once."""
    if _real(x1):
        return (wide(x1) + wide(x2) * alpha).to(x1.dtype)
    return x1 + x2 if alpha == 1 else (x1.float() + x2.float() * alpha).to(x1.dtype)


@kernel("Sxpy")
def sxpy(x1: Tensor, x2: Tensor, alpha: Tensor | None = None) -> Tensor:
    """x1 - alpha * x2, types promoted."""
    factor = torch.ones((), dtype=x1.dtype) if alpha is None else alpha.reshape(())
    dtype = torch.result_type(torch.empty(0, dtype=torch.result_type(x1.reshape(-1)[:0], x2.reshape(-1)[:0])), factor)
    return (wide(x1) - wide(x2) * wide(factor)).to(dtype)


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


rows(
    {"Lerp": rounded(lambda start, end, weight: torch.lerp(*torch.broadcast_tensors(start, end, weight)))},
    inplace="lerp_",
)


@plan("Lerp")
def _lerp_plan(ctx: PlanContext) -> Call | None:
    weight = ctx.const("weight")
    if not isinstance(weight, float) or ctx.dtype("start") not in _FULL:
        return None
    return Call(torch.lerp, (ctx.tensor("start"), ctx.tensor("end"), weight))


@kernel("Exp")
def exp(x: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """base ** (scale * x + shift); base -1 means e."""
    inner = wide(x) if _real(x) else x.double()
    if scale != 1.0 or shift != 0.0:
        inner = inner * scale + shift
    result = torch.exp(inner) if base == -1.0 else torch.exp2(inner) if base == 2.0 else torch.pow(base, inner)
    return result.to(x.dtype)


@kernel("Log")
def log(x: Tensor, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """log(scale * x + shift) to the base; base -1 means e. Integers give float32."""
    inner = wide(x) if _real(x) else x.float()
    if scale != 1.0 or shift != 0.0:
        inner = inner * scale + shift
    known = {-1.0: torch.log, 2.0: torch.log2, 10.0: torch.log10}.get(base)
    result = known(inner) if known is not None else torch.log(inner) / torch.log(torch.tensor(base, dtype=inner.dtype))
    return result.to(x.dtype) if _real(x) else result


def _plain(fn: Callable[..., Any]) -> PlanHook:
    def hook(ctx: PlanContext) -> Call | None:
        defaults = (ctx.attr("base", -1.0), ctx.attr("scale", 1.0), ctx.attr("shift", 0.0))
        dtype = ctx.dtype("x")
        return Call(fn, (ctx.tensor("x"),)) if defaults == (-1.0, 1.0, 0.0) and dtype and dtype.is_float else None

    return hook


plan("Exp")(_plain(torch.exp))
plan("Log")(_plain(torch.log))


@kernel("Round", source="operator documentation of round: round(x * 10**d) / 10**d, for negative d too")
def round_half_even(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Nearest integer (or decimal place), ties to even."""
    if decimals == 0:
        return torch.round(x) if x.is_floating_point() else x.clone()
    if not x.is_floating_point():
        return torch.round(x.double(), decimals=decimals).to(x.dtype) if decimals < 0 else x.clone()
    scale = 10.0**decimals
    return (torch.round(wide(x) * scale) / scale).to(x.dtype)


# Complex numbers. For their parts Tout only names the part's type, which follows from the operand's.
rows(
    {
        "Complex": lambda real, imag, *, Tout=16: torch.complex(*torch.broadcast_tensors(real, imag)).to(
            torch_dtype(Tout)
        ),
    }
)
rows(
    {
        "Real": lambda x: torch.real(x).clone(),
        "Imag": lambda x: torch.imag(x).clone() if x.is_complex() else torch.zeros_like(x),
        "ComplexAbs": torch.abs,
        "Angle": torch.angle,
    },
    ignores=("Tout",),
)
# computed rather than marked
rows({"Conj": lambda x: torch.conj_physical(x.resolve_conj()) if x.is_complex() else x.clone()})


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


rows(
    {  # the mask may be larger than x
        "MaskedFill": lambda x, mask, value: torch.where(
            mask, (value.reshape(()) if value.numel() == 1 else value).to(x.dtype), x
        ),
    }
)
