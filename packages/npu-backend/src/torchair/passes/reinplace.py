"""In-place forms of operators, where nobody can tell the difference."""

from __future__ import annotations

import functools
from typing import Any, Final, TypeAlias

import torch

from torchair.passes.base import FxPass, same_sizes, value_of
from torchair.passes.memory import Memory

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node
# Their in-place forms take more than the memory of the first operand.
_NEVER: Final = frozenset({"resize", "resize_as", "set", "rename", "sparse_resize", "_resize_output"})


@functools.cache
def in_place_form(target: Any) -> Any:
    """The overload of ``target`` that writes its first argument, ``aten.add_.Tensor`` for ``aten.add.Tensor``; or None.

    Views and random operators have none: the first only change the description of a tensor, the second draw numbers in
    another order when they fill memory of another layout.
    """
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    schema = target._schema
    name = schema.name.split("::")[1]
    packet = getattr(aten, name + "_", None)
    if packet is None or name in _NEVER or torch.Tag.nondeterministic_seeded in target.tags or schema.is_mutable:
        return None
    if len(schema.returns) != 1 or schema.returns[0].alias_info is not None or not schema.arguments:
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    for overload in packet.overloads():
        form = getattr(packet, overload)
        arguments = form._schema.arguments
        if torch.Tag.inplace_view in form.tags or [(a.name, str(a.type)) for a in arguments] != wanted:
            continue
        written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        if written == [0] and wanted[0][1] == "Tensor":
            return form
    return None


def _fits(node: Node, held: Node) -> bool:
    """Whether the result is of the type, size and layout of the memory that it would be written to."""
    old, new = value_of(held), value_of(node)
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    same = old.dtype == new.dtype and old.device == new.device and old.layout == new.layout
    return same and same_sizes(old.shape, new.shape) and same_sizes(old.stride(), new.stride())


def _others_apart(node: Node, held: Node, memory: Memory) -> bool:
    """Whether the other operands lie elsewhere; an elementwise operator may also read the very tensor it writes."""
    others = [n for n in node.all_input_nodes if n is not held]
    if not all(memory.apart(n, held) for n in others):
        return False
    named: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), named.append)
    return named.count(held) == 1 or torch.Tag.pointwise in node.target.tags


class ReinplaceOps(FxPass):
    """``a = sin(x); b = add(a, 1)`` -> ``b = add_(a, 1)``, if nobody reads ``a`` later.

    The memory must be the graph's own and of the result's type, size and layout; the results stay the same bits.

    Saves an allocation per operator; after the user's passes, which see a graph without side effects.
    """

    option = "inplace_pass"

    def run(self, gm: torch.fx.GraphModule) -> int:
        memory = Memory(gm.graph)
        edits = 0
        for node in gm.graph.nodes:
            form = in_place_form(node.target) if node.op == "call_function" else None
            held = node.args[0] if form is not None and node.args else None
            if not isinstance(held, torch.fx.Node) or memory.given(held) or not _fits(node, held):
                continue
            if memory.is_read_after(held, node) or not _others_apart(node, held, memory):
                continue
            node.target = form
            memory.join(node, [held])
            edits += 1
        return edits


class ReinplaceInputs(FxPass):
    """``y = index_put(cache, …); copy_(cache, y)`` -> ``y = index_put_(cache, …)``.

    Undoes what functionalisation has done to operators that wrote an input. Kept is the copy if the old content is read
    later, if the result is handed out (it would become another name of the input), or if the input is written twice.

    Saves a copy of a whole KV cache a step; before ReinplaceOps, which then sees what the inputs hold.
    """

    option = "input_inplace_pass"

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        edits = 0
        memory = Memory(graph)
        for copy in [n for n in graph.nodes if n.target is aten.copy_.default]:
            held, node = copy.args[0], copy.args[1]
            if copy.users or not self._mergeable(memory, held, node, copy):
                continue
            node.target = in_place_form(node.target)
            graph.erase_node(copy)
            memory.join(node, [held])
            memory.writers[held] = [node]
            edits += 1
        return edits

    @staticmethod
    def _mergeable(memory: Memory, held: Any, node: Any, copy: Node) -> bool:
        if not isinstance(held, torch.fx.Node) or held.op != "placeholder" or not isinstance(node, torch.fx.Node):
            return False
        if in_place_form(node.target) is None or not node.args or node.args[0] is not held or not _fits(node, held):
            return False
        if memory.writers.get(held) != [copy] or not memory.apart(node, held):
            return False
        if any(reader is not copy for reader in memory.readers_after(held, node)):
            return False
        return not memory.roots(node) & memory.returned and _others_apart(node, held, memory)
