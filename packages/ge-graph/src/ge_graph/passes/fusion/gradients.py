"""Backward halves of norms and gated activations, as autograd writes them out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge_graph import attrs as kinds
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.fusion.base import FLOATS, factors, number
from ge_graph.passes.rewriter import Rewriter

_F32 = DataType.DT_FLOAT


# -- root mean square norm -------------------------------------------------------------------------------------------


def rms_norm(rewriter: Rewriter, node: Node) -> bool:
    """RmsNormGrad for g * r + (sum(g * x) * -0.5 * r ** 3 / n) * (x * 2), r the reciprocal root of the norm"""
    result = node.outputs[0]
    if result.dtype is not _F32 or not rewriter.free(node):
        return False
    for through_root, rest in factors(node):
        parts = _through_root(rewriter, through_root)
        if parts is None:
            continue
        x, root, inner = parts
        direct = rewriter.inner(rest, "Mul")
        more = None
        if direct is None or not _product_of(direct, root, inner):
            direct, more = _with_another(rewriter, rest, root, inner)
        grad = _other(direct, root) if direct is not None else None
        if direct is None or grad is None or _other(inner, x) is not grad:
            continue
        if not _fits(x, root, grad, result):
            continue
        _become_gradient(rewriter, node, x, root, grad, (direct, inner), more)
        return True
    return False


def _other(product: Node, one: Any) -> Tensor | None:
    """The other factor; of a square the factor."""
    a, b = product.inputs[:2]
    factor = b if a is one else a if b is one else None
    return factor if isinstance(factor, Tensor) else None


def _product_of(direct: Node, root: Tensor, inner: Node) -> bool:
    other = _other(direct, root)
    return other is not None and any(other is t for t in inner.inputs[:2])


def _with_another(rewriter: Rewriter, rest: Any, root: Tensor, inner: Node) -> tuple[Node | None, Tensor | None]:
    """g * r out of the sum with what reaches x on another way, and that."""
    added = rewriter.inner(rest, "Add")
    if added is None or added.outputs[0].dtype is not _F32:
        return None, None
    for one, other in factors(added):
        direct = rewriter.inner(one, "Mul")
        if direct is not None and _product_of(direct, root, inner) and isinstance(other, Tensor):
            return (direct, other) if other.known_shape == added.outputs[0].known_shape else (None, None)
    return None, None


def _times(node: Node | None, by: float) -> Tensor | None:
    """The operand of a product with a number."""
    if node is None:
        return None
    if node.op == "Muls":
        operand = node.inputs[0] if node.attr("value") == by else None
    else:
        operand = next((a for a, b in factors(node) if number(b) == by), None)
    return operand if isinstance(operand, Tensor) else None


def _through_root(rewriter: Rewriter, tensor: Any) -> tuple[Tensor, Tensor, Node] | None:
    """x, r and the product g * x of (sum(g * x) * -0.5 * r ** 3 / n) * (x * 2)."""
    product = rewriter.inner(tensor, "Mul")
    for mean, twice in factors(product) if product is not None else ():
        x = _times(rewriter.inner(twice, "Mul", "Muls"), 2.0)
        quotient = rewriter.inner(mean, "RealDiv")
        count = number(quotient.inputs[1]) if quotient is not None else None
        shape = x.known_shape if x is not None else None
        if x is None or quotient is None or not shape or shape[-1] != count:
            continue
        slope = rewriter.inner(quotient.inputs[0], "Mul")
        for scaled, cube in factors(slope) if slope is not None else ():
            power = rewriter.inner(cube, "Pow")
            total = _times(rewriter.inner(scaled, "Mul", "Muls"), -0.5)
            summed = rewriter.inner(total, "ReduceSum") if total is not None else None
            if power is None or summed is None or number(power.inputs[1]) != 3.0:
                continue
            root, inner = power.inputs[0], rewriter.inner(summed.inputs[0], "Mul")
            axes = array(summed.inputs[1])
            last = axes is not None and axes.reshape(-1).tolist() in ([-1], [len(shape) - 1])
            if inner is not None and isinstance(root, Tensor) and last and summed.attr("keep_dims", False):
                return x, root, inner
    return None


def _fits(x: Tensor, root: Tensor, grad: Tensor, result: Tensor) -> bool:
    shape = x.known_shape
    if shape is None or not grad.known_shape == shape == result.known_shape:
        return False
    return all(t.dtype is _F32 for t in (x, root, grad)) and root.known_shape == (*shape[:-1], 1)


def _become_gradient(
    rewriter: Rewriter,
    node: Node,
    x: Tensor,
    root: Tensor,
    grad: Tensor,
    products: tuple[Node, Node],
    more: Tensor | None,
) -> None:
    result, shape = node.outputs[0], x.known_shape
    assert shape is not None  # _fits
    last = node
    weighted = grad.node if grad.node.op == "Mul" and rewriter.free(grad.node) and not rewriter.returned(grad) else None
    gamma = dy = None
    if weighted is not None and all(r in products for r in rewriter.readers(grad)):
        for one, other in factors(weighted):
            if isinstance(one, Tensor) and isinstance(other, Tensor) and one.known_shape == shape[-1:]:
                gamma, dy = (one, other) if other.known_shape == shape and other.dtype is _F32 else (None, None)
    if gamma is None or dy is None or gamma.dtype is not _F32:
        gamma, dy = None, grad
    narrow = _narrow(rewriter, result, x, dy) if gamma is None and more is None else None
    kind = _F32 if narrow is None else narrow[0].outputs[0].dtype
    if gamma is None:
        gamma = rewriter.constant(np.ones(_width(shape), np.float32), kind)
    if narrow is not None:
        last, x, dy = narrow
    made, weights = rewriter.before(node, "RmsNormGrad", (dy, x, root, gamma), {}, [(kind, shape), (_F32, shape[-1:])])
    if more is not None:
        (made,) = rewriter.before(node, "Add", (more, made), {}, [(_F32, shape)])
    if narrow is None:
        _weight_gradient(rewriter, node, dy, x, root, weights)
    rewriter.replace(last.outputs[0], made)
    rewriter.retire(last)
    rewriter.retire(node)


def _width(shape: Any) -> int:
    return int(shape[-1])


def _narrow(rewriter: Rewriter, result: Tensor, x: Tensor, dy: Tensor) -> tuple[Node, Tensor, Tensor] | None:
    """The Cast of the result, and x and the gradient before they were widened, all of one 16-bit type."""
    readers = rewriter.readers(result)
    last = readers[0] if len(readers) == 1 and not rewriter.returned(result) else None
    if last is None or last.op != "Cast" or not rewriter.free(last) or last.outputs[0].dtype not in FLOATS:
        return None
    sources = [t.node.inputs[0] if t.node.op == "Cast" else None for t in (x, dy)]
    a, b = sources
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not rewriter.free(x.node, dy.node):
        return None
    return (last, a, b) if a.dtype is b.dtype is last.outputs[0].dtype else None


def _weight_gradient(rewriter: Rewriter, node: Node, dy: Tensor, x: Tensor, root: Tensor, made: Tensor) -> None:
    """Let sum(dy * (x * r)) over the leading axes be the second result, where its readers come after the first."""
    shape = x.known_shape
    assert shape is not None  # _fits
    for product in rewriter.readers(dy):
        if product.op != "Mul" or not rewriter.free(product):
            continue
        normal = rewriter.inner(_other(product, dy), "Mul")
        if normal is None or _other(normal, root) is not x:
            continue
        summed = rewriter.readers(product.outputs[0])
        if len(summed) != 1 or summed[0].op != "ReduceSum" or rewriter.returned(product.outputs[0]):
            continue
        axes = array(summed[0].inputs[1])
        if axes is None or sorted(a % len(shape) for a in axes.reshape(-1).tolist()) != list(range(len(shape) - 1)):
            continue
        end = summed[0]
        readers = rewriter.readers(end.outputs[0])
        if end.outputs[0].known_shape != shape[-1:]:
            if len(readers) != 1 or readers[0].op != "Reshape" or not rewriter.free(readers[0]):
                continue
            if rewriter.returned(end.outputs[0]) or readers[0].outputs[0].known_shape != shape[-1:]:
                continue
            end = readers[0]
        if rewriter.free(end) and rewriter.all_later(end.outputs[0], node):
            rewriter.replace(end.outputs[0], made)
            rewriter.retire(end)
            return


# -- gated activations -----------------------------------------------------------------------------------------------


def gated(rewriter: Rewriter, node: Node) -> bool:
    """SwiGluGrad or GeGluGradV2 for the joined gradients of the activation of one half of a tensor times the other"""
    result, parts = node.outputs[0], node.inputs[0]
    if not isinstance(parts, tuple) or len(parts) != 2 or result.dtype not in FLOATS or not rewriter.free(node):
        return False
    for place in (0, 1):
        active, plain = rewriter.inner(parts[place], "SiluGrad", "GeluGradV2"), rewriter.inner(parts[1 - place], "Mul")
        inner = rewriter.inner(active.inputs[0], "Mul") if active is not None else None
        if active is None or plain is None or inner is None or (active.op == "SiluGrad" and place):
            continue
        for grad, value in factors(plain):
            other = _other(inner, grad) if isinstance(grad, Tensor) else None
            split = _halves(rewriter, node, active.inputs[1], other, place)
            if split is None or not isinstance(value, Tensor) or not _activation(rewriter, value, active):
                continue
            x = split.inputs[0]
            if not isinstance(x, Tensor) or any(t.dtype is not result.dtype for t in (x, grad)):
                continue
            if grad.known_shape == split.outputs[0].known_shape:
                _become_gate(rewriter, node, active, grad, x, value, place)
                return True
    return False


def _halves(rewriter: Rewriter, node: Node, gate: Any, other: Tensor | None, place: int) -> Node | None:
    """The SplitV whose halves, along the axis on which the node joins, are the gate and the other factor."""
    split = gate.node if isinstance(gate, Tensor) and gate.node.op == "SplitV" else None
    if split is None or len(split.outputs) != 2 or not rewriter.free(split):
        return None
    if split.outputs[place] is not gate or split.outputs[1 - place] is not other:
        return None
    first, second = (t.known_shape for t in split.outputs)
    dim, axis = number(split.inputs[2]), number(node.inputs[1])
    if first is None or first != second or dim is None or axis is None or dim % len(first) != axis % len(first):
        return None
    return split


def _activation(rewriter: Rewriter, value: Tensor, gradient: Node) -> bool:
    """Whether a value is the activation of what the gradient is that of."""
    act = value.node
    if act.inputs[:1] != [gradient.inputs[1]] or not rewriter.free(act):
        return False
    if gradient.op == "SiluGrad":
        return bool(act.op == "Swish" and act.attr("scale", 1.0) == 1.0)
    return act.op == "GeluV2" and _by_tanh(act) == _by_tanh(gradient)


def _by_tanh(node: Node) -> bool:
    return node.attr("approximate", "none") in ("tanh", b"tanh")


def _become_gate(
    rewriter: Rewriter, node: Node, active: Node, grad: Tensor, x: Tensor, value: Tensor, place: int
) -> None:
    result, axis = node.outputs[0], number(node.inputs[1])
    assert axis is not None  # _halves
    attrs = {"dim": kinds.Int(int(axis))}
    inputs: tuple[Tensor, ...] = (grad, x)
    op = "SwiGluGrad"
    if active.op == "GeluGradV2":
        op, inputs = "GeGluGradV2", (grad, x, value)
        attrs |= {"approximate": kinds.Int(int(_by_tanh(active))), "activate_left": kinds.Bool(place == 0)}
    (made,) = rewriter.before(node, op, inputs, attrs, [(result.dtype, result.known_shape)])
    rewriter.replace(result, made)
    rewriter.retire(node)
