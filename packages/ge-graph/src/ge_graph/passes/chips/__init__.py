"""Operators in the form that a chip has a kernel for."""

from __future__ import annotations

from collections import Counter

from ge_graph.ir import Graph, Node
from ge_graph.kernels import Oracle
from ge_graph.passes.base import Pass, walk
from ge_graph.passes.chips.context import FormContext
from ge_graph.passes.chips.forms import FORMS
from ge_graph.passes.rewriter import Rewriter

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
        rewriter = Rewriter(graph)
        counts: Counter[str] = Counter()
        for node in rewriter.walk(FORMS):
            if rewriter.effects.pinned(node) or node.subgraphs or not rewriter.alive(node):
                continue
            ctx = self._replacement(rewriter, node)
            if ctx is not None:
                rewriter.substitute(node, *ctx.results)
                counts[f"{node.op} as {', '.join(dict.fromkeys(n.op for n in ctx.made if n.op != 'Const'))}"] += 1
        if counts:
            rewriter.finish()
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

    def _replacement(self, rewriter: Rewriter, node: Node) -> FormContext | None:
        """The nodes that take the place of one; None if it stays."""
        worse = self._worse(node)
        if not worse:
            return None
        for form in FORMS[node.op]:
            ctx = FormContext(rewriter, node)
            ctx.results = form(ctx, node) or []
            states = [self.oracle.of(n).state for n in ctx.made if n.op != "Const"]
            if ctx.results and not any(state in worse for state in states):
                return ctx
            rewriter.withdraw(node)
        return None
