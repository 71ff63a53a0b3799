"""How strong the public evidence is that a chip runs an operator in some element types.

The grades follow how often a kind of source was seen wrong, against kernels that are known (docs/check.md): measured
types 0 of 76; launched kernels 0.5 %, their types 2 to 5 %; operator pages 4 %, their types 3 %. A page that denies a
chip says only that no open kernel is there, so that no page means "no kernel".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_graph.dtypes import DataType
from ge_graph.kernels.evidence import Statement, on, on_same_core

STRENGTHS: Final = ("listed", "measured", "same core", "launched", "documented", "types open", "used by others")
"""Strongest first. listed: a list of kernels has it, of an installation or of an open library."""

_HALF: Final = frozenset((DataType.DT_FLOAT16, DataType.DT_BF16))
_FLOATING: Final = _HALF | {DataType.DT_FLOAT, DataType.DT_DOUBLE}
_NO_BFLOAT16: Final = frozenset(("ascend310p",))
"""Chips that CANN's page of precision modes denies bfloat16, so that no cast helps."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What the statements together say.

    Attributes:
        strength: One of ``STRENGTHS``.
        unit: ``aicore`` or ``aicpu``; empty with "used by others".
        casts: float16 or bfloat16 pass where only float32 is named, with casts that GE inserts.
        sources: Who says so.
    """

    strength: str
    unit: str
    reason: str
    casts: bool = False
    sources: tuple[str, ...] = ()


def grade(statements: Sequence[Statement], soc: str, types: Mapping[str, Sequence[DataType]]) -> Grade | None:
    """The strongest that statements about one operator say of a chip; None if they say nothing.

    Args:
        types: Port name to the element types of its tensors.
    """
    here, core = on(statements, soc), on_same_core(statements, soc)
    if soc in _NO_BFLOAT16 and any(DataType.DT_BF16 in given for given in types.values()):
        return _other_types(here, statements)
    measured = [s for s in core if s.kind == "measured" and s.unit != "aicpu"]
    exact = _first(_naming_all(_of_kind(here, "measured"), types), types) or _first(_naming_all(measured, types), types)
    if exact is not None:
        return _measured(exact, soc)
    launched = [s for s in _of_kind(here, "launched") if s.unit == "aicore"]
    known = [*launched, *_of_kind(here, "noted", "kernel")]
    pages, functions = _of_kind(here, "page"), _of_kind(here, "function")
    listed = _first([*launched, *_of_kind(here, "noted")], types)
    if listed is not None:
        statement, casts = listed
        backed = bool(pages or measured)
        word = "launched" if backed and statement.kind == "launched" else "documented"
        return Grade(
            word,
            "aicore",
            "the operator library launches it in these types on this core"
            if backed
            else "the operator library launches it in these types; no page and no run says so too",
            casts,
            statement.sources,
        )
    slow = _slow(here, launched, measured)
    if slow is not None:
        return slow
    page = _first([*pages, *(functions if known or measured else ())], types)
    if page is not None:
        statement, casts = page
        more = "; it was measured in others" if measured else "; the library launches it" if known else ""
        return Grade("documented", "aicore", f"a page names these types{more}", casts, statement.sources)
    running = [*measured, *known]
    if running:
        how = (
            "it was measured on this core, whether in these types is not known"
            if measured
            else "it is launched on this chip, whether in these types is not known"
        )
        return Grade("types open", "aicore", how, sources=running[0].sources)
    return _other_types(here, statements)


def _other_types(here: Sequence[Statement], statements: Sequence[Statement]) -> Grade | None:
    """Somebody names the chip, or uses the operator, but not in these types."""
    pages, functions = _of_kind(here, "page"), _of_kind(here, "function")
    rest = [*pages, *functions, *_of_kind(statements, "used")]
    if rest:
        said = (
            "a page names the chip, with other types"
            if pages
            else "a function that may cast names the chip"
            if functions
            else "others build it; nobody names chip and types"
        )
        return Grade("used by others", "", said, sources=rest[0].sources)
    return None


def _naming_all(statements: Sequence[Statement], types: Mapping[str, Sequence[DataType]]) -> list[Statement]:
    """Runs that had every floating tensor of this call: one without a bias says nothing of the bias's type."""
    floating = [port for port, given in types.items() if any(d in _FLOATING for d in given)]
    return [s for s in statements if all(port in s.ports for port in floating)]


def _of_kind(statements: Sequence[Statement], *kinds: str) -> list[Statement]:
    return [s for s in statements if s.kind in kinds and s.unit != "aicpu"]


def _measured(found: tuple[Statement, bool], soc: str) -> Grade:
    statement, casts = found
    own = soc in statement.socs
    ran = f"; it {statement.note}" if statement.note.startswith("ran as ") else ""
    return Grade(
        "measured" if own else "same core",
        "aicore",
        f"a run in these types was measured on this chip{ran}"
        if own
        else f"a run in these types was measured on a chip of the same core{ran}",
        casts,
        statement.sources,
    )


def _slow(here: Sequence[Statement], launched: Sequence[Statement], measured: Sequence[Statement]) -> Grade | None:
    """AI CPU: nothing else is launched, or the library launches it there for all types but those of its list."""
    only = [s for s in here if s.kind == "launched" and s.unit == "aicpu"]
    if only and not launched and not measured:
        return Grade("launched", "aicpu", "the operator library launches it on AI CPU only", sources=only[0].sources)
    others = [s for s in launched if s.ports and s.note == "aicpu for other types"]
    if others:
        return Grade(
            "launched", "aicpu", "the operator library launches it on AI CPU in these types", sources=others[0].sources
        )
    return None


def _first(statements: Sequence[Statement], types: Mapping[str, Sequence[DataType]]) -> tuple[Statement, bool] | None:
    """The first statement whose types take these, and whether with casts; one without casts before one with."""
    found = [(s, how) for s in statements if (how := _takes(s, types)) is not None]
    return next((f for f in found if not f[1]), found[0] if found else None)


def _takes(statement: Statement, types: Mapping[str, Sequence[DataType]]) -> bool | None:
    """Whether with casts; None if no row takes all types, nor the sets do; ports that are not named are free."""
    ports = [p for p in statement.ports if types.get(p)]
    if not ports:
        return None
    if statement.sets:
        return _with_casts((statement.types(p), types[p]) for p in ports)
    found = [
        _with_casts(
            (None if (d := row[statement.ports.index(p)]) is None else frozenset((d,)), types[p]) for p in ports
        )
        for row in statement.rows
    ]
    fits = [f for f in found if f is not None]
    return all(fits) if fits else None


def _with_casts(pairs: Iterable[tuple[frozenset[DataType] | None, Sequence[DataType]]]) -> bool | None:
    casts, said = False, False
    for listed, given in pairs:
        if listed is None:
            continue
        said = True
        for d in given:
            if d in listed:
                continue
            if d not in _HALF or DataType.DT_FLOAT not in listed:
                return None
            casts = True
    return casts if said else None
