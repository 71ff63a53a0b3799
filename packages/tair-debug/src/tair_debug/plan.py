"""What a model costs on a chip before there is one: operations, bytes, memory, time, by operator, module, line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ge_graph import Graph, Node, escape
from ge_graph.command_line import told
from ge_graph.cost import Memory, MemoryPlan, Shapes, Work, chips, measured, time, work
from ge_graph.cost.memory import aligned
from ge_graph.cost.network import NONE as NO_TRAFFIC
from ge_graph.kernels import Oracle
from tair_debug.terminal import place, table

if TYPE_CHECKING:
    from rich.table import Table

    from tair_debug.refused import RefusedCall

BY: Final = ("operator", "module", "line", "node")
NETWORK: Final = "collectives have no estimate: nobody publishes the rate of their links, or how much they exchange"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One operator: what it does and how long that takes.

    Attributes:
        node: The node.
        work: Operations and bytes.
        time: Bound, and estimate or measurement.
        state: What kernel facts say of the unit, ``aicore``, ``aicpu``, ...; "" if nobody asked.
    """

    node: Node
    work: Work
    time: time.Time
    state: str

    @property
    def place(self) -> str:
        """The user's line."""
        return self.node.provenance.source if self.node.provenance is not None else ""

    @property
    def module(self) -> str:
        """Path of the module."""
        return self.node.provenance.module if self.node.provenance is not None else ""

    @property
    def unit(self) -> str:
        """``cube``, ``vector``, ``move``, ``network``, ``none`` or ``AI CPU``."""
        return "AI CPU" if self.state == "aicpu" and self.work.unit != "none" else self.work.unit


@dataclass
class Sums:
    """Sums over some operators.

    Attributes:
        name: Operator type, module or line.
        nodes: How many operators.
        flops: Operations of the cube unit.
        bytes: Bytes read and written.
        bound: Seconds, at least.
        estimate: Seconds, of those of which they are estimated or measured.
        open: Operators without an estimate.
        unknown: Operators whose sizes are not known.
    """

    name: str
    nodes: int = 0
    flops: int = 0
    bytes: int = 0
    bound: float = 0.0
    estimate: float = 0.0
    open: int = 0
    unknown: int = 0
    units: set[str] = field(default_factory=set)

    def add(self, each: NodePlan) -> None:
        self.nodes += 1
        self.flops += each.work.flops or 0
        self.bytes += each.work.bytes or 0
        self.bound += each.time.bound
        self.estimate += each.time.best
        self.open += each.time.how == "unknown"
        self.unknown += each.work.flops is None or each.work.bytes is None
        self.units.add(each.unit)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "operators": self.nodes,
            "flops": self.flops,
            "bytes": self.bytes,
            "time_bound": self.bound,
            "time_estimate": None if self.open else self.estimate,
            "without_estimate": self.open,
            "sizes_unknown": self.unknown,
            "units": sorted(self.units),
        }


@dataclass
class GraphPlan:
    """One graph at given sizes.

    Attributes:
        graph: The graph.
        nodes: Its operators in order, those without work on the device too.
        memory: Its memory.
        weights: Bytes of parameters and buffers among the inputs.
        sizes: Values of the symbols.
    """

    graph: Graph
    nodes: list[NodePlan]
    memory: MemoryPlan
    weights: int
    sizes: Mapping[str, int]

    def streams(self) -> dict[str, float]:
        """Label of a stream to the sum of its bounds."""
        found: dict[str, float] = {}
        for each in self.nodes:
            label = str(each.node.attr("_user_stream_label", "") or "")
            found[label] = found.get(label, 0.0) + each.time.bound
        return found

    @property
    def bound(self) -> float:
        """Seconds that no run is shorter than: operators of one stream run one after the other."""
        return max(self.streams().values(), default=0.0)

    @property
    def estimate(self) -> float | None:
        """Seconds, streams one after the other; None if some operator has no estimate."""
        open_ = any(n.time.how == "unknown" for n in self.nodes)
        return None if open_ else sum(n.time.best for n in self.nodes)

    def whole(self) -> Sums:
        """The sums over all operators."""
        total = Sums("")
        for each in self.working():
            total.add(each)
        return total

    def working(self) -> list[NodePlan]:
        """The operators that do something on the device."""
        return [n for n in self.nodes if n.work.unit != "none"]

    def groups(self, by: str) -> list[Sums]:
        """Sums by operator type, module or line, longest first."""
        found: dict[str, Sums] = {}
        for each in self.working():
            name = {"operator": each.node.op, "module": each.module, "line": each.place, "node": each.node.name}[by]
            found.setdefault(name, Sums(name)).add(each)
        return sorted(found.values(), key=lambda g: (-g.estimate, -g.bytes, g.name))


