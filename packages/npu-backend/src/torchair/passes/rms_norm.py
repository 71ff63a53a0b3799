"""RMSNorm written out, as language models have it, becomes one operator."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ge_converters.base.operators import aten
from torchair.oplib.norm_ops import FUSED_RMS_NORM
from torchair.passes.base import FxPass, switched_on, value_of

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig

FxNode: TypeAlias = torch.fx.Node


class FuseRmsNorm(FxPass):
    """``x * rsqrt(mean(x**2, last dims) + eps)``, times a weight if one follows -> ``_fused_rms_norm``, GE RmsNorm.

    Only where the fused operator does the same roundings in the same order, so the results keep their bits: in float32
    throughout; and for a 16-bit input that is widened before and rounded after, with the weight in between, as
    ``torch.nn.RMSNorm`` does, or after, as language models do, whose weight then stays a product of its own. The
    reciprocal root may be read by others, such as a backward graph: it is the operator's second result. No fusion if
    somebody else reads another value in between.

    Five operators and as many trips through memory become one; after RemoveNoops has cut casts that do nothing.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """By ``pattern_fusion_pass``."""
        return switched_on(config, "pattern_fusion_pass")

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        edits = 0
        for node in [n for n in graph.nodes if n.target is aten.rsqrt.default]:
            match = _match(node)  # only now: the operand may be what the last match has become
            if match is not None and _ready(graph, match):
                _replace(graph, match)
                edits += 1
        return edits


@dataclass(frozen=True, slots=True)
class _Match:
    """One place: the operand, over how many of its last dims, and the nodes that go, the last one first."""

    x: FxNode
    dims: int
    eps: float
    weight: FxNode | None
    rsqrt: FxNode
    nodes: list[FxNode]


def _match(rsqrt: FxNode) -> _Match | None:
    add = rsqrt.args[0]
    products = [n for n in rsqrt.users if n.target is aten.mul.Tensor]
    if len(products) != 1 or not (_single(add, aten.add.Tensor) or _single(add, aten.add.Scalar)):
        return None
    normal = products[0]
    if len(add.args) != 2 or not isinstance(add.args[1], (int, float)):
        return None
    mean, eps = add.args
    if not _single(mean, aten.mean.dim) or len(mean.args) != 3 or mean.args[2] is not True:
        return None
    square = mean.args[0]
    x = _squared(square)
    if x is None or _other(normal, rsqrt) is not x:
        return None
    value = value_of(x)
    dims = _trailing(mean.args[1], value.dim())
    if value.dtype != torch.float32 or not dims or not all(isinstance(n, int) and n for n in value.shape[-dims:]):
        return None
    match = _Match(x, dims, float(eps), None, rsqrt, [normal, rsqrt, add, mean, square])
    return _rounded(match) or _weighted(match, torch.float32) or match


def _trailing(axes: Any, rank: int) -> int:
    """How many dims these are, if they are the last ones; else 0."""
    chosen = sorted(a % rank for a in axes) if rank and axes else []
    return len(chosen) if chosen == list(range(rank - len(chosen), rank)) else 0


def _weighted(match: _Match, dtype: torch.dtype) -> _Match | None:
    """With the weight by which the result is multiplied, if it has this type and the size of the dims."""
    normal = match.nodes[0]
    product = _only_user(normal, aten.mul.Tensor)
    weight = _other(product, normal) if product is not None else None
    known = value_of(weight) if isinstance(weight, torch.fx.Node) else None
    sizes = value_of(match.x).shape[-match.dims :]
    if not isinstance(known, torch.Tensor) or known.dtype != dtype or known.shape != sizes:
        return None
    assert isinstance(weight, torch.fx.Node)
    return replace(match, weight=weight, nodes=[product, *match.nodes])


def _rounded(match: _Match) -> _Match | None:
    """From a 16-bit tensor, widened before, to one rounded to its type at the end."""
    if match.x.target is not aten._to_copy.default:
        return None
    narrow = match.x.args[0]
    known = value_of(narrow) if isinstance(narrow, torch.fx.Node) else None
    if not isinstance(known, torch.Tensor) or known.dtype not in (torch.float16, torch.bfloat16):
        return None
    for form in (match, _weighted(match, known.dtype)):
        last = _only_user(form.nodes[0], aten._to_copy.default) if form is not None else None
        if form is not None and last is not None and value_of(last).dtype == known.dtype:
            assert isinstance(narrow, torch.fx.Node)
            return replace(form, x=narrow, nodes=[last, *form.nodes, match.x])
    return None


def _only_user(node: FxNode, target: Any) -> FxNode | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _single(node: Any, target: Any) -> bool:
    """Whether a value comes from this operator, without keywords, and one node reads it."""
    return isinstance(node, torch.fx.Node) and node.target is target and len(node.users) == 1 and not node.kwargs


def _other(product: FxNode, one: Any) -> Any:
    """The second factor of a product; None if it is the first one again."""
    if len(product.args) != 2 or product.args[0] is product.args[1]:
        return None
    return product.args[1] if product.args[0] is one else product.args[0]


def _squared(square: Any) -> FxNode | None:
    power = _single(square, aten.pow.Tensor_Scalar) and square.args[1] == 2
    product = _single(square, aten.mul.Tensor) and square.args[0] is square.args[1]
    x = square.args[0] if power or product else None
    return x if isinstance(x, torch.fx.Node) and isinstance(value_of(x), torch.Tensor) else None


def _ready(graph: torch.fx.Graph, match: _Match) -> bool:
    """Whether the weight is there where the operator has to stand."""
    place = _place(graph, match)
    if match.weight is None or place is match.nodes[0]:
        return True
    order = {n: i for i, n in enumerate(graph.nodes)}
    return order[match.weight] < order[place]


def _place(graph: torch.fx.Graph, match: _Match) -> FxNode:
    """Where the operator goes: before the first that reads a result of it."""
    inside = set(match.nodes)
    readers = [n for n in match.rsqrt.users if n not in inside]
    if not readers:
        return match.nodes[0]
    order = {n: i for i, n in enumerate(graph.nodes)}
    return min((match.nodes[0], *readers), key=order.__getitem__)


def _replace(graph: torch.fx.Graph, match: _Match) -> None:
    last = match.nodes[0]
    sizes = list(value_of(match.x).shape[-match.dims :])
    with graph.inserting_before(_place(graph, match)):
        fused = graph.call_function(FUSED_RMS_NORM, (match.x, sizes, match.weight, match.eps))
        result = graph.call_function(operator.getitem, (fused, 0))
        root = graph.call_function(operator.getitem, (fused, 1))
    fused.meta = {**last.meta, "val": (value_of(last), value_of(match.rsqrt))}
    result.meta, root.meta = dict(last.meta), dict(match.rsqrt.meta)
    last.replace_all_uses_with(result)
    inside = set(match.nodes)
    match.rsqrt.replace_all_uses_with(root, delete_user_cb=lambda user: user not in inside)
    for node in match.nodes:
        if not node.users:  # a widened input may be read elsewhere
            graph.erase_node(node)
    if not root.users:
        graph.erase_node(root)
