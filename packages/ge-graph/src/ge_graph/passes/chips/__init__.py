"""Operators in the form that a chip has a kernel for, the least expensive one of those that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ge_graph.ir import Graph, Node
from ge_graph.kernels import Oracle
from ge_graph.passes.base import Pass, walk
from ge_graph.passes.chips.context import FormContext
from ge_graph.passes.chips.forms import FORMS
from ge_graph.passes.rewriter import Rewriter

__all__ = ["FORMS", "Choice", "FitChip", "Price"]

Price: TypeAlias = "Callable[[Graph, Sequence[tuple[Node, str]]], float | None]"
"""The graph, and nodes with the states of their verdicts, to the seconds that the nodes take; None if nobody knows."""
_BEST_FIRST: Final = ("device", "aicore", "open", "unknown", "aicpu", "none")


@dataclass(frozen=True)
class Choice:
    """The form that an operator took.

    Attributes:
        op: The operator.
        soc: The chip.
        taken: The operators in its place.
        seconds: What they take by the chip's figures; None if no figure says it.
        others: Other forms that the chip could run, each with its operators and seconds, in the order of preference.
    """

    op: str
    soc: str
    taken: tuple[str, ...]
    seconds: float | None
    others: tuple[tuple[tuple[str, ...], float | None], ...] = ()

    def __str__(self) -> str:
        others = [f"as {_form(ops, seconds)}" for ops, seconds in self.others]
        more = f", rather than {' or '.join(others)}" if others else ""
        return f"{self.op} as {_form(self.taken, self.seconds)} for {self.soc}{more}"


def _form(ops: Sequence[str], seconds: float | None) -> str:
    return ", ".join(dict.fromkeys(ops)) + ("" if seconds is None else f" (about {seconds * 1e6:.3g} us)")


@dataclass
class _Form:
    """A form that may be taken."""

    ctx: FormContext
    rank: int
    seconds: float | None

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(n.op for n in self.ctx.made if n.op != "Const")


class FitChip(Pass):
    """Operators that a chip has no kernel for, or runs on AI CPU, take a form that it runs on AI Core.

    A form has the same values: where it needs numbers that fit into a smaller type, the graph has to show that they
    do. An operator without a kernel takes any form that has one or of which nothing is known; one that AI CPU runs
    only a form of which no part is known to run there; one that the whole list of a chip leaves out only a form that
    it has; one that AI Core runs in types that nobody names only a form in types that somebody does. Of several forms
    it is the one with the best verdict, and of these the one that takes the least time by the chip's figures; where
    figures are missing, the first. All else stays as it is, for ``tair check`` to report.

    Args:
        oracle: The chip.
        price: The time of a form.
        say: Told of each operator that took another form.
    """

    name = "fit_chip"
    reason = "compiling for a chip ends where an operator has no kernel, and AI CPU is slow"
    place = "after all fusions; leaves casts that nobody reads for drop_dead_nodes"

    def __init__(
        self, oracle: Oracle, price: Price = lambda graph, nodes: None, say: Callable[[Choice], None] | None = None
    ) -> None:
        self.oracle = oracle
        self._price = price
        self._say = say

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in FORMS for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        counts: Counter[str] = Counter()
        for node in rewriter.walk(FORMS):
            if rewriter.effects.pinned(node) or node.subgraphs or not rewriter.alive(node):
                continue
            found = self._replacement(rewriter, node)
            if found is None:
                continue
            ctx, choice = found
            rewriter.substitute(node, *ctx.results)
            counts[str(choice)] += 1
            if self._say is not None:
                self._say(choice)
        if counts:
            rewriter.finish()
        return [f"{count} x {what}" for what, count in sorted(counts.items())]

    def concerns(self, graph: Graph) -> bool:
        """Whether some operator that has other forms has no kernel, runs on AI CPU, or in types that nobody names."""
        candidates = (n for part in walk(graph) for n in part.nodes if n.op in FORMS)
        return any(self._worse(n) for n in candidates)

    def _worse(self, node: Node) -> tuple[str, ...]:
        """What no part of another form may be; empty if the node needs none."""
        state = self.oracle.of(node).state
        if state == "unknown" and self.oracle.soc in self.oracle.facts.complete:
            return "none", "aicpu", "unknown"
        return {
            "none": ("none",),
            "aicpu": ("none", "aicpu"),
            "open": ("none", "aicpu", "unknown", "open"),
        }.get(state, ())

    def _replacement(self, rewriter: Rewriter, node: Node) -> tuple[FormContext, Choice] | None:
        """The nodes that take the place of one; None if it stays."""
        worse = self._worse(node)
        if not worse:
            return None
        found: list[_Form] = []
        for form in FORMS[node.op]:
            ctx = FormContext(rewriter, node)
            ctx.results = form(ctx, node) or []
            states = [(n, self.oracle.of(n).state) for n in ctx.made if n.op != "Const"]
            if ctx.results and not any(state in worse for _, state in states):
                rank = max((_BEST_FIRST.index(state) for _, state in states), default=0)
                found.append(_Form(ctx, rank, self._price(rewriter.graph, states)))
            else:
                rewriter.withdraw(node, ctx.made)
        if not found:
            return None
        found.sort(key=lambda f: f.rank)  # as the table has them among equals
        best = [f for f in found if f.rank == found[0].rank]
        if all(f.seconds is not None for f in best):
            best.sort(key=lambda f: f.seconds or 0.0)
        rest = [*best[1:], *found[len(best) :]]
        taken = best[0]
        for other in rest:
            rewriter.withdraw(node, other.ctx.made)
        others = tuple((f.ops, f.seconds) for f in rest)
        return taken.ctx, Choice(node.op, self.oracle.soc, taken.ops, taken.seconds, others)
