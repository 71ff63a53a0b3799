"""Where the numbers go wrong: eager and GE side by side, operator by operator.

The ATen graph runs eagerly and the GE graph runs on an engine, in step with each other. Every GE result that an ATen
value became is compared with it as soon as both exist, then both are dropped, so memory is that of two runs. The same
holds inside branches, called regions and loops, round by round.

Each value is then replaced by eager's, so that a row shows what its own operator did and nothing that it inherited. The
graph runs once more without that, and its results are compared. How much may differ: see ``judge``.
"""

from __future__ import annotations

import copy
import importlib.metadata
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import real_values
from ge_graph import Graph, Node, Tensor, escape
from ge_graph.command_line import told
from ge_graph.errors import ConfigError
from tair_debug import artefacts, judge
from tair_debug.cut import Cut, cut
from tair_debug.data_dump import as_numpy, write_npy
from tair_debug.measure import Measure, Tolerance, measure
from tair_debug.models import Subject
from tair_debug.refused import RefusedCall, amount, listed
from tair_debug.stepwise import Call, Stepwise, Wanted
from tair_debug.terminal import Answer, Detail, place, sentence, table
from tair_debug.tracing import Layered, capture_layers, run_with, traceable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ge_converters.lowering.control_flow import LoweredBody
    from tair_debug.terminal import Part

OPTION: Final = "tair compare --output"
ENGINES: Final = "ge_runtime.engines"
_STANDING: Final = ("Data", "Const", "Constant")  # which engines do not report
_VIEWED: Final = 5  # dimensions


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One comparison.

    Attributes:
        graph: ``forward 1`` and the like.
        node: The GE operator, or the file of a recorded dump.
        op: Its type.
        output: Which output.
        fx: Name of the FX node.
        target: Its target.
        source: The user's line.
        code: Text of that line.
        measure: The distance.
        random: Whether the values are random, so that they need not agree.
        inside: For an operator in a branch or loop: the functions that lead there, with the rounds of loops from 1.
    """

    graph: str
    node: str
    op: str
    output: int
    fx: str
    target: str
    source: str
    code: str
    measure: Measure
    random: bool = False
    inside: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the row shows a fault."""
        return not self.measure.ok and not self.random

    def numbers(self) -> str:
        """The distance in words."""
        m = self.measure
        return m.why or f"max abs {m.max_abs:.3e}, max rel {m.max_rel:.3e}, cosine {m.cosine:.9f}, {m.bad} elements"

    def as_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "measure"}
        return {**plain, **self.measure.as_dict()}


