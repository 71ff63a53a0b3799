"""What is wrong with ranks: one form for what is found before a run, in it and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ge_graph.errors import ConfigError, EngineError

ORDER: Final = "GE4070"
SIZES: Final = "GE4071"
WAITS: Final = "GE4072"
NUMBERS: Final = "GE4073"

_NEXT: Final = {
    ORDER: "let all ranks of a group call its collectives in one order: no collective under a condition on the rank",
    SIZES: "make the sizes equal on all ranks of the group, or give split sizes on both sides",
    WAITS: "let every rank of the group take part, and order sends and receives so that each meets its partner",
    NUMBERS: "correct the collective at this line, or the sharding of the module that it belongs to",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        code: Of the error.
        what: What was got and expected.
        ranks: Ranks of the world that show it, least first.
        collective: The collective, such as ``all_reduce``; empty if none is known.
        group: What its group is called.
        source: The user's line, such as ``model.py:12 in forward``.
        module: Path of the module where it shows.
        kind: In a word: order, sizes, waits, missing, doubled, group, shards, dimension, stale, differs.
    """

    code: str
    what: str
    ranks: tuple[int, ...] = ()
    collective: str = ""
    group: str = ""
    source: str = ""
    module: str = ""
    kind: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "kind": self.kind,
            "what": self.what,
            "ranks": list(self.ranks),
            "collective": self.collective,
            "group": self.group,
            "source": self.source,
            "module": self.module,
        }


class RanksError(EngineError):
    """Ranks do not fit together.

    Attributes:
        faults: All that were found, the first one first.
    """

    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> RanksError:
        """The error that tells all faults, under the code of the first."""
        first = faults[0]
        text = "\n".join(
            [first.what, *(f"  also [{f.code}] {f.what}{f', at {f.source}' if f.source else ''}" for f in faults[1:])]
        )
        error = cls(first.code, text, where=first.source, next=_NEXT[first.code])
        error.faults = tuple(faults)
        return error


def bad(what: str, next: str) -> ConfigError:
    """GE1080: what is given to ``tair ranks`` does not do."""
    return ConfigError("GE1080", what, next=next)


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words: ``rank 3``, ``ranks 0, 2`` or ``ranks 0 to 7``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == [*range(ordered[0], ordered[-1] + 1)]:
        return f"ranks {ordered[0]} to {ordered[-1]}"
    return f"ranks {', '.join(map(str, ordered[:8]))}{', …' if len(ordered) > 8 else ''}"
