"""In-place forms of operators, where nobody can tell the difference."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from torchair.passes.base import FxPass, is_lazy, same_sizes, value_of
from torchair.passes.memory import MemoryFacts, shares
from torchair.passes.step_numbers import home_of

aten = torch.ops.aten
FxNode: TypeAlias = torch.fx.Node
# Their in-place forms take more than the memory of the first operand.
_NEVER: Final = frozenset({"resize", "resize_as", "set", "rename", "sparse_resize", "_resize_output"})

PAIRS: Final = {
    "scatter_update": "scatter_update_",
    "npu_scatter_nd_update": "npu_scatter_nd_update_",
    "npu_quant_scatter": "npu_quant_scatter_",
    "_npu_index_add": "_npu_index_add_",
    "npu_batch_gather_matmul": "npu_batch_gather_matmul_",
    "npu_grouped_matmul_add": "npu_grouped_matmul_add_",
    "npu_add_quant_matmul": "npu_add_quant_matmul_",
    "npu_add_quant_gmm": "npu_add_quant_gmm_",
    "npu_silu": "npu_silu_",
    "npu_add_rms_norm_v2_functional": "npu_add_rms_norm_v2",
    "npu_gather_pa_kv_cache_functional": "npu_gather_pa_kv_cache",
    "npu_kv_rmsnorm_rope_cache_v2_functional": "npu_kv_rmsnorm_rope_cache_v2",
    "npu_mla_prolog_v3_functional": "npu_mla_prolog_v3",
    "npu_qkv_rms_norm_rope_cache_functional": "npu_qkv_rms_norm_rope_cache",
    "npu_recurrent_gated_delta_rule_functional": "npu_recurrent_gated_delta_rule",
    "npu_scatter_pa_kv_cache_functional": "npu_scatter_pa_kv_cache",
}
"""Operators of torch_npu and those that do the same in place. The functional one of several results returns those of
the other, then each argument that the other writes, in their order."""


@functools.cache
def writing_form(target: Any) -> WritingForm | None:
    """What writes several arguments of an operator of torch_npu in place; None if there is nothing."""
    name = _npu_name(target)
    packet = getattr(torch.ops.npu, PAIRS.get(name, ""), None) if name.endswith("_functional") else None
    if packet is None:
        return None
    form, schema = packet.default, target._schema
    arguments = form._schema.arguments
    if [(a.name, str(a.type)) for a in arguments] != [(a.name, str(a.type)) for a in schema.arguments]:
        return None
    written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    results = len(form._schema.returns)
    if len(schema.returns) != results + len(written) or any(r.alias_info for r in form._schema.returns):
        return None
    return WritingForm(form, results, tuple((i, arguments[i].name) for i in written))


@dataclass(frozen=True, slots=True)
class WritingForm:
    """An operator that writes arguments.

    Attributes:
        target: The operator.
        results: How many results it has besides what it writes.
        written: Position and name of each argument that it writes.
    """

    target: Any
    results: int
    written: tuple[tuple[int, str], ...]


def _npu_name(target: Any) -> str:
    """The name of torch_npu's operator; empty for another."""
    known = isinstance(target, torch._ops.OpOverload) and target.namespace == "npu" and not target._schema.is_mutable
    return target._schema.name.split("::")[1] if known and target._overloadname == "default" else ""


@functools.cache
def in_place_form(target: Any) -> Any:
    """The overload of ``target`` that writes its first argument, ``aten.add_.Tensor`` for ``aten.add.Tensor``; or None.

    Views and random operators have none: the first only change the description of a tensor, the second draw numbers in
    another order when they fill memory of another layout.
    """
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "npu"):
        return None
    schema = target._schema
    name = schema.name.split("::")[1]
    if target.namespace == "aten":
        packet = getattr(aten, name + "_", None)
    else:
        packet = getattr(torch.ops.npu, PAIRS.get(_npu_name(target), ""), None)
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


def _fits(node: FxNode, held: FxNode) -> bool:
    """Whether the result is of the type, size and layout of the memory that it would be written to."""
    old, new = value_of(held), value_of(node)
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    same = old.dtype == new.dtype and old.device == new.device and old.layout == new.layout
    return same and same_sizes(old.shape, new.shape) and same_sizes(old.stride(), new.stride())


def _others_apart(node: FxNode, held: FxNode, memory: MemoryFacts) -> bool:
    """Whether the other operands lie elsewhere; an elementwise operator may also read the very tensor it writes."""
    others = [n for n in node.all_input_nodes if n is not held]
    if not all(memory.apart(n, held) for n in others):
        return False
    named: list[FxNode] = []
    torch.fx.map_arg((node.args, node.kwargs), named.append)
    return named.count(held) == 1 or torch.Tag.pointwise in node.target.tags


