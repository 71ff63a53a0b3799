"""Cases of operators on lists of tensors: the plain operator's function, applied to each entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case, by_formula
from ge_runtime.conformance.elementwise_cases import BINARY, UNARY, floats, sample

# Name after Foreach: function on float64, range to draw from; the others are those of the plain operators.
_MORE: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "Log2": (np.log2, 0.1, 5),
    "Log10": (np.log10, 0.1, 5),
    "ACos": UNARY["Acos"],
    "ASin": UNARY["Asin"],
    "ATan": UNARY["Atan"],
}
_PLAIN = [
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "Cos",
    "Cosh",
    "Erf",
    "Erfc",
    "Exp",
    "Expm1",
    "Log",
    "Log1p",
    "Neg",
    "Reciprocal",
    "Sigmoid",
    "Sin",
    "Sinh",
    "Sqrt",
    "Tan",
    "Tanh",
]
# Function on the operands' own type, types of the list.
_FLOATS, _INTS = ("float32", "float16"), ("int32",)
_TWO: dict[str, tuple[str, ...]] = {
    "Add": _FLOATS + _INTS,
    "Sub": _FLOATS + _INTS,
    "Mul": _FLOATS + _INTS,
    "Div": _FLOATS,
    "Maximum": _FLOATS + _INTS,
    "Minimum": _FLOATS + _INTS,
    "Pow": _FLOATS + _INTS,
}
_SCALED = ("Add", "Sub")  # the list forms of these have a factor for the second list
_SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (), (0, 2))


def _lists(low: float, high: float, dtype: str = "float32", count: int = 1) -> list[tuple[Array, ...]]:
    """``count`` lists of tensors of different shapes, with other numbers each."""
    return [
        tuple(np.asarray(sample((*shape, 3), low, high, dtype)[..., place % 3]) for shape in _SHAPES)
        for place in range(count)
    ]


def _results(count: int) -> dict[str, int]:
    return {"size_of_y": count}


def _each(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    """``fn`` of the entries of each list."""
    return lambda *lists: [np.asarray(fn(*entries)) for entries in zip(*lists, strict=True)]


def _numbered(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    """``fn`` of the entries of each list and a number, which come last; one number serves all."""

    def run(*operands: Any) -> list[Any]:
        *lists, numbers = operands
        flat = np.broadcast_to(numbers.reshape(-1), len(lists[0])) if numbers.size == 1 else numbers
        entries = zip(zip(*lists, strict=True), flat, strict=True)
        return [np.asarray(fn(*each, number.astype(each[0].dtype))) for each, number in entries]

    return run


def _keeps(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` with the type of its first operand."""
    return lambda first, *others: np.asarray(fn(first, *others)).astype(first.dtype)


def _unary() -> Iterator[Case]:
    for name in (*_PLAIN, *_MORE):
        fn, low, high = _MORE[name] if name in _MORE else UNARY[name]
        for dtype in _FLOATS:
            lists = _lists(low, high, dtype)
            yield by_formula(f"Foreach{name}", (lists[0],), _each(fn), keywords=_results(3), name=dtype)
    yield by_formula("ForeachNeg", (_lists(-9, 9, "int32")[0],), _each(np.negative), keywords=_results(3), name="int32")


def _numbers(dtype: str, *values: float) -> Array:
    """Numbers beside a list: int32 beside integers, else float32."""
    return np.array(values, dtype if dtype == "int32" else "float32")


def _binary() -> Iterator[Case]:
    for name, dtypes in _TWO.items():
        plain = BINARY["RealDiv" if name == "Div" else name][0]
        for dtype in dtypes:
            low, high = (1, 3) if name == "Pow" else (1, 9)
            left, right = _lists(low, high, dtype, 2)
            fn = _keeps(plain)
            fields: dict[str, Any] = {"keywords": _results(3), "name": dtype}
            if name in _SCALED:
                scaled = _keeps(lambda a, b, alpha, plain=plain: plain(a, alpha * b))
                factor = (left, right, _numbers(dtype, 2))
                yield by_formula(f"Foreach{name}List", factor, _numbered(scaled), **fields)
            else:
                yield by_formula(f"Foreach{name}List", (left, right), _each(fn), **fields)
            yield by_formula(f"Foreach{name}Scalar", (left, _numbers(dtype, 2)), _numbered(fn), **fields)
            many = (left, _numbers(dtype, 2, 3, 1))
            yield by_formula(f"Foreach{name}ScalarList", many, _numbered(fn), **fields)


def _fused() -> Iterator[Case]:
    for name, inner, dtypes in (("Addcmul", np.multiply, _FLOATS + _INTS), ("Addcdiv", np.divide, _FLOATS)):
        fn = _keeps(lambda a, b, c, number, inner=inner: a + inner(b, c) * number)
        for dtype in dtypes:
            lists = _lists(1, 9, dtype, 3)
            fields: dict[str, Any] = {"keywords": _results(3), "name": dtype}
            yield by_formula(f"Foreach{name}Scalar", (*lists, _numbers(dtype, 2)), _numbered(fn), **fields)
            many = (*lists, _numbers(dtype, 2, 3, -1))
            for form in ("ScalarList", "List"):
                yield by_formula(f"Foreach{name}{form}", many, _numbered(fn), **fields)


def _others() -> Iterator[Case]:
    for dtype in _FLOATS:
        lists = _lists(-2, 2, dtype, 3)
        fields: dict[str, Any] = {"keywords": _results(3), "name": dtype}
        yield by_formula("ForeachLerpList", tuple(lists), _each(lambda a, b, w: a + w * (b - a)), **fields)
        weight = (*lists[:2], floats(0.75))
        yield by_formula("ForeachLerpScalar", weight, _numbered(lambda a, b, w: a + w * (b - a)), **fields)
        yield by_formula(
            "ForeachPowScalarAndTensor",
            (floats(3), lists[0]),
            lambda number, x: _numbered(lambda t, n: n**t)(x, number),
            like=1,
            **fields,
        )
    nan = floats(float("nan"), 1)
    for name, fn in (("Maximum", np.maximum), ("Minimum", np.minimum)):
        yield by_formula(
            f"Foreach{name}List", ((nan,), (nan[::-1].copy(),)), _each(fn), keywords=_results(1), name="NaN passes"
        )


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _unary()
    yield from _binary()
    yield from _fused()
    yield from _others()
