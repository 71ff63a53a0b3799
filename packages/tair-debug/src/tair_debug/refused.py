"""Calls that cannot be converted, as the commands list them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ge_graph.command_line import told
from ge_graph.escape import line
from tair_debug.terminal import place, reason, sentence

if TYPE_CHECKING:
    from tair_debug.terminal import Part


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that cannot be converted.

    Attributes:
        name: Its name in the ATen graph.
        target: Its operator.
        reason: Why.
        source: The user's line, such as ``model.py:12 in forward``.
        code: Text of that line.
    """

    name: str
    target: str
    reason: str
    source: str
    code: str

    @property
    def text(self) -> str:
        """What is the same for equal calls: operator, line and reason, in the reader's language."""
        where = f" ({place(self.source)}: {self.code})" if self.source else ""
        return f"{self.target}{where}: {reason(self.reason)}"

    def as_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def amount(calls: Sequence[RefusedCall]) -> str:
    """How many calls are refused, in the reader's language."""
    count = len(calls)
    return told("1 call cannot be converted") if count == 1 else told(f"{count} calls cannot be converted")


def listed(calls: Sequence[RefusedCall]) -> list[str]:
    """A line for each kind of refused calls: by name if it is one, by number if they are several."""
    names: dict[str, list[str]] = {}
    for call in calls:
        names.setdefault(call.text, []).append(call.name)
    return [f"{each[0]} = {text}" if len(each) == 1 else f"{len(each)} x {text}" for text, each in names.items()]


def told_of(calls: Sequence[RefusedCall], *, in_page: bool = False) -> Iterator[Part]:
    """For people: how many calls are refused, what became of them, and which they are; nothing if there are none."""
    if calls:
        lead = amount(calls)
        yield sentence(", marked in the page:", lead, "red") if in_page else sentence(", left out here:", lead, "red")
        yield from (sentence(f"  {line(text)}") for text in listed(calls))
