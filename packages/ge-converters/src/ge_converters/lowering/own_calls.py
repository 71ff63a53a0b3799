"""A user's operator that became one node: what was called, for an engine that has no kernel for the node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from ge_converters.base.provenance import FxProvenance
from ge_graph import Tensor
from ge_graph.ir import Given, Graph, OwnCall

_TORCHS: Final = frozenset(
    {"aten", "prims", "prim", "npu", "air", "_c10d_functional", "c10d_functional", "higher_order"}
)
_AROUND: Final = ("Const", "Clone")  # what a converter makes beside the node


def is_own(target: Any) -> bool:
    """Whether an FX node calls an operator of the user's."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in _TORCHS


def note(
    graph: Graph, first: int, op: Any, args: Sequence[Any], keywords: Mapping[str, Any], edge_of: Callable[[Any], Any]
) -> None:
    """Let the one node that was made since say what call it is; nothing if there are several, or other operands.

    Args:
        graph: The graph.
        first: Number of its nodes before.
        op: The operator that was called.
        args: Its arguments: FX nodes, GE tensors or plain values.
        keywords: Those by name.
        edge_of: The GE tensor of an FX node.
    """
    made = [node for node in graph.nodes[first:] if node.op not in _AROUND]
    if len(made) != 1 or not isinstance(made[0].provenance, FxProvenance) or made[0].output_counts:
        return
    node = made[0]
    operands = list(node.operands())
    free = list(range(len(operands)))  # a tensor may be given several times
    leaves, spec = pytree.tree_flatten((tuple(args), dict(keywords)))
    placed: list[Any] = []
    for leaf in leaves:
        edge = edge_of(leaf) if isinstance(leaf, torch.fx.Node) else leaf
        if isinstance(edge, Tensor):
            if edge not in operands:
                return
            position = next((i for i in free if operands[i] == edge), operands.index(edge))
            if position in free:
                free.remove(position)
            edge = Given(position)
        elif isinstance(leaf, torch.fx.Node):
            return  # a size that only a run knows
        placed.append(edge)
    if free:
        return
    positional, named = pytree.tree_unflatten(placed, spec)
    if isinstance(node.provenance, FxProvenance):
        node.provenance.stands_for(OwnCall(node.op, op, positional, named, _written(op, positional, named)))


def share_notices(graph: Graph, told: set[str]) -> None:
    """Let the calls in a graph, and in those of its nodes, have one set of what an engine has told of them."""
    for node in graph.nodes:
        made_of = node.provenance
        if isinstance(made_of, FxProvenance) and made_of.own_call is not None:
            made_of.stands_for(dataclasses.replace(made_of.own_call, told=told))
        for inner in node.subgraphs.values():
            share_notices(inner, told)


def _written(op: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[int, ...]:
    given = dict(zip((a.name for a in op._schema.arguments), args)) | dict(keywords)
    marked = [given.get(a.name) for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tuple(g.position for m in marked for g in (m if isinstance(m, list) else [m]) if isinstance(g, Given))
