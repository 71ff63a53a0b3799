"""Conditions on symbolic sizes: what was decided about them while compiling, as data, and as guards again.

There is one form, that of ``tair_export.guards``: a tree of operators, names of symbols and integers. Text of
expressions would have to be evaluated as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sympy
import torch

from ge_converters.base.torch_compat import size_functions, size_values
from tair_export.guards import Expr, function, holds, symbols
from torchair.artifact.plain import Unstorable


def shape_env_of(gm: torch.fx.GraphModule) -> Any:
    """The shape environment of a graph with symbolic sizes, None for a static one."""
    for number in numbers_of(gm).values():
        return number.node.shape_env
    return None


def numbers_of(gm: torch.fx.GraphModule) -> dict[str, Any]:
    """The symbolic numbers among a graph's inputs and their sizes, by their text."""
    by_text: dict[str, Any] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta["val"] if "val" in node.meta else node.meta.get("example_value")
        numbers = (*value.shape, *_strides(value)) if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, torch.SymInt):
                by_text.setdefault(str(number.node.expr), number)
    return by_text


def _symbols_of(gm: torch.fx.GraphModule) -> dict[str, Any]:
    """The symbols in a graph's inputs and their sizes, by name."""
    expressions = (n.node.expr for n in numbers_of(gm).values())
    return {s.name: s for expr in expressions for s in expr.free_symbols}


def _strides(value: torch.Tensor) -> tuple[Any, ...]:
    return value.stride() if value.layout is torch.strided else ()


# sympy's own classes and those that torch adds, by name: the operator.
_OPERATORS: Final = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
    "Mod": "%",
    "PythonMod": "%",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Pow": "**",
    "PowByNatural": "**",
    "Add": "+",
    "Mul": "*",
    "Max": "max",
    "Min": "min",
    "And": "and",
    "Or": "or",
    "Not": "not",
}


def to_data(expr: Any) -> Expr:
    """An expression of sizes.

    Raises:
        ValueError: If it has a part that the form does not know.
    """
    if expr is sympy.true or expr is sympy.false:
        return int(expr is sympy.true)
    if isinstance(expr, (int, sympy.Integer)):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        return str(expr)
    kind = type(expr).__name__
    args = [a for a in expr.args if kind != "Identity"]
    if kind == "Identity":
        return to_data(expr.args[0])
    if kind == "CeilDiv":
        top, low = map(to_data, args)
        return ["-", 0, ["//", ["-", 0, top], low]]
    if kind == "ModularIndexing":
        base, divisor, modulus = map(to_data, args)
        return ["%", ["//", base, divisor], modulus]
    if kind not in _OPERATORS or any(isinstance(a, sympy.Rational) and not isinstance(a, sympy.Integer) for a in args):
        raise ValueError(f"{kind} in {expr}")
    return [_OPERATORS[kind], *map(to_data, args)]


def listed(expression: Any) -> Expr:
    """An expression or condition of sizes as data.

    Raises:
        Unstorable: It has a part that the form does not know.
    """
    try:
        return to_data(expression)
    except ValueError as error:
        raise Unstorable(f"a condition on sizes with {error}") from None


class SizeWatch:
    """Notices what is decided about symbolic sizes, so that a kept graph is used under the same conditions.

    Args:
        environment: The shape environment; None for a static graph.
        whole: Whether what was decided before counts too, and the limits of the symbols; for sizes as they look in the
            end, where a symbol that was fixed is its number.
    """

    def __init__(self, environment: Any, *, whole: bool = False) -> None:
        self._environment, self._whole = environment, whole
        self._before = 0 if whole or environment is None else len(environment.guards)

    def conditions(self) -> list[Expr]:
        """What was decided since.

        Raises:
            Unstorable: A condition has no form as data.
        """
        if self._environment is None:
            return []
        decided = [guard.expr for guard in self._environment.guards[self._before :]]
        found = [listed(self._environment.replace(e) if self._whole else e) for e in decided]
        if self._whole:
            free = (r for r in self._environment.var_to_range.items() if r[0] not in self._environment.replacements)
            for symbol, limits in free:
                found += [["<=", int(limits.lower), symbol.name]] if _is_limit(limits.lower, 2) else []
                found += [["<=", symbol.name, int(limits.upper)]] if _is_limit(limits.upper, 0) else []
        return [each for each in found if each != 1]  # what is always true


def _is_limit(limit: Any, usual: int) -> bool:
    return isinstance(limit, (int, sympy.Integer)) and usual < limit < 1 << 62


def become_guards(conditions: Sequence[Expr], gm: torch.fx.GraphModule) -> bool:
    """Put the conditions of a kept graph on the sizes of a graph that is being compiled; False if they do not hold."""
    if not conditions:
        return True
    environment, known = shape_env_of(gm), _symbols_of(gm)
    values = {} if environment is None else size_values(environment)
    if not all(symbols(c) <= known.keys() & values.keys() and holds(function(c), values) for c in conditions):
        return False
    guards = [environment.replace(_condition(c, known)) for c in conditions]
    return all(bool(environment.create_symboolnode(guard)) for guard in guards)


def _condition(expr: Expr, known: Mapping[str, Any]) -> Any:
    """A condition for torch's shape environments. What ``holds`` found true has no part that cannot be computed."""
    if isinstance(expr, int):
        return sympy.Integer(expr)
    if isinstance(expr, str):
        return known[expr]
    parts = [_condition(part, known) for part in expr[1:]]
    if expr[0] in ("and", "or", "not"):
        parts = [sympy.true if p == 1 else sympy.false if p == 0 else p for p in parts]
    return _FORMS[expr[0]](*parts)


_TORCH: Final = size_functions()
_FORMS: Final[dict[str, Callable[..., Any]]] = {
    "+": sympy.Add,
    "*": sympy.Mul,
    "-": lambda a, b: a - b,
    "//": _TORCH["FloorDiv"],
    "%": _TORCH["PythonMod"],
    "**": _TORCH["PowByNatural"],
    "==": sympy.Eq,
    "!=": sympy.Ne,
    "<": sympy.Lt,
    "<=": sympy.Le,
    ">": sympy.Gt,
    ">=": sympy.Ge,
    "min": _TORCH["Min"],
    "max": _TORCH["Max"],
    "and": sympy.And,
    "or": sympy.Or,
    "not": sympy.Not,
}