@dataclass
class Plan:
    """What a model costs on one chip.

    Attributes:
        title: What was asked, for comparisons.
        figures: Of the chip.
        graphs: In the order in which they run.
        origins: Where times come from, in words.
        shares: Calibrated figures.
        notes: What the figures leave out.
        refused: Calls that cannot be converted; they are in no figure.
        rejoin: Puts nodes in their place into the graphs, for people to see, and gives these.
    """

    title: str
    figures: chips.Figures
    graphs: list[GraphPlan]
    origins: list[str]
    shares: Mapping[str, float]
    notes: list[str]
    refused: Sequence[RefusedCall] = ()
    rejoin: Callable[[], Mapping[Node, RefusedCall]] = dict

    @property
    def memory_total(self) -> int:
        """Bytes of the graph that needs most; graphs of one model share their weights."""
        return max((g.memory.total for g in self.graphs), default=0)

    @property
    def memory_bound(self) -> int:
        """Bytes, at least."""
        return max((g.memory.total_bound for g in self.graphs), default=0)

    @property
    def fits(self) -> bool | None:
        """Whether the chip has so much memory; None if nobody says how much it has."""
        has = self.figures.get("memory")
        return None if has is None else self.memory_total <= has

    @property
    def bound(self) -> float:
        """Seconds of all graphs, at least."""
        return sum(g.bound for g in self.graphs)

    @property
    def estimate(self) -> float | None:
        """Seconds of all graphs; None if some operator has no estimate."""
        parts = [g.estimate for g in self.graphs]
        return None if any(p is None for p in parts) else sum(p for p in parts if p is not None)

    def count(self, how: str) -> int:
        """Operators whose time is ``measured``, ``estimate`` or ``unknown``."""
        return sum(n.time.how == how for g in self.graphs for n in g.working())

    def as_dict(self, by: str = "operator") -> dict[str, Any]:
        f = self.figures
        return {
            "title": self.title,
            "chip": f.chip,
            "family": f.family,
            "time": {
                "bound": self.bound,
                "estimate": self.estimate,
                "operators_measured": self.count("measured"),
                "operators_estimated": self.count("estimate"),
                "operators_without": self.count("unknown"),
            },
            "memory": {
                "bound": self.memory_bound,
                "estimate": self.memory_total,
                "has": f.get("memory"),
                "fits": self.fits,
            },
            "origins": self.origins,
            "calibrated": dict(self.shares),
            "notes": self.notes,
            "figures": {k: {"value": v, "source": f.sources[k]} for k, v in sorted(f.values.items())},
            "graphs": [_graph_dict(g, by) for g in self.graphs],
        }


def _graph_dict(plan: GraphPlan, by: str) -> dict[str, Any]:
    m, whole = plan.memory, plan.whole()
    return {
        "name": plan.graph.name,
        "sizes": dict(plan.sizes),
        "flops": whole.flops,
        "bytes": whole.bytes,
        "time_bound": plan.bound,
        "time_estimate": plan.estimate,
        "memory": {
            "weights": plan.weights,
            "inputs": m.arguments - plan.weights,
            "updated_in_place": m.updated,
            "constants": m.constants,
            "outputs": m.outputs,
            "aliased": m.aliased,
            "temporary": m.temporary,
            "peak_bound": m.peak,
            "peak_packed": m.packed,
            "without_reuse": m.unreused,
            "total": m.total,
            "peak_at": m.peak_node,
            "sizes_unknown": len(m.unknown),
        },
        "groups": [g.as_dict() for g in plan.groups(by)],
    }


