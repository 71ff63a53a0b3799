"""Collectives between ranks of one process: what each brings, whether it fits together, and who gets what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

import torch

from torchair.ranks.problems import ORDER, SIZES, WAITS, Fault, listed

_REDUCE: Final[dict[str, Callable[[list[torch.Tensor]], torch.Tensor]]] = {
    "sum": lambda xs: reduce(torch.add, xs),
    "avg": lambda xs: reduce(torch.add, xs) / len(xs),
    "product": lambda xs: reduce(torch.mul, xs),
    "min": lambda xs: reduce(torch.minimum, xs),
    "max": lambda xs: reduce(torch.maximum, xs),
    "band": lambda xs: reduce(torch.bitwise_and, xs),
    "bor": lambda xs: reduce(torch.bitwise_or, xs),
    "bxor": lambda xs: reduce(torch.bitwise_xor, xs),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a collective stands.

    Attributes:
        source: The user's line.
        code: Its text.
        module: Path of the module, if known.
        graph: Number of the graph in the rank's program, from 0; -1 for eager calls.
        position: Number of the collective in its graph, from 0.
    """

    graph: int = -1
    position: int = -1
    source: str = ""
    code: str = ""
    module: str = ""


@dataclass(eq=False)
class RankCall:
    """What one rank brings to a collective.

    Attributes:
        rank: Rank of the world.
        kind: Name of the collective.
        key: Group, and number of the collective in it.
        members: Ranks of the world that take part, in the order of the group.
        inputs: Tensors handed over; for scatter, reduce_scatter and all_to_all one for each member.
        outputs: Tensors to write; for gathers and all_to_all one for each member.
        more: Reduction (``op``) and root, where there is one.
        place: Where it stands.
        group: Ranks of the world in the process group.
    """

    rank: int
    kind: str
    key: tuple[Any, ...]
    members: tuple[int, ...]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    more: dict[str, Any]
    place: Place
    group: tuple[int, ...]

    def title(self) -> str:
        """Kind and reduction, such as ``all_reduce(sum)``."""
        shown = [str(self.more["op"])] if "op" in self.more else []
        shown += [f"root {self.more['root']}"] if "root" in self.more else []
        return f"{self.kind}({', '.join(shown)})" if shown else self.kind

    def line(self) -> str:
        """Title and the user's line."""
        return f"{self.title()}{f' at {self.place.source}' if self.place.source else ''}"


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A collective that took place.

    Attributes:
        kind: Title, with reduction or root.
        members: Ranks, in the order of the group.
        sent: Bytes that each member handed over.
        received: Bytes that each member got.
        places: Where it stands on each member.
    """

    kind: str
    members: tuple[int, ...]
    sent: tuple[int, ...]
    received: tuple[int, ...]
    places: tuple[Place, ...]


@dataclass(eq=False)
class OpenCollective:
    """A collective that some ranks have entered."""

    key: tuple[Any, ...]
    members: tuple[int, ...]
    calls: dict[int, RankCall] = field(default_factory=dict)
    complete: bool = False

    @property
    def full(self) -> bool:
        """Whether everybody is there."""
        return len(self.calls) == len(set(self.members))

    def add(self, call: RankCall) -> Fault | None:
        """Take a rank in; the fault if it brings something else than the others."""
        first = next(iter(self.calls.values()), call)
        self.calls[call.rank] = call
        pair = {first.kind, call.kind} <= {"send", "recv"}
        if (call.kind != first.kind or call.more != first.more) and not pair:
            return Fault(
                ORDER,
                f"{listed([first.rank])} enters {first.line()}, {listed([call.rank])} {call.line()}, "
                f"both as number {self.key[-1]} of the group of {listed(call.group)}",
                tuple(sorted((first.rank, call.rank))),
                call.title(),
                listed(call.group),
                call.place.source or first.place.source,
                call.place.module,
                "order",
            )
        return None

    def carry_out(self) -> Exchanged:
        """Check sizes, hand everything over.

        Errors: ValueError with the two ranks and their sizes if these do not fit.
        """
        calls = [self.calls[r] for r in self.members]
        kind = calls[0].kind
        record = Exchanged(
            calls[0].title(),
            self.members,
            tuple(_bytes(c.inputs) for c in calls),
            tuple(_bytes(c.outputs) for c in calls),
            tuple(c.place for c in calls),
        )
        with torch.no_grad():
            _HANDING["send" if kind in ("send", "recv") else kind](calls)
        self.complete = True
        return record


class RanksDiffer(ValueError):
    """Two ranks bring sizes or types that do not fit together."""

    def __init__(self, one: RankCall, other: RankCall, x: torch.Tensor, y: torch.Tensor) -> None:
        self.one, self.other = one, other
        super().__init__(
            f"{one.line()}: {listed([one.rank])} has {_described(x)}, {listed([other.rank])} {_described(y)}"
        )

    def fault(self) -> Fault:
        return Fault(
            SIZES,
            str(self),
            tuple(sorted({self.one.rank, self.other.rank})),
            self.one.title(),
            listed(self.one.group),
            self.one.place.source,
            self.one.place.module,
            "sizes",
        )


def _hand(source: RankCall, to: RankCall, x: torch.Tensor, y: torch.Tensor) -> None:
    """Copy bits; a vector takes any shape of as many elements, as backends do."""
    if x.numel() != y.numel() or x.dtype != y.dtype:
        raise RanksDiffer(source, to, x, y)
    if x is not y:
        y.detach().copy_(x.detach().reshape(y.shape))


def _equal(calls: Sequence[RankCall], i: int) -> list[torch.Tensor]:
    first = calls[0]
    for call in calls[1:]:
        if call.inputs[i].shape != first.inputs[i].shape or call.inputs[i].dtype != first.inputs[i].dtype:
            raise RanksDiffer(first, call, first.inputs[i], call.inputs[i])
    return [c.inputs[i].detach() for c in calls]


def _reduced(calls: Sequence[RankCall]) -> None:
    root = calls[0].more.get("root")
    for i in range(len(calls[0].inputs)):
        total = _REDUCE[calls[0].more["op"]](_equal(calls, i)).clone()
        for n, call in enumerate(calls):
            if root in (None, n):
                call.outputs[i].detach().copy_(total)


def _scattered(calls: Sequence[RankCall]) -> None:
    totals = [_REDUCE[calls[0].more["op"]](_equal(calls, i)) for i in range(len(calls))]
    for call, total in zip(calls, totals):
        if call.outputs[0].numel() != total.numel():
            raise RanksDiffer(call, call, call.outputs[0], total)
        call.outputs[0].detach().copy_(total.reshape(call.outputs[0].shape))


def _sent(calls: Sequence[RankCall]) -> None:
    source, to = sorted(calls, key=lambda c: c.kind, reverse=True)
    _hand(source, to, source.inputs[0], to.outputs[0])


def _told(calls: Sequence[RankCall]) -> None:
    root = calls[calls[0].more["root"]]
    for call in calls:
        if call is not root:
            for mine, theirs in zip(call.outputs, root.inputs, strict=True):
                _hand(root, call, theirs, mine)


def _gathered(calls: Sequence[RankCall]) -> None:
    for i, source in enumerate(calls):
        for to in calls:
            if to.outputs:
                _hand(source, to, source.inputs[0], to.outputs[i])


def _dealt(calls: Sequence[RankCall]) -> None:
    root = calls[calls[0].more["root"]]
    for i, to in enumerate(calls):
        _hand(root, to, root.inputs[i], to.outputs[0])


def _crossed(calls: Sequence[RankCall]) -> None:
    moved = [[x.clone() for x in call.inputs] for call in calls]
    for i, to in enumerate(calls):
        for j, source in enumerate(calls):
            _hand(source, to, moved[j][i], to.outputs[j])


_HANDING: Final[dict[str, Callable[[Sequence[RankCall]], None]]] = {
    "all_reduce": _reduced,
    "reduce": _reduced,
    "broadcast": _told,
    "all_gather": _gathered,
    "gather": _gathered,
    "scatter": _dealt,
    "reduce_scatter": _scattered,
    "all_to_all": _crossed,
    "send": _sent,
    "barrier": lambda calls: None,
}


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _described(x: torch.Tensor) -> str:
    return f"{str(x.dtype)[6:]}{list(x.shape)}"


def unfinished(meeting: OpenCollective) -> Fault:
    """The fault of a collective that some members never entered."""
    there = sorted(meeting.calls)
    missing = [r for r in meeting.members if r not in meeting.calls]
    call = meeting.calls[there[0]]
    return Fault(
        WAITS,
        f"{listed(there)} entered {call.line()} in the group of {listed(call.group)}, {listed(missing)} did not",
        tuple(there),
        call.title(),
        listed(call.group),
        call.place.source,
        call.place.module,
        "waits",
    )


def deadlock(held: Mapping[int, RankCall], done: Sequence[int], open_meetings: Sequence[OpenCollective]) -> list[Fault]:
    """Who waits for whom, when nobody can go on.

    Args:
        held: Ranks that wait, and for what.
        done: Ranks that have ended.
        open_meetings: Collectives that somebody has entered and not everybody.
    """
    faults = []
    for meeting in open_meetings:
        if not any(r in held for r in meeting.calls):
            continue
        fault = unfinished(meeting)
        absent = [r for r in meeting.members if r not in meeting.calls]
        said = [f"{listed([r])} waits in {held[r].line()}" for r in absent if r in held][:3]
        ended = [r for r in absent if r in done]
        said += [f"{listed(ended)} had ended"] if ended else []
        faults.append(replace(fault, what=f"{fault.what}: {'; '.join(said)}") if said else fault)
    return faults
