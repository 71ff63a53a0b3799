"""Where the numbers go wrong: eager and GE side by side, operator by operator.

The ATen graph runs eagerly and the GE graph runs on an engine, in step with each other. Every GE result that an ATen
value became is compared with it as soon as both exist, then both are dropped, so memory is that of two runs. The same
holds inside branches, called regions and loops, round by round.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import real_values
from ge_graph import Graph, Node, Tensor, escape
from ge_graph.errors import ConfigError, GeError
from tair_debug import artefacts
from tair_debug.data_dump import as_numpy, write_npy
from tair_debug.measure import Measure, Tolerance, measure
from tair_debug.stepwise import Stepwise, Wanted
from tair_debug.tracing import Subject, run_with, untraceable

if TYPE_CHECKING:
    from ge_converters.lowering.control_flow import LoweredBody

OPTION: Final = "tair compare --output"
ENGINES: Final = "ge_runtime.engines"
_UNDEFINED: Final = ("aten.empty", "aten.new_empty")


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

    def as_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "measure"}
        return {**plain, **self.measure.as_dict()}


@dataclass
class Comparison:
    """The result.

    Attributes:
        rows: All comparisons, in the order the operators ran.
        unmatched: Values without a partner on the other side.
        notes: Branches and loops that could not be looked into, by name, and why.
        saved: Files of the first wrong pair, expected and got.
        totals: Final results of the model, eager against compiled as a whole.
    """

    rows: list[ComparisonRow] = field(default_factory=list)
    unmatched: int = 0
    notes: list[str] = field(default_factory=list)
    saved: tuple[str, ...] = ()
    totals: list[ComparisonRow] = field(default_factory=list)

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
        return self.first is None and not any(r.wrong for r in self.totals)

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "compared": len(self.rows),
            "unmatched": self.unmatched,
            "notes": list(self.notes),
            "first": self.first.as_dict() if self.first else None,
            "random": self.random.as_dict() if self.random else None,
            "saved": list(self.saved),
            "totals": [r.as_dict() for r in self.totals],
            "wrong": [r.as_dict() for r in self.rows if r.wrong],
        }


def engine(name: str = "cpu") -> Any:
    """An installed engine.

    Errors: ConfigError GE1044 if there is none of that name.
    """
    engines = {e.name: e for e in importlib.metadata.entry_points(group=ENGINES)}
    if name not in engines:
        raise ConfigError(
            "GE1044", f"no engine {name!r}; installed: {', '.join(sorted(engines)) or 'none'}",
            next="install ge-runtime-native[cpu] for the embedded engine",
        )  # fmt: skip
    return engines[name].load()()


def compare_model(
    subject: Subject,
    *,
    engine: Any,
    tolerance: Tolerance = Tolerance(),
    backward: bool = False,
    dynamic: bool = False,
    output: str | os.PathLike[str] | None = None,
    on_row: Callable[[ComparisonRow], None] = lambda row: None,
) -> Comparison:
    """Run a model eager and as GE graphs, and compare operator by operator.

    Args:
        subject: The model with real inputs.
        engine: What runs the GE graphs; its executables must have ``run_traced``.
        tolerance: When a value counts as wrong.
        backward: Also compare the backward pass.
        dynamic: Trace with symbolic sizes.
        output: Existing folder for the first wrong pair; None saves nothing.
        on_row: Called with each comparison as it is made.

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

    def side_by_side(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        graphs[phase] += 1
        with real_values():
            label = f"{phase} {graphs[phase]}"
            pair = SideBySide(gm, label, engine, tolerance, add, lambda text: note(f"{label}, {text}"))
        result.unmatched += pair.unmatched
        return pair

    try:
        run_with(subject, side_by_side, backward=backward, dynamic=dynamic)
    except GeError:
        raise
    except Exception as error:
        raise untraceable(subject, error, fake=False) from error
    return result


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
    return [
        ComparisonRow("whole model", f"result {i}", "", i, "", "", "", "", measure(got, expected, tolerance))
        for i, (expected, got) in enumerate(zip(*results, strict=True))
    ]


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
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        label: str,
        engine: Any,
        tolerance: Tolerance,
        add: Callable[[ComparisonRow, torch.Tensor, torch.Tensor], None],
        note: Callable[[str], object] = lambda text: None,
    ) -> None:
        from ge_converters.conversion import convert_graph

        self.gm, self.label, self.tolerance, self.add, self.note = gm, label, tolerance, add, note
        self.lowered = convert_graph(gm, name=label.replace(" ", "_"), keep_values=True)
        self.partners: dict[Tensor, list[_Partner]] = {}
        self.unmatched = 0
        self.homes: dict[int, _Home] = {}
        self.parted: set[torch.fx.Node] = set()  # whose functions ran otherwise than in eager
        self.wanted = self._read(gm, self.lowered.graph, self.lowered.values, self.lowered.bodies, None)
        self.executable = engine.compile(self.lowered.graph, {})

    def __call__(self, *args: Any) -> Any:
        with real_values():
            for home in self.homes.values():
                home.round = 0
                home.seen.clear()
            eager = Stepwise(self.gm, args, self.wanted)
            written = {m.fx_index for m in self.lowered.mutations}
            inputs = [args[b.fx_index] for b in self.lowered.inputs]
            inputs = [
                v.clone() if b.fx_index in written else v for b, v in zip(self.lowered.inputs, inputs, strict=True)
            ]
            self.executable.run_traced(inputs, lambda node, ins, outs: self._compare(eager, node, outs))
            return eager.finish()

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
                if edge in computed:
                    self.partners.setdefault(edge, []).append(_Partner(node, index))
                    wanted.values[node] += 1
                else:
                    self.unmatched += 1
        for owner in graph.nodes:
            for slot, inner in owner.subgraphs.items():
                body = next((b for b in bodies if b.graph is inner), None)
                if body is not None:
                    within = self._read(body.gm, inner, body.values, body.bodies, _Home(owner, slot, body, home))
                    wanted.inside.setdefault(body.node, {})[body.slot] = within
        for name in dict.fromkeys(b.node.name for b in bodies if b.node not in wanted.inside):
            self.note(f"{name}: no operator of the GE graph runs its functions, since nothing needs them")
        return wanted

    def _compare(self, eager: Stepwise, node: Node, outs: Sequence[Any]) -> None:
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
            value = run.take(partner.fx)
            expected = value if partner.index is None else value[partner.index]
            if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
                self._row(node, edge, partner.fx, got, expected, home)
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
        self, node: Node, edge: Tensor, fx: torch.fx.Node, got: torch.Tensor, expected: torch.Tensor, home: _Home | None
    ) -> None:
        from ge_converters.base.provenance import fx_target

        target = fx_target(fx)
        if target.startswith(_UNDEFINED):
            return
        source, code = _frame(fx)
        measured = measure(got, expected, self.tolerance)
        row = ComparisonRow(
            self.label, f"{home.path if home else ''}{node.name}", node.op, edge.index, fx.name, target, source, code,
            measured, _is_random(fx), home.where() if home else "",
        )  # fmt: skip
        self.add(row, got, expected)


def _frame(fx: torch.fx.Node) -> tuple[str, str]:
    from ge_converters.base.provenance import user_frame

    return user_frame(fx)


def _is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
