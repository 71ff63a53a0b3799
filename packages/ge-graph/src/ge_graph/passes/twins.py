"""Data movement that is done more than once."""

from __future__ import annotations

from typing import Final

from ge_graph.ir import Graph
from ge_graph.passes.base import Pass
from ge_graph.passes.cse import Likes
from ge_graph.passes.rewriter import Rewriter

# What these give follows from their operands bit by bit, whatever the values.
_MOVES: Final = frozenset(
    {
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "TransposeD",
        "Cast",
        "BroadcastTo",
        "StridedSliceV2",
        "SplitV",
        "ConcatV2",
        "Neg",
        "LogicalNot",
        "Range",
    }
)


class MergeTwins(Pass):
    """Keep one of several nodes that move the same tensor in the same way.

    The layers of a model each unsqueeze the same angles, and each projection of one layer flattens the same tensor. A
    node stays where an output of the graph, order or memory hangs on it.
    """

    name = "merge_twins"
    reason = "each layer of a model prepares what all share on its own"
    place = "after fold_layout: what moves nothing is gone by then"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in _MOVES for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        effects = rewriter.effects
        likes = Likes()
        merged = 0
        for node in rewriter.walk(_MOVES):
            if node.subgraphs or effects.pinned(node) or any(map(rewriter.returned, node.outputs)):
                continue
            if effects.written and not effects.written.isdisjoint(node.operands()):
                continue
            kept = likes.first(node)
            if kept is not node:
                rewriter.substitute(node, *kept.outputs)
                merged += 1
        rewriter.finish()
        return [f"{merged} duplicate moves merged"] if merged else []
