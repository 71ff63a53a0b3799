"""Ops without data flow: scopes that put attributes on nodes, and marks that order streams.

``air::scope_enter(keys, values)`` … ``air::scope_exit()`` give every node between them the attributes; inner scopes
win. ``air::record()`` is a marker that has run when all earlier nodes of its stream have; ``air::wait([...])`` makes
the later nodes of the current stream run after what it names. The namespaces npugraph_ex and torchair have
the same four.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.base.provenance import user_frame
from ge_graph import Graph, Node, Tensor
from ge_graph import attrs as ge_attrs
from ge_graph import ops as ge
from ge_graph.rules.attributes import KINDS

STREAM: Final = "_user_stream_label"
_SUPER_KERNEL: Final = "_super_kernel_scope"
_NAMESPACES: Final = ("air", "npugraph_ex", "torchair")
_KINDS: Final = ("scope_enter", "scope_exit", "record", "wait")
EFFECTS: Final = {f"{ns}::{kind}": kind for ns in _NAMESPACES for kind in _KINDS}
_NOT_TASKS: Final = frozenset(("Const", "Constant", "ConstPlaceHolder", "Data", "RefData"))


class Mark:
    """What ``record`` returns to FX: the marker node."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node


class OpenScopes:
    """Open scopes and pending waits of one graph.

    Args:
        graph: The graph under construction.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._open: list[tuple[torch.fx.Node, dict[str, ge_attrs.Attr]]] = []
        self._waits: dict[str, list[Node]] = {}
        self._after: dict[str, set[Node]] = {}
        self._seen = 0
        self._last_in_turn: Node | None = None

    def in_turn(self, emitted: Sequence[Node]) -> None:
        """Make the nodes of an op with effects run after those of the op before it, and run at all."""
        tasks = [n for n in emitted if n.op not in _NOT_TASKS]
        before = self._last_in_turn
        for node in tasks:
            if before is not None and before not in node.control:
                node.control.append(before)
        if tasks:
            last = self._last_in_turn = tasks[-1]
            read = {id(p) for n in tasks for p in _predecessors(n)}
            last.control += [n for n in tasks if n is not last and id(n) not in read]

    def apply(self, kind: str, node: torch.fx.Node, args: Sequence[Any]) -> Mark | None:
        """Carry out one effect op; returns what FX may refer to."""
        self.order()
        if kind == "scope_enter":
            self._enter(node, *args)
        elif kind == "scope_exit":
            self._exit(node)
        elif kind == "record":
            return self._record()
        else:
            self._wait(args[0])
        return None

    def order(self) -> None:
        """Give the nodes emitted since the last call their control edges."""
        if self._waits:
            for node in self._graph.nodes[self._seen :]:
                self._order_one(node)
        self._seen = len(self._graph.nodes)

    def finish(self) -> None:
        """End the graph: no scope may be open, no wait without a successor is lost."""
        self.order()
        if self._open:
            opened = self._open[-1][0]
            raise LoweringError(
                "GE2008",
                f"scope {opened.name} ({opened.args}) is never closed",
                where=user_frame(opened)[0],
                next="add torch.ops.air.scope_exit.default() after the last node of the scope",
            )
        for stream, producers in self._waits.items():
            if not self._after[stream]:
                self._graph.output_control += [p for p in producers if p not in self._graph.output_control]
        last = self._last_in_turn
        if last is not None and last not in self._graph.output_control:
            self._graph.output_control.append(last)
        order_collectives(self._graph)

    # -- scopes -------------------------------------------------------------------------------------------------------

    def _enter(
        self, node: torch.fx.Node, keys: Sequence[str], values: Sequence[str], need_excute: bool = False
    ) -> None:
        if len(keys) != len(values):
            raise Refusal(f"scope_enter got {len(keys)} keys and {len(values)} values; give as many values as keys")
        self._open.append((node, {k: _attribute(k, v) for k, v in zip(keys, values)}))
        self._publish()

    def _exit(self, node: torch.fx.Node) -> None:
        if not self._open:
            raise LoweringError(
                "GE2008",
                f"{node.name} closes a scope but none is open",
                where=user_frame(node)[0],
                next="add torch.ops.air.scope_enter.default(keys, values) in front of the scope's first node",
            )
        self._open.pop()
        self._publish()

    def _publish(self) -> None:
        merged: dict[str, ge_attrs.Attr] = {}
        for _, attributes in self._open:
            merged.update(attributes)
        scope = merged.get(_SUPER_KERNEL)
        if scope is not None and not scope.value:  # GE would take the empty name for a range of its own
            merged.pop(_SUPER_KERNEL)
            merged.pop("_super_kernel_options", None)
        self._graph.scope_attrs = merged

    # -- order --------------------------------------------------------------------------------------------------------

    def _stream(self) -> str:
        label = self._graph.scope_attrs.get(STREAM)
        return "" if label is None else label.value

    def _record(self) -> Mark:
        stream = self._stream()
        members = [n for n in self._graph.nodes if n.op not in _NOT_TASKS and n.attr(STREAM, "") == stream]
        read = {id(p) for n in members for p in _predecessors(n)}
        marker: Node = ge.NoOp()
        marker.control += [n for n in members if id(n) not in read]
        self.order()
        return Mark(marker)

    def _wait(self, producers: Any) -> None:
        nodes = [_producer(p).node for p in (producers if isinstance(producers, (list, tuple)) else [producers])]
        stream = self._stream()
        known = self._waits.setdefault(stream, [])
        known += [n for n in dict.fromkeys(nodes) if n not in known]
        self._after[stream] = set()

    def _order_one(self, node: Node) -> None:
        if node.op in _NOT_TASKS:
            return
        stream = node.attr(STREAM, "")
        producers = self._waits.get(stream)
        if producers is None:
            return
        after = self._after[stream]
        if not any(p in after for p in _predecessors(node)):
            node.control += [p for p in producers if p not in node.control and p is not node]
        after.add(node)


def order_collectives(graph: Graph) -> None:
    """Tie the collectives of a graph together in their order, and the last one to the end of the graph.

    All ranks of a group must enter its collectives in one order, and those of overlapping groups too; engines may move
    what no edge holds. The tie to the end keeps a collective that only other ranks read.
    """
    last: Node | None = None
    for node in [n for n in graph.nodes if n.subgraphs or n.op.startswith("Hcom")]:
        if not _communicates(node):
            continue
        if last is not None and last not in _predecessors(node):
            node.control.append(last)
        last = node
    if last is not None and last not in graph.output_control:
        graph.output_control.append(last)


def _communicates(node: Node) -> bool:
    if not node.subgraphs:
        return node.op.startswith("Hcom")
    return any(_communicates(n) for g in node.subgraphs.values() for n in g.nodes)


def _attribute(key: str, value: str) -> ge_attrs.Attr:
    """Scopes carry texts; what GE reads as a truth value becomes one."""
    return ge_attrs.Bool(value == "True") if KINDS.get(key) is ge_attrs.Kind.BOOL else ge_attrs.Str(value)


def _predecessors(node: Node) -> Iterable[Node]:
    for t in node.operands():
        yield t.node
    yield from node.control


def effect_of(target: Any) -> str | None:
    """``"scope_enter"`` and the like for the ops handled here, else None."""
    return EFFECTS.get(target._schema.name) if isinstance(target, torch._ops.OpOverload) else None


def _producer(value: Any) -> Tensor | Mark:
    """What ``wait`` may name: a tensor or a record."""
    if isinstance(value, (Tensor, Mark)):
        return value
    raise Refusal(f"wait takes tensors and records, got {type(value).__name__}")
