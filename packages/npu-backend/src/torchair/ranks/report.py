"""The report on many ranks as a table, as JSON and as a page with a lane for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ge_graph import escape
from ge_graph.command_line import told
from tair_debug import terminal
from tair_debug.graph_page import render
from torchair.ranks.exchange import Exchanged
from torchair.ranks.plans import Planned
from torchair.ranks.relations import Mesh
from torchair.ranks.run import RanksReport

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN: Final = 6  # operators named in a cell


def as_dict(report: RanksReport) -> dict[str, Any]:
    """The whole report; bytes and positions as numbers, None where a size is a symbol and nothing ran."""
    sizes = _bytes(report.log)
    return {
        "ok": report.ok,
        "mesh": report.mesh,
        "ranks": report.ranks,
        "graphs": report.graphs,
        "distinct_graphs": report.distinct,
        "traced_ranks": report.traced,
        "parameters": {"bytes_of_all_ranks": report.held, "bytes_in_memory": report.kept},
        "worst": report.worst,
        "results": [
            {
                "name": c.name,
                "relation": c.relation.kind,
                "detail": c.relation.detail,
                "ranks": list(c.relation.ranks),
                "worst": c.relation.worst,
            }
            for c in report.compared
        ],
        "faults": [f.as_dict() for f in report.faults],
        "programs": [
            [
                {"rank": rank, **_row(each, sizes.get((rank, each.place.graph, each.place.position)), report.mesh)}
                for graph in graphs
                for each in graph
            ]
            for rank, graphs in enumerate(report.programs)
        ],
        "between_graphs": [[{"rank": rank, **row} for row in rows] for rank, rows in enumerate(_between(report))],
    }


def _between(report: RanksReport) -> list[list[dict[str, Any]]]:
    """By rank, the collectives that hooks and schedules enter between graphs; equal ones are one row with a count."""
    found: list[dict[tuple[Any, ...], dict[str, Any]]] = [{} for _ in range(report.ranks)]
    for record in report.log:
        group = group_name(record.members, report.mesh)
        for rank, place, sent, received in zip(record.members, record.places, record.sent, record.received):
            if place.graph >= 0:
                continue
            kind = "recv" if record.kind == "send" and rank != record.members[0] else record.kind
            key = (kind, record.members, sent, received, place.source, place.module)
            row = {
                "collective": kind,
                "group": group,
                "members": list(record.members),
                "sent": sent,
                "received": received,
                "source": place.source,
                "code": place.code,
                "module": place.module,
                "times": 0,
            }
            found[rank].setdefault(key, row)["times"] += 1
    return [[*rows.values()] for rows in found]


def _bytes(log: Sequence[Exchanged]) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Rank, graph and position to bytes sent and received, of the last time."""
    found = {}
    for record in log:
        for rank, place, sent, received in zip(record.members, record.places, record.sent, record.received):
            found[rank, place.graph, place.position] = (sent, received)
    return found


def _row(each: Planned, moved: tuple[int, int] | None, mesh: dict[str, int]) -> dict[str, Any]:
    return {
        "graph": each.place.graph,
        "position": each.place.position,
        "collective": each.title(),
        "operator": each.op,
        "group": group_name(each.members, mesh),
        "members": list(each.members),
        "type": each.dtype,
        "sizes": None if each.sizes is None else list(each.sizes),
        "sent": None if moved is None else moved[0],
        "received": None if moved is None else moved[1],
        "stream": each.stream,
        "meanwhile": list(each.meanwhile),
        "independent": list(each.independent),
        "source": each.place.source,
        "code": each.place.code,
        "module": each.place.module,
    }


def group_name(members: Sequence[int], mesh: dict[str, int]) -> str:
    """The dimensions of the mesh that a group spans, ``tp``; empty for other groups."""
    grid = Mesh(mesh)
    if len(members) == grid.count:
        return " x ".join(n for n, s in mesh.items() if s > 1) or next(iter(mesh))
    places = [grid.place(r) for r in members]
    names = [n for i, n in enumerate(mesh) if len({p[i] for p in places}) > 1]
    return " x ".join(names) if sorted(members) in grid.groups(names) else ""


