"""Activations written out, and those that gate the other half of a tensor."""

from __future__ import annotations

import math
from typing import Any

from ge_graph import attrs as kinds
from ge_graph.ir import Node, Tensor
from ge_graph.passes.fusion.base import FLOATS, factors, number, uncast
from ge_graph.passes.rewriter import Rewriter

_CUBE = 0.044715
_ROOT = math.sqrt(2.0 / math.pi)


def gated(rewriter: Rewriter, node: Node) -> bool:
    """SwiGlu or GeGluV2 for the product of one half of a tensor with the activation of the other"""
    result = node.outputs[0]
    if result.dtype not in FLOATS or not rewriter.free(node):
        return False
    for active, other in factors(node):
        act = rewriter.inner(active, "Swish", "Gelu", "GeluV2")
        if act is None or not isinstance(other, Tensor):
            continue
        gate = act.inputs[0]
        if not isinstance(gate, Tensor) or gate.node is not other.node or gate.node.op != "SplitV":
            continue
        split = gate.node
        source, dim = split.inputs[0], number(split.inputs[2])
        if not isinstance(source, Tensor) or dim is None or not _halves(rewriter, split):
            continue
        left = gate.index == 0
        attrs = {"dim": kinds.Int(int(dim))}
        if act.op == "Swish":
            if not left or act.attr("scale", 1.0) != 1.0:
                continue
            (made,) = rewriter.before(node, "SwiGlu", (source,), attrs, [(result.dtype, result.known_shape)])
        else:
            tanh = act.op == "Gelu" or act.attr("approximate", "none") in ("tanh", b"tanh")
            attrs |= {"approximate": kinds.Int(int(tanh)), "activate_left": kinds.Bool(left)}
            both = [(result.dtype, result.known_shape)] * 2
            made, _ = rewriter.before(node, "GeGluV2", (source,), attrs, both)
        rewriter.replace(result, made)
        rewriter.retire(node)
        return True
    return False


def _halves(rewriter: Rewriter, split: Node) -> bool:
    shapes = [t.known_shape for t in split.outputs]
    if len(shapes) != 2 or shapes[0] is None or shapes[0] != shapes[1] or not rewriter.free(split):
        return False
    return all(len(rewriter.readers(t)) == 1 and not rewriter.returned(t) for t in split.outputs)


def tanh_gelu(rewriter: Rewriter, node: Node) -> bool:
    """Gelu for 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))"""
    result = node.outputs[0]
    if result.dtype not in FLOATS or not rewriter.free(node):
        return False
    for half, one_more in factors(node):
        halved = rewriter.inner(uncast(rewriter, half), "Mul", "Muls")
        plus = rewriter.inner(uncast(rewriter, one_more), "Add", "Adds")
        if halved is None or plus is None:
            continue
        x, tanh = _scaled(halved, 0.5), _shifted(plus, 1.0)
        root = rewriter.inner(uncast(rewriter, tanh), "Tanh")
        angle = rewriter.inner(uncast(rewriter, root.inputs[0]), "Mul", "Muls") if root is not None else None
        inner = rewriter.inner(uncast(rewriter, _scaled(angle, _ROOT)), "Add") if angle is not None else None
        if (
            not isinstance(x, Tensor)
            or x.dtype is not result.dtype
            or inner is None
            or not _with_cube(rewriter, inner, x)
        ):
            continue
        (made,) = rewriter.before(node, "Gelu", (x,), {}, [(result.dtype, result.known_shape)])
        rewriter.replace(result, made)
        rewriter.retire(node)
        return True
    return False


def _near(value: Any, wanted: float) -> bool:
    """Whether a constant is the rounding of a number to a type of at least 8 bits of precision."""
    return value is not None and abs(value - wanted) <= abs(wanted) * 2.0**-8


def _scaled(node: Node, by: float) -> Any:
    if node.op == "Muls":
        return node.inputs[0] if _near(node.attr("value"), by) else None
    return next((a for a, b in factors(node) if _near(number(b), by)), None)


def _shifted(node: Node, by: float) -> Any:
    if node.op == "Adds":
        return node.inputs[0] if node.attr("value") == by else None
    return next((a for a, b in factors(node) if number(b) == by), None)


def _with_cube(rewriter: Rewriter, inner: Node, x: Tensor) -> bool:
    for same, term in factors(inner):
        product = rewriter.inner(uncast(rewriter, term), "Mul", "Muls")
        cube = rewriter.inner(uncast(rewriter, _scaled(product, _CUBE)), "Pow") if product is not None else None
        if same is x and cube is not None and cube.inputs[0] is x and number(cube.inputs[1]) == 3.0:
            return True
    return False
