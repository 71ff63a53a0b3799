"""The support report as a table in the terminal and as one sortable page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ge_graph import escape, messages
from ge_graph.command_line import told
from tair_debug.fx_summary import COLUMNS, MISSING, PARTIAL, SUPPORTED, TargetRow
from tair_debug.graph_page import framed, render
from tair_debug.stops import Stops
from tair_debug.terminal import REFUSED, Answer, Detail, place, reason, sentence, shown, table

if TYPE_CHECKING:
    from rich.table import Table

    from tair_debug.terminal import Part

ENGLISH: Final = {SUPPORTED: "supported", PARTIAL: "partial", MISSING: "missing"}
_STYLES: Final = {SUPPORTED: ("green", "good", 2), PARTIAL: ("yellow", "part", 1), MISSING: ("red", "none", 0)}
_HEADINGS: Final = tuple(
    {"en": english, "zh": chinese}
    for english, chinese in (
        ("target", COLUMNS[0]),
        ("support", COLUMNS[2]),
        ("calls", COLUMNS[3]),
        ("reason", "原因"),
        ("source", "源代码行"),
        ("calls' forms", "调用形式"),
    )
)


@dataclass(repr=False)
class Summary(Answer):
    """Which operators of a model have a converter.

    Attributes:
        name: The model.
        rows: One for each operator.
        graphs: Number of ATen graphs.
        stops: Where one graph ends and another begins, and what is compiled more than once.
        written: Files.
    """

    name: str
    rows: list[TargetRow]
    graphs: int = 1
    stops: Stops = field(default_factory=Stops)
    written: list[Path] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every call can be converted."""
        return all(r.good == r.calls for r in self.rows)

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        graphs = told(f"{self.graphs} graphs." if self.graphs != 1 else "1 graph.")
        yield sentence(
            f" {told(lead(self.rows))} {graphs}", f"{escape.line(self.name)}:", "green" if self.ok else "red"
        )
        if detail.quiet:
            return
        yield from self.stops.parts(self.graphs)
        chosen = self.rows if detail.every or detail.sources else [r for r in self.rows if r.status != SUPPORTED]
        if chosen:
            yield to_table(chosen, detail.sources)
        if not self.ok:
            yield sentence(
                "change these calls as their reasons say, register a converter (docs/adding_an_op.md), or run them "
                'eagerly between GE graphs by config.fallback = "split"',
                "next: ",
            )
        if len(chosen) < len(self.rows):
            yield sentence("--all lists the operators" if detail.commands else "records() lists the operators")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "graphs": self.graphs,
            **self.stops.as_dict(),
            "rows": [as_dict(r) for r in self.rows],
            "written": [str(p) for p in self.written],
        }

    def records(self) -> list[dict[str, Any]]:
        return [as_dict(r) for r in self.rows]

    def _repr_html_(self) -> str:
        return framed(to_html(self.rows, self.name))


def lead(rows: Sequence[TargetRow]) -> str:
    """One sentence: how many calls of how many operators can be converted."""
    calls, good = sum(r.calls for r in rows), sum(r.good for r in rows)
    served = sum(r.status == SUPPORTED for r in rows)
    return f"{good} of {calls} calls can be converted; {served} of {len(rows)} operators without exception."


def to_table(rows: Sequence[TargetRow], sources: bool = False) -> Table:
    """For the terminal; what is missing stands first. ``sources``: the user's line of every row."""
    cells: list[list[Any]] = []
    for row in sorted(rows, key=lambda r: (_STYLES[r.status][2], -r.calls, r.target)):
        support = shown(ENGLISH[row.status], _STYLES[row.status][0])
        frequent, why = row.inputs.most_common(1)[0][0], _lines(row.reasons, 2, reason)
        cells.append(
            [
                row.target,
                support,
                str(row.calls),
                frequent,
                why,
                _lines(row.sources, 1, place) if why or sources else "",
            ]
        )
    columns = ("target", "support", "calls", "most frequent call", "reason", "source")
    return table(columns, cells)


def _lines(counts: Counter[str], most: int = 20, told: Callable[[str], str] = str) -> str:
    shown = [f"{n}x {told(text)}" for text, n in counts.most_common(most)]
    return "\n".join(shown + ([f"… {len(counts) - most} more"] if len(counts) > most else []))


def to_html(rows: Sequence[TargetRow], title: str) -> str:
    """One page without outside parts, in the language of the browser: the sum first, then a row an operator.

    Rows can be filtered and sorted by every column; the forms of an operator's calls are folded.
    """
    ordered = sorted(rows, key=lambda r: (_STYLES[r.status][2], -r.calls, r.target))
    return render(
        "summary.html.j2",
        title=title,
        lead={"en": lead(rows), "zh": _chinese_lead(rows)},
        columns=_HEADINGS,
        marks=[_mark(status, rows) for status in (MISSING, PARTIAL, SUPPORTED)],
        rows=[_cells(r) for r in ordered],
    )


def _chinese_lead(rows: Sequence[TargetRow]) -> str:
    calls, good = sum(r.calls for r in rows), sum(r.good for r in rows)
    served = sum(r.status == SUPPORTED for r in rows)
    return f"{calls} 次调用中有 {good} 次可以转换；{len(rows)} 个算子中有 {served} 个完全支持。"


def _chinese_reason(text: str) -> str:
    return messages.said(REFUSED, text, "zh")


def _mark(status: str, rows: Sequence[TargetRow]) -> dict[str, Any]:
    chosen = [r for r in rows if r.status == status]
    calls = sum(r.calls for r in chosen)
    return {"mark": _STYLES[status][1], "en": ENGLISH[status], "zh": status, "rows": len(chosen), "calls": calls}


def _cells(row: TargetRow) -> dict[str, Any]:
    _, mark, rank = _STYLES[row.status]
    target, _, status, calls, inputs, outputs = row.cells()
    forms = len(row.inputs)
    return {
        "target": target,
        "status": {"en": ENGLISH[status], "zh": status},
        "mark": mark,
        "rank": rank,
        "calls": calls,
        "inputs": inputs,
        "outputs": outputs,
        "reasons": {"en": _lines(row.reasons), "zh": _lines(row.reasons, told=_chinese_reason)},
        "sources": _lines(row.sources),
        "forms": {"en": f"{forms} form{'s' if forms > 1 else ''}", "zh": f"{forms} 种形式"},
    }


def as_dict(row: TargetRow) -> dict[str, Any]:
    return {
        "target": row.target,
        "kind": row.kind,
        "status": ENGLISH[row.status],
        "calls": row.calls,
        "convertible": row.good,
        "inputs": dict(row.inputs),
        "outputs": dict(row.outputs),
        "reasons": dict(row.reasons),
        "sources": dict(row.sources),
    }
