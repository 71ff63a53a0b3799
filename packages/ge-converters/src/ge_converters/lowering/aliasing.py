"""What a graph's inputs and outputs are to the caller: results, inputs handed back, numbers, write-backs.

An FX output and a GE output differ: a placeholder that is returned must come back as the caller's own tensor, a size is
a Python number, a None is nothing, and a tensor returned twice is one GE output. All of this is decided here; the
runtime only follows the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ge_graph import Graph, Tensor, TensorSpec


@dataclass(frozen=True, slots=True)
class InputBinding:
    """One GE Data: which FX input feeds it.

    Attributes:
        fx_index: Position among the FX placeholders.
        kind: ``"tensor"``, or ``"scalar"`` for a Python number.
        spec: Type and sizes expected.
    """

    fx_index: int
    kind: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Result:
    """An FX output that is GE output ``ge_index``.

    Attributes:
        ge_index: Position among the graph's outputs.
        spec: Type, sizes and strides as eager has them.
        order: Dimensions from outermost to innermost in memory if eager's result is a dense permuted tensor, such as
            a transpose or channels-last; None if it is contiguous or has no such order.
    """

    ge_index: int
    spec: TensorSpec
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScalarResult:
    """An FX output that is a Python number, computed by GE output ``ge_index``."""

    ge_index: int
    pytype: type


@dataclass(frozen=True, slots=True)
class InputAlias:
    """An FX output that is FX input ``fx_index`` itself."""

    fx_index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """An FX output that is the same value in every run."""

    value: Any


@dataclass(frozen=True, slots=True)
class Nothing:
    """An FX output that is None."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """After a run, GE output ``ge_index`` is written into FX input ``fx_index``."""

    fx_index: int
    ge_index: int


OutputBinding: TypeAlias = "Result | ScalarResult | InputAlias | Constant | Nothing"


class OutputTable:
    """Collects GE outputs; a tensor that is asked for twice is one output."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._index: dict[Tensor, int] = {}

    def index(self, tensor: Tensor) -> int:
        """Position of ``tensor`` among the graph's outputs, added if need be."""
        known = self._index.get(tensor)
        if known is None:
            known = self._index[tensor] = len(self._graph.outputs)
            self._graph.outputs.append(tensor)
        return known


def memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions from outermost to innermost for a dense permuted tensor, None for any other.

    Symbolic strides are compared by their expressions. Where these leave it open, by their hints, which is what eager's
    own layout decisions amount to.
    """
    if value.layout is not torch.strided or value.dim() < 2 or _same_strides(value):
        return None
    by_expressions = _by_expressions(value)
    if by_expressions is not None:
        return by_expressions if by_expressions != tuple(range(value.dim())) else None
    sizes = [_hint(s) for s in value.shape]
    strides = [_hint(s) for s in value.stride()]
    order = sorted(range(value.dim()), key=lambda i: (-strides[i], i if sizes[i] != 1 else -1))
    expected = 1
    for i in reversed(order):
        if sizes[i] != 1 and strides[i] != expected:
            return None
        expected *= sizes[i]
    return None if order == sorted(order) else tuple(order)


def _by_expressions(value: torch.Tensor) -> tuple[int, ...] | None:
    left, inner, expected = list(range(value.dim())), [], 1
    while left:
        fits = [d for d in reversed(left) if _expr(value.stride(d)) == _expr(expected)]
        fits.sort(key=lambda d: _expr(value.size(d)) != 1)
        if not fits:
            return None
        inner.append(fits[0])
        left.remove(fits[0])
        expected = expected * value.size(fits[0])
    return tuple(reversed(inner))


def _same_strides(value: torch.Tensor) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride())):
        if type(size) is int and size == 1:
            continue
        if not (stride is expected or _expr(stride) == _expr(expected)):
            return False
        expected = expected * size
    return True


def _expr(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else value


def _hint(value: Any) -> int:
    if isinstance(value, torch.SymInt):
        hint = value.node.hint if value.node.has_hint() else None
        return 8192 if hint is None else int(hint)
    return int(value)
