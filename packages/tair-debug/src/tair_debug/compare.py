"""Where the numbers go wrong: eager and GE side by side, operator by operator.

The ATen graph runs eagerly and the GE graph runs on an engine, in step with each other. Every GE result that an ATen
value became is compared with it as soon as both exist, then both are dropped, so memory is that of two runs.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.base.torch_compat import real_values
from ge_graph import Graph, Node, Tensor, escape
from ge_graph.errors import ConfigError, GeError
from tair_debug import artefacts
from tair_debug.data_dump import as_numpy, write_npy
from tair_debug.measure import Measure, Tolerance, measure
from tair_debug.tracing import Subject, run_with, untraceable

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
        saved: Files of the first wrong pair, expected and got.
        totals: Final results of the model, eager against compiled as a whole.
    """

    rows: list[ComparisonRow] = field(default_factory=list)
    unmatched: int = 0
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

    def side_by_side(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        graphs[phase] += 1
        with real_values():
            pair = SideBySide(gm, f"{phase} {graphs[phase]}", engine, tolerance, add)
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


class SideBySide:
    """One ATen graph and its GE graph; calling it runs both and returns the eager results.

    Args:
        gm: The ATen graph.
        label: Name of the graph in rows.
        engine: What runs the GE graph.
        tolerance: When a value counts as wrong.
        add: Called with a row, what GE made, and what eager made.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        label: str,
        engine: Any,
        tolerance: Tolerance,
        add: Callable[[ComparisonRow, torch.Tensor, torch.Tensor], None],
    ) -> None:
        from ge_converters.conversion import convert_graph

        self.gm, self.label, self.tolerance, self.add = gm, label, tolerance, add
        self.lowered = convert_graph(gm, name=label.replace(" ", "_"), keep_values=True)
        self.partners, self.unmatched = _partners(gm, self.lowered.values, self.lowered.graph)
        self.executable = engine.compile(self.lowered.graph, {})

    def __call__(self, *args: Any) -> Any:
        with real_values():
            eager = Stepwise(self.gm, args, Counter(n for ns in self.partners.values() for n, _ in ns))
            written = {m.fx_index for m in self.lowered.mutations}
            inputs = [args[b.fx_index] for b in self.lowered.inputs]
            inputs = [
                v.clone() if b.fx_index in written else v for b, v in zip(self.lowered.inputs, inputs, strict=True)
            ]
            self.executable.run_traced(inputs, lambda node, ins, outs: self._compare(eager, node, outs))
            return eager.finish()

    def _compare(self, eager: Stepwise, node: Node, outs: Sequence[Any]) -> None:
        for edge, got in zip(node.outputs, outs):
            for fx, index in self.partners.get(edge, ()):
                value = eager.take(fx)
                expected = value if index is None else value[index]
                if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
                    self._row(node, edge, fx, got, expected)

    def _row(self, node: Node, edge: Tensor, fx: torch.fx.Node, got: torch.Tensor, expected: torch.Tensor) -> None:
        from ge_converters.base.provenance import fx_target, user_frame

        target = fx_target(fx)
        if target.startswith(_UNDEFINED):
            return
        source, code = user_frame(fx)
        measured = measure(got, expected, self.tolerance)
        row = ComparisonRow(
            self.label, node.name, node.op, edge.index, fx.name, target, source, code, measured, _is_random(fx)
        )  # fmt: skip
        self.add(row, got, expected)


def _is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


Partner = tuple[torch.fx.Node, "int | None"]


def _partners(gm: torch.fx.GraphModule, env: Any, graph: Graph) -> tuple[dict[Tensor, list[Partner]], int]:
    """GE edge to the ATen values that it is, and the number of ATen values that no edge is any more."""
    computed = {t for n in graph.nodes for t in n.outputs}
    partners: dict[Tensor, list[Partner]] = {}
    missing = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or getattr(node.target, "__name__", "") == "getitem":
            continue
        value = env.get(node)
        pairs: Iterator[tuple[Any, int | None]] = (
            iter([(v, i) for i, v in enumerate(value)]) if isinstance(value, tuple) else iter([(value, None)])
        )
        for edge, index in pairs:
            if isinstance(edge, Tensor) and edge in computed:
                partners.setdefault(edge, []).append((node, index))
            elif isinstance(edge, Tensor):
                missing += 1
    return partners, missing


class Stepwise(torch.fx.Interpreter):  # type: ignore[misc]
    """An ATen graph that runs as far as somebody asks, and forgets what nobody needs.

    Args:
        gm: The graph.
        args: Its inputs.
        wanted: Nodes to how often their values will be asked for.
    """

    def __init__(self, gm: torch.fx.GraphModule, args: Sequence[Any], wanted: Counter[torch.fx.Node]) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.args_iter = iter(args)
        self._todo = iter(gm.graph.nodes)
        self._wanted = wanted
        self._kept: dict[torch.fx.Node, Any] = {}
        self._result: Any = None

    def take(self, node: torch.fx.Node) -> Any:
        """The value of a node, computed with everything before it; forgotten when it is asked for the last time."""
        while node not in self._kept:
            self._step()
        self._wanted[node] -= 1
        return self._kept[node] if self._wanted[node] else self._kept.pop(node)

    def finish(self) -> Any:
        """Compute the rest; returns the graph's results."""
        while self._step():
            pass
        return self._result

    def _step(self) -> bool:
        node = next(self._todo, None)
        if node is None:
            return False
        value = self.env[node] = self.run_node(node)
        if self._wanted[node]:
            self._kept[node] = value
        if node.op == "output":
            self._result = value
        for done in self.user_to_last_uses.get(node, ()):
            self.env.pop(done, None)
        return True
