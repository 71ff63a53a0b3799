"""Two GE graphs beside each other: which node of one is which of the other, and what differs.

Nodes are the same if everything that leads to them is, whatever they are called; then if everything that follows is.
What is left is matched from its neighbours, by port, and last by the FX node that it comes from and by its name. The
work grows as the graphs.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ge_graph import Graph, Node, Tensor, escape
from ge_graph.attrs import Attr, Kind
from ge_graph.serde_write import tensor_data
from tair_debug.graph_page import Figures, attr_text, framed, inputs_of, render, save_pages, to_html, type_text
from tair_debug.terminal import Answer, Detail, sentence

if TYPE_CHECKING:
    from tair_debug.refused import RefusedCall
    from tair_debug.terminal import Part

SAME, CHANGED, ONLY = "same", "changed", "only"
_NOTHING: Final = "–"


@dataclass(frozen=True)
class Match:
    """What becomes of the nodes of two graphs in each other.

    Attributes:
        one, other: The graphs.
        pairs: Node of ``one`` to its partner in ``other``.
        rows: Node of either graph to what differs from its partner: a name, the value in ``one`` and that in ``other``.
    """

    one: Graph
    other: Graph
    pairs: Mapping[Node, Node]
    rows: Mapping[Node, list[tuple[str, str, str]]]

    def state(self, node: Node) -> str:
        """``same``, ``changed``, or ``only`` for a node without a partner."""
        return ONLY if node not in self.rows else CHANGED if self.rows[node] else SAME

    def counts(self) -> dict[str, int]:
        """How many pairs are the same and changed, and how many nodes only one of the graphs has."""
        states = Counter(self.state(n) for n in self.one.nodes)
        more = sum(n not in self.rows for n in self.other.nodes)
        return {"same": states[SAME], "changed": states[CHANGED], "only_first": states[ONLY], "only_second": more}

    def differences(self) -> list[tuple[Node | None, Node | None]]:
        """Changed pairs and nodes without partner, in the order of the graphs."""
        back = {b: a for a, b in self.pairs.items()}
        found: list[tuple[float, Node | None, Node | None]] = []
        for at, node in enumerate(self.one.nodes):
            if self.state(node) != SAME:
                found.append((at, node, self.pairs.get(node)))
        at_one = {n: i for i, n in enumerate(self.one.nodes)}
        last = 0.0  # behind the partner of the node before
        for node in self.other.nodes:
            last = float(at_one[back[node]]) if node in back else last
            if node not in back:
                found.append((last + 0.5, None, node))
        return [(a, b) for _, a, b in sorted(found, key=lambda f: f[0])]


def match(one: Graph, other: Graph) -> Match:
    """Match the nodes of two graphs."""
    found = _Matching(one, other)
    found.take(found.by_history())
    found.take(found.by_future())
    found.spread(sure=True)
    found.spread()
    for key in (_by_origin, _by_name):
        found.take([(key(n), n) for n in graph.nodes] for graph in (one, other))
        found.spread()
    rows: dict[Node, list[tuple[str, str, str]]] = {}
    for a, b in found.pairs.items():
        rows[a] = rows[b] = list(_differences(a, b, found.pairs))
    return Match(one, other, found.pairs, rows)


def _by_origin(node: Node) -> Any:
    origin = node.provenance
    return (node.op, origin.fx_name, origin.fx_target, origin.module) if origin and origin.fx_name else None


def _by_name(node: Node) -> Any:
    return node.op, node.name


class _Matching:
    def __init__(self, one: Graph, other: Graph) -> None:
        self.graphs = (one, other)
        self.pairs: dict[Node, Node] = {}
        self._taken: set[Node] = set()  # of ``other``
        self._numbers: dict[Any, int] = {}  # of what a node is, with all that leads to it or follows
        self._own = {n: _own(n) for graph in self.graphs for n in graph.nodes}
        self._readers: dict[Node, list[tuple[Node, int, int]]] = {}  # reader, which of its operands, which output
        for graph in self.graphs:
            for node in graph.nodes:
                for at, tensor in enumerate(node.operands()):
                    self._readers.setdefault(tensor.node, []).append((node, at, tensor.index))

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def pair(self, a: Node, b: Node) -> bool:
        """Match two nodes of one type that have no partner yet."""
        if a in self.pairs or b in self._taken or a.op != b.op:
            return False
        self.pairs[a] = b
        self._taken.add(b)
        return True

    def take(self, keyed: Iterable[Iterable[tuple[Any, Node]]]) -> None:
        """Match nodes with one key: first those that have the same name, then in their order."""
        groups: tuple[dict[Any, list[Node]], ...] = ({}, {})
        for group, rows in zip(groups, keyed):
            for key, node in rows:
                if key is not None and node not in self.pairs and node not in self._taken:
                    group.setdefault(key, []).append(node)
        for key, mine in groups[0].items():
            theirs = groups[1].get(key, [])
            names = {n.name: n for n in theirs}
            rest = [n for n in mine if n.name not in names or not self.pair(n, names[n.name])]
            for a, b in zip(rest, [n for n in theirs if n not in self._taken]):
                self.pair(a, b)

    def by_history(self) -> Iterator[list[tuple[Any, Node]]]:
        """Nodes with the number of what they are and all that leads to them."""
        for graph in self.graphs:
            numbers: dict[Node, int] = {}
            for node in graph.nodes:
                ports = tuple(tuple((numbers.get(t.node), t.index) for t in _tensors(entry)) for entry in node.inputs)
                order = tuple(numbers.get(n) for n in node.control)
                numbers[node] = self._number(("above", self._own[node], ports, order))
            yield [(numbers[n], n) for n in graph.nodes]

    def by_future(self) -> Iterator[list[tuple[Any, Node]]]:
        """Nodes with the number of what they are and all that follows."""
        for graph in self.graphs:
            numbers: dict[Node, int] = {}
            returned: dict[Node, list[tuple[int, int]]] = {}
            for place, tensor in enumerate(graph.outputs):
                returned.setdefault(tensor.node, []).append((place, tensor.index))
            for node in reversed(graph.nodes):
                readers = sorted((numbers.get(n, -1), at, index) for n, at, index in self._readers.get(node, ()))
                ends = tuple(returned.get(node, ()))
                numbers[node] = self._number(("below", self._own[node], tuple(readers), ends))
            # what nothing reads has no future to know it by
            yield [(numbers[n], n) for n in graph.nodes if n in self._readers or n in returned]

    def spread(self, *, sure: bool = False) -> None:
        """Match neighbours of matched nodes, by port, and results by their place.

        ``sure``: of several readers of one kind, which is which is not asked.
        """
        for a, b in zip(*(graph.outputs for graph in self.graphs)):
            self.pair(a.node, b.node)
        waiting = deque(self.pairs.items())
        while waiting:
            a, b = waiting.popleft()
            near = [(t.node, u.node) for p, q in zip(a.inputs, b.inputs) for t, u in zip(_tensors(p), _tensors(q))]
            theirs: dict[Any, list[Node]] = {}
            for reader, at, index in self._readers.get(b, ()):
                if reader not in self._taken:
                    theirs.setdefault((reader.op, at, index), []).append(reader)
            mine: dict[Any, list[Node]] = {}
            for reader, at, index in self._readers.get(a, ()):
                if reader not in self.pairs:
                    mine.setdefault((reader.op, at, index), []).append(reader)
            for key, readers in mine.items():
                if not sure or len(readers) == len(theirs.get(key, ())) == 1:
                    near += zip(readers, theirs.get(key, ()))
            waiting.extend((x, y) for x, y in near if self.pair(x, y))


def _tensors(entry: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    return () if entry is None else (entry,) if isinstance(entry, Tensor) else entry


def _own(node: Node) -> Any:
    """What a node is by itself: equal for equal nodes, and its name is no part of it."""
    from ge_graph.printer import to_text

    attrs = tuple(sorted((name, _attr(attr)) for name, attr in node.attrs.items()))
    outputs = tuple((t.dtype.value, str(t.known_shape), t.format.name) for t in node.outputs)
    inner = tuple((slot, to_text(graph)) for slot, graph in node.subgraphs.items())
    return node.op, attrs, outputs, inner


def _attr(attr: Attr) -> str:
    if attr.kind is not Kind.TENSOR or attr.value is None:
        return f"{attr.kind.value} {attr.value!r}"
    dtype, shape, data = tensor_data(attr.value, "constant")
    return f"{dtype} {shape} {hashlib.sha256(data.tobytes()).hexdigest()}"


def _differences(a: Node, b: Node, pairs: Mapping[Node, Node]) -> Iterator[tuple[str, str, str]]:
    def values(of: Callable[[Node], str]) -> tuple[str, str]:
        return of(a) or _NOTHING, of(b) or _NOTHING

    for name in sorted(a.attrs.keys() | b.attrs.keys()):
        mine, theirs = a.attrs.get(name), b.attrs.get(name)
        if mine is None or theirs is None or _attr(mine) != _attr(theirs):
            yield name, *values(lambda n, name=name: attr_text(n.attrs[name]) if name in n.attrs else "")  # type: ignore[misc]
    read = {n: dict(inputs_of(n)) for n in (a, b)}
    for name in dict.fromkeys([*read[a], *read[b]]):
        if not _same_edge(read[a].get(name), read[b].get(name), pairs):
            yield name, *values(lambda n, name=name: _edge(read[n].get(name)))  # type: ignore[misc]
    for at in range(max(len(a.outputs), len(b.outputs))):
        types = values(lambda n, at=at: type_text(n.outputs[at]) if at < len(n.outputs) else "")  # type: ignore[misc]
        if types[0] != types[1]:
            yield f":{at}", *types
    if [pairs.get(n) for n in a.control] != b.control:
        yield "runs after", *values(lambda n: ", ".join(c.name for c in n.control))
    if _own(a)[3] != _own(b)[3]:
        yield "graphs inside", *values(lambda n: ", ".join(n.subgraphs))
    ends = values(lambda n: ", ".join(str(i) for i, t in enumerate(n.graph.outputs) if t.node is n))
    if ends[0] != ends[1]:
        yield "graph output", *ends


def _edge(tensor: Tensor | None) -> str:
    return "" if tensor is None else f"{tensor.name}  {type_text(tensor)}"


def _same_edge(mine: Tensor | None, theirs: Tensor | None, pairs: Mapping[Node, Node]) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return pairs.get(mine.node) is theirs.node and mine.index == theirs.index


# --- the page --------------------------------------------------------------------------------------------------------


@dataclass(repr=False)
class Beside(Answer):
    """Pages of two graphs beside each other.

    Attributes:
        names: What the two sides are called.
        matches: The graphs by their order; a graph without another one stands beside an empty one.
        figures: Nodes of either side to their figures, as ``graph_page.to_html`` takes them.
        written: Files.
        refused: Nodes that stand for calls that cannot be converted.
    """

    names: tuple[str, str]
    matches: list[Match]
    figures: Figures = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    refused: Mapping[Node, RefusedCall] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all calls could be converted."""
        return not self.refused

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        if self.refused:
            from tair_debug.refused import told_of

            yield from told_of([*self.refused.values()], in_page=True)
        for found in self.matches:
            n = found.counts()
            yield sentence(
                f"{n['same']} nodes are equal, {n['changed']} differ, {n['only_first']} are in the first graph only, "
                f"{n['only_second']} in the second only"
            )
        yield from (sentence(str(path)) for path in self.written)

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "written": [str(p) for p in self.written],
            "graphs": [m.counts() for m in self.matches],
            "differences": self.records(),
            "refused": [r.as_dict() for r in self.refused.values()],
        }

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "graph": number,
                "first": a and a.name,
                "second": b and b.name,
                "op": (a or b).op,  # type: ignore[union-attr]
                "differs": [list(row) for row in m.rows.get(a, [])] if a else [],
            }
            for number, m in enumerate(self.matches, 1)
            for a, b in m.differences()
        ]

    def save(self, path: str | os.PathLike[str], option: str = "Beside.save") -> list[Path]:
        """Write a page for each pair of graphs: ``NAME.html``, then ``NAME_2.html`` and so on.

        Errors: ConfigError GE1041 naming the path.
        """
        self.written = save_pages(path, [functools.partial(self.html, m) for m in self.matches], option)
        return self.written

    def html(self, found: Match) -> str:
        """The page of a pair of graphs."""
        from markupsafe import Markup

        places = [{n: i for i, n in enumerate(g.nodes)} for g in (found.one, found.other)]
        pages = [
            to_html(graph, name, self._figures(found, graph))
            for graph, name in zip((found.one, found.other), self.names)
        ]
        data = {
            "pairs": [[places[0][a], places[1][b]] for a, b in found.pairs.items()],
            "differences": [
                [a and places[0][a], b and places[1][b], escape.line(_called(a, b), 200)]
                for a, b in found.differences()
            ],
            "counts": found.counts(),
        }
        return render(
            "beside.html.j2",
            title=" | ".join(self.names),
            first=self.names[0],
            second=self.names[1],
            frames=[Markup(framed(page)) for page in pages],
            data=Markup(escape.script(data)),
        )

    def _figures(self, found: Match, graph: Graph) -> dict[Node, dict[str, Any]]:
        made = {}
        for node in graph.nodes:
            own = dict(self.figures.get(node, {}))
            made[node] = {**own, "difference": found.state(node), "differs": found.rows.get(node, [])}
        return made

    def _repr_html_(self) -> str:
        return "\n".join(framed(self.html(m), 800) for m in self.matches)


def _called(a: Node | None, b: Node | None) -> str:
    if a is None or b is None:
        node: Any = a or b
        return f"{node.name} ({node.op})"
    return f"{a.name} ({a.op})" if a.name == b.name else f"{a.name} | {b.name} ({a.op})"


def beside(
    names: tuple[str, str],
    ones: list[Graph],
    others: list[Graph],
    figures: Mapping[Node, Mapping[str, Any]] = {},
    refused: Mapping[Node, RefusedCall] = {},
) -> Beside:
    """Two lists of graphs beside each other, by their order; of ``refused`` nodes ``figures`` say why."""
    count = max(len(ones), len(others))
    sides = ([*graphs, *(Graph() for _ in range(count - len(graphs)))] for graphs in (ones, others))
    return Beside(names, [match(a, b) for a, b in zip(*sides)], figures, refused=refused)