@dataclass(repr=False)
class Comparison(Answer):
    """The result.

    Attributes:
        rows: All comparisons, in the order the operators ran.
        unmatched: Values without a partner on the other side.
        why: Reasons for that, and how often.
        settled: Nodes whose values are rightly any of several, with the reason: what depends on them may differ.
        notes: Branches and loops that could not be looked into, by name, and why.
        saved: Files of the first wrong pair, expected and got.
        totals: Final results of the model, eager against compiled as a whole.
        refused: Calls that cannot be converted; eager's results stood in for them.
        report: The file with every row.
        graphs: The graphs, in the order in which they were compiled; the n-th is ``graph_<n>`` of a dump.
    """

    rows: list[ComparisonRow] = field(default_factory=list)
    unmatched: int = 0
    why: Counter[str] = field(default_factory=Counter)
    settled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    saved: tuple[str, ...] = ()
    totals: list[ComparisonRow] = field(default_factory=list)
    refused: list[RefusedCall] = field(default_factory=list)
    report: Path | None = None
    graphs: list[str] = field(default_factory=list)

    @property
    def first(self) -> ComparisonRow | None:
        """The first operator out of tolerance."""
        return next((r for r in self.rows if r.wrong), None)

    @property
    def random(self) -> ComparisonRow | None:
        """The first operator whose random numbers differ: what depends on it differs too, rightly."""
        return next((r for r in self.rows if r.random and not r.measure.ok), None)

    @property
    def ok(self) -> bool:
        """Whether all values are within tolerance and none was left out because its call cannot be converted."""
        return self.first is None and not self.refused and not any(r.wrong for r in self.totals)

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        row, bad = self.first, [r for r in self.totals if r.wrong]
        yield self._verdict(bad)
        if detail.quiet:
            return
        yield from (sentence(escape.line(f"  {text}")) for text in listed(self.refused))
        for r in bad:
            result = told(f"result {r.output}")
            yield sentence(f"  {escape.line(f'{told(r.graph)}, {result}')}: {told(r.numbers())}")
        if row is not None:
            yield from self._first(row)
        worst = max((r.measure.max_rel for r in self.rows if not r.random), default=0.0)
        whole, values = len(self.totals), len(self.rows)
        if whole:
            yield sentence(f"compared: results {whole}, values {values}; largest relative error {worst:.1e}")
        else:
            yield sentence(f"compared: values {values}; largest relative error {worst:.1e}")
        chosen = self.rows if detail.every else [r for r in self.rows if r.wrong][1:] if detail.sources else []
        if chosen:
            yield _table(chosen)
        if self.unmatched:
            reasons = "; ".join(f"{count}: {told(why)}" for why, count in self.why.most_common())
            one = self.unmatched == 1
            yield (
                sentence(escape.line(f"1 value without partner ({reasons})"))
                if one
                else sentence(escape.line(f"{self.unmatched} values without partner ({reasons})"))
            )
        random = self.random
        if random is not None:
            yield sentence(
                f"note: {random.fx} draws random numbers, which an engine need not share with eager; what depends on "
                "it differs rightly (use eval mode, or dropout 0)"
            )
        for text in self.notes:
            yield sentence(escape.line(f"not compared: {text}"))
        if self.report is not None:
            yield sentence(f"report: {self.report}")

    def _verdict(self, bad: Sequence[ComparisonRow]) -> Text:
        calls = amount(self.refused)
        if self.ok:
            return sentence("", "all within tolerance", "green")
        if self.first is None and not bad:
            return sentence(f", the rest is within tolerance: {calls}", "not all was compared", "red")
        also = f"; {calls}" if self.refused else ""
        if self.first is None:
            return sentence(f" though every operator agrees{also}:", "the results of the model differ,", "red")
        if bad:
            return sentence(also, "the results of the model differ", "red")
        if self.totals:
            good = "the results of the model are within tolerance,"
            return sentence(f" but one operator does not do what eager does{also}", good, "yellow")
        return sentence(also, "an operator is out of tolerance", "red")

    def _first(self, row: ComparisonRow) -> Iterator[Text]:
        what = f" {row.node} ({row.op}) output {row.output}, {row.graph}"
        yield sentence(escape.line(what), "first out of tolerance:", "red")
        yield sentence(f"  {told(row.numbers())}")
        if row.inside:
            yield sentence(escape.line(f"  inside:  {row.inside}"))
        yield sentence(escape.line(f"  FX node: {row.fx} = {row.target}"))
        if row.source:
            yield sentence(f"  source:  {escape.line(place(row.source))}\n           {escape.line(row.code)}")
        for path in self.saved:
            yield sentence(f"  saved:   {path}")
        if (count := sum(r.wrong for r in self.rows)) > 1:
            yield sentence(f"  {count} values are out of tolerance in all")
        yield sentence("  tair minify, with the same model and options, makes a file of the few operators that show it")

    def records(self) -> list[dict[str, Any]]:
        return [r.as_dict() for r in self.rows]

    def node_data(self) -> str:
        """The largest relative error of each node's outputs, as node data of Model Explorer."""
        from tair_debug.explorer import node_data

        return node_data(self.errors(), "relative error")

    def errors(self) -> dict[str, dict[str, float]]:
        """``graph_<n>`` to the largest relative error of each node's outputs; empty for recorded dumps."""
        names = {label: f"graph_{i}" for i, label in enumerate(self.graphs, 1)}
        values: dict[str, dict[str, float]] = {name: {} for name in names.values()}
        for row in self.rows:
            if row.graph in names and not row.inside:
                nodes = values[names[row.graph]]
                nodes[row.node] = max(nodes.get(row.node, 0.0), row.measure.max_rel)
        return values

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "compared": len(self.rows),
            "unmatched": self.unmatched,
            "why_unmatched": dict(self.why),
            "settled": list(self.settled),
            "notes": list(self.notes),
            "first": self.first.as_dict() if self.first else None,
            "random": self.random.as_dict() if self.random else None,
            "saved": list(self.saved),
            "totals": [r.as_dict() for r in self.totals],
            "wrong": [r.as_dict() for r in self.rows if r.wrong],
            "errors": self.errors(),
            "refused": [r.as_dict() for r in self.refused],
        }


