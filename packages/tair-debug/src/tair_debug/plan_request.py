"""What `tair plan` is asked: a model or a graph, a chip, sizes; and the same with something changed."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ge_converters.base.errors import LoweringError
from ge_graph import Graph, Node, cost, escape, kernels
from ge_graph.cost import chips, measured, symbols
from ge_graph.errors import ConfigError, GraphError
from tair_debug import cut, plan, tracing
from tair_debug.graph_file import read_graph
from tair_debug.graph_page import save_pages, to_html
from tair_debug.models import Subject
from tair_debug.options import Asked
from tair_debug.refused import RefusedCall, told_of
from tair_debug.targets import is_model
from tair_debug.terminal import REFUSED, Answer, Detail, sentence

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from tair_debug.terminal import Part

_UNITS: Final = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_CORES: Final = re.compile(r"(\d{1,4})\|(\d{0,4})")
_CHANGES: Final = (
    "soc=ascend950",
    "model=FILE.py:other",
    "config=FILE.py:make_config",
    "aicore_num=12|24",
    "reuse=no",
    "calibrate=op_summary.csv",
)
_ARCHIVES: Final = ("compiled_graph.air", "rank_0/compiled_graph0.air")


@dataclass(frozen=True)
class Request:
    """One plan that is asked for.

    Attributes:
        source: The name of a model, a graph or an archive, or a model that exists.
        asked: How the model is to be taken.
        soc: The chip.
        sizes: Symbol to its values.
        by: What the table adds up.
        calibrate: A table of measured times.
        aicore_num: Limits of cores, ``12|24``; else those of the config.
        reuse: Whether memory is used again.
        title: What it is called beside others.
    """

    source: str | Subject
    asked: Asked = Asked()
    soc: str = "ascend910b"
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by: str = "operator"
    calibrate: Path | None = None
    aicore_num: str = ""
    reuse: bool = True
    title: str = ""

    @property
    def called(self) -> str:
        """What messages call the source."""
        return self.source if isinstance(self.source, str) else self.source.name

    def changed(self, text: str) -> Request:
        """The same with one thing changed, as ``--compare`` says it: ``soc=ascend950``, ``s0=8192``.

        Errors: ConfigError GE1049 for a text without ``=``.
        """
        name, mark, value = text.partition("=")
        if not mark or not value:
            raise _bad(f"--compare {escape.line(text, 200)}", f"one of {', '.join(_CHANGES)}, or a size, s0=8192")
        titled = replace(self, title=text)
        if name == "soc":
            return replace(titled, soc=value)
        if name == "model":
            return replace(titled, source=value)
        if name == "aicore_num":
            return replace(titled, aicore_num=value)
        if name == "config":
            return replace(titled, asked=replace(self.asked, config=value))
        if name == "calibrate":
            return replace(titled, calibrate=Path(value))
        if name == "reuse":
            if value not in ("yes", "no"):
                raise _bad(f"--compare {escape.line(text, 200)}", "reuse=yes or reuse=no")
            return replace(titled, reuse=value == "yes")
        return replace(titled, sizes={**self.sizes, **sizes_of([text])})


def _bad(what: str, give: str) -> ConfigError:
    return ConfigError("GE1049", f"{what} is not understood", next=f"give {give}")


def sizes_of(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Symbol to its values, from ``s0=1,8,32``.

    Errors: ConfigError GE1049 for another form.
    """
    found = {}
    for text in texts:
        name, _, values = text.partition("=")
        parts = values.split(",")
        if not name.isidentifier() or not all(p.strip().isdecimal() and len(p.strip()) < 16 for p in parts):
            raise _bad(f"--size {escape.line(text, 200)}", "a symbol and numbers, s0=1024 or s0=1,8,32")
        found[name] = tuple(int(p) for p in parts)
    return found


