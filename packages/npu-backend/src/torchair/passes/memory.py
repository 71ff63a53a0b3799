"""Which memory the results of an ATen graph lie in, who writes it, and until when somebody reads it."""

from __future__ import annotations

from typing import Final, TypeAlias

import torch

from torchair.passes.base import output_node

FxNode: TypeAlias = torch.fx.Node
# Views whose schemas do not say so.
_SECRET_VIEWS: Final = frozenset({torch.ops.aten._unsafe_view.default})
_GIVEN: Final = ("placeholder", "get_attr")


def writes(node: FxNode) -> list[FxNode]:
    """The nodes whose memory an operator writes, by its schema."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return []
    written: list[FxNode] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        torch.fx.map_arg(value, written.append)
    return written


def shares(node: FxNode) -> list[FxNode]:
    """The arguments in whose memory the result of a node may lie: those of views, of in-place and of out variants."""
    if node.op != "call_function":
        return []
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # getitem, higher-order operators: nothing is known
        return list(node.all_input_nodes)
    returned = {s for r in schema.returns if r.alias_info is not None for s in r.alias_info.before_set}
    shared: list[FxNode] = []
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        secret = node.target in _SECRET_VIEWS and position == 0
        parts = info is not None and "*" in info.after_set  # results in a list, such as those of split
        if secret or parts or (info is not None and returned & info.before_set):
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            torch.fx.map_arg(value, shared.append)
    return shared


class MemoryFacts:
    """Facts about one graph, valid as long as nodes only join (``join``) and none is moved.

    Attributes:
        position: Node to its place in the graph.
        returned: Memory that the graph hands out.
        written: Memory that some node writes.
        writers: Memory to the nodes that write it.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self._roots: dict[FxNode, frozenset[FxNode]] = {}
        self._members: dict[FxNode, list[FxNode]] = {}
        self._last: dict[FxNode, int] = {}
        self.writers: dict[FxNode, list[FxNode]] = {}
        for node in graph.nodes:
            self._last[node] = max((self.position[user] for user in node.users), default=-1)
            self.join(node, shares(node))
            for target in writes(node):
                for root in self.roots(target):
                    self.writers.setdefault(root, []).append(node)
        self.written = set(self.writers)
        self.returned: set[FxNode] = set()
        for node in output_node(graph).all_input_nodes:
            self.returned |= self.roots(node)

    def join(self, node: FxNode, sources: list[FxNode]) -> None:
        """Record that the result of ``node`` lies in the memory of ``sources``, or without any in its own."""
        roots: frozenset[FxNode] = frozenset().union(*(self.roots(s) for s in sources)) or frozenset((node,))
        for old in self._roots.get(node, ()):
            self._members[old].remove(node)
        own = self._roots.get(node) == frozenset((node,))
        moved = self._members.pop(node, []) if own else []
        written = self.writers.pop(node, []) if own else []
        self._roots[node] = roots
        for root in roots:
            self._last[root] = max(self._last[root], self._last[node])
            if written:
                self.writers.setdefault(root, []).extend(written)
        for root in roots:
            self._members.setdefault(root, []).append(node)
        for view in moved:  # what lay in the memory of node lies in that of the sources now
            self._roots[view] = (self._roots[view] - {node}) | roots
            for root in roots:
                self._members[root].append(view)

    def roots(self, node: FxNode) -> frozenset[FxNode]:
        """The makers of the memory in which a result may lie."""
        return self._roots.get(node, frozenset((node,)))

    def given(self, node: FxNode) -> bool:
        """Whether the memory may belong to the caller or to the module."""
        return any(root.op in _GIVEN for root in self.roots(node))

    def readers_after(self, node: FxNode, place: FxNode) -> list[FxNode]:
        """Who reads memory of ``node`` after ``place``, through whatever name; the output counts."""
        limit = self.position[place]
        members = {m for root in self.roots(node) for m in self._members.get(root, ())}
        return [u for m in members for u in m.users if self.position.get(u, -1) > limit]

    def is_read_after(self, node: FxNode, place: FxNode) -> bool:
        """Whether somebody reads memory of ``node`` after ``place``; for graphs whose nodes have kept their users.

        One look a piece of memory: a chain of in-place operators has one piece with all its nodes.
        """
        limit = self.position[place]
        return any(self._last[root] > limit for root in self.roots(node))

    def apart(self, a: FxNode, b: FxNode) -> bool:
        """Whether two results certainly share no memory."""
        return not self.roots(a) & self.roots(b)
