"""What a chip makes of a graph: which operators have a kernel, which run on the slow unit, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ge_graph import Graph
from ge_graph.command_line import told
from ge_graph.escape import line
from ge_graph.kernels import STRENGTHS, Finding, Oracle, Verdict
from tair_debug.stops import Stops
from tair_debug.terminal import Answer, Detail, place, sentence, table

if TYPE_CHECKING:
    from rich.table import Table

    from ge_graph.passes import Choice
    from tair_debug.refused import RefusedCall
    from tair_debug.terminal import Part

WORDS: Final = {
    "none": "no kernel",
    "aicpu": "AI CPU (slow)",
    "unknown": "unknown",
    "open": "AI Core, types open",
    "aicore": "AI Core",
    "device": "no kernel needed",
}
_SHOWN_PLACES: Final = 3


def words(verdict: Verdict) -> str:
    """State and strength of a verdict, such as "AI Core, measured"."""
    how = (
        ""
        if verdict.strength in ("", "listed", "types open") or verdict.state == "device"
        else f", {HOW[verdict.strength]}"
    )
    return WORDS[verdict.state] + how


HOW: Final = {"same core": "measured on the same core", "used by others": "used by others"} | {
    word: word for word in ("measured", "launched", "documented")
}


@dataclass
class CheckRow:
    """Operators of one type, with one set of element types, and one verdict.

    Attributes:
        op: Operator type.
        types: ``x f32, y f32``.
        verdict: The verdict.
        nodes: Names of the nodes.
        graphs: The graph of each.
        places: The user's lines, each once.
    """

    op: str
    types: str
    verdict: Verdict
    nodes: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        v = self.verdict
        return {
            "op": self.op,
            "types": self.types,
            "state": v.state,
            "strength": v.strength,
            "proven": v.proven,
            "reason": v.reason,
            "evidence": list(v.sources),
            "casts": v.casts,
            "advice": v.advice,
            "nodes": self.nodes,
            "source": self.places,
        }


@dataclass
class CheckReport:
    """The verdicts on some graphs for one chip.

    Attributes:
        soc: The chip.
        origin: Where the facts come from.
        rows: Worst first.
        choices: The operators that took another form for the chip.
    """

    soc: str
    origin: str
    rows: list[CheckRow]
    choices: Sequence[Choice] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is known to have no kernel; ``proven`` says of how much that is known."""
        return not any(r.verdict.state == "none" for r in self.rows)

    @property
    def proven(self) -> bool:
        """Whether every operator runs by a list of kernels, a measurement or a launch in its types."""
        return self.ok and all(r.verdict.proven for r in self.rows)

    def strengths(self) -> dict[str, int]:
        """Strength of the evidence to number of operators that need a kernel, strongest first."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            if row.verdict.state != "device":
                counts[row.verdict.strength or "unknown"] += len(row.nodes)
        return {word: counts[word] for word in (*STRENGTHS, "unknown") if counts[word]}

    def counts(self) -> dict[str, int]:
        """State to number of operators."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts[row.verdict.state] += len(row.nodes)
        return {state: counts[state] for state in WORDS}

    def headline(self, tell: Callable[[str], str] = str) -> str:
        """The verdict in one line; ``tell`` makes the words of its parts those of another language."""
        n = self.counts()
        casts = sum(len(r.nodes) for r in self.rows if r.verdict.casts)
        weak = sum(len(r.nodes) for r in self.rows if not r.verdict.proven and r.verdict.state == "aicore")
        parts = (
            (n["none"], tell(f"{n['none']} without a kernel")),
            (n["aicpu"], tell(f"{n['aicpu']} on AI CPU (slow)")),
            (n["unknown"], tell(f"{n['unknown']} that no source knows")),
            (n["open"], tell(f"{n['open']} on AI Core, where no source confirms their types")),
            (n["aicore"], tell(f"{n['aicore']} on AI Core")),
            (weak, tell(f"{weak} of these by documentation only")),
            (casts, tell(f"{casts} with casts that GE inserts")),
            (n["device"], tell(f"{n['device']} with no need of a kernel")),
        )
        said = ", ".join(text for count, text in parts if count) or tell("nothing to run")
        total = sum(n.values())
        return f"{self.soc}: {tell('1 operator') if total == 1 else tell(f'{total} operators')}: {said}"

    def forms(self) -> list[str]:
        """What took another form for the chip, a line a kind, with what else the chip could run."""
        return [f"{n} x {text}" for text, n in Counter(map(str, self.choices)).items()]

    def node_data(self) -> str:
        """The verdict on each node, as node data of Model Explorer."""
        from tair_debug.explorer import node_data

        values: dict[str, dict[str, float | str]] = {}
        for row in self.rows:
            for graph, node in zip(row.graphs, row.nodes):
                values.setdefault(graph, {})[node] = WORDS[row.verdict.state]
        return node_data(values, self.soc)

    def unknown(self) -> list[str]:
        """Operators that no facts speak of."""
        return list(dict.fromkeys(r.op for r in self.rows if r.verdict.state == "unknown"))

    def troubles(self) -> list[CheckRow]:
        """What has no kernel or runs on the slow unit."""
        return [r for r in self.rows if r.verdict.state in ("none", "aicpu")]

    def weak(self) -> list[CheckRow]:
        """What is not proven, beside what has no kernel."""
        return [r for r in self.rows if not r.verdict.proven and r.verdict.state != "none"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "soc": self.soc,
            "ok": self.ok,
            "proven": self.proven,
            "facts": self.origin,
            "counts": self.counts(),
            "strengths": self.strengths(),
            "forms": [asdict(c) for c in self.choices],
            "rows": [r.as_dict() for r in self.rows],
        }


