"""Why a model is more than one graph: what torch.compile breaks, and what it compiles again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ge_graph import escape
from ge_graph.command_line import told
from tair_debug.terminal import place, sentence

if TYPE_CHECKING:
    from tair_debug.terminal import Part


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a graph ends and another begins.

    Attributes:
        reason: Why, in dynamo's words.
        hints: What to write instead, in dynamo's words.
        source: The user's line, such as ``model.py:12 in forward``.
        code: Text of that line.
    """

    reason: str
    hints: tuple[str, ...] = ()
    source: str = ""
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"reason": self.reason, "hints": list(self.hints), "source": self.source, "code": self.code}


@dataclass(frozen=True, slots=True)
class Recompilation:
    """A function of which one graph was not enough.

    Attributes:
        guard: What did not hold any more, in dynamo's words; of several the first.
        times: How often it was compiled again.
        hints: What to write instead.
        source: The user's line, such as ``model.py:12 in forward``.
        code: Text of that line.
    """

    guard: str
    times: int
    hints: tuple[str, ...] = ()
    source: str = ""
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hints": list(self.hints)}


@dataclass(frozen=True, slots=True)
class Stops:
    """Why a model is more than one graph; ``breaks`` and ``recompilations`` are there once it was captured."""

    breaks: list[Break] = field(default_factory=list)
    recompilations: list[Recompilation] = field(default_factory=list)

    def parts(self, graphs: int) -> Iterator[Part]:
        """For people: why a model is so many graphs, and what to write instead."""
        if self.breaks:
            yield sentence(f"{graphs} graphs: torch.compile stops at", style="yellow")
        for stop in self.breaks:
            yield from _place(stop.source, stop.code, escape.line(told(stop.reason)), stop.hints)
        if self.recompilations:
            yield sentence("torch.compile compiles again at", style="yellow")
        for again in self.recompilations:
            reason = told(f"{again.times} times more: this no longer held: {escape.line(again.guard)}")
            yield from _place(again.source, again.code, reason, again.hints)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "breaks": [b.as_dict() for b in self.breaks],
            "recompilations": [r.as_dict() for r in self.recompilations],
        }


def _place(source: str, code: str, reason: str, hints: Sequence[str]) -> Iterator[Part]:
    where = escape.line(f"{place(source) or told('a place without source line')}: {code}")
    yield sentence(f"  {where}\n    {reason}")
    for hint in hints:
        yield sentence(f"    instead: {escape.line(told(hint))}")
