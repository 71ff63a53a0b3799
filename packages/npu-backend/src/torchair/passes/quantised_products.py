"""A product of dequantised int8 values becomes a product of the int8 values themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from ge_converters.base.operators import aten
from torchair.passes.base import FxPass, same_dim, switched_on, value_of

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig

FxNode: TypeAlias = torch.fx.Node
_LONGEST: Final = (2**31 - 1) // 255**2  # terms of a sum that int32 holds, each of two differences of bytes
_VIEWS: Final = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_TURNS: Final = (aten.t.default, aten.permute.default, aten.transpose.int)


class FuseQuantisedProducts(FxPass):
    """``mm`` or ``addmm`` of ``(q - zero point) * scale`` on both sides, q int8 -> ``_int_mm``, then the two scales.

    As ``convert_pt2e`` leaves linear layers: activations with a scale for all, or one for each row; weights with one
    for all or for each column of the result. Zero points are numbers or tensors: what they add to the sum is taken off
    in int32, exactly. The product has a quarter of the bytes to read, and int8 units to run on. Only in float32, where
    the result differs from the product of dequantised values by the rounding of that product; and only for sums that
    int32 holds.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """By ``pattern_fusion_pass``; quantised values have no gradient."""
        return phase == "forward" and switched_on(config, "pattern_fusion_pass")

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph, edits = gm.graph, 0
        for node in [n for n in graph.nodes if n.target in (aten.mm.default, aten.addmm.default)]:
            match = _match(node)
            if match is not None:
                _replace(graph, node, *match)
                edits += 1
        return edits


@dataclass(frozen=True, slots=True)
class _Quantised:
    """An operand of a product.

    Attributes:
        q: int8 values, of as many dimensions as they have before views.
        scale: A number or a tensor.
        zero: Likewise, or 0.
        nodes: What computes the operand out of these, the last one first.
    """

    q: FxNode
    scale: Any
    zero: Any
    nodes: tuple[FxNode, ...]


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def _match(product: FxNode) -> tuple[_Quantised, _Quantised] | None:
    if set(product.kwargs) or value_of(product).dtype != torch.float32:
        return None
    left, right = (_operand(n) for n in product.args[-2:])
    if left is None or right is None:
        return None
    length = value_of(product.args[-1]).shape[0]
    if not isinstance(length, int) or not 0 < length <= _LONGEST:
        return None
    rows, columns = value_of(product).shape
    if not all(_fits(v, left.q, -1, rows) for v in (left.scale, left.zero)):
        return None
    if not all(_fits(v, right.q, 0, columns) for v in (right.scale, right.zero)):
        return None
    turned = any(n.target in _TURNS for n in right.nodes)
    if any(n.target in _TURNS for n in left.nodes) or not turned or any(n.target in _VIEWS for n in right.nodes):
        return None
    return left, right


def _operand(node: Any) -> _Quantised | None:
    nodes: list[FxNode] = []
    while _is(node, *_VIEWS, *_TURNS):
        nodes.append(node)
        node = node.args[0]
    if not _is(node, aten.mul.Tensor):
        return None
    nodes.append(node)
    shifted, scale = node.args
    zero: Any = 0
    if _is(shifted, aten.sub.Tensor) and not shifted.kwargs and len(shifted.args) == 2:
        nodes.append(shifted)
        shifted, zero = shifted.args
    if _is(shifted, aten._to_copy.default) and _type(shifted) == torch.float32 and set(shifted.kwargs) == {"dtype"}:
        nodes.append(shifted)
        shifted = shifted.args[0]
    if not isinstance(shifted, torch.fx.Node) or _type(shifted) != torch.int8:
        return None
    if isinstance(scale, torch.fx.Node) and _type(scale) != torch.float32 or not _whole(zero):
        return None
    return _Quantised(shifted, scale, zero, tuple(nodes))


def _type(node: FxNode) -> Any:
    return getattr(value_of(node), "dtype", None)


