"""Fixing symbolic numbers where GE wants constants: a stride that is an attribute, the length of a transform.

torch.compile treats the moment the same way: the number is taken from the present trace and a guard is added, so that
for another value torch compiles anew. As few numbers as possible are fixed. A dimension that the user marked dynamic
stays so: torch then reports the guard as a violated constraint.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.lowering.context import Context, Unproduced
from ge_converters.lowering.symbols import is_symbolic
from ge_graph import Tensor

Numbers: TypeAlias = "dict[Any, int | float | bool]"


@dataclass(frozen=True, slots=True)
class Specialised:
    """What a node became, and the expressions that had to be numbers for it."""

    result: Any
    fixed: Numbers


def all_used_made(node: torch.fx.Node, result: Any) -> Any:
    """The result as it is.

    Raises:
        Refusal: If an output that somebody uses could not be made.
    """
    if isinstance(result, tuple):
        for user in node.users:
            if user.target is operator.getitem and isinstance(made := result[user.args[1]], Unproduced) and user.users:
                raise Refusal(made.reason)
    return result


def attempt(context: Context, node: torch.fx.Node, lower: Callable[[torch.fx.Node], Any]) -> Specialised | None:
    """Lower a refused node with its symbolic numbers fixed, if that helps.

    Args:
        context: State of the lowering.
        node: The node.
        lower: Lowers it.

    Returns:
        The result, the guards being added; None if no number is to be fixed, and none was that a recorded shape of an
        argument still has as a symbol.

    Raises:
        Refusal: The node is refused with its numbers fixed, too. LoweringError likewise.
    """
    symbolic = _symbolic(node)
    numbers: Numbers = {expr: value.node.hint for expr, value in symbolic.items()}

    def trial(chosen: Numbers) -> Specialised:
        with context.symbols.fixed(chosen), _sizes_known(context, node):
            return Specialised(all_used_made(node, lower(node)), chosen)

    if not numbers and not _outdated(context, node):
        return None
    best = trial(numbers)
    for expr in numbers:
        fewer = {e: n for e, n in best.fixed.items() if e != expr}
        if fewer:
            with contextlib.suppress(Refusal, LoweringError):
                best = trial(fewer)
    context.symbols.fix(best.fixed)
    for expr, number in best.fixed.items():
        type(number)(symbolic[expr])  # the guard
    return best


def _symbolic(node: torch.fx.Node) -> dict[Any, Any]:
    """The symbolic numbers that meet in a node, by expression: arguments, sizes of arguments and of results.

    Numbers that come from data have no value yet, and a trace whose guards are already made takes no more of them; both
    are left out.
    """
    by_expr: dict[Any, Any] = {}
    for value in pytree.tree_leaves([n.meta.get("val") for n in (*node.all_input_nodes, node)]):
        for number in value.shape if isinstance(value, torch.Tensor) else (value,):
            if is_symbolic(number) and number.node.has_hint() and not number.node.shape_env.frozen:
                by_expr.setdefault(number.node.expr, number)
    return {expr: number for expr, number in by_expr.items() if not expr.is_number}


def _arguments(context: Context, node: torch.fx.Node) -> list[tuple[Tensor, tuple[Any, ...]]]:
    """The tensors that a node takes, each with its sizes as far as they are fixed now."""
    found = [(context.env.get(argument), argument.meta.get("val")) for argument in node.all_input_nodes]
    return [
        (tensor, tuple(context.symbols.dim(s) for s in value.shape))
        for tensor, value in found
        if isinstance(tensor, Tensor) and isinstance(value, torch.Tensor)
    ]


def _outdated(context: Context, node: torch.fx.Node) -> bool:
    """Whether sizes of an argument were fixed for another node after its shape was recorded."""
    return any(tensor.known_shape not in (None, sizes) for tensor, sizes in _arguments(context, node))


@contextlib.contextmanager
def _sizes_known(context: Context, node: torch.fx.Node) -> Iterator[None]:
    """Let the recorded shapes of the arguments say what is fixed."""
    before = [(tensor, tensor.known_shape) for tensor, _ in _arguments(context, node)]
    for tensor, sizes in _arguments(context, node):
        tensor.record_shape(sizes)
    try:
        yield
    finally:
        for tensor, shape in before:
            tensor.record_shape(shape)
