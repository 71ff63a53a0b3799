"""What a GE graph says of its collectives, and whether the graphs of several ranks fit together: nothing runs here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_graph import Graph, Node, Tensor
from torchair.ranks.exchange import Place
from torchair.ranks.problems import ORDER, SIZES, WAITS, Fault, listed

# Operator to the collective that it carries out, and how often.
KINDS: Final = {
    "HcomAllReduce": ("all_reduce", 1),
    "HcomReduce": ("reduce", 1),
    "HcomAllGather": ("all_gather", 1),
    "HcomAllGatherV": ("all_gather", 1),
    "HcomReduceScatter": ("reduce_scatter", 1),
    "HcomReduceScatterV": ("all_reduce", 1),
    "HcomBroadcast": ("broadcast", 1),
    "HcomAllToAll": ("all_to_all", 1),
    "HcomAllToAllV": ("all_to_all", 1),
    "HcomSend": ("send", 1),
    "HcomReceive": ("recv", 1),
    "MatmulAllReduce": ("all_reduce", 1),
    "AllGatherMatmul": ("all_gather", 1),
    "MatmulReduceScatter": ("reduce_scatter", 1),
    "MoeDistributeDispatch": ("all_to_all", 5),
    "MoeDistributeDispatchV2": ("all_to_all", 5),
    "MoeDistributeCombine": ("all_to_all", 1),
    "MoeDistributeCombineV2": ("all_to_all", 1),
}
GROUPS: Final = ("group", "group_ep")
_UNEVEN: Final = frozenset(("HcomAllToAllV", "HcomAllGatherV", "HcomReduceScatterV"))
_IDLE: Final = frozenset(("Const", "Constant", "ConstPlaceHolder", "Data", "RefData", "NetOutput"))
_STREAM: Final = "_user_stream_label"
_ROOT: Final = re.compile(r"^L\.model\.?")  # what dynamo calls the model of a rank


@dataclass(frozen=True, slots=True)
class Planned:
    """A collective of a graph.

    Attributes:
        op: GE operator.
        kind: Collective that it carries out.
        times: How often it does.
        detail: Reduction or root, in words.
        group: Name of the group in the graph.
        members: Ranks of the world in the group, in its order.
        dtype: Element type of the first operand.
        sizes: Its sizes; a text is a symbol. None if not known.
        peer: Rank of the world at the other end, -1 if there are more than two.
        tag: Of a message between two.
        place: Where it stands.
        open: Whether it is inside a branch or loop, so that nobody knows how often it runs.
        stream: Label of the stream that it is on.
        meanwhile: Operators of other streams that neither feed it nor need it.
        independent: Operators of any stream that neither feed it nor need it.
    """

    op: str
    kind: str
    times: int
    detail: str
    group: str
    members: tuple[int, ...]
    dtype: str
    sizes: tuple[int | str, ...] | None
    peer: int
    tag: int
    place: Place
    open: bool
    stream: str
    meanwhile: tuple[str, ...]
    independent: tuple[str, ...]

    def title(self) -> str:
        """``all_reduce(sum)``."""
        return f"{self.kind}({self.detail})" if self.detail else self.kind

    def line(self) -> str:
        """Title and the user's line."""
        return f"{self.title()}{f' at {self.place.source}' if self.place.source else ''}"


def collectives(graph: Graph, ranks_of: Callable[[str], Sequence[int]], number: int = 0) -> list[Planned]:
    """The collectives of a graph, in its order.

    Args:
        graph: The graph, with control edges between its collectives.
        ranks_of: Name of a group to the ranks of the world in it.
        number: Number of the graph in the rank's program.
    """
    found: list[Planned] = []
    _collect(graph, ranks_of, number, False, found)
    return found


def _collect(
    graph: Graph, ranks_of: Callable[[str], Sequence[int]], number: int, inner: bool, found: list[Planned]
) -> None:
    around = None
    for node in graph.nodes:
        if node.op in KINDS:
            around = around or _Neighbours(graph)
            found.append(_planned(node, ranks_of, number, len(found), inner, around))
        for each in node.subgraphs.values():
            _collect(each, ranks_of, number, True, found)


