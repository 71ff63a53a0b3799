"""Symbolic inputs that a tensor's size gives away."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from torchair.config.log import logger
from torchair.passes.base import FxPass, value_of

FxNode: TypeAlias = torch.fx.Node


class DeriveSymbols(FxPass):
    """``f(s0: Sym(s0), x: f32[s0, 4])`` -> inside, ``sym_size(x, 0)`` instead of ``s0``.

    The inputs stay, since the caller passes them; those that nobody reads any more are left out of the GE graph. What
    remains are symbols that stand for numbers of their own.

    A symbol as an input is a copy from the host each step; first, so that later passes see where sizes come from.
    """

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        symbols = [n for n in inputs if isinstance(value_of(n), torch.SymInt) and n.users]
        if not symbols:
            return 0
        sources = _sources(inputs)
        logger.debug("symbolic inputs before: %s", ", ".join(f"{n.name}: {value_of(n)}" for n in symbols))
        edits = 0
        for node in symbols:
            source = sources.get(value_of(node).node.expr)
            readers = [u for u in node.users if u.op != "output"]
            if source is None or not readers:
                continue
            tensor, dim = source
            with graph.inserting_after(inputs[-1]):
                size = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
            size.meta["val"] = value_of(node)
            for reader in readers:
                reader.replace_input_with(node, size)
            edits += 1
        left = [n for n in symbols if n.users]
        logger.debug("symbolic inputs after: %s", ", ".join(f"{n.name}: {value_of(n)}" for n in left) or "none")
        return edits


def _sources(inputs: list[FxNode]) -> dict[Any, tuple[FxNode, int]]:
    sources: dict[Any, tuple[FxNode, int]] = {}
    for node in inputs:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    sources.setdefault(size.node.expr, (node, dim))
    return sources