def size_of(text: str) -> int:
    """Bytes of ``64GiB``.

    Errors: ConfigError GE1049 for another form.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise _bad(f"--memory-limit {escape.line(text, 200)}", "a number and a unit, 64GiB or 64GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def cores_of(text: str) -> tuple[int, int]:
    """Cube and vector cores of ``12|24``, as option ``ge.aicoreNum`` is written; nothing is no limit.

    Errors: ConfigError GE1049 for another form.
    """
    if not text:
        return 0, 0
    match = _CORES.fullmatch(text.strip())
    if match is None:
        raise _bad(f"--aicore-num {escape.line(text, 200)}", "numbers of cube and vector cores, 12|24")
    return int(match[1]), int(match[2] or 0)


@dataclass
class _Subject:
    """The graphs of one model, made once for all plans that ask for them."""

    graphs: Callable[[kernels.Oracle | None], tracing.Formed]
    hints: dict[str, int]
    weights: list[set[str]]
    aicore_num: str = ""
    parts: Sequence[cut.Cut] = ()


def made(requests: Sequence[Request]) -> list[plan.Plan]:
    """The plans.

    Errors: ConfigError 1xxx, GraphError 3xxx, ArchiveError 5xxx for what cannot be read, traced or understood.
    """
    if requests[0].by not in plan.BY:
        raise _bad(f"--by {escape.line(requests[0].by, 200)}", ", ".join(plan.BY))
    subjects: dict[Any, _Subject] = {}
    plans = []
    for each in requests:
        key = (each.source if isinstance(each.source, str) else id(each.source), each.asked)
        if key not in subjects:
            subjects[key] = _subject(each)
        plans.append(_made(each, subjects[key]))
    return plans


def _made(request: Request, subject: _Subject) -> plan.Plan:
    figures = chips.figures(request.soc)
    limits = cores_of(request.aicore_num or subject.aicore_num)
    for limit, name in zip(limits, ("cube_cores", "vector_cores")):
        has = figures.get(name)
        if has is not None and limit > has:
            raise GraphError(
                "GE3073",
                f"{limit} {name.replace('_', ' ')} asked for, {figures.chip} has {has:.0f}; GE refuses that",
                next="ask for fewer",
            )
    oracle = _oracle(figures)
    times = None if request.calibrate is None else measured.read(request.calibrate)
    shares = {} if times is None else plan.calibrated(times, figures)
    formed = subject.graphs(oracle)
    graphs = formed.graphs
    known = {s for g in graphs for s in symbols(g)}
    strange = [name for name in request.sizes if name not in known]
    if strange:
        raise _bad(f"size {', '.join(strange)}", f"symbols of the graph: {', '.join(sorted(known)) or 'it has none'}")
    open_ = sorted(known - request.sizes.keys() - subject.hints.keys())
    if open_:
        raise GraphError(
            "GE3072",
            f"{escape.line(request.called, 300)}: sizes are open: {', '.join(open_)}",
            next=f"give their values: --size {open_[0]}=128",
        )
    settings = plan.Settings(figures, oracle, request.sizes, limits, request.reuse, times, shares)
    found = plan.of(graphs, settings, title=request.title, hints=subject.hints, weights=subject.weights)
    found.refused = [call for part in subject.parts for call in part.refused]
    found.rejoin = functools.partial(_rejoined, subject.parts, formed.lowered)
    found.notes += [f"form: {count} x {choice}" for choice, count in Counter(map(str, formed.choices)).items()]
    return found


def _rejoined(parts: Sequence[cut.Cut], lowered: Sequence[Lowered]) -> dict[Node, RefusedCall]:
    return {node: call for pair in zip(parts, lowered) for node, call in cut.rejoin(*pair).items()}


def _oracle(figures: chips.Figures) -> kernels.Oracle | None:
    try:
        return kernels.oracle(figures.family)
    except GraphError:  # figures are known, kernels are not: units are by operator alone
        return None


def _subject(request: Request, *, cutting: bool = True) -> _Subject:
    """``cutting``: without the calls that cannot be converted; else they are an error."""
    asked, source = request.asked, request.source
    if isinstance(source, str) and not is_model(source):
        graph = read_graph(_file(Path(source)))
        return _Subject(lambda oracle: tracing.Formed([graph]), {}, [])
    subject = asked.subject(source) if isinstance(source, str) else source
    aicore_num = "" if subject.config is None else str(subject.config.ge_config.aicore_num.value or "")
    captured = tracing.capture(subject, backward=asked.backward, dynamic=asked.dynamic, fake=not asked.real)
    hints: dict[str, int] = {}
    for each in captured:
        hints.update(tracing.size_hints(each.gm))
    gms = [each.gm for each in captured]
    parts: list[cut.Cut] = []
    try:
        graphs = tracing.for_chips(gms)
    except LoweringError as error:
        if not cutting or error.code != REFUSED:
            raise
        parts = [cut.cut(gm, keep=True) for gm in gms]
        graphs = tracing.for_chips([part.gm for part in parts])
    return _Subject(graphs, hints, [each.weights for each in captured], aicore_num, parts)


def _file(path: Path) -> Path:
    """The graph of an archive, or the file itself."""
    return next((path / name for name in _ARCHIVES if (path / name).is_file()), path)


def write_pages(made_plan: plan.Plan, path: Path) -> list[Path]:
    """One page a graph: PATH, then PATH with ``_2``, ..."""
    pages = [functools.partial(to_html, e.graph, figures=plan.node_data(e)) for e in made_plan.graphs]
    return save_pages(path, pages, "tair plan --page")


@dataclass(repr=False)
class Plans(Answer):
    """Plans side by side, the first one in full.

    Attributes:
        plans: The plans.
        by: What tables add up.
        limit: Bytes that no plan may exceed, by the estimate.
        written: Pages that were written.
    """

    plans: list[plan.Plan]
    by: str = "operator"
    limit: int | None = None
    written: list[Path] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no plan needs more memory than the limit, or lacks a call that cannot be converted."""
        return not self._exceeded and not any(p.refused for p in self.plans)

    @property
    def _exceeded(self) -> bool:
        return self.limit is not None and any(p.memory_total > self.limit for p in self.plans)

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        """The answers, the table, what is left out, and what each figure is."""
        yield from told_of(self.plans[0].refused)
        yield from (sentence(line) for line in plan.headlines(self.plans[0]))
        yield plan.to_table(self.plans[0], self.by)
        if len(self.plans) > 1:
            yield plan.beside(self.plans)
        for note in dict.fromkeys(note for each in self.plans for note in each.notes):
            yield sentence(f"note: {note}")
        for origin in dict.fromkeys(origin for each in self.plans for origin in each.origins):
            yield sentence(origin)
        for name, value in self.plans[0].shares.items():
            yield sentence(f"calibrated: {name} {value:.3g}")
        for path in self.written:
            yield sentence(f"written: {path}")
        if self._exceeded:
            yield sentence(f" {plan.size_text(self.limit)}", "more memory is needed than", "red")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "memory_limit": self.limit,
            "refused": [r.as_dict() for r in self.plans[0].refused],
            "plans": [p.as_dict(self.by) for p in self.plans],
            "written": [str(p) for p in self.written],
        }

    def records(self) -> list[dict[str, Any]]:
        return [
            {"title": each.title, "graph": graph.graph.name, **group.as_dict()}
            for each in self.plans
            for graph in each.graphs
            for group in graph.groups(self.by)
        ]


def graphs_of(
    subject: Subject, sizes: Mapping[str, int], soc: str | None, *, backward: bool, dynamic: bool
) -> tuple[list[Graph], dict[str, int]]:
    """The graphs of a model in the forms of a chip, and the values of all of their sizes.

    Errors: as ``made``.
    """
    own = _subject(Request(subject, Asked(backward=backward, dynamic=dynamic)), cutting=False)
    oracle = None if soc is None else _oracle(chips.figures(soc))
    return own.graphs(oracle).graphs, {**own.hints, **sizes}


def cost_analysis(graphs: Sequence[Graph], sizes: Mapping[str, int], soc: str | None) -> dict[str, float]:
    """Sums over graphs under the names of JAX, see ``ge_graph.cost.cost_analysis``."""
    total: Counter[str] = Counter()
    for graph in graphs:
        total.update(cost.cost_analysis(graph, sizes, soc))
    return dict(total)


def memory_analysis(graphs: Sequence[Graph], sizes: Mapping[str, int]) -> cost.MemoryAnalysis:
    """Memory of the graph that needs most, under the names of JAX, see ``ge_graph.cost.memory_analysis``."""
    return max((cost.memory_analysis(g, sizes) for g in graphs), key=lambda found: found.peak_memory_in_bytes)