class ReinplaceOps(FxPass):
    """``a = sin(x); b = add(a, 1)`` -> ``b = add_(a, 1)``, if nobody reads ``a`` later.

    The memory must be the graph's own and of the result's type, size and layout; the results stay the same bits. What
    the host computes in a graph of a device stays as it is: it is computed before, not in its place.

    Saves an allocation per operator; after the user's passes, which see a graph without side effects.
    """

    option = "inplace_pass"

    def run(self, gm: torch.fx.GraphModule) -> int:
        memory, home = MemoryFacts(gm.graph), home_of(gm.graph)
        edits = 0
        for node in gm.graph.nodes:
            form = in_place_form(node.target) if node.op == "call_function" else None
            held = node.args[0] if form is not None and node.args else None
            if not isinstance(held, torch.fx.Node) or memory.given(held) or is_lazy(held):
                continue
            if not _fits(node, held) or value_of(held).device.type != home:
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
        memory = MemoryFacts(graph)
        for copy in [n for n in graph.nodes if n.target is aten.copy_.default]:
            held, node = copy.args[0], copy.args[1]
            if copy.users or not self._mergeable(memory, held, node, copy):
                continue
            node.target = in_place_form(node.target)
            graph.erase_node(copy)
            memory.join(node, [held])
            memory.writers[held] = [node]
            edits += 1
        found = [(n, form) for n in graph.nodes if n.op == "call_function" and (form := writing_form(n.target))]
        memory = MemoryFacts(graph) if found else memory
        # each cache has one writer, so what is decided for one operator holds whatever becomes of the others
        plans = [(n, form, plan) for n, form in found if (plan := _caches_of(n, form, memory)) is not None]
        for node, form, plan in plans:
            _write_caches(graph, node, form, plan)
        return edits + len(plans)

    @staticmethod
    def _mergeable(memory: MemoryFacts, held: Any, node: Any, copy: FxNode) -> bool:
        if not isinstance(held, torch.fx.Node) or held.op != "placeholder" or not isinstance(node, torch.fx.Node):
            return False
        if in_place_form(node.target) is None or not node.args or node.args[0] is not held or not _fits(node, held):
            return False
        if memory.writers.get(held) != [copy] or not memory.apart(node, held):
            return False
        if any(reader is not copy for reader in memory.readers_after(held, node)):
            return False
        return not memory.roots(node) & memory.returned and _others_apart(node, held, memory)


@dataclass(frozen=True, slots=True)
class _Cache:
    """An input that an operator writes: the input, its new content, and the copy of that into the input."""

    held: FxNode
    new: FxNode
    copy: FxNode


def _caches_of(node: FxNode, form: WritingForm, memory: MemoryFacts) -> list[_Cache] | None:
    """What ``form`` would write in the place of ``node``; None where somebody could tell the difference."""
    parts = {u.args[1]: u for u in node.users if u.target is operator.getitem}
    if len(parts) != len(node.users):
        return None
    caches: list[_Cache] = []
    for number, (position, name) in enumerate(form.written):
        held = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        new = parts.get(form.results + number)
        if not isinstance(held, torch.fx.Node) or held.op != "placeholder" or new is None:
            return None
        copy = next((u for u in new.users if u.target is aten.copy_.default and u.args[:2] == (held, new)), None)
        if copy is None or copy.users or memory.writers.get(held) != [copy] or not _fits(new, held):
            return None
        if any(reader is not copy for reader in memory.readers_after(held, node)) or _handed_out(new, copy):
            return None
        caches.append(_Cache(held, new, copy))
    written = {c.held for c in caches}
    named: list[FxNode] = []
    torch.fx.map_arg((node.args, node.kwargs), named.append)
    others = [n for n in named if n not in written]
    apart = all(memory.apart(n, held) for n in others for held in written)
    return caches if apart and len(named) - len(others) == len(caches) == len(written) else None


def _handed_out(new: FxNode, copy: FxNode) -> bool:
    """Whether the caller gets a value, or a view of it, besides the copy: it would become a name of the input."""
    return any(user.op == "output" for node in _names(new) for user in node.users if user is not copy)


def _names(new: FxNode) -> Iterator[FxNode]:
    yield new
    for user in new.users:
        if user.target is not aten.copy_.default and new in shares(user):
            yield from _names(user)


def _write_caches(graph: torch.fx.Graph, node: FxNode, form: WritingForm, caches: list[_Cache]) -> None:
    for cache in caches:
        graph.erase_node(cache.copy)
        cache.new.replace_all_uses_with(cache.held)
        graph.erase_node(cache.new)
    node.target = form.target
    values = value_of(node)
    if form.results == 1:
        for part in list(node.users):
            part.replace_all_uses_with(node)
            graph.erase_node(part)
    if isinstance(values, (tuple, list)):
        node.meta["val"] = values[0] if form.results == 1 else tuple(values[: form.results])
