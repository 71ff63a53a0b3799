"""Tensors that operators update in place although somebody still needs what they hold."""

from __future__ import annotations

from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.rewriter import Rewriter
from ge_graph.ports import PLACEHOLDERS
from ge_graph.rules.base import Scope
from ge_graph.rules.in_place import CONSTANTS, ancestors, contested


class ProtectWrittenTensors(Pass):
    """Give an in-place operator a copy of what it may not write: a constant, or a tensor that a later node reads.

    A reader that stands before it only has to run first; that is a control edge. Graph inputs are never copied, because
    the write is meant for them.
    """

    name = "protect_written_tensors"
    reason = "GE refuses constants at in-place ports, and leaves the order of readers and writers to the graph"
    place = "last: the other passes merge constants, drop readers and move nodes"

    def rewrite(self, graph: Graph) -> list[str]:
        scope = Scope(graph)
        copied: dict[tuple[int, int], tuple[Node, Tensor]] = {}
        for node, _, tensor in scope.writes:
            if tensor.node.op in CONSTANTS:
                copied[id(node), id(tensor)] = (node, tensor)
        ordered = 0
        for node, _, tensor, others in contested(scope):
            at = scope.position[id(node)]
            later = any(scope.position.get(id(n), at) >= at for n in others)
            if later and tensor.node.op not in PLACEHOLDERS:
                copied[id(node), id(tensor)] = (node, tensor)
            if (id(node), id(tensor)) in copied:
                continue
            before = ancestors(node, others, scope)
            missing = [n for n in others if scope.position[id(n)] < at and id(n) not in before]
            node.control += missing
            ordered += len(missing)
        rewriter = Rewriter(graph)
        for node, tensor in copied.values():
            (copy,) = rewriter.before(node, "TensorMove", [tensor], {}, [(tensor.dtype, tensor.known_shape)])
            copy.format = tensor.format
            node.replace_operands({tensor: copy})
        rewriter.finish()
        notes = [f"{len(copied)} tensors copied for an in-place operator"] if copied else []
        return notes + ([f"{ordered} readers ordered before an in-place operator"] if ordered else [])