def _planned(
    node: Node, ranks_of: Callable[[str], Sequence[int]], number: int, position: int, inner: bool, around: _Neighbours
) -> Planned:
    kind, times = KINDS[node.op]
    group = next((str(node.attr(a)) for a in GROUPS if node.attr(a)), "")
    members = tuple(ranks_of(group))
    operands = node.operands()
    first: Tensor | None = operands[0] if operands else next(iter(node.outputs), None)
    root = node.attr("root_rank")
    reduction = node.attr("reduction") or node.attr("reduce_op")
    peer = node.attr("dest_rank", node.attr("src_rank"))
    origin = node.provenance
    place = (
        Place(number, position)
        if origin is None
        else Place(number, position, origin.source, origin.code, _ROOT.sub("", origin.module))
    )
    own = str(node.attr(_STREAM) or "")
    free = around.independent(node)
    return Planned(
        node.op,
        kind,
        len(operands) if node.op == "HcomBroadcast" else times,
        str(reduction) if reduction else "" if root is None else f"root {root}",
        group,
        members,
        "" if first is None else first.dtype.short,
        None if first is None else first.known_shape,
        members[peer] if isinstance(peer, int) and 0 <= peer < len(members) else -1,
        node.attr("sr_tag", 0),
        place,
        inner,
        own,
        tuple(n.op for n in free if str(n.attr(_STREAM) or "") != own),
        tuple(n.op for n in free),
    )


