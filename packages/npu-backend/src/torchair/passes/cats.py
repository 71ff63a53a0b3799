"""Concatenations that need no copy."""

from __future__ import annotations

import functools
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.operators import aten
from torchair.config.log import logger
from torchair.passes.base import FxPass, same_sizes, value_of
from torchair.passes.memory import MemoryFacts

FxNode: TypeAlias = torch.fx.Node
# Their out variants compute elsewhere and copy.
_NEVER: Final = frozenset({aten.cat.default, aten.clone.default, aten.empty.memory_format, aten._to_copy.default})


@functools.cache
def out_form(target: Any) -> Any:
    """The overload of an ATen operator that writes its result into ``out=``; None if it has none."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target in _NEVER:
        return None
    schema = target._schema
    if len(schema.returns) != 1 or schema.returns[0].alias_info is not None or schema.is_mutable:
        return None
    if torch.Tag.nondeterministic_seeded in target.tags or str(schema.returns[0].type) != "Tensor":
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    for overload in target.overloadpacket.overloads():
        form = getattr(target.overloadpacket, overload)
        *arguments, last = form._schema.arguments or [None]
        if last is not None and last.is_out and [(a.name, str(a.type)) for a in arguments] == wanted:
            return form
    return None


class RemoveCats(FxPass):
    """``cat([f(x), g(y)])`` -> a buffer, into whose parts ``f`` and ``g`` write.

    Only along dimension 0 with fixed sizes, where a part of a dense buffer is as dense as the operator's own result.
    Each operand must come from an operator with an ``out`` variant, stand in no other cat, and not be handed out: its
    memory is now part of the buffer's.

    Saves reading and writing every operand again; after the user's passes, before ReinplaceOps takes memory.
    """

    option = "remove_cat_ops"

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        cats = [n for n in graph.nodes if n.target is aten.cat.default]
        edits = 0
        for cat in cats:
            memory = MemoryFacts(graph)
            if self._removable(cat, memory):
                self._rewrite(graph, cat, memory)
                logger.debug("remove_cat_ops: optimized %s with %d inputs", cat.name, len(cat.args[0]))
                graph.erase_node(cat)
                edits += 1
        if cats:
            logger.debug("remove_cat_ops: %d of %d cats optimized", edits, len(cats))
        return edits

    @staticmethod
    def _removable(cat: FxNode, memory: MemoryFacts) -> bool:
        parts: Any = cat.args[0]
        dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
        whole = value_of(cat)
        if not isinstance(whole, torch.Tensor) or dim != 0 or len(parts) < 2 or len(set(parts)) < len(parts):
            return False
        if not _static(whole) or not whole.is_contiguous() or memory.given(cat):
            return False
        return all(_writable(p, cat, whole, memory) for p in parts)

    @staticmethod
    def _rewrite(graph: torch.fx.Graph, cat: FxNode, memory: MemoryFacts) -> None:
        parts: Any = cat.args[0]
        whole = value_of(cat)
        first = min(parts, key=memory.position.__getitem__)
        with graph.inserting_before(first):
            buffer = graph.call_function(
                aten.empty.memory_format, (list(whole.shape),), {"dtype": whole.dtype, "device": whole.device}
            )
            buffer.meta = dict(cat.meta)
        start = 0
        for part in parts:
            value = value_of(part)
            end = start + value.shape[0]
            with graph.inserting_before(part):
                piece = graph.call_function(aten.slice.Tensor, (buffer, 0, start, end))
                made = graph.call_function(out_form(part.target), part.args, {**part.kwargs, "out": piece})
            piece.meta, made.meta = {"val": value}, dict(part.meta)
            part.replace_all_uses_with(made)
            graph.erase_node(part)
            start = end
        cat.replace_all_uses_with(buffer)


def _static(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _writable(part: Any, cat: FxNode, whole: torch.Tensor, memory: MemoryFacts) -> bool:
    if not isinstance(part, torch.fx.Node) or part.op != "call_function" or out_form(part.target) is None:
        return False
    value = value_of(part)
    if not isinstance(value, torch.Tensor) or value.dtype != whole.dtype or value.device != whole.device:
        return False
    dense = _static(value) and value.is_contiguous() and value.dim() == whole.dim()
    if not dense or not same_sizes(value.shape[1:], whole.shape[1:]):
        return False
    if memory.roots(part) & (memory.returned | memory.written):
        return False
    return not any(user is not cat and user.target is aten.cat.default for user in part.users)
