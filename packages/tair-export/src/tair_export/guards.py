"""Conditions on sizes as data: what a dynamic graph was traced under, checked at each call.

A condition is JSON: an int, a symbol's name, or a list of an operator and its operands, ``["==", ["%", "s0", 2], 0]``.
It is turned into nested functions when the archive is loaded; nothing is ever evaluated as text.

Operators: ``+ * min max and or`` of any number of operands; ``- // % ** == != < <= > >=`` of two; ``not`` of one.
Divisions round down. A division by zero makes a condition false.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Expr: TypeAlias = "int | str | list[Any]"
Function: TypeAlias = "Callable[[Mapping[str, int]], int]"

_DEPTH: Final = 64
_PARTS: Final = 10_000
_BITS: Final = 1 << 12
MAX_GUARDS: Final = 100_000


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= 64 or base.bit_length() * exponent > _BITS:
        raise OverflowError("a power beyond all sizes")
    return int(base**exponent)


_TWO: Final[dict[str, Callable[[int, int], int]]] = {
    "-": operator.sub,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MANY: Final[dict[str, Callable[[list[int]], int]]] = {
    "+": sum,
    "*": math.prod,
    "min": min,
    "max": max,
    "and": all,
    "or": any,
}
_MARKS: Final = {"min", "max", "not"}


def check(expr: Any, depth: int = 0) -> int:
    """The number of parts of an expression.

    Raises:
        ValueError: If it is none.
    """
    if type(expr) is int and -(1 << 63) <= expr < 1 << 63:
        return 1
    if isinstance(expr, str) and 0 < len(expr) <= 256:
        return 1
    if not isinstance(expr, list) or len(expr) < 2 or depth > _DEPTH or not isinstance(expr[0], str):
        raise ValueError(f"condition {str(expr)[:80]}")
    name, count = expr[0], len(expr) - 1
    if not ((name in _TWO and count == 2) or name in _MANY or (name == "not" and count == 1)):
        raise ValueError(f"condition {str(expr)[:80]}")
    parts = 1 + sum(check(part, depth + 1) for part in expr[1:])
    if parts > _PARTS:
        raise ValueError(f"a condition of more than {_PARTS} parts")
    return parts


def symbols(expr: Expr) -> set[str]:
    """The symbols that an expression reads."""
    if isinstance(expr, str):
        return {expr}
    return set().union(*(symbols(part) for part in expr[1:])) if isinstance(expr, list) else set()


def function(expr: Expr) -> Function:
    """The expression as a function of the values of its symbols."""
    if isinstance(expr, int):
        return lambda values: expr
    if isinstance(expr, str):
        return lambda values: values[expr]
    name, parts = expr[0], [function(part) for part in expr[1:]]
    if name in _TWO:
        act, (left, right) = _TWO[name], parts
        return lambda values: act(left(values), right(values))
    if name == "not":
        only = parts[0]
        return lambda values: not only(values)
    gather = _MANY[name]
    return lambda values: gather([part(values) for part in parts])


def holds(test: Function, values: Mapping[str, int]) -> bool:
    """Whether a condition is true of values."""
    try:
        return bool(test(values))
    except (ZeroDivisionError, OverflowError):
        return False


def text(expr: Expr) -> str:
    """``s0 % 2 == 0``."""
    if not isinstance(expr, list):
        return str(expr)
    name, parts = expr[0], [text(p) if not isinstance(p, list) or p[0] in _MARKS else f"({text(p)})" for p in expr[1:]]
    if name in ("min", "max"):
        return f"{name}({', '.join(parts)})"
    return f"not {parts[0]}" if name == "not" else f" {name} ".join(parts)


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with symbols called otherwise, for messages: ``x.shape[0]`` for ``s0``."""
    if isinstance(expr, str):
        return names.get(expr, expr)
    return [expr[0], *(renamed(part, names) for part in expr[1:])] if isinstance(expr, list) else expr


def solve(expr: Expr, symbol: str, size: int) -> int | None:
    """The value that a symbol must have for a sum of multiples of it to be ``size``, None if there is none.

    Args:
        expr: A linear expression of that one symbol.
        size: What the expression shall be.
    """
    at = function(expr)
    zero, one = at({symbol: 0}), at({symbol: 1})
    slope = one - zero
    if slope == 0 or (size - zero) % slope:
        return None
    value = (size - zero) // slope
    return value if at({symbol: value}) == size else None
