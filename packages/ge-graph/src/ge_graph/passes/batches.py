"""Batched matrix products whose leading axes are joined before and split after."""

from __future__ import annotations

from typing import TypeAlias

from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Shape, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects
from ge_graph.passes.rewriter import Rewriter

_Source: TypeAlias = "Tensor | tuple[Tensor, Shape]"
_PRODUCTS = ("BatchMatMul", "BatchMatMulV2")


class UnjoinBatches(Pass):
    """A batched product of operands that were reshaped to rank 3 takes them as they were.

    ``Reshape(BatchMatMulV2(Reshape(a), Reshape(b)))``, where the reshapes join the same leading axes, a batch of the
    result is that of the operands and the last two axes stay, is one product of higher rank.
    """

    name = "unjoin_batches"
    reason = "torch multiplies batches of rank 3 only, GE of any rank: three reshapes less a product"
    place = "before fold_layout, which then sees the Transpose that a Reshape hid"

    def rewrite(self, graph: Graph) -> list[str]:
        if not any(n.op in _PRODUCTS for n in graph.nodes):
            return []
        rewriter = Rewriter(graph)
        effects = rewriter.effects
        unjoined_products = 0
        for node in rewriter.walk(_PRODUCTS):
            result = node.outputs[0]
            after = rewriter.readers(result)
            if len(after) != 1 or rewriter.returned(result) or after[0].op != "Reshape" or any(node.inputs[2:]):
                continue
            split = after[0].outputs[0]
            if any(effects.pinned(n) for n in (node, after[0])):
                continue
            unjoined = [_unjoined(entry, effects) for entry in node.inputs[:2]]
            sources = [_split_as(f, entry, split) for f, entry in zip(unjoined, node.inputs[:2])]
            if not any(isinstance(s, Tensor) for s in sources) or not _fit(sources, node, split):
                continue
            operands = [s if isinstance(s, Tensor) else _reshaped(rewriter, node, s) for s in sources]
            rewriter.feed(node, dict(enumerate(operands)))
            result.record_shape(split.known_shape)
            rewriter.substitute(split.node, result)
            unjoined_products += 1
        rewriter.finish()
        return [f"{unjoined_products} products on batches as they were"] if unjoined_products else []


def _unjoined(entry: object, effects: Effects) -> Tensor | None:
    """What a Reshape of leading axes read."""
    if not isinstance(entry, Tensor) or entry.node.op != "Reshape" or effects.pinned(entry.node):
        return None
    source = entry.node.inputs[0]
    if not isinstance(source, Tensor) or source in effects.written or source.format is not entry.format:
        return None
    before, after = source.known_shape, entry.known_shape
    if before is None or after is None or len(before) < 3 or len(after) != 3 or before[-2:] != after[-2:]:
        return None
    return source if all(_certain(d) for d in before) else None


def _certain(size: object) -> bool:
    """Whether a size is a symbol or a number but 0: an empty batch could have been joined from anything."""
    return isinstance(size, str) or (isinstance(size, int) and size > 0)


def _split_as(source: Tensor | None, entry: object, split: Tensor) -> _Source | None:
    """The operand with the batch of the result: as it was, or (source, shape) if one more Reshape gives it that."""
    batch = None if split.known_shape is None else split.known_shape[:-2]
    if source is None or source.known_shape is None or batch is None:
        return None
    if source.known_shape[:-2] == batch:
        return source
    shape = (*batch, *source.known_shape[-2:])
    symbols = [d for d in shape if not isinstance(d, int)]
    return (source, shape) if len(symbols) <= 1 and all(_certain(d) for d in shape) else None


def _reshaped(rewriter: Rewriter, node: Node, wanted: _Source | None) -> Tensor:
    assert isinstance(wanted, tuple)
    source, shape = wanted
    sizes = [d if isinstance(d, int) else -1 for d in shape]
    target = rewriter.constant(sizes, DataType.DT_INT64, node)
    (move,) = rewriter.before(node, "Reshape", [source, target], {}, [(source.dtype, shape)])
    move.format = source.format
    return move


def _fit(sources: list[_Source | None], node: Node, split: Tensor) -> bool:
    shapes = [s.known_shape if isinstance(s, Tensor) else None if s is None else s[1] for s in sources]
    if shapes[0] is None or shapes[1] is None or shapes[0][:-2] != shapes[1][:-2]:
        return False
    rows = shapes[0][-1 if node.attr("adj_x1") else -2]
    columns = shapes[1][-2 if node.attr("adj_x2") else -1]
    return split.known_shape == (*shapes[0][:-2], rows, columns) and split.format is node.outputs[0].format
