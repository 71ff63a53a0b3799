"""Cases of operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ge_graph import DataType
from ge_runtime.conformance.case import Array, Case, by_formula

_RNG_SEED = 20240229


def sample(shape: tuple[int, ...], low: float, high: float, dtype: str = "float32") -> Array:
    """Reproducible numbers in a range."""
    rng = np.random.default_rng(_RNG_SEED + sum(shape) * 7 + len(dtype))
    return np.asarray(rng.random(shape) * (high - low) + low).astype(dtype)


_erf = np.vectorize(math.erf, otypes=[float])
_lgamma = np.vectorize(math.lgamma, otypes=[float])


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# Operator: the function on float64, the range to draw from.
UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "Abs": (np.abs, -3, 3),
    "Acos": (np.arccos, -1, 1),
    "Acosh": (np.arccosh, 1, 4),
    "Asin": (np.arcsin, -1, 1),
    "Asinh": (np.arcsinh, -4, 4),
    "Atan": (np.arctan, -4, 4),
    "Atanh": (np.arctanh, -0.9, 0.9),
    "Ceil": (np.ceil, -3, 3),
    "Cos": (np.cos, -6, 6),
    "Cosh": (np.cosh, -3, 3),
    "Erf": (_erf, -3, 3),
    "Erfc": (lambda x: 1 - _erf(x), -2, 2),
    "Exp": (np.exp, -3, 3),
    "Expm1": (np.expm1, -2, 2),
    "Floor": (np.floor, -3, 3),
    "Gelu": (_gelu_tanh, -4, 4),
    "GeluV2": (lambda x: x * 0.5 * (1 + _erf(x / 2**0.5)), -4, 4),
    "FastGelu": (lambda x: x * _sigmoid(1.702 * x), -4, 4),
    "HardSwish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, -5, 5),
    "HardSigmoid": (lambda x: np.clip(np.float32(0.16666666) * x + 0.5, 0, 1), -5, 5),
    "Inv": (lambda x: 1 / x, 0.3, 3),
    "Lgamma": (_lgamma, 0.5, 5),
    "Log": (np.log, 0.1, 5),
    "Log1p": (np.log1p, -0.5, 5),
    "LogSigmoid": (lambda x: -np.log1p(np.exp(-x)), -8, 8),
    "Mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), -5, 5),
    "Neg": (np.negative, -3, 3),
    "Reciprocal": (lambda x: 1 / x, 0.3, 3),
    "Relu": (lambda x: np.maximum(x, 0), -2, 2),
    "Relu6": (lambda x: np.clip(x, 0, 6), -2, 8),
    "Rint": (np.rint, -3, 3),
    "Round": (np.rint, -3, 3),
    "Rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 5),
    "Sigmoid": (_sigmoid, -5, 5),
    "Sign": (np.sign, -2, 2),
    "Sin": (np.sin, -6, 6),
    "Sinh": (np.sinh, -3, 3),
    "Softplus": (lambda x: np.log1p(np.exp(x)), -5, 5),
    "Softsign": (lambda x: x / (1 + np.abs(x)), -4, 4),
    "Sqrt": (np.sqrt, 0, 5),
    "Square": (np.square, -3, 3),
    "Swish": (lambda x: x * _sigmoid(x), -5, 5),
    "Tan": (np.tan, -1.2, 1.2),
    "Tanh": (np.tanh, -3, 3),
    "Selu": (lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), -3, 3),
    "Elu": (lambda x: np.where(x > 0, x, np.expm1(x)), -3, 3),
    "Trunc": (np.trunc, -3, 3),
    "SoftplusV2": (lambda x: np.log1p(np.exp(x)), -5, 5),
    "CeluV2": (lambda x: np.where(x > 0, x, np.expm1(x)), -3, 3),
    "HardShrink": (lambda x: np.where(np.abs(x) > 0.5, x, 0), -2, 2),
    "SoftShrink": (lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), -2, 2),
}

# Operator: the function on the operands' own type, range, types.
_NUMBERS, _SIGNED, _WHOLE = ("float32", "float16", "int32", "int64"), ("float32", "int32", "int64"), ("int32", "int64")
_REAL = ("float32",)
BINARY: dict[str, tuple[Callable[[Any, Any], Any], float, float, tuple[str, ...]]] = {
    "Add": (np.add, -9, 9, _NUMBERS),
    "Sub": (np.subtract, -9, 9, _SIGNED),
    "Mul": (np.multiply, -9, 9, _NUMBERS),
    "RealDiv": (np.divide, 1, 9, ("float32", "float16")),
    "Div": (np.divide, 1, 9, _REAL),
    "Maximum": (np.maximum, -9, 9, _SIGNED),
    "Minimum": (np.minimum, -9, 9, _SIGNED),
    "FloorDiv": (lambda a, b: np.floor(a / b).astype(a.dtype), 1, 9, _SIGNED),
    "FloorMod": (np.mod, 1, 9, _SIGNED),
    "Mod": (np.fmod, 1, 9, _SIGNED),
    "Pow": (np.power, 1, 3, ("float32", "int32")),
    "SquaredDifference": (lambda a, b: (a - b) ** 2, -4, 4, ("float32", "int32")),
    "Atan2": (np.arctan2, -4, 4, _REAL),
    "Xdivy": (np.divide, 1, 4, _REAL),
    "DivNoNan": (np.divide, 1, 4, _REAL),
    "Xlogy": (lambda a, b: a * np.log(b), 1, 4, _REAL),
    "Less": (np.less, -3, 3, _SIGNED),
    "LessEqual": (np.less_equal, -3, 3, _SIGNED),
    "Greater": (np.greater, -3, 3, _SIGNED),
    "GreaterEqual": (np.greater_equal, -3, 3, _SIGNED),
    "Equal": (np.equal, -3, 3, _SIGNED),
    "NotEqual": (np.not_equal, -3, 3, _SIGNED),
    "BitwiseAnd": (np.bitwise_and, 0, 99, _WHOLE),
    "BitwiseOr": (np.bitwise_or, 0, 99, _WHOLE),
    "BitwiseXor": (np.bitwise_xor, 0, 99, _WHOLE),
}

_SHAPES = (((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((), ()), ((0, 3), (1, 3)))
_NAN, _INF = float("nan"), float("inf")


def _unary() -> Iterator[Case]:
    for op, (fn, low, high) in UNARY.items():
        for shape in ((2, 3), (), (0, 2), (17,)):
            x = sample(shape, low, high)
            yield Case(op, (x,), np.asarray(fn(x.astype(np.float64))).astype(np.float32), name=f"f32{list(shape)}")
        half = sample((5,), low, high, "float16")
        yield Case(op, (half,), fn(half.astype(np.float64)).astype(np.float16), name="f16")


def _binary() -> Iterator[Case]:
    for op, (fn, low, high, dtypes) in BINARY.items():
        for dtype in dtypes:
            for left, right in _SHAPES if dtype == dtypes[0] else _SHAPES[:1]:
                a, b = sample(left, low, high, dtype), sample((*right, 1), low, high, dtype)[..., 0]
                name = f"{dtype}{list(left)}{list(right)}"
                yield Case(op, (a, b), lambda a, b, fn=fn: np.asarray(fn(a, b)), name=name)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def _i(*values: int, dtype: str = "int32") -> Array:
    return np.array(values, dtype)


def _edges() -> Iterator[Case]:
    """Where definitions and habits differ."""
    yield Case("Div", (_i(-7, 7, -7), _i(2, -2, -2)), _i(-4, -4, 3), name="ints round down")
    yield Case("RealDiv", (_i(-7, 7), _i(2, -2)), _i(-3, -3), name="ints truncate")
    yield Case(
        "FloorDiv", (floats(1.0, -7.0), floats(0.1, 2.0)), floats(10.0, -4.0), name="floor of the rounded quotient"
    )
    yield Case("FloorMod", (_i(-7, 7), _i(3, -3)), _i(2, -2), name="sign of the divisor")
    yield Case("Mod", (_i(-7, 7), _i(3, -3)), _i(-1, 1), name="sign of the dividend")
    yield Case("Mod", (floats(5.0), floats(_INF)), floats(5.0), name="infinite divisor")
    yield Case("Pow", (_i(2, -1, 1, -1), _i(-1, -1, -5, -2)), _i(0, -1, 1, 1), name="negative exponents of ints")
    yield Case("Maximum", (floats(_NAN, 1), floats(2, _NAN)), floats(_NAN, _NAN), name="NaN passes")
    yield Case("Equal", (floats(_NAN, 0.0), floats(_NAN, -0.0)), np.array([False, True]), name="NaN, -0")
    yield Case("ClipByValueV2", (floats(-5, 0, 5, _NAN), floats(2), floats(1)), floats(1, 1, 1, _NAN), name="max wins")
    yield Case("Exp", (floats(0, 1, 3),), floats(1, 2, 8), {"base": 2.0}, name="base 2")
    yield Case("Exp", (floats(0, 1),), np.exp(floats(1, 3)), {"scale": 2.0, "shift": 1.0}, name="affine")
    yield Case("Log", (floats(1, 8),), floats(0, 3), {"base": 2.0}, name="base 2", tolerance=None)
    yield Case("Log", (floats(1, 4),), np.log(floats(3, 9)), {"scale": 2.0, "shift": 1.0}, name="affine")
    yield Case("Muls", (_i(-3, 3),), _i(-1, 1), {"value": 0.5}, name="int32 truncates")
    yield Case("Muls", (_i(-3, 3, dtype="int64"),), _i(-2, 2, dtype="int64"), {"value": 0.5}, name="int64 half away")
    yield Case("Axpy", (floats(1, 2), floats(3, 4)), floats(7, 10), {"alpha": 2.0})
    yield Case("AxpyV2", (floats(1, 2), floats(3, 4), np.array(2, np.float32)), floats(7, 10))
    yield Case("Addcmul", (floats(1, 2), floats(3, 4), floats(5, 6), floats(2)), floats(31, 50))
    yield Case("Addcdiv", (floats(1, 2), floats(3, 4), floats(2, 8), floats(2)), floats(4, 3))
    yield Case("AddN", ((floats(1, 2), floats(3, 4), floats(5, 6)),), floats(9, 12), {"N": 3})
    yield Case("Lerp", (floats(0, 10), floats(10, 20), floats(0.5, 0.25)), floats(5, 12.5))
    yield Case(
        "NanToNum", (floats(_NAN, _INF, -_INF, 1),), floats(7, 8, 9, 1), {"nan": 7.0, "posinf": 8.0, "neginf": 9.0}
    )
    yield Case("LeakyRelu", (floats(-2, 2, _NAN),), floats(-4, 2, _NAN), {"negative_slope": 2.0}, name="slope above 1")
    channels = (sample((2, 3, 4), -1, 1), floats(0.1, 0.2, 0.3))
    yield Case("PRelu", channels, lambda x, w: np.where(x > 0, x, w[None, :, None] * x), name="channel is dim 1")
    yield Case("ThresholdV2", (floats(1, 2, 3), floats(2), floats(9)), floats(9, 9, 3), name="equality takes value")
    yield Case("ThresholdV2", (floats(1, 3), floats(2)), floats(0, 3), name="value defaults to 0")
    yield Case("Swish", (floats(1, -1),), lambda x: (x / (1 + np.exp(-2 * x))).astype(np.float32), {"scale": 2.0})
    yield Case(
        "GeluV2", (floats(1, -2),), lambda x: _gelu_tanh(x.astype(float)).astype(np.float32), {"approximate": "tanh"}
    )
    yield Case(
        "Elu",
        (floats(1, -1),),
        lambda x: np.where(x > 0, 3 * x, 6 * np.expm1(0.5 * x)).astype(np.float32),
        {"alpha": 2.0, "scale": 3.0, "input_scale": 0.5},
    )
    yield Case("Invert", (_i(0, 5, -1),), _i(-1, -6, 0))
    yield Case("RightShift", (_i(8, -8), _i(1, 1)), _i(4, -4))
    yield Case("LogicalNot", (np.array([True, False]),), np.array([False, True]))
    for op, fn in (("LogicalAnd", np.logical_and), ("LogicalOr", np.logical_or)):
        yield Case(op, (np.array([[True], [False]]), np.array([True, False])), lambda a, b, fn=fn: fn(a, b))
    for op, test in (("IsNan", np.isnan), ("IsInf", np.isinf), ("IsFinite", np.isfinite)):
        yield Case(op, (floats(_NAN, _INF, -_INF, 0),), lambda x, test=test: test(x))
    yield Case("TensorEqual", (_i(1, 2), _i(1, 2)), np.array([True]))
    yield Case("Complex", (floats(1, 2), floats(3, 4)), np.array([1 + 3j, 2 + 4j], np.complex64))
    yield Case("Real", (np.array([1 + 3j], np.complex64),), floats(1))
    yield Case("Imag", (np.array([1 + 3j], np.complex64),), floats(3))


def _casts() -> Iterator[Case]:
    for name, source, target, want in (
        ("float to int truncates", floats(-1.7, 1.7, 2.0), "DT_INT32", _i(-1, 1, 2)),
        ("NaN to int is 0", floats(_NAN, 3.0), "DT_INT64", _i(0, 3, dtype="int64")),
        ("to bool is not zero", floats(0, 0.5, _NAN), "DT_BOOL", np.array([False, True, True])),
        ("narrowing ints wrap", _i(257, -129, 5), "DT_INT8", _i(1, 127, 5, dtype="int8")),
        ("half even", floats(2049, 2051), "DT_FLOAT16", np.array([2048, 2052], np.float16)),
        ("same type", floats(1, 2), "DT_FLOAT", floats(1, 2)),
        ("bool to float", np.array([True, False]), "DT_FLOAT", floats(1, 0)),
        ("int to double", _i(3), "DT_DOUBLE", np.array([3.0])),
    ):
        yield Case("Cast", (source,), want, {"dst_type": DataType[target]}, name=name, tolerance=None)


def _choices() -> Iterator[Case]:
    a, b = sample((2, 3), -1, 1), sample((3,), 2, 3)
    condition = np.array([[True], [False]])
    yield Case("SelectV2", (condition, a, b), lambda c, a, b: np.where(c, a, b), name="three-way broadcast")
    yield Case(
        "SelectV2", (np.array([True, False]), floats(1, 2), floats(_NAN, 5)), floats(1, 5), name="NaN does not leak"
    )
    rows = np.array([False, True])
    yield Case("Select", (rows, a, a + 1), lambda c, a, b: np.where(c[:, None], a, b), name="vector chooses rows")
    mask = np.array([[True, False, False], [False, True, False]])
    yield Case("MaskedFill", (b, mask, floats(-9)), lambda x, m, v: np.where(m, v, x), name="mask larger than x")


def _fast_gelu_v2(x: Any) -> Any:
    piece = -0.1444 * (np.minimum(np.abs(0.7071 * x), 1.769) - 1.769) ** 2 + 0.5
    return x * (np.sign(x) * piece + 0.5)


def _celu(x: Any) -> Any:
    return np.where(x > 0, 3 * x, 2 * np.expm1(x / 0.5))


def _formulas() -> Iterator[Case]:
    """One formula each, in all types and with attributes."""
    x, y = sample((2, 3), -3, 3), sample((2, 3, 2), -3, 3)[..., 0]
    for dtype in ("float32", "float16"):
        a, b = x.astype(dtype), y[:1].astype(dtype)
        fields: dict[str, Any] = {"name": dtype}
        yield by_formula("FastGeluV2", (a,), _fast_gelu_v2, **fields)
        yield by_formula("Celu", (a,), lambda x: np.where(x > 0, x, np.expm1(x)), **fields)
        yield by_formula(
            "Celu", (a,), _celu, attrs={"alpha1": 2.0, "alpha2": 0.5, "alpha3": 3.0}, name=f"{dtype} scales"
        )
        yield by_formula("Threshold", (a,), lambda x: (x > 0.5).astype(float), attrs={"threshold": 0.5}, **fields)
        yield by_formula("AccumulateNV2", ((a, a + 1, a - 3),), lambda v: v[0] + v[1] + v[2], attrs={"N": 3}, **fields)
        yield by_formula("TruncateMod", (a, b), np.fmod, **fields)
        yield by_formula("Ger", (a[0], a[1][:2]), np.outer, **fields)
        yield by_formula("Sxpy", (a, b, np.array(2, dtype)), lambda x1, x2, alpha: x1 - alpha * x2, **fields)
        yield by_formula(
            "ApproximateEqual", (a, b), lambda x, y: np.abs(x - y) < 0.9, attrs={"tolerance": 0.9}, **fields
        )
    yield by_formula("FastGeluV2", (np.zeros((0, 2), np.float32),), _fast_gelu_v2, name="empty")
    yield by_formula("Threshold", (floats(0, -0.0, _NAN, _INF),), lambda x: floats(0, 0, 0, 1), name="borders")
    powers = {"power": 3.0, "scale": 0.5, "shift": 1.0}
    yield by_formula("Power", (x,), lambda x: (0.5 * x + 1) ** 3, attrs=powers)
    yield by_formula("Power", (np.array(2, np.float32),), lambda x: x, name="defaults, rank 0")
    yield Case("Sxpy", (_i(5, 7), _i(2, 3)), _i(3, 4), name="alpha defaults to 1")
    for kind in ("int32", "int64"):
        whole = (_i(7, -7, 7, -7, dtype=kind), _i(3, 3, -3, -3, dtype=kind))
        yield Case("TruncateMod", whole, _i(1, -1, 1, -1, dtype=kind), name=kind)
    yield Case("AccumulateNV2", ((_i(1, 2), _i(3, 4)),), _i(4, 6), {"N": 2}, name="int32")
    yield Case("AccumulateNV2", ((_i(1, 2),),), _i(1, 2), {"N": 1}, name="one")
    near = (_i(1, 2, 9, dtype="uint8"), _i(2, 1, 6, dtype="uint8"))
    yield Case("ApproximateEqual", near, np.array([True, True, False]), {"tolerance": 2.0}, name="unsigned")
    ends = (_i(-128, 127, dtype="int8"), _i(127, 126, dtype="int8"))
    yield Case("ApproximateEqual", ends, np.array([False, True]), {"tolerance": 1.5}, name="ends of int8")
    yield Case("ApproximateEqual", (floats(1, _NAN), floats(1.5, _NAN)), np.array([False, False]), {"tolerance": 0.5})
    close = (floats(1, 100, 0, _NAN, _INF), floats(1.05, 109, 0.02, _NAN, _INF))
    attrs: dict[str, Any] = {"rtol": 0.09, "atol": 0.01}
    yield Case("IsClose", close, np.array([True, True, False, False, True]), attrs, name="the second scales")
    yield Case("IsClose", close, np.array([True, True, False, True, True]), {**attrs, "equal_nan": True}, name="NaN")
    yield Case("IsClose", (_i(10, 11), _i(11)), np.array([True, True]), {"rtol": 0.1}, name="integers")
    yield Case("IsClose", (np.array([True, False]), np.array(True)), np.array([True, False]), name="booleans")


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _unary()
    yield from _formulas()
    yield from _binary()
    yield from _edges()
    yield from _casts()
    yield from _choices()