@dataclass(frozen=True)
class Settings:
    """How to plan.

    Attributes:
        figures: Of the chip.
        oracle: Kernel facts of the chip, None to leave them out.
        sizes: Values of symbols; each may have several, of which the most expensive counts for memory and the first
            for time.
        limits: Cube and vector cores of the whole graph, 0 for all.
        reuse: Whether memory of what is dead is used again.
        times: Measured times.
        shares: Calibrated figures.
    """

    figures: chips.Figures
    oracle: Oracle | None = None
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    limits: tuple[int, int] = (0, 0)
    reuse: bool = True
    times: measured.Measurements | None = None
    shares: Mapping[str, float] = field(default_factory=dict)


def of(
    graphs: Iterable[Graph],
    settings: Settings,
    *,
    title: str = "",
    hints: Mapping[str, int] | None = None,
    weights: Sequence[Collection[str]] = (),
) -> Plan:
    """The plan of some graphs.

    Args:
        graphs: In the order in which they run.
        settings: Chip, sizes and measurements.
        title: What it is called in comparisons.
        hints: Sizes with which the model was traced, for symbols that ``settings`` leaves out.
        weights: Of each graph the FX names of inputs that are parameters or buffers of the model.
    """
    names = itertools.chain(weights, itertools.repeat(()))
    plans = [_planned(graph, settings, hints or {}, own) for graph, own in zip(graphs, names)]
    origins = [f"figures of {settings.figures.chip}"]
    if settings.times is not None:
        origins.append(f"measured: {settings.times.origin}")
    result = Plan(title or settings.figures.chip, settings.figures, plans, origins, settings.shares, [])
    result.notes += _notes(result)
    return result


def _planned(graph: Graph, settings: Settings, hints: Mapping[str, int], weights: Collection[str]) -> GraphPlan:
    gears = list(_gears(settings.sizes, hints))
    memory = Memory(graph, reuse=settings.reuse)
    states = {f.node: f.verdict.state for f in settings.oracle.check(graph)} if settings.oracle is not None else {}
    shapes = Shapes(graph, gears[0])
    nodes = []
    for node in graph.nodes:
        done = work.of(shapes, node)
        state = states.get(node.name, "")
        seconds = settings.times.seconds(node, shapes.of) if settings.times and done.unit != "none" else None
        spent = time.of(
            done, settings.figures, node, limits=settings.limits, unit=state, measured=seconds, shares=settings.shares
        )
        nodes.append(NodePlan(node, done, spent, state))
    needed = memory.largest(gears)
    own = [n.outputs[0] for n in graph.inputs if n.provenance is not None and n.provenance.fx_name in weights]
    return GraphPlan(graph, nodes, needed, sum(aligned(shapes.bytes(t) or 0) for t in own), gears[0])