def lanes(report: RanksReport) -> list[tuple[list[int], list[dict[str, Any]]]]:
    """Ranks that do the same, with the collectives of the first of them, in graphs and between them; those of a like
    place in other groups are the same."""
    sizes, between = _bytes(report.log), _between(report)
    found: dict[tuple[Any, ...], tuple[list[int], list[dict[str, Any]]]] = {}
    for rank, graphs in enumerate(report.programs):
        rows = [
            _row(each, sizes.get((rank, each.place.graph, each.place.position)), report.mesh)
            for graph in graphs
            for each in graph
        ] + between[rank]
        key = tuple(
            (
                r.get("graph"),
                r.get("position"),
                r.get("times"),
                r["collective"],
                r["group"] or tuple(r["members"]),
                r["sent"],
                r["received"],
                r["source"],
                tuple(r.get("meanwhile", ())),
            )
            for r in rows
        )
        found.setdefault(key, ([], rows))[0].append(rank)
    return [*found.values()]


def to_table(ranks: Sequence[int], rows: Sequence[dict[str, Any]]) -> Table:
    """For the terminal: the collectives of some ranks, which all do these."""
    from torchair.ranks.problems import listed

    cells = []
    for r in rows:
        group = r["group"] or ", ".join(map(str, r["members"]))
        moved = "?" if r["sent"] is None else f"{r['sent']:,} / {r['received']:,}"
        where = escape.line(f"{terminal.place(r['source'])}: {r['code']}" if r["source"] else r["module"])
        if "times" in r:
            often = f" x {r['times']}" if r["times"] > 1 else ""
            cells.append([told("between graphs"), f"{r['collective']}{often}", group, moved, where, "?"])
            continue
        during = _named(r["meanwhile"])
        could = _named(r["independent"]) if not during else ""
        cells.append(
            [
                f"{r['graph']}.{r['position']}",
                r["collective"],
                group,
                moved,
                where,
                during or told(f"nothing; could: {could}" if could else "nothing"),
            ]
        )
    head = ("graph.number", "collective", "group", "bytes out / in", "your line", "computes meanwhile")
    return terminal.table(head, cells, title=listed(ranks))


def _named(ops: Sequence[str]) -> str:
    shown = list(dict.fromkeys(ops))
    return ", ".join(shown[:_SHOWN]) + (f", … ({len(ops)})" if len(shown) > _SHOWN else "")


def to_html(report: RanksReport, title: str) -> str:
    """The page: a lane for each rank, time to the right, a mark where it takes part in a collective."""
    from markupsafe import Markup

    return render("ranks.html.j2", title=title, data=Markup(escape.script(page_data(report))))


def page_data(report: RanksReport) -> dict[str, Any]:
    """Collectives in the order of logical time: each begins when the last of its members is ready."""
    at = [0] * report.ranks
    planned = {(r, e.place.graph, e.place.position): e for r, gs in enumerate(report.programs) for g in gs for e in g}
    meetings = []
    for record in report.log:
        column = max(at[r] for r in record.members)
        first = record.members[0]
        place = record.places[0]
        each = planned.get((first, place.graph, place.position))
        for r in record.members:
            at[r] = column + 1
        meetings.append(
            {
                "x": column,
                "k": escape.line(record.kind),
                "m": list(record.members),
                "g": escape.line(group_name(record.members, report.mesh) or ", ".join(map(str, record.members))),
                "s": list(record.sent),
                "r": list(record.received),
                "l": escape.line(place.source),
                "c": escape.line(place.code),
                "w": escape.line(_named(each.meanwhile)) if each else "?",  # between graphs nobody can tell
                "i": escape.line(_named(each.independent)) if each else "?",
            }
        )
    return {
        "mesh": report.mesh,
        "ranks": report.ranks,
        "graphs": report.graphs,
        "distinct": report.distinct,
        "worst": report.worst,
        "meetings": meetings,
        "faults": [
            {"c": f.code, "w": escape.block(f.what), "s": escape.line(f.source), "r": list(f.ranks)}
            for f in report.faults
        ],
    }
