"""Conditions on symbolic sizes as plain data: a tree of operator names, symbol names and integers.

Text of expressions would have to be evaluated as code; a tree is rebuilt from a fixed table of operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sympy

from ge_converters.base.torch_compat import size_functions
from torchair.artifact.stored_graph import Unstorable

_DEPTH: Final = 64
_SYMPY: Final = (
    "Add", "Mul", "Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan", "And",
    "Or", "Not",
)  # fmt: skip


def _table() -> dict[str, Any]:
    return {name: getattr(sympy, name) for name in _SYMPY} | size_functions()


def listed(expression: Any) -> Any:
    """A condition as JSON.

    Args:
        expression: What a guard of the shape environment demands.

    Raises:
        Unstorable: It has a part that is not in the table.
    """
    table = _table()

    def tree(part: Any) -> Any:
        if isinstance(part, sympy.Symbol):
            return {"size": part.name}
        if isinstance(part, (bool, sympy.logic.boolalg.BooleanAtom)):
            return bool(part)
        if isinstance(part, (int, sympy.Integer)):
            return int(part)
        name = type(part).__name__
        if table.get(name) is not type(part):
            raise Unstorable(f"a condition on sizes with {name}")
        return [name, *map(tree, part.args)]

    return tree(expression)


def condition(content: Any, symbols: Mapping[str, Any], depth: int = _DEPTH) -> Any:
    """The condition that ``listed`` made JSON of.

    Args:
        content: The tree, from a file.
        symbols: The symbols of this process by their names.
        depth: How deep it may be.

    Raises:
        ValueError, KeyError, TypeError: It is no such tree, or names a symbol that is not there.
    """
    if type(content) is bool:
        return sympy.true if content else sympy.false
    if type(content) is int:
        return sympy.Integer(content)
    if isinstance(content, dict):
        ((kind, name),) = content.items()
        if kind != "size":
            raise ValueError(f"{str(kind)[:40]} in a condition")
        return symbols[name]
    if not isinstance(content, list) or not content or not depth:
        raise ValueError(f"condition {str(content)[:80]}")
    return _table()[content[0]](*(condition(f, symbols, depth - 1) for f in content[1:]))