def _gears(sizes: Mapping[str, Sequence[int]], hints: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every combination of the values of the symbols, those of the trace where none are given."""
    found: list[dict[str, int]] = [dict(hints)]
    for name, values in sizes.items():
        found = [{**each, name: value} for each in found for value in values]
    yield from found


def _notes(plan: Plan) -> list[str]:
    notes = []
    missing = sum(len(g.memory.unknown) for g in plan.graphs)
    if missing:
        names = dict.fromkeys(t.node.op for g in plan.graphs for t in g.memory.unknown)
        notes.append(f"{missing} results have sizes that are not known and count as nothing: {', '.join(names)}")
    open_ = [n for g in plan.graphs for n in g.working() if n.time.how == "unknown"]
    slow = sum(n.state == "aicpu" for n in open_)
    network = sum(n.state != "aicpu" and n.work.traffic is not NO_TRAFFIC for n in open_)
    if slow:
        notes.append(f"{slow} operators run on AI CPU, of which no figures are published")
    if network:
        notes.append(f"{network} {NETWORK}")
    uncounted = dict.fromkeys(n.node.op for n in open_ if n.work.flops is None and work.is_uncounted(n.node.op))
    if uncounted:
        notes.append(f"operations of {', '.join(uncounted)} are not known: no formula, they count as nothing")
    rest = len(open_) - slow - network - sum(n.node.op in uncounted for n in open_)
    if rest:
        notes.append(f"{rest} operators have no estimate: the chip's figures leave out their type or their launch")
    if any(n.node.subgraphs for g in plan.graphs for n in g.nodes):
        notes.append("graphs inside nodes (If, While): their memory counts once, their time and operations do not")
    return notes


def calibrated(times: measured.Measurements, figures: chips.Figures) -> Mapping[str, float]:
    """Shares and launches that fit a table of measurements, for operators that the table does not have.

    Args:
        times: The measurements; each row is taken as a graph of one node.
        figures: Of the chip that was measured.
    """
    samples = []
    for row in times.rows:
        node = graph_of(row)
        if node is None:
            continue
        shapes = Shapes(node.graph)
        done = work.of(shapes, node)
        if done.unit in ("none", "network") or done.bytes is None:
            continue
        peak = figures.cube_peak(done.dtype) if done.unit == "cube" else figures.vector_peak(done.dtype)
        amount = done.flops if done.unit == "cube" else done.elements
        rate = figures.get("memory_rate")
        if amount is None or rate is None or (amount and not peak):
            continue
        samples.append(measured.Sample(done.unit, amount / peak if peak else 0.0, done.bytes / rate, row.seconds))
    return measured.calibrate(samples)


def graph_of(row: measured.MeasuredRow) -> Node | None:
    """A row as a node with operands of its sizes; None if a type is not known."""
    from ge_graph.dtypes import BY_SHORT

    if any(t not in BY_SHORT for t in (*row.types, *row.result_types)) or len(row.types) != len(row.shapes):
        return None
    graph = Graph("measured")
    operands = [graph.add("Data", (), {}, [(BY_SHORT[t], s)]).outputs[0] for s, t in zip(row.shapes, row.types)]
    results = [(BY_SHORT[t], s) for s, t in zip(row.results, row.result_types)]
    return graph.add(row.op, operands, _told(row), results)


def _told(row: measured.MeasuredRow) -> dict[str, Any]:
    """Attributes that the sizes of a row tell: which matrix is transposed, the layout of an attention."""
    from ge_graph.attrs import Attr, Kind

    attrs: dict[str, Any] = {}
    if row.op in ("MatMulV2", "BatchMatMulV2") and len(row.shapes) >= 2 and row.results:
        a, out = row.shapes[0], row.results[0]
        if len(a) >= 2 and len(out) >= 2 and a[-2] != out[-2] and a[-1] == out[-2]:
            attrs["transpose_x1" if row.op == "MatMulV2" else "adj_x1"] = Attr(Kind.BOOL, True)
    if row.op.startswith("FlashAttentionScore") and row.shapes:
        stats = next((s for s in (*row.results, *row.shapes) if len(s) == 4 and s[-1] == 8), None)
        if stats is not None:
            attrs["head_num"] = Attr(Kind.INT, stats[1])
            rank = len(row.shapes[0])
            layout = "BNSD" if rank == 4 else "SBH" if row.shapes[0][0] == stats[2] else "BSH"
            attrs["input_layout"] = Attr(Kind.STRING, layout)
    return attrs


# -- forms -------------------------------------------------------------------------------------------------------------


def size_text(value: float | None) -> str:
    """Bytes for people: ``1.25 GiB``."""
    if value is None:
        return "unknown"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B"


def time_text(seconds: float | None) -> str:
    """Seconds for people: ``12.3 ms``."""
    if seconds is None:
        return "unknown"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def number_text(value: float) -> str:
    """A count for people: ``3.2 T``."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f}"


def headlines(plan: Plan) -> list[str]:
    """The answers in a few lines: will it fit, how fast at best, where it is slow."""
    f, has = plan.figures, plan.figures.get("memory")
    needs = f"{size_text(plan.memory_total)} of {size_text(has)} (at least {size_text(plan.memory_bound)})"
    lines = [
        f"{f.chip}: the chip's memory is not published: {needs}"
        if plan.fits is None
        else f"{f.chip}: fits: {needs}"
        if plan.fits
        else f"{f.chip}: does NOT fit: {needs}"
    ]
    for each in plan.graphs:
        m = each.memory
        at = f" ({', '.join(f'{k}={v}' for k, v in each.sizes.items())})" if each.sizes else ""
        inputs = f"inputs {size_text(m.arguments - each.weights)} (updated in place {size_text(m.updated)})"
        lines.append(
            f"  {each.graph.name}{at}: weights {size_text(each.weights)}, {inputs}, "
            f"constants {size_text(m.constants)}, results and intermediate {size_text(m.packed)} at '{m.peak_node}'"
        )
    known = sum(n.time.best for g in plan.graphs for n in g.working() if n.time.how != "unknown")
    estimate = (
        time_text(plan.estimate)
        if plan.estimate is not None
        else f"{time_text(known)} without {plan.count('unknown')} operators"
    )
    whole = sum(len(g.working()) for g in plan.graphs)
    how = f"estimate; {plan.count('measured')} of {whole} operators measured"
    lines.append(f"time: at least {time_text(plan.bound)} (bound), about {estimate} ({how})")
    flops = sum(g.whole().flops for g in plan.graphs)
    moved = sum(g.whole().bytes for g in plan.graphs)
    lines.append(f"work: {number_text(flops)} operations of the cube units, {size_text(moved)} read and written")
    return lines


def to_table(plan: Plan, by: str, most: int = 15) -> Table:
    """Where the time goes, longest first."""
    merged: dict[str, Sums] = {}
    for graph in plan.graphs:
        for g in graph.groups(by):
            into = merged.setdefault(g.name, Sums(g.name))
            for name in ("nodes", "flops", "bytes", "bound", "estimate", "open", "unknown"):
                setattr(into, name, getattr(into, name) + getattr(g, name))
            into.units |= g.units
    rows = sorted(merged.values(), key=lambda g: (-g.estimate, -g.bytes, g.name))
    whole = sum(g.estimate for g in rows) or math.inf
    cells = [
        [
            escape.line((place(g.name) if by == "line" else g.name) or "(no module)"),
            ", ".join(sorted(g.units)),
            str(g.nodes),
            number_text(g.flops),
            size_text(g.bytes),
            time_text(g.bound),
            time_text(g.estimate) + (told(f" + {g.open} unknown") if g.open else ""),
            f"{100 * g.estimate / whole:.1f} %",
        ]
        for g in rows[:most]
    ]
    if len(rows) > most:
        rest = sum(g.estimate for g in rows[most:])
        cells.append([f"… {len(rows) - most} more", "", "", "", "", "", time_text(rest), f"{100 * rest / whole:.1f} %"])
    return table((by, "unit", "number", "operations", "bytes", "bound", "estimate", "share"), cells)


def beside(plans: Sequence[Plan]) -> Table:
    """Plans side by side."""
    rows: list[tuple[str, Callable[[Plan], str]]] = [
        ("chip", lambda p: p.figures.chip),
        ("time, bound", lambda p: time_text(p.bound)),
        ("time, estimate", lambda p: time_text(p.estimate)),
        ("operators without estimate", lambda p: str(p.count("unknown"))),
        ("memory, bound", lambda p: size_text(p.memory_bound)),
        ("memory, estimate", lambda p: size_text(p.memory_total)),
        ("memory of the chip", lambda p: size_text(p.figures.get("memory"))),
        ("fits", lambda p: {True: "yes", False: "no", None: "unknown"}[p.fits]),
        ("operations", lambda p: number_text(sum(g.whole().flops for g in p.graphs))),
        ("bytes", lambda p: size_text(sum(g.whole().bytes for g in p.graphs))),
        ("operators", lambda p: str(sum(len(g.working()) for g in p.graphs))),
    ]
    return table(("", *(escape.line(p.title) for p in plans)), [[name, *map(say, plans)] for name, say in rows])


def node_data(plan: GraphPlan) -> dict[Node, dict[str, Any]]:
    """Of each node what the page colours by, and rows of text."""
    found = {}
    for each in plan.nodes:
        t, w = each.time, each.work
        found[each.node] = {
            "time": t.best,
            "bytes": w.bytes or 0,
            "unit": each.unit,
            "rows": [
                ("time", f"{time_text(t.value)} ({t.how}), at least {time_text(t.bound)}"),
                ("limited by", t.limit),
                ("unit", each.unit),
                ("operations", number_text(w.flops) if w.flops is not None else "unknown"),
                ("bytes", size_text(w.bytes)),
            ],
        }
    return found
