"""Which operator costs the digits: a graph with the rounding of a chip, beside the same graph without.

The engine runs the graph as it is, with everything rounded as the chip rounds (engine option ``engine.numerics``), and
with only some operators rounded. What one operator costs is how far the results of the graph move when it alone rounds:
what it loses itself, times what the rest of the graph makes of that. Operators are halved into groups, and groups that
move nothing much are not opened, so that few runs find the few that count.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import real_values
from ge_graph import escape
from ge_graph.errors import ConfigError
from tair_debug.measure import DEFAULTS
from tair_debug.models import Subject
from tair_debug.terminal import Answer, Detail, place, sentence
from tair_debug.tracing import run_with, traceable

if TYPE_CHECKING:
    from tair_debug.terminal import Part

NUMERICS: Final = "engine.numerics"
_ONLY: Final = "engine.numerics_of"
_SHOWN: Final = 5
_RUNS: Final = 64  # a graph, besides the first two


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operator costs.

    Attributes:
        graph: ``forward 1`` and the like.
        node: The GE operator; with the way to it if it stands in the graph of another.
        op: Its type.
        rounds: What it rounds.
        moved: How far the results move when it alone rounds: the largest, over results, of the length of the difference
            over the length of the result. Infinite where a result is no longer finite.
        fx: Name of the FX node.
        source: The user's line; the module's path where no line is the user's.
        code: Text of that line.
    """

    graph: str
    node: str
    op: str
    rounds: str
    moved: float
    fx: str
    source: str
    code: str


@dataclass(repr=False)
class Digits(Answer):
    """What the rounding of a chip does to a model.

    Attributes:
        chip: The value of ``engine.numerics``.
        moved: For each graph how far its results move when everything rounds.
        costs: Operators, the dearest first.
        rounded: How many operators round.
        untried: How many of them stayed in groups that were not opened.
        tolerance: What may be moved in the types of the results.
        notes: What the chip's rounding does not reach.
    """

    chip: str
    moved: dict[str, float] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    rounded: int = 0
    untried: int = 0
    tolerance: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the results stay within the tolerance of their types."""
        return all(m <= self.tolerance for m in self.moved.values())

    @property
    def first(self) -> Cost | None:
        """The operator that costs most."""
        return self.costs[0] if self.costs and self.costs[0].moved > 0 else None

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        for name, moved in self.moved.items():
            text = f" the results move by {moved:.1e}; {digits_of(moved):.1f} digits are left"
            yield sentence(escape.line(text), f"{name}, {self.chip}:", "green" if moved <= self.tolerance else "red")
        if detail.quiet:
            return
        if self.first is None:
            yield sentence(f"no rounding of {self.chip} changes a result ({self.rounded} operators round)")
        for at, cost in enumerate(self.costs if detail.every else self.costs[:_SHOWN]):
            if not cost.moved:
                break
            lead = "costs most:" if not at else "next:"
            said = f" {cost.node} ({cost.op}), {cost.graph}: {cost.moved:.1e} by itself, {cost.rounds}"
            yield sentence(escape.line(said), lead, "red" if not at and not self.ok else "")
            if cost.source:
                yield sentence(escape.line(f"  {place(cost.source)}: {cost.code}"))
        if self.untried:
            yield sentence(f"{self.untried} of {self.rounded} operators that round were looked at in groups only")
        for text in self.notes:
            yield sentence(escape.line(f"note: {text}"))

    def records(self) -> list[dict[str, Any]]:
        return [asdict(c) for c in self.costs]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; infinity becomes a text."""

        def plain(value: Any) -> Any:
            return str(value) if isinstance(value, float) and not math.isfinite(value) else value

        return {
            "ok": self.ok,
            "chip": self.chip,
            "moved": {k: plain(v) for k, v in self.moved.items()},
            "tolerance": self.tolerance,
            "rounded": self.rounded,
            "untried": self.untried,
            "costs": [{k: plain(v) for k, v in asdict(c).items()} for c in self.costs],
            "notes": list(self.notes),
        }


def digits_of(moved: float) -> float:
    """How many decimal digits a relative difference leaves; 0 at least."""
    return 0.0 if not math.isfinite(moved) else max(0.0, min(17.0, -math.log10(moved))) if moved else 17.0


