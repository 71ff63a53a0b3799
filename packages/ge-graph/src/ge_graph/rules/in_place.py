"""Operators that update an input where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ge_graph.ir import Graph, Node, Tensor
from ge_graph.rules.base import Scope

CONSTANTS: Final = frozenset(("Const", "Constant", "ConstPlaceHolder", "FileConstant"))


def constants_written(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    """A constant fed to a port that is updated in place."""
    for node, port, tensor in scope.writes:
        if tensor.node.op in CONSTANTS:
            what = (
                f"updates its input '{port}' in place, which is the constant '{tensor.node.name}'; GE refuses that "
                "(E19999), run the pass ProtectWrittenTensors"
            )
            yield node, what


def unordered_writes(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    """A tensor that one node updates and another reads or updates, with no order between the two."""
    for node, port, tensor, others in contested(scope):
        before, after = ancestors(node, others, scope), descendants(node, scope)
        for other in others:
            if id(other) not in before and id(other) not in after:
                what = (
                    f"updates its input '{port}' in place, '{other.name}' uses {tensor.name} too, and no edge "
                    "orders the two; the result is undefined on a device (W18888)"
                )
                yield node, what


def contested(scope: Scope) -> Iterator[tuple[Node, str, Tensor, list[Node]]]:
    """In-place updates of tensors that other nodes use too, with these nodes."""
    if not scope.writes:
        return
    users = users_of({id(t) for _, _, t in scope.writes}, scope.graph)
    for node, port, tensor in scope.writes:
        others = [n for n in users[id(tensor)] if n is not node]
        if others and id(node) in scope.position:
            yield node, port, tensor, others


def users_of(tensors: set[int], graph: Graph) -> dict[int, list[Node]]:
    """Identity of a tensor to the nodes that read it, in order, each once."""
    users: dict[int, dict[int, Node]] = {t: {} for t in tensors}
    for node in graph.nodes:
        for t in node.operands():
            if id(t) in tensors:
                users[id(t)][id(node)] = node
    return {t: list(nodes.values()) for t, nodes in users.items()}


def ancestors(node: Node, wanted: list[Node], scope: Scope) -> set[int]:
    """Identities of the nodes that run before ``node``, as far back as the first of ``wanted``."""
    first = min(scope.position.get(id(n), 0) for n in wanted)
    reached: set[int] = set()
    waiting = [node]
    while waiting:
        at = waiting.pop()
        for before in (*(t.node for t in at.operands()), *at.control):
            if id(before) not in reached and scope.position.get(id(before), -1) >= first:
                reached.add(id(before))
                waiting.append(before)
    return reached


def descendants(node: Node, scope: Scope) -> set[int]:
    """Identities of the nodes that run after ``node``."""
    reached = {id(node)}
    for later in scope.graph.nodes[scope.position[id(node)] + 1 :]:
        if any(id(t.node) in reached for t in later.operands()) or any(id(n) in reached for n in later.control):
            reached.add(id(later))
    return reached - {id(node)}
