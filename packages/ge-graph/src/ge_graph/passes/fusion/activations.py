"""Activations written out, and those that gate the other half of a tensor."""

from __future__ import annotations

import math
from typing import Any

from ge_graph import attrs as kinds
from ge_graph.ir import Node, Tensor
from ge_graph.passes.fusion.base import FLOATS, FusionContext, factors, number, uncast

_CUBE = 0.044715
_ROOT = math.sqrt(2.0 / math.pi)


def gated(ctx: FusionContext, node: Node) -> bool:
    """SwiGlu or GeGluV2 for the product of one half of a tensor with the activation of the other"""
    result = node.outputs[0]
    if result.dtype not in FLOATS or not ctx.free(node):
        return False
    for active, other in factors(node):
        act = ctx.inner(active, "Swish", "Gelu", "GeluV2")
        if act is None or not isinstance(other, Tensor):
            continue
        gate = act.inputs[0]
        if not isinstance(gate, Tensor) or gate.node is not other.node or gate.node.op != "SplitV":
            continue
        split = gate.node
        source, dim = split.inputs[0], number(split.inputs[2])
        if not isinstance(source, Tensor) or dim is None or not _halves(ctx, split):
            continue
        left = gate.index == 0
        attrs = {"dim": kinds.Int(int(dim))}
        if act.op == "Swish":
            if not left or act.attr("scale", 1.0) != 1.0:
                continue
            (made,) = ctx.add(node, "SwiGlu", (source,), attrs, [(result.dtype, result.known_shape)])
        else:
            tanh = act.op == "Gelu" or act.attr("approximate", "none") in ("tanh", b"tanh")
            attrs |= {"approximate": kinds.Int(int(tanh)), "activate_left": kinds.Bool(left)}
            both = [(result.dtype, result.known_shape)] * 2
            made, _ = ctx.add(node, "GeGluV2", (source,), attrs, both)
        ctx.replace(result, made)
        ctx.retire(node)
        return True
    return False


def _halves(ctx: FusionContext, split: Node) -> bool:
    shapes = [t.known_shape for t in split.outputs]
    if len(shapes) != 2 or shapes[0] is None or shapes[0] != shapes[1] or not ctx.free(split):
        return False
    return all(len(ctx.readers(t)) == 1 and not ctx.returned(t) for t in split.outputs)


def tanh_gelu(ctx: FusionContext, node: Node) -> bool:
    """Gelu for 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))"""
    result = node.outputs[0]
    if result.dtype not in FLOATS or not ctx.free(node):
        return False
    for half, one_more in factors(node):
        halved = ctx.inner(uncast(ctx, half), "Mul", "Muls")
        plus = ctx.inner(uncast(ctx, one_more), "Add", "Adds")
        if halved is None or plus is None:
            continue
        x, tanh = _scaled(halved, 0.5), _shifted(plus, 1.0)
        root = ctx.inner(uncast(ctx, tanh), "Tanh")
        angle = ctx.inner(uncast(ctx, root.inputs[0]), "Mul", "Muls") if root is not None else None
        inner = ctx.inner(uncast(ctx, _scaled(angle, _ROOT)), "Add") if angle is not None else None
        if not isinstance(x, Tensor) or x.dtype is not result.dtype or inner is None or not _with_cube(ctx, inner, x):
            continue
        (made,) = ctx.add(node, "Gelu", (x,), {}, [(result.dtype, result.known_shape)])
        ctx.replace(result, made)
        ctx.retire(node)
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


def _with_cube(ctx: FusionContext, inner: Node, x: Tensor) -> bool:
    for same, term in factors(inner):
        product = ctx.inner(uncast(ctx, term), "Mul", "Muls")
        cube = ctx.inner(uncast(ctx, _scaled(product, _CUBE)), "Pow") if product is not None else None
        if same is x and cube is not None and cube.inputs[0] is x and number(cube.inputs[1]) == 3.0:
            return True
    return False