def weigh_model(
    subject: Subject,
    *,
    engine: Any,
    chip: str,
    options: Mapping[str, str] | None = None,
    backward: bool = False,
    dynamic: bool = False,
    rtol: float | None = None,
) -> Digits:
    """Run a model's GE graphs with the numbers of a chip and without, and say which operators cost the digits.

    Args:
        subject: The model with real inputs.
        engine: What runs the GE graphs; its executables must have ``rounded``.
        chip: As the engine takes it: ``ascend910b``.
        options: GE's options of precision, by their keys.
        backward: Also the backward pass.
        dynamic: Trace with symbolic sizes.
        rtol: How far results may move; by default what their types lose over a deep network.

    Errors: LoweringError, GraphError and EngineError as compiling has them; ConfigError GE1044 for an engine that does
        not round as a chip does.
    """
    made = Digits(chip)
    chosen = {**(options or {}), NUMERICS: chip}

    def side_by_side(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        label = f"{phase} {1 + sum(name.startswith(phase) for name in made.moved)}"
        made.moved[label] = 0.0
        pair = _Pair(gm, label, engine, chosen, made, rtol)

        def run(*args: Any) -> Any:
            with real_values(), torch.no_grad():
                pair.weigh(args)
                return gm(*args)

        return run

    with traceable(subject):
        run_with(subject, side_by_side, backward=backward, dynamic=dynamic)
    made.costs.sort(key=lambda c: -c.moved)
    return made


class _Pair:
    """One ATen graph as GE graph, with rounding and without."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        label: str,
        engine: Any,
        options: Mapping[str, str],
        into: Digits,
        rtol: float | None,
    ) -> None:
        from ge_converters.conversion import convert_graph

        self.label, self.engine, self.options, self.into, self.rtol = label, engine, options, into, rtol
        with real_values():
            self.lowered = convert_graph(gm, name=label.replace(" ", "_"))
            self.plain = engine.compile(self.lowered.graph, {})

    def _results(self, executable: Any, args: Sequence[Any], state: torch.Tensor) -> list[torch.Tensor]:
        torch.set_rng_state(state)
        written = {m.fx_index for m in self.lowered.mutations}
        given = [
            args[b.fx_index].clone()
            if b.fx_index in written and isinstance(args[b.fx_index], torch.Tensor)
            else args[b.fx_index]
            for b in self.lowered.inputs
        ]
        return [r for r in executable.run(given) if r.dtype.is_floating_point]

    def weigh(self, args: Sequence[Any]) -> None:
        """Fill in what this graph's operators cost on these inputs."""
        if not self.lowered.graph.nodes:
            return
        state = torch.get_rng_state()
        whole = self.engine.compile(self.lowered.graph, self.options)
        rules = getattr(whole, "rounded", None)
        if rules is None:
            raise ConfigError(
                "GE1044",
                f"engine {getattr(self.engine, 'name', '?')!r} does not round as a chip does",
                next="leave --engine out: the embedded engine does",
            )
        wanted = self._results(self.plain, args, state)
        self.into.tolerance = max(
            [
                self.into.tolerance,
                *(DEFAULTS.get(w.dtype, (0.0, 0.0))[0] if self.rtol is None else self.rtol for w in wanted),
            ]
        )
        moved = self.into.moved
        moved[self.label] = max(moved[self.label], _moved(self._results(whole, args, state), wanted))
        self.into.rounded += len(rules)

        def alone(part: Sequence[Any]) -> float:
            only = {**self.options, _ONLY: json.dumps([rule.path for rule in part])}
            return _moved(self._results(self.engine.compile(self.lowered.graph, only), args, state), wanted)

        found, left = _dearest(rules, alone)
        self.into.untried += left
        for rule, cost in found:
            p = rule.node.provenance
            self.into.costs.append(
                Cost(
                    self.label,
                    rule.path,
                    rule.node.op,
                    rule.text,
                    cost,
                    p.fx_name if p else "",
                    (p.source or p.module) if p else "",
                    p.code.strip() if p else "",
                )
            )
        torch.set_rng_state(state)


def _dearest(rules: Sequence[Any], alone: Callable[[Sequence[Any]], float]) -> tuple[list[tuple[Any, float]], int]:
    """Operators and what they cost, and how many were not looked at by themselves.

    The dearest group is opened first. A group whose operators cancel each other is misjudged: the first ones are small.
    """
    if len(rules) <= 2 * _RUNS:  # groups would save little
        return [(rule, alone([rule])) for rule in rules], 0
    count = itertools.count()
    size = math.ceil(len(rules) / (_RUNS // 4))
    groups = [rules[i : i + size] for i in range(0, len(rules), size)]
    heap = [(-alone(group), next(count), group) for group in groups]
    heapq.heapify(heap)
    runs, found = len(groups), []
    while heap and (runs + 2 <= _RUNS or len(heap[0][2]) == 1):
        cost, _, group = heapq.heappop(heap)
        if len(group) == 1:
            found.append((group[0], -cost))
            continue
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            heapq.heappush(heap, (-alone(half), next(count), half))
        runs += 2
    return found, sum(len(group) for _, _, group in heap)


def _moved(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest relative difference of results; infinite where one is no longer finite."""
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        left, right = a.detach().double(), b.detach().double()
        same = (a == b) | (left.isnan() & right.isnan())
        error = torch.where(same, 0.0, left - right)
        if not bool(error.isfinite().all()):
            return math.inf
        size = float(torch.where(right.isfinite(), right, 0.0).norm())
        difference = float(error.norm())
        worst = max(worst, difference / size if size else math.inf if difference else 0.0)
    return worst