def _whole(zero: Any) -> bool:
    """Whether a zero point is whole: a number, integers, or floats that were made of integers."""
    while (
        isinstance(zero, torch.fx.Node)
        and _is(zero, aten._to_copy.default, *_VIEWS)
        and value_of(zero).is_floating_point()
    ):
        zero = zero.args[0]
    if isinstance(zero, torch.fx.Node):
        return _type(zero) in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    return isinstance(zero, int) or (isinstance(zero, float) and zero.is_integer())


def _fits(parameter: Any, q: FxNode, axis: int, count: Any) -> bool:
    """Whether a scale or zero point is one for all, or one for each of ``count`` rows: of all dims but ``axis`` is one.

    Rows of an operand that is viewed as a matrix are those of all dims before the last.
    """
    if not isinstance(parameter, torch.fx.Node):
        return isinstance(parameter, (int, float))
    shape, of = value_of(parameter).shape, value_of(q).shape
    if not shape:
        return True
    if axis == -1:
        return len(shape) == len(of) and same_dim(shape[-1], 1) and all(map(same_dim, shape[:-1], of[:-1]))
    return len(shape) == 2 and len(of) == 2 and same_dim(shape[0], count) and same_dim(shape[1], 1)


def _replace(graph: torch.fx.Graph, product: FxNode, left: _Quantised, right: _Quantised) -> None:
    rows, columns = value_of(product).shape
    length = value_of(product.args[-1]).shape[0]

    def call(target: Any, *args: Any, **kwargs: Any) -> FxNode:
        node = graph.call_function(target, args, kwargs)
        given = torch.fx.map_arg((args, kwargs), value_of)
        node.meta = {**product.meta, "val": target(*given[0], **given[1])}
        return node

    def along(parameter: Any, sizes: list[int], dtype: torch.dtype) -> Any:
        """A parameter as a number, a tensor of no dimensions, or a column or row of the result."""
        if not isinstance(parameter, torch.fx.Node):
            return int(parameter) if dtype == torch.int32 else parameter
        value = value_of(parameter)
        shaped = call(aten.view.default, parameter, sizes) if value.dim() else parameter
        return shaped if value.dtype == dtype else call(aten._to_copy.default, shaped, dtype=dtype)

    def times(a: Any, b: Any) -> Any:
        if isinstance(a, torch.fx.Node) or isinstance(b, torch.fx.Node):
            return call(aten.mul.Tensor, *((a, b) if isinstance(a, torch.fx.Node) else (b, a)))
        return a * b

    with graph.inserting_before(product):
        x, w = left.q, right.q
        if value_of(x).dim() != 2:
            x = call(aten.view.default, x, [-1, length])
        total = call(aten._int_mm.default, x, call(aten.t.default, w))
        zero_x, zero_w = (along(z, s, torch.int32) for z, s in ((left.zero, [-1, 1]), (right.zero, [1, -1])))
        if isinstance(zero_x, torch.fx.Node) or zero_x:
            sums = call(aten.sum.dim_IntList, w, [1], dtype=torch.int32)
            total = call(aten.sub.Tensor, total, times(call(aten.view.default, sums, [1, -1]), zero_x))
        if isinstance(zero_w, torch.fx.Node) or zero_w:
            sums = call(aten.sum.dim_IntList, x, [1], True, dtype=torch.int32)
            if isinstance(zero_x, torch.fx.Node) or zero_x:
                sums = call(aten.sub.Tensor, sums, times(zero_x, length))
            total = call(aten.sub.Tensor, total, times(sums, zero_w))
        scales = [along(s, n, torch.float32) for s, n in ((left.scale, [-1, 1]), (right.scale, [1, -1]))]
        y = call(aten._to_copy.default, total, dtype=torch.float32)
        # a column times a row would be a matrix of its own
        outer = all(isinstance(s, torch.fx.Node) and value_of(s).dim() for s in scales)
        y = times(times(y, scales[0]), scales[1]) if outer else times(y, times(*scales))
        if product.target is aten.addmm.default:
            y = call(aten.add.Tensor, y, product.args[0])
    product.replace_all_uses_with(y)
    for node in (product, *left.nodes, *right.nodes):
        if not node.users:
            graph.erase_node(node)
