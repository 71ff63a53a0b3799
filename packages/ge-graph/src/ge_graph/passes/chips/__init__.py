"""Operators in the form that a chip has a kernel for."""

from __future__ import annotations

from ge_graph.ir import Graph, Node, Tensor
from ge_graph.kernels import Oracle
from ge_graph.passes.base import Pass, walk
from ge_graph.passes.chips.context import FormContext
from ge_graph.passes.chips.forms import FORMS
from ge_graph.passes.effects import Effects

__all__ = ["FORMS", "FitChip"]


class FitChip(Pass):
    """Operators that a chip has no kernel for, or runs on AI CPU, take a form that it runs on AI Core.

    A form has the same values: where it needs numbers that fit into a smaller type, the graph has to show that they
    do. An operator without a kernel takes any form that has one or of which nothing is known; one that AI CPU runs
    only a form of which no part is known to run there; one that the whole list of a chip leaves out only a form that
    it has. All else stays as it is, for ``tair check`` to report.
    """

    name = "fit_chip"
    reason = "compiling for a chip ends where an operator has no kernel, and AI CPU is slow"
    place = "after all fusions; leaves casts that nobody reads for drop_dead_nodes"

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in FORMS for n in graph.nodes):
            return []
        effects = Effects(graph)
        read = {*graph.outputs, *(t for n in graph.nodes for t in n.operands())}
        nodes: list[Node] = []
        gone: list[Node] = []
        mapping: dict[Tensor, Tensor] = {}
        counts: dict[str, int] = {}
        for node in graph.nodes:
            if mapping:
                node.replace_operands(mapping)
            free = node.op in FORMS and not effects.pinned(node) and not node.subgraphs
            ctx = self._replacement(graph, node, read) if free else None
            if ctx is None:
                nodes.append(node)
                continue
            nodes += ctx.made
            gone.append(node)
            mapping.update((old, new) for old, new in zip(node.outputs, ctx.results) if new is not None)
            what = f"{node.op} as {', '.join(dict.fromkeys(n.op for n in ctx.made if n.op != 'Const'))}"
            counts[what] = counts.get(what, 0) + 1
        if not gone:
            return []
        graph.nodes[:] = [*nodes, *gone]
        graph.remove(gone)
        graph.outputs = [mapping.get(t, t) for t in graph.outputs]
        return [f"{count} x {what} for {self.oracle.soc}" for what, count in sorted(counts.items())]

    def concerns(self, graph: Graph) -> bool:
        """Whether some operator that has other forms has no kernel, or runs on AI CPU."""
        candidates = (n for part in walk(graph) for n in part.nodes if n.op in FORMS)
        return any(self._worse(n) for n in candidates)

    def _worse(self, node: Node) -> tuple[str, ...]:
        """What no part of another form may be; empty if the node needs none."""
        state = self.oracle.of(node).state
        if state == "unknown" and self.oracle.soc in self.oracle.facts.complete:
            return "none", "aicpu", "unknown"
        return {"none": ("none",), "aicpu": ("none", "aicpu")}.get(state, ())

    def _replacement(self, graph: Graph, node: Node, read: set[Tensor]) -> FormContext | None:
        """The nodes that take the place of one; None if it stays."""
        worse = self._worse(node)
        if not worse:
            return None
        for form in FORMS[node.op]:
            ctx = FormContext(graph, node, read)
            ctx.results = form(ctx, node) or []
            states = [self.oracle.of(n).state for n in ctx.made if n.op != "Const"]
            if ctx.results and not any(state in worse for state in states):
                return ctx
            graph.remove(ctx.made)  # their names
        return None
