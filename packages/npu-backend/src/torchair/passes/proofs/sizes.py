"""Numbers for the symbols of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sympy
import torch

from ge_converters.base.torch_compat import symbol_values
from torchair.passes.base import value_of

# What a size is that only data decide.
_FROM_DATA: Final = 3


class Sizes:
    """One choice of a number for each symbol.

    Attributes:
        values: Symbol to number.
    """

    def __init__(self, values: dict[Any, int]) -> None:
        self.values = values

    def of(self, value: Any) -> Any:
        """A size or number with the symbols replaced; plain values stand for themselves."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        number = self.evaluated(value.node.expr)
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        return kind(number)

    def evaluated(self, expression: Any) -> Any:
        """An expression as a number of sympy."""
        expression = sympy.sympify(expression) if isinstance(expression, (int, float, bool)) else expression
        missing = {s: _FROM_DATA for s in expression.free_symbols if s not in self.values}
        return expression.xreplace({**self.values, **missing})

    def __repr__(self) -> str:
        return ", ".join(f"{symbol} = {number}" for symbol, number in self.values.items())


def choices(gm: torch.fx.GraphModule) -> list[Sizes]:
    """The sizes that were traced, and others that the guards let through; one of none if none is symbolic."""
    environment = next((_environment(n) for n in gm.graph.nodes if _environment(n) is not None), None)
    if environment is None:
        return [Sizes({})]
    known = symbol_values(environment)
    made = [Sizes(known)]
    for other in _others(known):
        if _allowed(environment, other):
            made.append(Sizes(other))
            break
    return made


def _environment(node: torch.fx.Node) -> Any:
    value = value_of(node)
    if isinstance(value, torch.SymInt):
        return value.node.shape_env
    return getattr(getattr(value, "fake_mode", None), "shape_env", None)


def _others(known: dict[Any, int]) -> Iterator[dict[Any, int]]:
    for added in (1, 2, 3, 5):
        yield {symbol: number + added * (1 + place) for place, (symbol, number) in enumerate(known.items())}
    for factor in (2, 3):
        yield {symbol: number * factor for symbol, number in known.items()}


def _allowed(environment: Any, values: dict[Any, int]) -> bool:
    for symbol, number in values.items():
        span = environment.var_to_range.get(symbol)
        if span is not None and not (span.lower <= number <= span.upper):
            return False
    kept = (guard.expr.xreplace(values) for guard in environment.guards)
    return all(expression == sympy.true for expression in kept)
