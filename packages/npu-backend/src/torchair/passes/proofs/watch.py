"""Looks at a graph before and after each rewrite and raises when they are not the same function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.provenance import user_frame
from ge_converters.base.torch_compat import plain_eager
from ge_graph.passes.base import walk
from torchair.config.log import logger
from torchair.passes.base import value_of
from torchair.passes.custom import PassError
from torchair.passes.proofs import fx, ge, tolerances
from torchair.passes.proofs.claims import Evaluation, RewriteComparison
from torchair.passes.proofs.sizes import Sizes, choices

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from ge_graph import Graph
    from ge_graph.ir import Node

_REPEATED: Final = 3  # reasons of one rewrite that a report writes out


class RewriteWatch:
    """Follows one compilation.

    Attributes:
        tested: How many claims were evaluated.
        open: Rewrites that could not be evaluated, as (name, reason); in the order they came.
    """

    def __init__(self) -> None:
        self.tested = 0
        self.open: list[tuple[str, str]] = []
        # equal rewrites of a model's many layers are evaluated once; it ends with the compilation, whose objects its
        # keys may name by identity
        self._known: set[Any] = set()

    def described(self) -> list[str]:
        """One line with the number of claims, and one for each pass some of whose rewrites could not be evaluated."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.open:
            reasons.setdefault(name, []).append(why)
        lines = [f"{self.tested} rewrites evaluated, {len(self.open)} could not be"]
        for name, whys in reasons.items():
            different = list(dict.fromkeys(whys))
            more = f"; and {len(different) - _REPEATED} other reasons" if len(different) > _REPEATED else ""
            lines.append(f"{name}, {len(whys)} not evaluated: {'; '.join(different[:_REPEATED])}{more}")
        return lines

    @contextmanager
    def fx_pass(self, name: str, gm: torch.fx.GraphModule, where: str = "") -> Iterator[None]:
        """Surrounds a rewrite of an FX graph.

        Args:
            where: Place of the rule in the user's source, if it is the user's.

        Errors: PassError GE1025 if the graph computes something else afterwards.
        """
        before = fx.version(gm)
        yield
        with plain_eager():
            found = fx.compare(before, fx.version(gm), tolerances.of(name), self._known)
        self._judge(name, found, where)

    def graph_lowered(self, gm: torch.fx.GraphModule, lowered: Lowered) -> None:
        """What the sizes and the numbers of the next GE graph stand for."""
        self._choices = choices(gm)
        self._gm, self._bindings = gm, lowered.inputs
        self._texts: dict[int, dict[str, int]] = {}

    def _sizes(self, sizes: Sizes) -> Mapping[str, int]:
        """Every size in the values of the FX graph by its text, as the GE graph has it."""
        known = self._texts.get(id(sizes))
        if known is None:
            known = self._texts[id(sizes)] = {}
            for node in self._gm.graph.nodes:
                for expression in _expressions(value_of(node)):
                    known.setdefault(str(expression), int(sizes.evaluated(expression)))
        return known

    def _number(self, node: Node, sizes: Sizes) -> Any:
        """The number that a graph input stands for, if it is a symbol's."""
        place = node.attr("index", -1)
        binding = self._bindings[place] if 0 <= place < len(self._bindings) else None
        if binding is None or binding.kind != "scalar":
            return None
        inputs = [n for n in self._gm.graph.nodes if n.op == "placeholder"]
        value = value_of(inputs[binding.fx_index])
        return sizes.of(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else None

    @contextmanager
    def ge_pass(self, name: str, graph: Graph) -> Iterator[None]:
        """Surrounds a pass over a GE graph and the graphs in its nodes.

        Errors: PassError GE1025 if one of them computes something else afterwards.
        """
        if name in tolerances.OTHER_MEMORY:
            yield
            self._left_open(name, tolerances.OTHER_MEMORY[name])
            return
        before = [(part, ge.version(part)) for part in walk(graph)]
        yield
        for part, old in before:
            with plain_eager():
                found = ge.compare(
                    old, ge.version(part), tolerances.of(name), self._known, self._choices, self._sizes, self._number
                )
            self._judge(name, found, "")

    def _judge(self, name: str, found: RewriteComparison | Evaluation, where: str) -> None:
        if isinstance(found, Evaluation):
            self.tested += 1
            wrong, unknown = (found, []) if found.equal is False else (None, [found] if found.equal is None else [])
        else:
            self.tested += found.tested
            wrong, unknown = found.different, found.open
        for verdict in unknown:
            self._left_open(name, verdict.why)
        if wrong is not None:
            rule, place, line = _blamed(wrong)
            label = f"{name}, rule '{rule}'" if rule else name
            raise PassError(
                "GE1025",
                f"{label} changes what the graph computes: {wrong.why}" + (f"; from {line}" if line else ""),
                where=place or where or line,
                next="repair the rule; until then leave it out, or report this if it is none of yours",
            )

    def _left_open(self, name: str, why: str) -> None:
        self.open.append((name, why))
        logger.info("verify_rewrites: %s could not be evaluated: %s", name, why)


def _expressions(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _expressions(part)
    elif isinstance(value, torch.Tensor):
        yield from (n.node.expr for n in value.shape if isinstance(n, torch.SymInt))
    elif isinstance(value, torch.SymInt):
        yield value.node.expr


def _blamed(verdict: Evaluation) -> tuple[str, str, str]:
    """The rule of ``register_replacement`` that replaced a part, where it stands, and the user's line of the part."""
    rule = place = line = ""
    for part in (verdict.old, verdict.new):
        for step in part.steps if part is not None else ():
            meta: Mapping[str, Any] = getattr(step.key, "meta", {})
            found = meta.get("torchair_rule")
            if found is not None and not rule:
                rule, place = found
            if not line and "stack_trace" in meta:
                line = user_frame(step.key)[0]
            origin = getattr(step.key, "provenance", None)
            if not line and origin is not None:
                line = origin.source
    return rule, place, line
