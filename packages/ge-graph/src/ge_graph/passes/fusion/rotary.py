"""Rotary position embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ge_graph import attrs as kinds
from ge_graph.ir import Node, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.fusion.base import FLOATS, factors, last_axis, number
from ge_graph.passes.rewriter import Rewriter

_RANK = 4
_WIDEST = 896  # of a head, for RotaryPositionEmbedding


def rotated(rewriter: Rewriter, node: Node) -> bool:
    """RotaryPositionEmbedding for x * cos + rotate_half(x) * sin"""
    result, width = node.outputs[0], _width(rewriter, node)
    shape = result.known_shape
    if width is None or shape is None:
        return False
    for first, second in factors(node):
        plain, turned = rewriter.inner(first, "Mul"), rewriter.inner(second, "Mul")
        if plain is None or turned is None:
            continue
        for half, sin in factors(turned):
            x = _half_of(rewriter, half, width)
            if x is None or x.known_shape != shape:
                continue
            for same, cos in factors(plain):
                if same is x and all(_angles(t, shape, result) for t in (cos, sin)):
                    inputs = (x, cos, sin, None)
                    (made,) = rewriter.before(
                        node, "RotaryPositionEmbedding", inputs, {"mode": kinds.Int(0)}, [(result.dtype, shape)]
                    )
                    rewriter.replace(result, made)
                    rewriter.retire(node)
                    return True
    return False


def _width(rewriter: Rewriter, node: Node) -> int | None:
    """The width of a head that the operators take, if a sum may be the end of a rotation of such heads."""
    result = node.outputs[0]
    shape = result.known_shape
    if result.dtype not in FLOATS or shape is None or len(shape) != _RANK or not rewriter.free(node):
        return None
    width = shape[-1]
    return width if isinstance(width, int) and width % 2 == 0 and width <= _WIDEST else None


def rotated_back(rewriter: Rewriter, node: Node) -> bool:
    """RotaryPositionEmbeddingGrad for the gradient of x * cos + rotate_half(x) * sin"""
    result, width = node.outputs[0], _width(rewriter, node)
    shape = result.known_shape
    if width is None or shape is None:
        return False
    for plain, turned in _terms_back(rewriter, node, width):
        if turned.outputs[0].known_shape != shape:
            continue
        for dy, sin in factors(turned):
            for same, cos in factors(plain):
                if same is dy and dy.known_shape == shape and all(_angles(t, shape, result) for t in (cos, sin)):
                    outputs = [(result.dtype, shape), (cos.dtype, cos.known_shape), (sin.dtype, sin.known_shape)]
                    attrs = {"mode": kinds.Int(0)}
                    made = rewriter.before(node, "RotaryPositionEmbeddingGrad", (dy, cos, sin, None), attrs, outputs)
                    rewriter.replace(result, made[0])
                    rewriter.retire(node)
                    return True
    return False


def _terms_back(rewriter: Rewriter, node: Node, width: int) -> Iterator[tuple[Node, Node]]:
    """dy * cos and dy * sin of a sum that also has the halves of the second product, changed round: joined, or each
    between zeros, in any order."""
    for first, second in factors(node):
        plain, joined = rewriter.inner(first, "Mul"), rewriter.inner(second, "ConcatV2")
        if plain is not None and joined is not None and isinstance(joined.inputs[0], tuple):
            halves = joined.inputs[0]
            if len(halves) == 2 and last_axis(number(joined.inputs[1]), _RANK):
                turned = _turned_back(rewriter, halves[0], halves[1], width)
                if turned is not None:
                    yield plain, turned
        pair = rewriter.inner(first, "Add")
        if pair is None:
            continue
        three = (*pair.inputs[:2], second)
        for a, b, c in itertools.permutations(three):
            plain = rewriter.inner(a, "Mul")
            if plain is not None:
                front, back = _between_zeros(rewriter, b, (0, width // 2)), _between_zeros(rewriter, c, (width // 2, 0))
                turned = _turned_back(rewriter, front, back, width)
                if turned is not None:
                    yield plain, turned


def _turned_back(rewriter: Rewriter, front: Any, back: Any, width: int) -> Node | None:
    """The product whose second half is ``front``, and whose first half, negated, is ``back``."""
    minus = rewriter.inner(back, "Neg")
    if minus is None:
        return None
    parts = ((minus.inputs[0], 0), (front, width // 2))
    sources = [_slice(rewriter, t, begin, begin + width // 2, width) for t, begin in parts]
    if sources[0] is None or sources[0] is not sources[1]:
        return None
    return rewriter.inner(sources[0], "Mul", reads=2)


def _between_zeros(rewriter: Rewriter, tensor: Any, widths: tuple[int, int]) -> Tensor | None:
    """What PadV3 puts zeros around, along the last axis only."""
    node = rewriter.inner(tensor, "PadV3")
    if node is None or node.attr("mode", "constant") not in ("constant", b"constant"):
        return None
    paddings, value = array(node.inputs[1]), number(node.inputs[2]) if len(node.inputs) > 2 else 0.0
    if paddings is None or value != 0 or not node.attr("paddings_contiguous", True):
        return None
    source = node.inputs[0]
    wanted = [0] * (2 * _RANK - 2) + list(widths)
    return source if isinstance(source, Tensor) and paddings.reshape(-1).tolist() == wanted else None


def _angles(t: Any, shape: tuple[Any, ...], result: Tensor) -> bool:
    """Whether cos or sin has a form that the operator takes: of its type, with one or all batches and heads."""
    if not isinstance(t, Tensor) or t.dtype is not result.dtype or t.known_shape is None:
        return False
    own = t.known_shape
    return len(own) == _RANK and own[-1] == shape[-1] and all(a in (1, b) for a, b in zip(own, shape))


def _half_of(rewriter: Rewriter, half: Any, width: int) -> Tensor | None:
    """The tensor whose second half, negated, stands before its first half here."""
    joined = rewriter.inner(half, "ConcatV2")
    if joined is None or not isinstance(joined.inputs[0], tuple) or len(joined.inputs[0]) != 2:
        return None
    if not last_axis(number(joined.inputs[1]), _RANK):
        return None
    negated, first = joined.inputs[0]
    minus = rewriter.inner(negated, "Neg")
    if minus is None:
        return None
    upper, lower = minus.inputs[0], first
    if not isinstance(upper, Tensor) or not isinstance(lower, Tensor):
        return None
    if upper.node is lower.node and upper.node.op == "SplitV":
        return _split(rewriter, upper, lower, width)
    sources = [_slice(rewriter, t, begin, begin + width // 2, width) for t, begin in ((lower, 0), (upper, width // 2))]
    return sources[0] if sources[0] is sources[1] else None


def _split(rewriter: Rewriter, upper: Tensor, lower: Tensor, width: int) -> Tensor | None:
    node = lower.node
    source = node.inputs[0]
    right = (lower.index, upper.index) == (0, 1) and last_axis(number(node.inputs[2]), _RANK)
    shapes = [t.known_shape for t in node.outputs]
    equal = len(shapes) == 2 and all(s is not None and s[-1] == width // 2 for s in shapes)
    if not right or not equal or not isinstance(source, Tensor):
        return None
    once = all(len(rewriter.readers(t)) == 1 and not rewriter.returned(t) for t in (upper, lower))
    return source if once and rewriter.free(node) else None


def _slice(rewriter: Rewriter, part: Any, begin: int, end: int, width: int) -> Tensor | None:
    """What the part from ``begin`` to ``end`` of the last axis was taken from."""
    node = rewriter.inner(part, "StridedSliceV2")
    if node is None or any(
        node.attr(m, 0) for m in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    ):
        return None
    source = node.inputs[0]
    begins, ends, axes, steps = (array(i) for i in node.inputs[1:5])
    if not isinstance(source, Tensor) or any(a is None or a.size != 1 for a in (begins, ends, axes, steps)):
        return None
    at, to, axis, step = (int(a.reshape(-1)[0]) for a in (begins, ends, axes, steps) if a is not None)
    if not last_axis(axis, _RANK) or step != 1 or at % width != begin or (to if to < width else width) != end:
        return None
    return source
