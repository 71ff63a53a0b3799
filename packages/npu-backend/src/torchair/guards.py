"""The conditions of a ``torch.export`` program as data for the manifest: sympy expressions become nested lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sympy
import torch

from tair_export import errors
from tair_export.guards import Expr
from tair_export.signature import Input

# sympy's own classes and those that torch adds, by name: operator and whether it takes exactly two operands.
_FORMS: Final = {
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">",
    "GreaterThan": ">=", "Mod": "%", "PythonMod": "%", "FloorDiv": "//", "CleanDiv": "//", "Pow": "**",
    "PowByNatural": "**", "Add": "+", "Mul": "*", "Max": "max", "Min": "min", "And": "and", "Or": "or", "Not": "not",
}  # fmt: skip


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
    if kind not in _FORMS or any(isinstance(a, sympy.Rational) and not isinstance(a, sympy.Integer) for a in args):
        raise ValueError(f"{kind} in {expr}")
    return [_FORMS[kind], *map(to_data, args)]


def of_program(program: Any, inputs: Sequence[Input], value_of: Callable[[int], Any]) -> tuple[dict[str, Expr], tuple[Expr, ...]]:
    """Sizes of inputs that are no plain symbols, and the guards, of a program.

    Errors: ArchiveError GE5030 for a condition that has no form as data; without it the graph would answer wrongly for
    sizes that it was not traced for.
    """
    env, sizes = None, {}
    for at in range(len(program.graph_signature.input_specs)):
        value = value_of(at)
        dims = value.shape if isinstance(value, torch.Tensor) else (value,)
        for dim in dims:
            if isinstance(dim, torch.SymInt):
                env = dim.node.shape_env
                if not dim.node.expr.is_Symbol:
                    sizes[str(dim.node.expr)] = _data(dim.node.expr)
    if env is None:
        return {}, ()
    known = {d for i in inputs for d in (*i.shape, i.value) if isinstance(d, str)}
    known |= {str(s) for text in sizes.values() for s in _symbols(text)}
    found: dict[str, Expr] = {}
    for guard in env.guards:
        expr = guard.expr.xreplace(env.replacements) if env.replacements else guard.expr
        if expr is sympy.true or expr == True:  # noqa: E712  sympy's own truth
            continue
        if {str(s) for s in expr.free_symbols} <= known:
            found.setdefault(str(expr), _data(expr))
    return sizes, tuple(found.values())


def _symbols(expr: Expr) -> set[str]:
    from tair_export.guards import symbols

    return symbols(expr)


def _data(expr: Any) -> Expr:
    try:
        return to_data(expr)
    except ValueError as error:
        raise errors.unwritable(
            f"the condition '{expr}', under which the model was traced, has no form in an archive ({error})",
            "save with dynamic=False, or make the model not branch on it",
        ) from None
