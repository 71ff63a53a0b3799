"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

from ge_graph import attrs as kinds
from ge_graph.ir import Node, Tensor
from ge_graph.passes.fusion.base import FLOATS, FusionContext, array, factors, last_axis, number

_RANK = 4
_WIDEST = 896  # of a head, for RotaryPositionEmbedding


def rotated(ctx: FusionContext, node: Node) -> bool:
    """RotaryPositionEmbedding for x * cos + rotate_half(x) * sin"""
    result = node.outputs[0]
    shape = result.known_shape
    if result.dtype not in FLOATS or shape is None or len(shape) != _RANK or not ctx.free(node):
        return False
    width = shape[-1]
    if not isinstance(width, int) or width % 2 or width > _WIDEST:
        return False
    for first, second in factors(node):
        plain, turned = ctx.inner(first, "Mul"), ctx.inner(second, "Mul")
        if plain is None or turned is None:
            continue
        for half, sin in factors(turned):
            x = _half_of(ctx, half, width)
            if x is None or x.known_shape != shape:
                continue
            for same, cos in factors(plain):
                if same is x and all(_angles(t, shape, result) for t in (cos, sin)):
                    inputs = (x, cos, sin, None)
                    (made,) = ctx.add(
                        node, "RotaryPositionEmbedding", inputs, {"mode": kinds.Int(0)}, [(result.dtype, shape)]
                    )
                    ctx.replace(result, made)
                    ctx.retire(node)
                    return True
    return False


def _angles(t: Any, shape: tuple[Any, ...], result: Tensor) -> bool:
    """Whether cos or sin has a form that the operator takes: of its type, with one or all batches and heads."""
    if not isinstance(t, Tensor) or t.dtype is not result.dtype or t.known_shape is None:
        return False
    own = t.known_shape
    return len(own) == _RANK and own[-1] == shape[-1] and all(a in (1, b) for a, b in zip(own, shape))


def _half_of(ctx: FusionContext, half: Any, width: int) -> Tensor | None:
    """The tensor whose second half, negated, stands before its first half here."""
    joined = ctx.inner(half, "ConcatV2")
    if joined is None or not isinstance(joined.inputs[0], tuple) or len(joined.inputs[0]) != 2:
        return None
    if not last_axis(number(joined.inputs[1]), _RANK):
        return None
    negated, first = joined.inputs[0]
    minus = ctx.inner(negated, "Neg")
    if minus is None:
        return None
    upper, lower = minus.inputs[0], first
    if not isinstance(upper, Tensor) or not isinstance(lower, Tensor):
        return None
    if upper.node is lower.node and upper.node.op == "SplitV":
        return _split(ctx, upper, lower, width)
    sources = [_slice(ctx, t, begin, begin + width // 2, width) for t, begin in ((lower, 0), (upper, width // 2))]
    return sources[0] if sources[0] is sources[1] else None


def _split(ctx: FusionContext, upper: Tensor, lower: Tensor, width: int) -> Tensor | None:
    node = lower.node
    source = node.inputs[0]
    right = (lower.index, upper.index) == (0, 1) and last_axis(number(node.inputs[2]), _RANK)
    shapes = [t.known_shape for t in node.outputs]
    equal = len(shapes) == 2 and all(s is not None and s[-1] == width // 2 for s in shapes)
    if not right or not equal or not isinstance(source, Tensor):
        return None
    once = all(len(ctx.readers(t)) == 1 and not ctx.returned(t) for t in (upper, lower))
    return source if once and ctx.free(node) else None


def _slice(ctx: FusionContext, part: Tensor, begin: int, end: int, width: int) -> Tensor | None:
    """What the part from ``begin`` to ``end`` of the last axis was taken from."""
    node = ctx.inner(part, "StridedSliceV2")
    if node is None or any(node.attr(m, 0) for m in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask",
                                                     "shrink_axis_mask")):  # fmt: skip
        return None
    source = node.inputs[0]
    begins, ends, axes, steps = (array(i) for i in node.inputs[1:5])
    if not isinstance(source, Tensor) or any(a is None or a.size != 1 for a in (begins, ends, axes, steps)):
        return None
    at, to, axis, step = (int(a.reshape(-1)[0]) for a in (begins, ends, axes, steps) if a is not None)
    if not last_axis(axis, _RANK) or step != 1 or at % width != begin or (to if to < width else width) != end:
        return None
    return source