def _table(rows: Sequence[ComparisonRow]) -> Table:
    head = ("operator", "type", "FX node", "max abs", "max rel", "bad", "your line")
    cells = []
    for row in rows:
        m = row.measure
        numbers = (f"{m.max_abs:.2e}", f"{m.max_rel:.2e}", str(m.bad))
        cells.append([*map(escape.line, (row.node, row.op, row.fx)), *numbers, escape.line(place(row.source))])
    return table(head, cells)


def engine(name: str = "cpu") -> Any:
    """An installed engine.

    Errors: ConfigError GE1044 if there is none of that name.
    """
    engines = {e.name: e for e in importlib.metadata.entry_points(group=ENGINES)}
    if name not in engines:
        raise ConfigError(
            "GE1044",
            f"no engine {name!r}; installed: {', '.join(sorted(engines)) or 'none'}",
            next="install ge-runtime-native[cpu] for the embedded engine",
        )
    return engines[name].load()()


def compare_model(
    subject: Subject,
    *,
    engine: Any,
    tolerance: Tolerance = Tolerance(),
    backward: bool = False,
    dynamic: bool = False,
    isolate: bool = True,
    output: str | os.PathLike[str] | None = None,
    on_row: Callable[[ComparisonRow], None] = lambda row: None,
    layered: Layered | None = None,
) -> Comparison:
    """Run a model eager and as GE graphs, and compare operator by operator.

    Args:
        subject: The model with real inputs.
        engine: What runs the GE graphs; its executables must have ``run_traced``.
        tolerance: When a value counts as wrong.
        backward: Also compare the backward pass.
        dynamic: Trace with symbolic sizes.
        isolate: Give each operator eager's inputs. Else a row shows what its operator inherited too, by the tolerance
            of its type.
        output: Existing folder for the first wrong pair; None saves nothing.
        on_row: Called with each comparison as it is made.
        layered: The model's graph, if it is known already.

    Errors: LoweringError, GraphError and EngineError as compiling has them; ConfigError GE1041 for ``output``.
    """
    result = Comparison()

    def add(row: ComparisonRow, got: torch.Tensor, expected: torch.Tensor) -> None:
        if row.wrong and result.first is None and output is not None:
            result.saved = save_pair(output, row, got, expected)
        result.rows.append(row)
        on_row(row)

    graphs: Counter[str] = Counter()

    def note(text: str) -> None:
        if text not in result.notes:
            result.notes.append(text)

    def settle(text: str) -> None:
        if text not in result.settled:
            result.settled.append(text)

    def side_by_side(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        graphs[phase] += 1
        with real_values():
            label = f"{phase} {graphs[phase]}"
            result.graphs.append(label)
            part = cut(gm)
            result.refused += part.refused
            pair = SideBySide(
                part.gm,
                label,
                engine,
                tolerance,
                add,
                lambda text: note(f"{label}, {text}"),
                isolate=isolate,
                total=result.totals.append,
                settle=settle,
            )
        result.unmatched += pair.why.total()
        result.why += pair.why
        return _with_values_of(part, gm, pair) if part.calls else pair

    with traceable(subject):
        if layered is not None:
            side_by_side(layered.gm, "forward")(*layered.args)
        else:
            run_with(subject, side_by_side, backward=backward, dynamic=dynamic)
    return result


def layers_of(subject: Subject) -> Layered | None:
    """The graph of a model of equal layers, traced once for all of them; None for others, and for one that draws."""
    found = capture_layers(subject)
    return None if found is None or any(map(judge.draws, found.gm.graph.nodes)) else found


def _with_values_of(part: Cut, gm: torch.fx.GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the part with eager's values of what was cut out; both runs start from the same random state."""

    def run(*args: Any) -> Any:
        with real_values():
            state = torch.get_rng_state()
            values = part.values(gm, args)
            torch.set_rng_state(state)
        return call(*args, *values)

    return run


def compare_whole(
    subject: Subject, compiled: Callable[..., Any], tolerance: Tolerance = Tolerance()
) -> list[ComparisonRow]:
    """Compare what a model returns with what its compiled form returns; both start from the same random state."""
    state = torch.get_rng_state()
    results = []
    for call in (subject.model, compiled):
        torch.set_rng_state(state)
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (subject.args, subject.kwargs))
        with torch.no_grad():
            leaves, _ = torch.utils._pytree.tree_flatten(call(*args, **kwargs))
        results.append([v for v in leaves if isinstance(v, torch.Tensor)])
    rows = []
    true: list[torch.Tensor] | None = None
    for i, (expected, got) in enumerate(zip(*results, strict=True)):
        measured = measure(got, expected, tolerance)
        if not measured.ok:
            true = _truth_of_model(subject, state) if true is None else true
            if len(true) == len(results[0]):
                measured = judge.judge(got, expected, tolerance, true[i])
        rows.append(ComparisonRow("whole model", f"result {i}", "", i, "", "", "", "", measured))
    return rows


def compare_layered(
    subject: Subject, layered: Layered, compiler: Callable[..., Any], tolerance: Tolerance = Tolerance()
) -> list[ComparisonRow] | None:
    """As ``compare_whole``, of a graph that is known already; None if that does not settle it.

    Args:
        compiler: Makes of an ATen graph and its fake inputs what takes a list of arguments.
    """
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (subject.args, subject.kwargs))
    with torch.no_grad():
        expected = [v for v in torch.utils._pytree.tree_leaves(subject.model(*args, **kwargs))]
        compiled = compiler(layered.untouched(), layered.fakes)
        copies = [v if isinstance(v, torch.nn.Parameter) else v.clone() for v in layered.args]
        got = list(compiled(copies))
    same = [isinstance(e, torch.Tensor) and isinstance(g, torch.Tensor) for e, g in zip(expected, got)]
    if len(expected) != len(got) or not all(same):  # the model makes something else of the graph's results
        return None
    if any((e.shape, e.dtype) != (g.shape, g.dtype) for e, g in zip(expected, got)):
        return None
    rows = [
        ComparisonRow("whole model", f"result {i}", "", i, "", "", "", "", measure(g, e, tolerance))
        for i, (e, g) in enumerate(zip(expected, got))
    ]
    return None if any(row.wrong for row in rows) else rows


