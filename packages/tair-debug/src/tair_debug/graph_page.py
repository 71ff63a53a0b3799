"""A GE graph as one self-contained page: modules fold, zoom, search, click a node for everything that is known of it.

The page arranges what is open: a model of many layers begins as its modules, and each opens where it stands.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ge_graph import Graph, Literal, Node, Tensor, escape, ports
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.errors import ConfigError
from tair_debug import artefacts
from tair_debug.terminal import Answer, Detail, sentence

if TYPE_CHECKING:
    from tair_debug.refused import RefusedCall
    from tair_debug.terminal import Part

DATA, CONTROL, SHARED = 0, 1, 2  # kinds of edges; those of a constant with many readers are drawn on demand
SOURCES: Final = frozenset(("Data", "RefData", "Const", "Constant", "ConstPlaceHolder"))
_MANY: Final = 3
_SHOWN_ITEMS: Final = 32
_LONGEST: Final = 100_000
_COLOURS: Final = ("time", "bytes", "unit", "error", "difference")
Figures: TypeAlias = Mapping[Node, Mapping[str, Any]]


def to_html(graph: Graph, title: str = "", figures: Figures | None = None) -> str:
    """The page.

    Args:
        graph: Up to many thousand nodes.
        title: Heading; the graph's name if empty.
        figures: Node to what it is coloured by, each of it optional: ``time`` in seconds, ``bytes``, ``unit``,
            ``error``, ``difference``; and to what is said of it: ``rows`` of text, ``differs``, rows of a name
            and its value in two graphs, and ``refused``, why the call that it stands for cannot be converted.
    """
    from markupsafe import Markup

    data = Markup(escape.script(page_data(graph, figures)))
    return render("graph.html.j2", title=title or graph.name, data=data)


@dataclass(repr=False)
class Page(Answer):
    """Interactive pages of GE graphs.

    Attributes:
        graphs: The graphs, in the order in which a run needs them.
        figures: What their nodes are coloured by, as ``to_html`` takes it.
        strange: Number of nodes that have an error and are not in the graphs.
        written: Files.
        refused: Nodes that stand for calls that cannot be converted.
    """

    graphs: list[Graph]
    figures: Figures = field(default_factory=dict)
    strange: int = 0
    written: list[Path] = field(default_factory=list)
    refused: Mapping[Node, RefusedCall] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figures = with_refused(self.figures, self.refused)

    @property
    def ok(self) -> bool:
        """Whether all calls could be converted."""
        return not self.refused

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        if self.refused:
            from tair_debug.refused import told_of

            yield from told_of([*self.refused.values()], in_page=True)
        if self.written:
            yield from (sentence(str(path)) for path in self.written)
        else:
            yield from (sentence(f"{escape.line(g.name)}: {len(g.nodes)} nodes") for g in self.graphs)
        if self.strange:
            yield sentence(f"{self.strange} nodes with an error are not in the graphs")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "written": [str(p) for p in self.written],
            "nodes": [len(g.nodes) for g in self.graphs],
            "refused": [r.as_dict() for r in self.refused.values()],
        }

    def records(self) -> list[dict[str, Any]]:
        return [{"graph": g.name, "node": n.name, "op": n.op} for g in self.graphs for n in g.nodes]

    def colour(self, errors: Mapping[str, Mapping[str, float]]) -> None:
        """Colour nodes by their errors.

        Args:
            errors: Name of a graph, or ``graph_<n>`` for the n-th one, to the error of each node. What is infinite or
                no number is coloured as the largest one.

        Errors: ConfigError GE1046 if no node of the graphs has one.
        """
        made = {node: dict(figures) for node, figures in self.figures.items()}
        missing, found = 0, 0
        for number, graph in enumerate(self.graphs, 1):
            own = errors.get(f"graph_{number}") or errors.get(graph.name) or {}
            most = max((v for v in own.values() if math.isfinite(v)), default=1.0)
            for name, value in own.items():
                if name not in graph:
                    missing += 1
                    continue
                found += 1
                told = made.setdefault(graph.node(name), {})
                told["error"] = value if math.isfinite(value) else most
                told["rows"] = [("relative error", f"{value:.2e}"), *told.get("rows", ())]
        if not found:
            raise ConfigError(
                "GE1046",
                "the errors are of nodes that these graphs do not have",
                next="give the errors of the same model, with the same options",
            )
        self.figures, self.strange = made, missing

    def save(self, path: str | os.PathLike[str], option: str = "Page.save") -> list[Path]:
        """Write a page for each graph: ``NAME.html``, then ``NAME_2.html`` and so on; missing folders are made.

        Errors: ConfigError GE1041 naming the path.
        """
        self.written = save_pages(
            path, [functools.partial(to_html, g, figures=self.figures) for g in self.graphs], option
        )
        return self.written

    def _repr_html_(self) -> str:
        return "\n".join(framed(to_html(graph, figures=self.figures)) for graph in self.graphs)


def with_refused(figures: Figures, refused: Mapping[Node, RefusedCall]) -> Figures:
    """Figures that say of the nodes of refused calls why they are."""
    from tair_debug.terminal import reason

    return {**figures, **{node: {**figures.get(node, {}), "refused": reason(c.reason)} for node, c in refused.items()}}


def save_pages(path: str | os.PathLike[str], pages: Sequence[Callable[[], str]], option: str) -> list[Path]:
    """Write pages, each made when it is written: PATH, then PATH with ``_2``, and so on; missing folders are made.

    Errors: ConfigError GE1041 naming the path.
    """
    first = Path(path)
    artefacts.folder(first.parent, option)
    places = [first.with_name(f"{first.stem}_{i}{first.suffix}") if i > 1 else first for i in range(1, len(pages) + 1)]
    for place, page in zip(places, pages):
        artefacts.write_text(place, page(), option)
    return places


def framed(page: str, height: int = 600) -> str:
    """A page within another one, which it cannot reach: it may run its own scripts only, and save a drawing."""
    from markupsafe import escape as attribute

    return (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{attribute(page)}" '
        f'style="width: 100%; height: {height}px; border: 1px solid #8886"></iframe>'
    )


def render(template: str, **values: Any) -> str:
    """A page from a template of this package; texts are escaped."""
    import jinja2
    from markupsafe import Markup

    def harmless(value: Any) -> Any:
        return Markup(escape.markup(value)) if type(value) is str else value

    source = (resources.files("tair_debug") / "templates" / template).read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, finalize=harmless, undefined=jinja2.StrictUndefined)
    return environment.from_string(source).render(**values)


def page_data(graph: Graph, figures: Figures | None = None) -> dict[str, Any]:
    """What the page knows: nodes, the modules they are in, edges as pairs of node numbers, details as rows of text."""
    told = figures or {}
    number = {node: i for i, node in enumerate(graph.nodes)}
    edges = [(t.node, node, DATA) for node in graph.nodes for t in node.operands()]
    edges += [(before, node, CONTROL) for node in graph.nodes for before in node.control]
    readers = Counter(a for a, _, _ in edges)
    shared = {n for n, count in readers.items() if n.op in SOURCES and count > _MANY}
    outputs: dict[Node, list[int]] = {}
    for position, tensor in enumerate(graph.outputs):
        outputs.setdefault(tensor.node, []).append(position)
    groups, inside = _modules(graph, edges)
    return {
        "name": escape.line(graph.name),
        "groups": groups,
        "nodes": [{**_node(n, number, outputs.get(n, []), told.get(n)), "g": inside[n]} for n in graph.nodes],
        "edges": [[number[a], number[b], SHARED if a in shared else kind] for a, b, kind in edges],
    }


def _modules(graph: Graph, edges: list[tuple[Node, Node, int]]) -> tuple[list[list[Any]], dict[Node, int]]:
    """Modules as [name, number of the one around], and the number of each node's; number 0 is the graph.

    Inputs and constants stand in the innermost module that holds all their readers, so a weight is beside what uses it.
    """
    path = {
        n: tuple(n.provenance.module.split(".")) if n.provenance and n.provenance.module else () for n in graph.nodes
    }
    readers: dict[Node, list[Node]] = {}
    for before, after, _ in edges:
        readers.setdefault(before, []).append(after)
    for node in graph.nodes:  # a sum of gradients belongs to no module; it stands in the one around what it adds
        known = [path[t.node] for t in node.operands() if t.node.op not in SOURCES]
        if not path[node] and node.op not in SOURCES and known:
            path[node] = _shared(known)
    for node in reversed(graph.nodes):
        if node.op in SOURCES and node in readers:
            path[node] = _shared([path[r] for r in readers[node]])
    # What is around everything says nothing, and a number alone is not a name.
    around = len(_shared([parts for parts in path.values() if parts] or [()]))
    path = {node: parts[around:] for node, parts in path.items()}
    numbers: dict[tuple[str, ...], int] = {(): 0}
    groups: list[list[Any]] = [[escape.line(graph.name), -1]]
    for parts in path.values():
        for length in range(1, len(parts) + 1):
            if parts[:length] not in numbers:
                numbers[parts[:length]] = len(groups)
                name = ".".join(parts[max(0, length - 1 - parts[length - 1].isdecimal()) : length])
                groups.append([escape.line(name), numbers[parts[: length - 1]]])
    return groups, {node: numbers[parts] for node, parts in path.items()}


def _shared(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What all paths begin with."""
    low, high = min(paths), max(paths)
    same = next((i for i, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
    return low[:same]


def _node(
    node: Node, number: dict[Node, int], returned: list[int], figures: Mapping[str, Any] | None
) -> dict[str, Any]:
    told = figures or {}
    rows = [(name, text) for name, text in told.get("rows", ())]
    rows += [("outputs", "\n".join(f":{t.index}  {type_text(t)}" for t in node.outputs))]
    if returned:
        rows.append(("graph output", ", ".join(map(str, returned))))
    rows += [(name, attr_text(attr)) for name, attr in sorted(node.attrs.items())]
    rows += [(f"graph {slot}", _inner(inner)) for slot, inner in node.subgraphs.items()]
    origin = node.provenance
    about: list[tuple[str, str]] = []
    if origin is not None:
        about = [
            ("FX node", origin.fx_name),
            ("target", origin.fx_target),
            ("FX code", origin.fx_text),
            ("module", origin.module),
            ("source", origin.source),
            ("code", origin.code),
        ]
    value = {k: told[k] for k in _COLOURS if k in told}
    differs = [[_shown(part) for part in row] for row in told.get("differs", ())]
    return {
        **({"v": value} if value else {}),
        **({"d": differs} if differs else {}),
        **({"r": _shown(told["refused"])} if "refused" in told else {}),
        "n": escape.line(node.name),
        "o": escape.line(node.op),
        "t": " ".join(type_text(t) for t in node.outputs[:1]),
        "i": [[escape.line(p), number[t.node], escape.line(f"{t.name}  {type_text(t)}")] for p, t in inputs_of(node)],
        "a": [[escape.line(name), _shown(text)] for name, text in rows if text],
        "p": [[name, _shown(text)] for name, text in about if text],
    }


def _shown(text: str) -> str:
    kept = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"
    return escape.block(kept)


def inputs_of(node: Node) -> list[tuple[str, Tensor]]:
    """The tensors that a node reads, with the names of their ports."""
    structure, flat = ports.structure_of(node)
    names = ports.input_names(node.op, structure)
    return [(name, t) for name, t in zip(names, flat) if t is not None]


def _inner(graph: Graph) -> str:
    from ge_graph.printer import to_text

    return to_text(graph)


def type_text(tensor: Tensor) -> str:
    """``f32[8, s0]``."""
    shape = tensor.known_shape
    return f"{tensor.dtype.short}[{'?' if shape is None else ', '.join(map(str, shape))}]"


def attr_text(attr: Attr) -> str:
    """An attribute's value, long ones cut."""
    value = attr.value
    if attr.kind is not Kind.TENSOR:
        return _plain(value)
    if isinstance(value, Literal):
        return f"{value.dtype.short}[{', '.join(map(str, value.shape))}]"
    if not isinstance(value, np.ndarray):
        return "" if value is None else type(value).__name__
    head = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    items = value.reshape(-1)[:_SHOWN_ITEMS].tolist()
    return f"{head} {str(items)[1:-1]}{' …' if value.size > _SHOWN_ITEMS else ''}"


def _plain(value: Any) -> str:
    if isinstance(value, DataType):
        return value.name
    if isinstance(value, tuple):
        shown = ", ".join(map(_plain, value[:_SHOWN_ITEMS]))
        return f"[{shown}{', …' if len(value) > _SHOWN_ITEMS else ''}]"
    return str(value)
