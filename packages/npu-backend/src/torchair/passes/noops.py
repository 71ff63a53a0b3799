"""Operators that return what they got."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from ge_converters.base.operators import aten, prims
from torchair.passes.base import FxPass, is_lazy, output_values, same_layout, same_sizes, value_of, viewed

Rule = Callable[..., bool]


def _always(*args: Any) -> bool:
    return True


def _step_is_one(value: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    return isinstance(step, int) and step == 1


def _scatter_step_is_one(value: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    return isinstance(step, int) and step == 1


def _pads_nothing(value: Any, pad: Any, fill: Any = 0) -> bool:
    return all(isinstance(p, int) and p == 0 for p in pad)


def _integral(value: Any) -> bool:
    val = value_of(value)
    return isinstance(val, torch.Tensor) and not val.dtype.is_floating_point and not val.dtype.is_complex


def _power_one(value: Any, exponent: Any) -> bool:
    return isinstance(exponent, (int, float)) and exponent == 1


def _single(tensors: Any, dim: int = 0) -> bool:
    return len(tensors) == 1


def _identity_order(value: Any, dims: Any) -> bool:
    return [d % len(dims) for d in dims] == list(range(len(dims)))


# Operator -> (when it returns its argument, position of that argument). Every rule also needs result and argument to
# have the same shape and dtype, so a rule only says what these do not.
RULES: Final[dict[Any, tuple[Rule, int]]] = {
    aten.slice.Tensor: (_step_is_one, 0),
    aten.slice_scatter.default: (_scatter_step_is_one, 1),
    aten.repeat.default: (_always, 0),
    aten.expand.default: (_always, 0),
    aten.constant_pad_nd.default: (_pads_nothing, 0),
    prims.convert_element_type.default: (_always, 0),
    prims.device_put.default: (_always, 0),
    aten._to_copy.default: (_always, 0),
    aten.ceil.default: (_integral, 0),
    aten.floor.default: (_integral, 0),
    aten.round.default: (_integral, 0),
    aten.trunc.default: (_integral, 0),
    aten.pow.Tensor_Scalar: (_power_one, 0),
    aten.cat.default: (_single, 0),
    aten.view.default: (_always, 0),
    aten.view.dtype: (_always, 0),
    aten._unsafe_view.default: (_always, 0),
    aten.permute.default: (_identity_order, 0),
    aten.copy.default: (_always, 1),
    aten.alias.default: (_always, 0),
    aten.detach.default: (_always, 0),
    aten.clone.default: (_always, 0),
    aten.lift_fresh_copy.default: (_always, 0),
}


class RemoveNoops(FxPass):
    """``clone(x)``, ``x[:]``, ``x.to(x.dtype)`` … -> ``x``.

    Kept are nodes that the graph returns, directly or through views, and copies of inputs that are written later: there
    the copy is the point. So it is in a copy of a conjugate that torch leaves to its readers.

    Fewer operators to lower; first, so that later passes see through copies.
    """

    option = "remove_noop_ops"

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        roots = _Roots(graph)
        returned = {n for n in output_values(graph) if isinstance(n, torch.fx.Node)}
        kept = returned | {roots.of(n) for n in returned}
        edits = 0
        for node in list(graph.nodes):
            source = None if node in kept else self._source(node)
            if source is None or roots.of(source) in roots.written or is_lazy(source):
                continue
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            roots.forget(node, source)
            edits += 1
        return edits

    @staticmethod
    def _source(node: torch.fx.Node) -> torch.fx.Node | None:
        rule = RULES.get(node.target) if node.op == "call_function" else None
        if rule is None:
            return None
        applies, position = rule
        source: Any = node.args[position]
        if isinstance(source, (list, tuple)):
            source = source[0] if len(source) == 1 else None
        if not isinstance(source, torch.fx.Node):
            return None
        old, new = value_of(source), value_of(node)
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            return None
        same = old.dtype == new.dtype and old.device == new.device and same_sizes(old.shape, new.shape)
        # the copy that makes a transposed tensor dense stays: a view after it needs that, and GE has no layouts anyway
        return source if same and same_layout(old, new) and applies(*node.args) else None


class _Roots:
    """Which memory a node's result lies in: itself, or through views the node that made it."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._root: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in graph.nodes:
            source = viewed(node)
            if source is not None:
                self._root[node] = self.of(source)
        written: Iterable[Any] = (n.args[0] for n in graph.nodes if n.target is aten.copy_.default)
        self.written = {self.of(n) for n in written if isinstance(n, torch.fx.Node)}

    def of(self, node: torch.fx.Node) -> torch.fx.Node:
        return self._root.get(node, node)

    def forget(self, node: torch.fx.Node, source: torch.fx.Node) -> None:
        """``node`` has become ``source``: what lay in its memory lies in that of ``source`` now."""
        new = self.of(source)
        for user, root in self._root.items():
            if root is node:
                self._root[user] = new