def _truth_of_model(subject: Subject, state: torch.Tensor) -> list[torch.Tensor]:
    """The results of a model in float64; none if it cannot do that."""
    torch.set_rng_state(state)
    try:
        model = copy.deepcopy(subject.model)
        model = model.double() if isinstance(model, torch.nn.Module) else model
        args, kwargs = judge.widened((subject.args, subject.kwargs))
        with torch.no_grad():
            leaves, _ = torch.utils._pytree.tree_flatten(model(*args, **kwargs))
    except Exception:  # noqa: BLE001 - somebody's model, which may say in any way that it has no such type
        return []
    return [v for v in leaves if isinstance(v, torch.Tensor)]


def save_pair(
    folder: str | os.PathLike[str], row: ComparisonRow, got: torch.Tensor, expected: torch.Tensor
) -> tuple[str, ...]:
    """Write both tensors as npy; returns their paths, expected first."""
    place = artefacts.folder(folder, OPTION)
    paths = []
    for what, value in (("expected", expected), ("got", got)):
        array = as_numpy(value)
        if array is not None:
            path = place / f"{escape.file_name(row.node)}.{row.output}.{what}.{artefacts.stamp()}.npy"
            write_npy(os.fspath(path), array, OPTION)
            paths.append(os.fspath(path))
    return tuple(paths)


