"""RMSNorm written out, as language models have it, becomes one operator."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from torchair.fx_passes.base import switched_on, value_of

if TYPE_CHECKING:
    from torchair.config import NpuBaseConfig

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node
FUSED: Final = getattr(getattr(aten, "_fused_rms_norm", None), "default", None)


class FuseRmsNorm:
    """``x * rsqrt(mean(x**2, -1) + eps)``, times a weight if one follows -> ``_fused_rms_norm``, which is GE RmsNorm.

    Only in float32, where the fused operator does the same roundings in the same order, so the results keep their bits.
    A 16-bit model rounds between the two multiplications: there the float32 part in the middle is fused, without the
    weight. No fusion if somebody else reads a value in between, such as a backward graph.
    """

    name = "FuseRmsNorm"
    why = "five operators and as many trips through memory become one; after RemoveNoops has cut casts that do nothing"

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """By ``pattern_fusion_pass``; the operator came with torch 2.9."""
        return FUSED is not None and switched_on(config, "pattern_fusion_pass")

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Replace each match."""
        graph = gm.graph
        edits = 0
        for node in [n for n in graph.nodes if n.target is aten.rsqrt.default]:
            match = _match(node)  # only now: the operand may be what the last match has become
            if match is not None:
                _replace(graph, match)
                edits += 1
        return edits


@dataclass(frozen=True, slots=True)
class _Match:
    """One place: the operand, what to divide by, and the nodes that go, the last one first."""

    x: Node
    eps: float
    weight: Node | None
    rsqrt: Node
    nodes: list[Node]


def _match(rsqrt: Node) -> _Match | None:
    add, normal = rsqrt.args[0], _only_user(rsqrt, aten.mul.Tensor)
    if normal is None or not _single(add, aten.add.Tensor) or not isinstance(add.args[1], (int, float)):
        return None
    mean, eps = add.args
    if not _single(mean, aten.mean.dim) or len(mean.args) != 3 or mean.args[2] is not True:
        return None
    square = mean.args[0]
    x = _squared(square)
    if x is None or _other(normal, rsqrt) is not x:
        return None
    value = value_of(x)
    if value.dtype != torch.float32 or value.dim() < 1 or [d % value.dim() for d in mean.args[1]] != [value.dim() - 1]:
        return None
    if not isinstance(value.shape[-1], int) or not value.shape[-1]:
        return None
    nodes = [normal, rsqrt, add, mean, square]
    weighted = _only_user(normal, aten.mul.Tensor)
    weight = _other(weighted, normal) if weighted is not None else None
    known = value_of(weight) if isinstance(weight, torch.fx.Node) else None
    if not isinstance(known, torch.Tensor) or known.dtype != torch.float32 or known.shape != value.shape[-1:]:
        return _Match(x, float(eps), None, rsqrt, nodes)
    assert weighted is not None
    return _Match(x, float(eps), weight, rsqrt, [weighted, *nodes])


def _only_user(node: Node, target: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _single(node: Any, target: Any) -> bool:
    """Whether a value comes from this operator, without keywords, and one node reads it."""
    return isinstance(node, torch.fx.Node) and node.target is target and len(node.users) == 1 and not node.kwargs


def _other(product: Node, one: Any) -> Any:
    """The second factor of a product; None if it is the first one again."""
    if len(product.args) != 2 or product.args[0] is product.args[1]:
        return None
    return product.args[1] if product.args[0] is one else product.args[0]


def _squared(square: Any) -> Node | None:
    power = _single(square, aten.pow.Tensor_Scalar) and square.args[1] == 2
    product = _single(square, aten.mul.Tensor) and square.args[0] is square.args[1]
    x = square.args[0] if power or product else None
    return x if isinstance(x, torch.fx.Node) and isinstance(value_of(x), torch.Tensor) else None


def _replace(graph: torch.fx.Graph, match: _Match) -> None:
    last = match.nodes[0]
    with graph.inserting_before(last):
        fused = graph.call_function(FUSED, (match.x, [value_of(match.x).shape[-1]], match.weight, match.eps))
        result = graph.call_function(operator.getitem, (fused, 0))
    fused.meta = {**last.meta, "val": (value_of(last), value_of(match.rsqrt))}
    result.meta = dict(last.meta)
    last.replace_all_uses_with(result)
    for node in match.nodes:
        graph.erase_node(node)
