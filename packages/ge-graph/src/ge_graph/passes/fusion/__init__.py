"""Operators of models as the one operator that GE has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ge_graph.ir import Graph, Node
from ge_graph.passes.base import Pass
from ge_graph.passes.fusion import activations, attention, gradients, norms, quantised, rotary, routing
from ge_graph.passes.rewriter import Rewriter

Rule = Callable[[Rewriter, Node], bool]

# The last operator of each pattern, and what it may be the end of; the order is that of trying.
RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "Add": (rotary.rotated, rotary.rotated_back, gradients.rms_norm),
    "BatchMatMulV2": (attention.written_out,),
    "Cast": (quantised.scaled_after,),
    "ConcatV2": (gradients.gated,),
    "FlashAttentionScore": (attention.grouped, attention.by_position),
    "LayerNormV4": (norms.layer_norm_of_sum,),
    "MatMulV2": (quantised.weight_only,),
    "Mul": (activations.tanh_gelu, activations.gated, quantised.scaled_after),
    "RealDiv": (routing.renormalised,),
    "RmsNorm": (norms.rms_norm_of_sum,),
    "TopKV2": (routing.chosen,),
}
# Rules that look at what others have made.
LATE_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {"FlashAttentionScore": (attention.without_statistics,)}
# What a node must be for its late rules to be worth the look at the whole graph that they need.
_WORTH: Final[Mapping[str, Callable[[Node], bool]]] = {"FlashAttentionScore": attention.is_narrow}


class FuseOperators(Pass):
    """Attention, rotary embeddings, gated activations, norms of sums, the choice of experts, products with weights of
    int8, and gradients of norms and gates, written out in single operators, become one.

    The rules hold for every size of the symbols. Nothing is fused whose inner values somebody else reads, that changes
    order or memory, or that is not the same function: in float32 only the order of additions differs, in 16 bits the
    fused operator rounds once where its parts round each.
    """

    name = "fuse_operators"
    reason = "one launch and one trip through memory, where the parts take five to twenty"
    place = "after merge_twins; leaves dead nodes for drop_dead_nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        counts: dict[str, int] = {}
        for rules in (RULES, LATE_RULES):
            ends = [n for n in graph.nodes if n.op in rules]
            if not ends or (rules is LATE_RULES and not any(_WORTH[n.op](n) for n in ends)):
                continue
            rewriter = Rewriter(graph)
            before = sum(counts.values())
            for node in ends:
                for rule in rules[node.op]:
                    if rewriter.alive(node) and rule(rewriter, node):
                        what = rule.__doc__ or rule.__name__
                        counts[what] = counts.get(what, 0) + 1
                        break
            if sum(counts.values()) > before:
                rewriter.finish()
        return [f"{count} x {what.splitlines()[0]}" for what, count in sorted(counts.items())]
