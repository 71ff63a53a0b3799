"""Public statements about kernels that no published library holds: who says it, of which chip, and in which types.

One line a statement, so that a lookup parses only the lines of its operator: operator; chips; kind; unit; ports;
element types; note; sources. Types are rows of combinations parallel to the ports (``f32,f32;bf16,-``, a dash where
the source says nothing), or sets a port (``f32 bf16|i64``). Lines that begin with ``@`` name sources that many
statements share. ``arch2201`` is a profile that shows cube and vector cores apart without naming the chip: ascend910b
or ascend910_93.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ge_graph.dtypes import BY_SHORT, DataType
from ge_graph.files import package_data
from ge_graph.kernels.form import by_op

_MAGIC: Final = "ge-kernel-evidence\t1\t"

KINDS: Final = ("measured", "noted", "launched", "kernel", "page", "function", "used")
"""What a statement is, strongest first.

measured: a profiler table of a real run. noted: a contributor's note that quotes the list of the chip. launched: the
open operator library launches it on this architecture. kernel: a newer open kernel. page: the operator's page names
the chip. function: the page of an aclnn function, which may cast before the kernel. used: somebody builds it; no chip,
no types.
"""

SAME_CORE: Final = {
    "ascend910b": frozenset(("arch2201", "ascend910_93")),
    "ascend910_93": frozenset(("arch2201", "ascend910b")),
}
"""A chip and the names under which its core stands elsewhere."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one kind of source says of one operator.

    Attributes:
        socs: Chips; ``*`` where the source names none.
        kind: One of ``KINDS``.
        unit: ``aicore``, ``aicpu``; empty: not said.
        ports: The ports whose types are said.
        rows: Combinations that were seen, parallel to ports; None where a row says nothing of a port.
        sets: Types of each port by itself, parallel to ports; given instead of rows.
        note: What else the source says.
    """

    op: str
    socs: tuple[str, ...]
    kind: str
    unit: str
    ports: tuple[str, ...]
    rows: tuple[tuple[DataType | None, ...], ...]
    sets: tuple[frozenset[DataType], ...]
    note: str
    sources: tuple[str, ...]

    def types(self, port: str) -> frozenset[DataType] | None:
        """The types that are said of a port; None if nothing is said of it."""
        if port not in self.ports:
            return None
        at = self.ports.index(port)
        if self.sets:
            return self.sets[at]
        return frozenset(d for row in self.rows if (d := row[at]) is not None)


class Evidence:
    """Statements about all operators."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        if not lines or not lines[0].startswith(_MAGIC):
            raise ValueError("these are no statements about kernels, or of another version")
        self.origin = lines[0].removeprefix(_MAGIC)
        self._names = dict(line.split("\t", 1) for line in lines if line.startswith("@"))
        self._lines = by_op(line for line in lines[1:] if not line.startswith("@"))

    def ops(self) -> list[str]:
        """Operators that something is said of, sorted."""
        return sorted(self._lines)

    @lru_cache(maxsize=512)  # noqa: B019 -- one object a process, made by published()
    def of(self, op: str) -> tuple[Statement, ...]:
        """The statements about an operator, strongest first."""
        return tuple(sorted(map(self._parsed, self._lines.get(op, ())), key=lambda s: KINDS.index(s.kind)))

    def _parsed(self, line: str) -> Statement:
        op, socs, kind, unit, ports, types, note, sources = line.split("\t")
        names = tuple(ports.split())
        by_port = "|" in types or " " in types or ("," not in types and ";" not in types and len(names) == 1)
        sets = tuple(frozenset(map(BY_SHORT.__getitem__, part.split())) for part in types.split("|")) if by_port else ()
        rows = () if by_port or not types else tuple(tuple(map(_type, row.split(","))) for row in types.split(";"))
        if any(len(r) != len(names) for r in (*rows, *([sets] if sets else ()))):
            raise ValueError(f"types {types!r} for ports {ports!r} of {op}")
        return Statement(
            op,
            tuple(socs.split(",")),
            kind,
            unit,
            names,
            rows,
            sets,
            note,
            tuple(self._names.get(s, s) for s in sources.split("; ")),
        )


def _type(text: str) -> DataType | None:
    return None if text == "-" else BY_SHORT[text]


@lru_cache(maxsize=1)
def published() -> Evidence:
    """The statements that the package carries."""
    return Evidence(package_data("kernel_evidence.tsv").decode())


def on(statements: Sequence[Statement], soc: str) -> list[Statement]:
    """Those that name the chip."""
    return [s for s in statements if soc in s.socs]


def on_same_core(statements: Sequence[Statement], soc: str) -> list[Statement]:
    """Those that name a chip of the same core, or the chip itself."""
    chips = SAME_CORE.get(soc, frozenset()) | {soc}
    return [s for s in statements if chips & {*s.socs}]