def write_report(folder: str | os.PathLike[str], result: Comparison) -> Path:
    """Write ``compare_<20 digits>.json`` with every row.

    Errors: ConfigError GE1041 naming the path.
    """
    path = artefacts.folder(folder, OPTION) / f"compare_{artefacts.stamp()}.json"
    data = {**result.as_dict(), "rows": [r.as_dict() for r in result.rows]}
    artefacts.write_text(path, json.dumps(data, indent=1) + "\n", OPTION)
    return path


@dataclass(eq=False, slots=True)
class _Home:
    """A graph in a GE node, and the traced function that it was.

    Attributes:
        owner: The GE node.
        slot: Which of its graphs.
        body: The function and what its nodes became.
        outer: Where ``owner`` is; None for the graph itself.
        round: Which of its runs is under way, from 0.
        seen: Nodes that ran in this run.
    """

    owner: Node
    slot: str
    body: LoweredBody
    outer: _Home | None
    round: int = 0
    seen: set[str] = field(default_factory=set)

    @property
    def path(self) -> str:
        """``NODE/SLOT/``, as files of dumps have it."""
        return f"{self.outer.path if self.outer else ''}{self.owner.name}/{self.slot}/"

    def where(self) -> str:
        """For people: the functions that lead here, outermost first, with the rounds of loops."""
        own = f"{self.body.node.name} {self.slot}"
        own += f" round {self.round + 1}" if self.slot in ("cond", "body") else ""
        return f"{self.outer.where()}, {own}" if self.outer else own


@dataclass(frozen=True, slots=True)
class _Partner:
    """The ATen value that a GE edge is: a node, and which of its outputs if there are several."""

    fx: torch.fx.Node
    index: int | None


