"""What the inputs of a kept graph have to be, as data: their types and sizes, and what was decided about these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tair_export.guards import Expr, Function, check, function, holds, symbols, text
from torchair.artifact.plain import plain, unplain
from torchair.artifact.size_conditions import listed

Pattern = tuple["Expr | None", ...]
Conditions = list[tuple[Expr, Function]]


def tested(conditions: Sequence[Expr]) -> Conditions:
    """Conditions on sizes, each with the function that tests it."""
    return [(each, function(each)) for each in conditions]


class CallRules:
    """The inputs of a kept graph that is called with its own flat list of them.

    Args:
        inputs: The rule of each, as JSON, in order.
        conditions: What must be true of the sizes.

    Raises:
        ValueError, TypeError, KeyError: They are none, or a condition is on a size that no input has.
    """

    def __init__(self, inputs: Sequence[Any], conditions: Sequence[Expr]) -> None:
        self._rules = [InputRule.read(each) for each in inputs]
        known = {d for rule in self._rules for d in (*rule.size, *rule.stride) if isinstance(d, str)}
        wanted = [d for rule in self._rules for d in rule.size if isinstance(d, list)]
        if lost := [each for each in (*conditions, *wanted) if not symbols(each) <= known]:
            raise ValueError(f"a condition on a size that no input has, {text(lost[0])}")
        self._conditions = tested(conditions)

    def misfit(self, values: Sequence[Any]) -> str:
        """Why a call is none of those that the graph was traced for, empty if it is one."""
        if len(values) != len(self._rules):
            return f"{len(values)} inputs, {len(self._rules)} were traced"
        sizes: dict[str, int] = {}
        for at, (rule, value) in enumerate(zip(self._rules, values)):
            if why := rule.misfit(value, sizes):
                return f"input {at} {why}"
        return broken(self._rules, self._conditions, values, sizes, str)


@dataclass(frozen=True, slots=True)
class InputRule:
    """What an input of dynamo's graph has to be.

    Attributes:
        dtype: Of a tensor; None for a number.
        size: Of a tensor: a number, a symbol or an expression for each dimension; a number's own as the only entry,
            None if it has none.
        stride: Of a tensor, for the symbols that are nowhere else; None for what was not symbolic.
        derived: Whether ``size`` has expressions.
    """

    dtype: torch.dtype | None
    size: Pattern
    stride: Pattern
    derived: bool

    @classmethod
    def of(cls, value: Any) -> list[Any]:
        """The rule of a fake value in dynamo's graph, as JSON.

        Raises:
            Unstorable: A size has no form as data.
        """
        if not isinstance(value, torch.Tensor):
            return [None, [listed(value.node.expr) if isinstance(value, torch.SymInt) else None], []]
        stride = value.stride() if value.layout is torch.strided else ()
        symbolic = [listed(s.node.expr) if isinstance(s, torch.SymInt) else None for s in stride]
        sizes = [listed(d.node.expr) if isinstance(d, torch.SymInt) else d for d in value.shape]
        return [plain(value.dtype), sizes, symbolic]

    @classmethod
    def read(cls, content: Any) -> InputRule:
        """The rule from a file.

        Raises:
            ValueError, TypeError, KeyError: It is none.
        """
        dtype, size, stride = content
        for each in (*size, *stride):
            if each is not None:
                check(each)
        found = unplain(dtype)
        if not isinstance(found, torch.dtype) and (found is not None or len(size) != 1):
            raise ValueError("type of an input")
        return cls(found, tuple(size), tuple(stride), any(isinstance(d, list) for d in size))

    def misfit(self, value: Any, sizes: dict[str, int]) -> str:
        """Why a value is not what was traced, empty if it is.

        Args:
            sizes: Symbols seen in this call so far, with their values; added to.
        """
        if self.dtype is None:
            if not isinstance(value, (int, float)):
                return f"is a {type(value).__name__}, a number was traced"
            wanted = self.size[0]
            fits = not isinstance(wanted, str) or (type(value) is int and sizes.setdefault(wanted, value) == value)
            return "" if fits else f"is {value}, {sizes.get(str(wanted))} was traced"
        if not isinstance(value, torch.Tensor):
            return f"is a {type(value).__name__}, a tensor was traced"
        if value.dtype is not self.dtype or value.dim() != len(self.size):
            return f"is {value.dtype} of {value.dim()} dimensions, traced were {self.dtype} of {len(self.size)}"
        for dim, (wanted, got) in enumerate(zip(self.size, value.shape)):
            if isinstance(wanted, list):
                continue
            expected = sizes.setdefault(wanted, got) if isinstance(wanted, str) else wanted
            if got != expected:
                return f"has size {got} in dimension {dim}, {expected} was traced"
            if isinstance(wanted, str) and got < 2:
                return f"has size {got} in dimension {dim}; sizes 0 and 1 are traced for themselves"
        for wanted, got in zip(self.stride, value.stride()):
            if isinstance(wanted, str) and wanted not in sizes:
                sizes[wanted] = got
        return ""

    def underived(self, value: Any, sizes: Mapping[str, int]) -> str:
        """Why sizes that are expressions of others are not what they should be, empty if they are."""
        shape = value.shape if isinstance(value, torch.Tensor) else (value,)
        for dim, (wanted, got) in enumerate(zip(self.size, shape)):
            if isinstance(wanted, list) and not holds(function(["==", wanted, int(got)]), sizes):
                return f"has size {got} in dimension {dim}, {text(wanted)} was traced"
        return ""


def broken(
    rules: Sequence[InputRule],
    conditions: Conditions,
    values: Sequence[Any],
    sizes: Mapping[str, int],
    name: Callable[[int], str],
) -> str:
    """Which condition the sizes of a call break, empty if they keep all.

    Args:
        sizes: All symbols with their values, as ``misfit`` has collected them.
        name: What an input is called in a message, by its place.
    """
    for at, rule in enumerate(rules):
        if rule.derived and (why := rule.underived(values[at], sizes)):
            return f"input {name(at)} {why}"
    for condition, test in conditions:
        if not holds(test, sizes):
            return f"the sizes break the condition {text(condition)}, under which the graph was traced"
    return ""
