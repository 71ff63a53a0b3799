"""Chains of views become one view."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from ge_converters.base.operators import aten
from torchair.oplib.torch_ops import name_of
from torchair.passes.base import FxPass, row_major, same_layout, same_sizes, switched_on, value_of
from torchair.passes.memory import MemoryFacts

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig

FxNode: TypeAlias = torch.fx.Node
_RESHAPES: Final = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})


def axes_order(node: Any) -> tuple[int, ...] | None:
    """The order in which ``permute``, ``transpose`` or ``t`` takes the dimensions; None for anything else."""
    value = value_of(node)
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or not isinstance(value, torch.Tensor):
        return None
    rank = value.dim()
    order = list(range(rank))
    if node.target is aten.permute.default:
        given: Any = node.args[1]
        return tuple(int(d) % rank for d in given)
    if node.target is aten.transpose.int and rank:
        a, b = (operator.index(d) % rank for d in node.args[1:3])
        order[a], order[b] = order[b], order[a]
        return tuple(order)
    if node.target is aten.t.default:
        return tuple(reversed(order))
    return None


class MergeViews(FxPass):
    """``view(view(x, a), b)`` -> ``view(x, b)``; permutations one after the other -> one, or none.

    A permutation that only moves dimensions of size 1 becomes a view first, since it moves no element; in a decoding
    step with one token that turns the transpositions around attention into nothing.

    Each view is a Reshape or a Transpose, and the latter a copy, on a device; after RemoveNoops has cut clones.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        return config.mode.value == "max-autotune" and switched_on(config, "enable_view_optimize")

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        if any(name_of(n.target) == "scope_enter" for n in graph.nodes):
            return 0
        memory = MemoryFacts(graph)
        edits = 0
        for node in list(graph.nodes):
            # memory that is handed out keeps its views as they are: strides and names are the caller's business
            if node.op == "call_function" and not memory.roots(node) & memory.returned:
                edits += self._merge(graph, node)
        for node in reversed(list(graph.nodes)):
            if not node.users and (node.target in _RESHAPES or axes_order(node) is not None):
                graph.erase_node(node)
        return edits

    def _merge(self, graph: torch.fx.Graph, node: FxNode) -> int:
        if node.target in _RESHAPES:
            source: Any = node.args[0]
            while isinstance(source, torch.fx.Node) and (source.target in _RESHAPES or _moves_nothing(source)):
                source = source.args[0]
            return 0 if source is node.args[0] else self._reshape(graph, node, source)
        order = axes_order(node)
        if order is None:
            return 0
        source = node.args[0]
        inner = axes_order(source)
        if inner is not None:
            return self._permute(graph, node, source.args[0], tuple(inner[d] for d in order))
        if _moves_nothing(node):
            return self._reshape(graph, node, source)
        return 0

    @staticmethod
    def _reshape(graph: torch.fx.Graph, node: FxNode, source: Any) -> int:
        value, old = value_of(node), value_of(source)
        if not isinstance(old, torch.Tensor):
            return 0
        if same_sizes(value.shape, old.shape):
            if not same_layout(value, old):
                return 0
            node.replace_all_uses_with(source)
            return 1
        sizes = node.args[1] if node.target in _RESHAPES else list(value.shape)
        if old.numel() == 0 or not _viewable(old, value):
            return 0
        return _replace(graph, node, aten.view.default, source, sizes)

    @staticmethod
    def _permute(graph: torch.fx.Graph, node: FxNode, source: Any, order: tuple[int, ...]) -> int:
        if order == tuple(range(len(order))):
            node.replace_all_uses_with(source)
            return 1
        return _replace(graph, node, aten.permute.default, source, list(order))


def _replace(graph: torch.fx.Graph, node: FxNode, target: Any, source: Any, argument: Any) -> int:
    with graph.inserting_before(node):
        made = graph.call_function(target, (source, argument))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    return 1


def _viewable(old: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether ``old`` can be viewed with the sizes of ``value`` laid out as ``value``."""
    if row_major(old):
        return row_major(value)
    if any(isinstance(size, torch.SymInt) for size in (*old.shape, *value.shape)):
        return False
    try:  # a view of a fake tensor takes a millisecond, one of a meta tensor nothing
        made = torch.empty_strided(old.shape, old.stride(), device="meta").view(tuple(value.shape))
    except RuntimeError:
        return False
    return same_layout(made, value)


def _moves_nothing(node: Any) -> bool:
    """Whether a permutation leaves the dimensions of more than one element in their order."""
    order, value = axes_order(node), value_of(node)
    if order is None or not all(isinstance(size, int) for size in value.shape):
        return False
    kept = [d for d, size in zip(order, value.shape) if size != 1]
    return kept == sorted(kept)