class SideBySide:
    """One ATen graph and its GE graph; calling it runs both and returns the eager results.

    Args:
        gm: The ATen graph.
        label: Name of the graph in rows.
        engine: What runs the GE graph.
        tolerance: When a value counts as wrong.
        add: Called with a row, what GE made, and what eager made.
        note: Called with a sentence about values that are not compared.
        isolate: Give each operator eager's inputs.
        total: Called with a row for each result of the graph.
        settle: Called with a sentence about values that may be any of several.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        label: str,
        engine: Any,
        tolerance: Tolerance,
        add: Callable[[ComparisonRow, torch.Tensor, torch.Tensor], None],
        note: Callable[[str], object] = lambda text: None,
        *,
        isolate: bool = True,
        total: Callable[[ComparisonRow], object] = lambda row: None,
        settle: Callable[[str], object] = lambda text: None,
    ) -> None:
        from ge_converters.conversion import convert_graph

        self.isolate, self.total, self.settle = isolate, total, settle
        self.open: set[torch.fx.Node] = set()  # whose values may be any of several
        self.vague = [n for n in gm.graph.nodes if judge.undefined(n)]
        self.other: Stepwise | None = None  # eager with something else in undefined elements

        self.gm, self.label, self.tolerance, self.add, self.note = gm, label, tolerance, add, note
        self.lowered = convert_graph(gm, name=label.replace(" ", "_"), keep_values=True)
        self.partners: dict[Tensor, list[_Partner]] = {}
        self.why: Counter[str] = Counter()
        self.homes: dict[int, _Home] = {}
        self.parted: set[torch.fx.Node] = set()  # whose functions ran otherwise than in eager
        self.wanted = self._read(gm, self.lowered.graph, self.lowered.values, self.lowered.bodies, None)
        self.executable = engine.compile(self.lowered.graph, {})

    def __call__(self, *args: Any) -> Any:
        with real_values():
            for home in self.homes.values():
                home.round = 0
                home.seen.clear()
            self.other = Stepwise(self.gm, args, self.wanted, _filled(1)) if self.vague else None
            eager = Stepwise(self.gm, args, self.wanted, _filled(0) if self.vague else None)
            state = torch.get_rng_state()
            with torch.no_grad():
                self.executable.run_traced(
                    self._inputs(args), lambda node, ins, outs: self._compare(eager, node, ins, outs)
                )
                results = eager.finish()
                self._totals(args, results, state)
            return results

    def _inputs(self, args: Sequence[Any]) -> list[Any]:
        """For the GE graph; what it writes is a copy."""
        written = {m.fx_index for m in self.lowered.mutations}
        inputs = [(b.fx_index in written, args[b.fx_index]) for b in self.lowered.inputs]
        return [v.clone() if copied and isinstance(v, torch.Tensor) else v for copied, v in inputs]

    def _totals(self, args: Sequence[Any], results: Any, state: torch.Tensor) -> None:
        """Run the GE graph by itself and compare its results; only what may be any of several is eager's there too."""
        if self.open:
            torch.set_rng_state(state)
            again = Stepwise(self.gm, args, self.wanted, _filled(0) if self.vague else None)
            for home in self.homes.values():
                home.round = 0
                home.seen.clear()
            got = self.executable.run_traced(
                self._inputs(args), lambda node, ins, outs: self._adopt(again, node, ins, outs)
            )
        else:
            got = self.executable.run(self._inputs(args))
        other = self.other and self.other.finish()
        true: Any = None
        for i, (binding, expected) in enumerate(zip(self.lowered.outputs, _flat(results))):
            place = getattr(binding, "ge_index", None)
            if place is None or not isinstance(expected, torch.Tensor):
                continue
            ours = got[place]
            if other is not None:
                ours = _defined(ours, expected, _flat(other)[i])
            measured = measure(ours, expected, self.tolerance)
            if not measured.ok:
                true = judge.truth_of_graph(self.gm, args) if true is None else true
                measured = judge.judge(ours, expected, self.tolerance, _flat(true)[i] if true is not None else None)
            self.total(ComparisonRow(self.label, f"result {i}", "", i, "", "", "", "", measured))

    def _read(
        self,
        gm: torch.fx.GraphModule,
        graph: Graph,
        values: Mapping[torch.fx.Node, Any],
        bodies: Sequence[LoweredBody],
        home: _Home | None,
    ) -> Wanted:
        """Find partners in a graph and in the graphs of its nodes; returns what of the ATen graph they need."""
        wanted = Wanted()
        computed = {t for n in graph.nodes for t in n.outputs}
        if home is not None:
            self.homes |= {id(n): home for n in graph.nodes}
        for node in gm.graph.nodes:
            if node.op != "call_function" or getattr(node.target, "__name__", "") == "getitem":
                continue
            value = values.get(node)
            pairs: Iterator[tuple[Any, int | None]] = (
                iter([(v, i) for i, v in enumerate(value)]) if isinstance(value, tuple) else iter([(value, None)])
            )
            inside = any(b.node is node for b in bodies)
            for edge, index in pairs:
                if not isinstance(edge, Tensor) or (inside and edge in self.partners):
                    continue  # what branches hand on is compared where it comes from
                if edge in computed and edge.node.op not in _STANDING:
                    self.partners.setdefault(edge, []).append(_Partner(node, index))
                    wanted.values[node] += 1
                else:
                    self.why[_why_unmatched(edge, computed)] += 1
        for owner in graph.nodes:
            for slot, inner in owner.subgraphs.items():
                body = next((b for b in bodies if b.graph is inner), None)
                if body is not None:
                    within = self._read(body.gm, inner, body.values, body.bodies, _Home(owner, slot, body, home))
                    wanted.inside.setdefault(body.node, {})[body.slot] = within
        for name in dict.fromkeys(b.node.name for b in bodies if b.node not in wanted.inside):
            self.note(f"{name}: no operator of the GE graph runs its functions, since nothing needs them")
        return wanted

    def _compare(self, eager: Stepwise, node: Node, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        for run, edge, got, partner, home in self._pairs(eager, node, outs):
            call = run.call_of(partner.fx)
            expected = _of(run.take(partner.fx), partner)
            if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
                continue
            other = None
            if self.other is not None and home is None:
                other = _of(self.other.take(partner.fx), partner)
            view = _view(got, expected)
            self._row(node, edge, partner, call, (view.of(got, expected), expected, other), home)
            if self.isolate or partner.fx in self.open:
                _replace(got, view.back(expected), ins)

    def _adopt(self, eager: Stepwise, node: Node, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Values that may be any of several become eager's."""
        for run, _, got, partner, _ in self._pairs(eager, node, outs):
            expected = _of(run.take(partner.fx), partner)
            if partner.fx in self.open and isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
                _replace(got, _view(got, expected).back(expected), ins)

    def _pairs(
        self, eager: Stepwise, node: Node, outs: Sequence[Any]
    ) -> Iterator[tuple[Stepwise, Tensor, Any, _Partner, _Home | None]]:
        home = self.homes.get(id(node))
        if home is not None:
            if node.name in home.seen:
                home.round += 1
                home.seen.clear()
            home.seen.add(node.name)
        pairs = [(edge, got, p) for edge, got in zip(node.outputs, outs) for p in self.partners.get(edge, ())]
        run = self._run_of(eager, home) if pairs or node.subgraphs else None
        if run is None:
            return
        for edge, got, partner in pairs:
            yield run, edge, got, partner, home
        self._close(run, node)

    def _run_of(self, eager: Stepwise, home: _Home | None) -> Stepwise | None:
        """The eager run of the function that a GE graph was; None, with a note, if eager does not come by there."""
        if home is None:
            return eager
        around = self._run_of(eager, home.outer)
        run = around and around.region(home.body.node).at(home.slot, home.round)
        if around is not None and run is None and home.body.node not in self.parted:
            self.parted.add(home.body.node)
            source, _ = _frame(home.body.node)
            self.note(f"{home.where()}: runs in the GE graph, but not in eager ({source or 'no source line'})")
        return run

    def _close(self, run: Stepwise, node: Node) -> None:
        """A GE node is done: its graphs begin anew when it runs again."""
        for inner in node.subgraphs.values():
            home = next((self.homes[id(n)] for n in inner.nodes if id(n) in self.homes), None)
            if home is not None:
                home.round = 0
                home.seen.clear()
                run.close(home.body.node)

    def _row(
        self,
        node: Node,
        edge: Tensor,
        partner: _Partner,
        call: Call,
        values: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        home: _Home | None,
    ) -> None:
        from ge_converters.base.provenance import fx_target

        fx, (got, expected, other) = partner.fx, values
        target = fx_target(fx)
        if judge.undefined(fx):
            self._may_differ(fx, "its elements are undefined")
            return
        random = judge.draws(fx)
        if random:
            self._may_differ(fx, "it draws random numbers")
        source, code = _frame(fx)
        ours = got if other is None else _defined(got, expected, other)
        measured = self._measure(partner, call, ours, expected)
        row = ComparisonRow(
            self.label,
            f"{home.path if home else ''}{node.name}",
            node.op,
            edge.index,
            fx.name,
            target,
            source,
            code,
            measured,
            random,
            home.where() if home else "",
        )
        self.add(row, got, expected)

    def _measure(self, partner: _Partner, call: Call, got: torch.Tensor, expected: torch.Tensor) -> Measure:
        measured = measure(got, expected, self.tolerance)
        target = partner.fx.target
        if not measured.ok and judge.same_by_value(target, *judge.plain(call), got, expected):
            self._may_differ(partner.fx, "equal keys may be in any order")
            return replace(measured, ok=True, bad=0)
        if not self.isolate or not (measured.max_abs or measured.bad):
            return measured
        call = judge.true(call)
        true = judge.truth(target, *call)
        if true is None:
            return measured
        size = judge.truth(target, *call, terms=True)
        return judge.judge(
            got,
            expected,
            self.tolerance,
            _of(true, partner),
            terms=None if size is None else _of(size, partner),
            pointwise=torch.Tag.pointwise in getattr(target, "tags", ()),
        )

    def _may_differ(self, fx: torch.fx.Node, why: str) -> None:
        if fx not in self.open:
            self.open.add(fx)
            self.settle(f"{fx.name}: {why}")


def _of(value: Any, partner: _Partner) -> Any:
    return value if partner.index is None else value[partner.index]


def _flat(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else (results,)


@dataclass(frozen=True, slots=True)
class _View:
    """How a value of the GE graph is eager's: GE passes take transposes into operators, and reshapes away.

    Attributes:
        order: The dimensions of the GE value as eager has them; None if both have the same sizes.
        sizes: The sizes of the GE value in that order, which eager may have joined or split.
    """

    order: tuple[int, ...] | None = None
    sizes: tuple[int, ...] = ()

    def of(self, got: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A GE value as eager has it."""
        return got if self.order is None else got.permute(self.order).reshape(like.shape)

    def back(self, expected: torch.Tensor) -> torch.Tensor:
        """Eager's value as the GE graph has it."""
        if self.order is None:
            return expected
        return expected.reshape(self.sizes).permute([self.order.index(i) for i in range(len(self.order))])


def _view(got: torch.Tensor, expected: torch.Tensor) -> _View:
    """The nearest of the views that have eager's sizes."""
    if got.shape == expected.shape or got.numel() != expected.numel() or got.dim() > _VIEWED:
        return _View()
    orders = [
        o
        for o in itertools.permutations(range(got.dim()))
        if got.dim() != expected.dim() or got.permute(o).shape == expected.shape
    ]
    views = [_View(o, tuple(got.permute(o).shape)) for o in orders]
    if len(views) < 2:
        return views[0] if views else _View()
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    return min(views, key=lambda v: float((v.of(got, expected).to(wide) - expected.to(wide)).abs().nan_to_num().sum()))


def _replace(got: torch.Tensor, expected: torch.Tensor, ins: Sequence[Any]) -> None:
    """Let a value of the engine be eager's from here on; not what is an operand too, whose memory is somebody's."""
    if any(got is value for value in ins) or got.shape != expected.shape or got.dtype is not expected.dtype:
        return
    got.data = expected.detach().clone(memory_format=torch.contiguous_format)


def _filled(number: int) -> Callable[[torch.fx.Node, Any], Any]:
    """What stands for undefined elements."""

    def stand_in(node: torch.fx.Node, value: Any) -> Any:
        return torch.full_like(value, number) if judge.undefined(node) else value

    return stand_in


def _defined(got: torch.Tensor, expected: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Ours, with eager's elements where those depend on what lay in memory."""
    if not (got.shape == expected.shape == other.shape) or got.dtype is not expected.dtype:
        return got
    free = (expected != other) & ~((expected != expected) & (other != other))
    return torch.where(free, expected, got)


def _why_unmatched(edge: Tensor, graph: set[Tensor]) -> str:
    if edge not in graph:
        return "the GE passes joined or removed its operator"
    return "is a constant of the GE graph" if edge.node.op != "Data" else "is an input of the GE graph as it stands"


def _frame(fx: torch.fx.Node) -> tuple[str, str]:
    from ge_converters.base.provenance import user_frame

    return user_frame(fx)