class _Neighbours:
    """Who feeds whom in a graph."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for before in (*(t.node for t in node.operands()), *node.control):
                self._readers.setdefault(before, []).append(node)

    def independent(self, node: Node) -> list[Node]:
        """Operators that a node neither feeds nor needs."""
        bound = {node}
        todo = [node]
        while todo:
            each = todo.pop()
            before = [n for n in (*(t.node for t in each.operands()), *each.control) if n not in bound]
            bound.update(before)
            todo += before
        todo = [node]
        while todo:
            after = [n for n in self._readers.get(todo.pop(), ()) if n not in bound]
            bound.update(after)
            todo += after
        return [n for n in self._nodes if n not in bound and n.op not in _IDLE]


def check(programs: Mapping[int, Sequence[Planned]]) -> list[Fault]:
    """Let ranks go through their collectives in lock-step, without data.

    Args:
        programs: Rank of the world to its collectives. Ranks that are missing do something else meanwhile.

    Returns:
        Faults, the first one first; empty if all fit together, as far as it can be told: collectives inside branches
        and loops, and those with ranks that are missing, end what is known.
    """
    at = dict.fromkeys(programs, 0)
    faults: list[Fault] = []
    while not faults:
        heads = {r: program[at[r]] for r, program in programs.items() if at[r] < len(program)}
        moved = False
        for rank, head in heads.items():
            if head.open or programs[rank][at[rank]] is not head:
                continue
            party = [rank, head.peer] if head.peer >= 0 else head.members
            if not all(r in heads and _meets(head, heads[r], rank, r) for r in party):
                continue
            faults += _unequal([(r, heads[r]) for r in party])
            strange = next((r for r in party if _mark(heads[r]) != _mark(head) and head.peer < 0), rank)
            if faults and strange != rank:  # no sizes that differ, but ranks that met by chance
                return [_out_of_order(programs, at, rank, strange)]
            for r in party:
                at[r] += 1
            moved = True
            break
        if not moved:
            return faults or _stuck(programs, at)
    return faults


def _meets(one: Planned, other: Planned, rank: int, other_rank: int) -> bool:
    """Whether two ranks stand at one and the same collective."""
    if rank == other_rank:
        return True
    if other.open or (one.group, one.members) != (other.group, other.members):
        return False
    if one.peer >= 0:
        kinds = {one.kind, other.kind} == {"send", "recv"}
        return kinds and one.peer == other_rank and other.peer == rank and one.tag == other.tag
    return one.title() == other.title()


def _unequal(party: Sequence[tuple[int, Planned]]) -> list[Fault]:
    """Sizes and types that differ."""
    first_rank, first = party[0]
    for rank, each in party[1:]:
        if each.op in _UNEVEN or first.op in _UNEVEN or each.op != first.op and each.peer < 0:
            continue
        wrong, fixed = each.dtype != first.dtype, []
        if first.sizes is not None and each.sizes is not None:
            wrong |= len(first.sizes) != len(each.sizes)
            wrong |= any(a != b for a, b in zip(first.sizes, each.sizes) if type(a) is type(b) is int)
            fixed = [(a, b) for a, b in zip(first.sizes, each.sizes) if type(a) is not type(b)]
            wrong |= bool(fixed)
        if wrong:
            more = " (one of them has compiled a size as a number)" if first.sizes and fixed else ""
            return [
                Fault(
                    SIZES,
                    f"{each.line()}: {listed([first_rank])} brings {_form(first)}, "
                    f"{listed([rank])} {_form(each)}{more}",
                    tuple(sorted((first_rank, rank))),
                    each.title(),
                    listed(each.members),
                    each.place.source,
                    each.place.module,
                    "sizes",
                )
            ]
    return []


def _form(each: Planned) -> str:
    return f"{each.dtype}[{'?' if each.sizes is None else ', '.join(map(str, each.sizes))}]"


def _stuck(programs: Mapping[int, Sequence[Planned]], at: Mapping[int, int]) -> list[Fault]:
    """The fault of ranks that stand at different collectives; none if what they wait for is not known."""
    heads = {r: program[at[r]] for r, program in programs.items() if at[r] < len(program)}
    for rank, head in sorted(heads.items()):
        if head.open:
            continue
        party = [head.peer] if head.peer >= 0 else [r for r in head.members if r != rank]
        for other in party:
            if other not in programs:
                continue  # not before a graph now
            theirs = heads.get(other)
            if theirs is None:
                return [_out_of_order(programs, at, rank, other)]
            if theirs.open or _meets(head, theirs, rank, other) or _waits_elsewhere(theirs, programs):
                continue
            return [_out_of_order(programs, at, rank, other)]
    for rank, head in sorted(heads.items()):
        if not head.open and all(r in programs for r in head.members):
            what = f"{listed(sorted(heads))} wait for each other, {listed([rank])} in {_with_group(head)}"
            return [_fault(WAITS, what, tuple(sorted(heads)), head)]
    return []


def _out_of_order(programs: Mapping[int, Sequence[Planned]], at: Mapping[int, int], one: int, other: int) -> Fault:
    """Of two ranks that do not meet, the one that does otherwise than most ranks of the world is at fault.

    Collectives that look alike have met by chance if their lines differ: the fault is where the lines first do.
    """
    first = _parting(programs[one], programs[other], min(at[one], at[other]))
    here = {r: program[first] for r, program in programs.items() if first < len(program)}
    often = Counter(map(_mark, here.values()))
    usual, odd = sorted((one, other), key=lambda r: -often[_mark(here[r])] if r in here else 0)
    wanted, got = here[usual], here.get(odd)
    later = [_mark(p) for p in programs[usual][first + 1 :]]
    if got is None or _mark(got) in later:
        there = "has no collective left" if got is None else f"is at {got.line()}"
        what = f"{listed([odd])} leaves out {_with_group(wanted)}, which {listed([usual])} enters, and {there}"
        return _fault(ORDER if got is not None else WAITS, what, (one, other), wanted)
    what = f"{listed([odd])} enters {_with_group(got)}, {listed([usual])} {_with_group(wanted)}"
    return _fault(ORDER, f"{what}; both are members of the group of {listed(wanted.members)}", (one, other), got)


def _parting(one: Sequence[Planned], other: Sequence[Planned], latest: int) -> int:
    """The first position at which two programs differ, ``latest`` if they do from message to message."""
    for i, (a, b) in enumerate(zip(one[:latest], other)):
        if a.peer >= 0 or b.peer >= 0:
            return latest
        if _mark(a) != _mark(b):
            return i
    return latest


def _mark(each: Planned) -> tuple[str, str]:
    """What tells collectives of different programs apart: names and members of groups differ from rank to rank."""
    return each.title(), each.place.source


def _waits_elsewhere(head: Planned, programs: Mapping[int, Sequence[Planned]]) -> bool:
    """Whether a rank waits for one whose program is not known now, so that it may come later."""
    return any(r not in programs for r in (head.members if head.peer < 0 else (head.peer,)))


def _with_group(each: Planned) -> str:
    at = f" at {each.place.source}" if each.place.source else ""
    return f"{each.title()} in the group of {listed(each.members)}{at}"


def _fault(code: str, what: str, ranks: tuple[int, ...], head: Planned) -> Fault:
    return Fault(
        code,
        what,
        tuple(sorted(ranks)),
        head.title(),
        listed(head.members),
        head.place.source,
        head.place.module,
        "order" if code == ORDER else "waits",
    )