@dataclass(repr=False)
class Checks(Answer):
    """What chips make of some graphs.

    Attributes:
        origin: Where the facts come from.
        reports: One for each chip.
        named: Whether the chips were named, so that their rows are wanted.
        strict: Whether what is not proven counts as bad.
        refused: Calls that cannot be converted; the rest was checked without them.
        written: The file of facts.
        graphs: Number of graphs.
        stops: Why they are several.
    """

    origin: str
    reports: list[CheckReport]
    named: bool = True
    strict: bool = False
    refused: list[RefusedCall] = field(default_factory=list)
    written: str | None = None
    graphs: int = 1
    stops: Stops = field(default_factory=Stops)

    @property
    def ok(self) -> bool:
        """Whether no operator is known to lack a kernel, every one is proven if ``strict``, and all were converted."""
        return not self.refused and all(r.proven if self.strict else r.ok for r in self.reports)

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        if not detail.quiet:
            yield sentence(f"facts: {self.origin}")
            yield from self.stops.parts(self.graphs)
        if self.refused:
            from tair_debug.refused import told_of

            yield from told_of(self.refused)
        for report in self.reports:
            yield sentence("", report.headline(told), "green" if report.ok else "red")
            if detail.quiet or not self.named:
                continue
            rows = to_table(report, every=detail.every, weak=self.strict, sources=detail.sources)
            if rows is not None:
                yield rows
            yield from (sentence(line(f"form: {text}")) for text in report.forms())
            if not detail.every and report.unknown():
                yield sentence(line(f"unknown: {', '.join(report.unknown())}"))
        if not self.named and not detail.quiet:
            yield sentence(
                "--soc CHIP lists the operators" if detail.commands else "soc= lists the operators of a chip"
            )

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "chips": [r.as_dict() for r in self.reports],
            "written": self.written,
            "refused": [r.as_dict() for r in self.refused],
            "graphs": self.graphs,
            **self.stops.as_dict(),
        }

    def records(self) -> list[dict[str, Any]]:
        return [{"soc": report.soc, **row.as_dict()} for report in self.reports for row in report.rows]


def examine(graphs: Iterable[Graph], oracle: Oracle, choices: Sequence[Choice] = ()) -> CheckReport:
    """The verdicts of a chip on graphs, which were made for it with some choices of forms."""
    rows: dict[tuple[Any, ...], CheckRow] = {}
    for graph in graphs:
        for finding in oracle.check(graph):
            row = rows.setdefault(
                (finding.op, finding.types, finding.verdict), CheckRow(finding.op, finding.types, finding.verdict)
            )
            row.nodes.append(finding.node)
            row.graphs.append(graph.name)
            where = _place(finding)
            if where and where not in row.places:
                row.places.append(where)
    order = list(WORDS)
    return CheckReport(
        oracle.soc, oracle.facts.origin, sorted(rows.values(), key=lambda r: order.index(r.verdict.state)), choices
    )


def _place(finding: Finding) -> str:
    return f"{finding.source}: {finding.code}" if finding.source and finding.code else finding.source


def text(rows: Sequence[CheckRow]) -> str:
    """Rows for a log or an error: one line per operator, with the user's line and the way out."""
    lines = []
    for row in rows:
        places = f" (from {'; '.join(row.places[:_SHOWN_PLACES])})" if row.places else f" ('{row.nodes[0]}')"
        advice = f"; instead: {row.verdict.advice}" if row.verdict.advice else ""
        many = f" {len(row.nodes)} times" if len(row.nodes) > 1 else ""
        lines.append(line(f"  {row.op}({row.types}){many}{places}: {row.verdict.reason}{advice}"))
    return "\n".join(lines)


def to_table(report: CheckReport, *, every: bool, weak: bool = False, sources: bool = False) -> Table | None:
    """For the terminal; ``None`` if there is nothing to show.

    Args:
        report: The report.
        every: Also what runs well, and what is unknown.
        weak: Also what is not proven.
        sources: Who says so, in a column.
    """
    rows = report.rows if every else [*report.troubles(), *(report.weak() if weak else ())]
    if not rows:
        return None
    cells = []
    for row in rows:
        places = row.places[:_SHOWN_PLACES] + (["…"] if len(row.places) > _SHOWN_PLACES else [])
        v = row.verdict
        verdict = ", ".join(map(told, words(v).split(", ", 1)))
        first = (verdict, row.op, str(len(row.nodes)), row.types)
        where = "\n".join(line(place(p)) for p in places or row.nodes[:1])
        said = "\n".join(line(told(s)) for s in v.sources[:_SHOWN_PLACES])
        cells.append([*map(line, first), where, line(told(v.reason)), line(told(v.advice)), said])
    head = ("verdict", "operator", "number", "types", "your line", "why", "instead", "says who")
    shown = [at for at in range(len(head)) if at < 6 or (sources if at == 7 else any(r[at] for r in cells))]
    return table([head[at] for at in shown], [[row[at] for at in shown] for row in cells])
