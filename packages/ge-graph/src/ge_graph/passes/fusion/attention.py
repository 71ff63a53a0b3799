"""Attention written out, and the forms in which its operands need not be copied first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge_graph import attrs as kinds
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_graph.passes.fusion.base import FLOATS, Site, array, factors, last_axis, number

_F32 = DataType.DT_FLOAT
_FAR = 2**31 - 1
_SWAP = (0, 2, 1, 3)
_REPEATS = 8  # softmax_max and softmax_sum repeat each value this often
_WIDEST = 512  # of a head
_NODES = 64  # looked at to learn the bound of a mask
_LARGEST = float(np.finfo(np.float32).max)
_MOVES = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Transpose", "BroadcastTo", "StridedSliceV2", "Cast"})
_QUERY, _KEY, _VALUE, _BIAS = range(4)


def written_out(site: Site, node: Node) -> bool:
    """FlashAttentionScore for softmax(q k^T * scale + bias) v"""
    out = node.outputs[0]
    if out.rank != 4 or out.dtype not in FLOATS or not _plain(node, False) or not site.free(node):
        return False
    weights = _uncast(site, node.inputs[0])
    value = node.inputs[1]
    soft = site.inner(weights, "SoftmaxV2")
    if soft is None or not isinstance(value, Tensor) or not _over_last(soft):
        return False
    found = _scores(site, _uncast(site, soft.inputs[0]))
    if found is None:
        return False
    product, scale, bias = found
    query, key = product.inputs[:2]
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or not _fits(query, key, value, out):
        return False
    if bias is not None:
        if out.dtype is DataType.DT_FLOAT16 or not _bounded(bias):
            return False
        bias = _stretched(site, node, bias, product.outputs[0])
        if bias is None:
            return False
    shape = query.known_shape
    assert shape is not None
    attrs = {
        "scale_value": kinds.Float(scale), "keep_prob": kinds.Float(1.0), "pre_tockens": kinds.Int(_FAR),
        "next_tockens": kinds.Int(_FAR), "head_num": kinds.Int(shape[1]), "input_layout": kinds.Str("BNSD"),
        "inner_precise": kinds.Int(0), "sparse_mode": kinds.Int(0), "pse_type": kinds.Int(0),
    }  # fmt: skip
    statistics = (*shape[:3], _REPEATS)
    outputs = [(_F32, statistics), (_F32, statistics), (out.dtype, (0,)), (out.dtype, out.known_shape)]
    inputs = (query, key, value, bias, *[None] * 8)
    made = site.add(node, "FlashAttentionScore", inputs, attrs, outputs)[3]
    site.replace(out, made)
    site.retire(node)
    for rule in (grouped, by_position):
        rule(site, made.node)
    return True


def _plain(node: Node, transposed: bool) -> bool:
    """Whether a product has no more than two operands, the second as wanted."""
    right = bool(node.attr("adj_x2", False)) is transposed and not node.attr("adj_x1", False)
    return right and not any(t is not None for t in node.inputs[2:])


def _over_last(soft: Node) -> bool:
    axes = soft.attr("axes", (-1,))
    return len(axes) == 1 and last_axis(axes[0], 4)


def _uncast(site: Site, tensor: Any) -> Any:
    """What a Cast between float types read, which the operator does itself."""
    node = site.inner(tensor, "Cast")
    source = node.inputs[0] if node is not None else None
    return source if isinstance(source, Tensor) and source.dtype in FLOATS else tensor


def _scores(site: Site, tensor: Any) -> tuple[Node, float, Tensor | None] | None:
    """(product of query and key, factor, what is added)."""
    for bias, rest in _added(site, tensor):
        scale, inner = 1.0, rest
        scaled = site.inner(rest, "Mul", "Muls", "RealDiv")
        if scaled is not None:
            factor, inner = _factor(scaled)
            if factor is None:
                continue
            scale = factor
        product = site.inner(inner, "BatchMatMulV2")
        if product is not None and _plain(product, True):
            return product, scale, bias
    return None


def _added(site: Site, tensor: Any) -> list[tuple[Tensor | None, Any]]:
    """(bias, rest), whichever operand of a sum the bias is."""
    add = site.inner(tensor, "Add")
    if add is None:
        return [(None, tensor)]
    return [(a, b) for a, b in factors(add) if isinstance(a, Tensor)]


def _factor(node: Node) -> tuple[float | None, Any]:
    if node.op == "Muls":
        return float(node.attr("value")), node.inputs[0]
    if node.op == "RealDiv":
        by = number(node.inputs[1])
        return (1.0 / by if by else None), node.inputs[0]
    for a, b in factors(node):
        by = number(b)
        if by is not None:
            return by, a
    return None, None


def _fits(query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> bool:
    shapes = [t.known_shape for t in (query, key, value, out)]
    if any(s is None or len(s) != 4 for s in shapes) or len({t.dtype for t in (query, key, value, out)}) != 1:
        return False
    q, k, v, y = (s for s in shapes if s is not None)
    if not all(isinstance(n, int) and n > 0 for n in (q[1], q[3], v[3])) or q[3] != v[3] or q[3] > _WIDEST:
        return False
    return bool(q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2] and y == q)


def _bounded(bias: Tensor) -> bool:
    """Whether nothing in a bias can be -inf.

    A row of -inf alone gives NaN when written out and zeros in the fused operator. Rows of a table that is a graph
    input are taken for weights, which are numbers.
    """
    waiting: list[Any] = [bias]
    most, seen = 0.0, 0
    while waiting:
        t = waiting.pop()
        seen += 1
        if not isinstance(t, Tensor) or seen > _NODES:
            return False
        node = t.node
        if node.op == "Const":
            value = array(t)
            if value is None or not np.isfinite(value).all():
                return False
            most += float(np.abs(value.astype(np.float64)).max(initial=0.0))
        elif node.op in ("Add", "Sub"):
            waiting += node.inputs
        elif node.op == "SelectV2":
            waiting += node.inputs[1:]
        elif node.op == "Fill":
            waiting.append(node.inputs[1])
        elif node.op in _MOVES:
            waiting.append(node.inputs[0])
        elif node.op not in ("Gather", "GatherV2"):
            return False
    return most <= _LARGEST


def _stretched(site: Site, at: Node, bias: Tensor, scores: Tensor) -> Tensor | None:
    """A bias with all heads and rows, as the operator takes it; layers share it."""
    shape, wanted = bias.known_shape, scores.known_shape
    if shape is None or wanted is None or bias.dtype is not scores.dtype or len(shape) > len(wanted):
        return None
    full = (1,) * (4 - len(shape)) + tuple(shape)
    if full[0] not in (1, wanted[0]) or any(a not in (1, b) for a, b in zip(full[1:], wanted[1:])):
        return None
    if full == (full[0], *wanted[1:]) and len(shape) == 4:
        return bias
    known = site.shared.get((bias, wanted[1:]))
    if known is not None and site.earlier(known, at):
        return known
    target = (full[0], *wanted[1:])
    sizes = [-1 if a == b and i >= 4 - len(shape) else b for i, (a, b) in enumerate(zip(full, target))]
    if not all(isinstance(n, int) for n in sizes):
        return None
    operand = site.constant(np.asarray(sizes, np.int64), DataType.DT_INT64)
    (made,) = site.add(at, "BroadcastTo", (bias, operand), {}, [(bias.dtype, target)])
    site.shared[bias, wanted[1:]] = made
    return made


def grouped(site: Site, node: Node) -> bool:
    """FlashAttentionScore reads key and value heads that were repeated for it once"""
    sources = [_repeated(site, node.inputs[i], node) for i in (_KEY, _VALUE)]
    if node.attr("input_layout") not in ("BNSD", b"BNSD") or not site.free(node) or None in sources:
        return False
    key, value = sources
    assert key is not None and value is not None
    if key.known_shape != value.known_shape:
        return False
    old = [node.inputs[i] for i in (_KEY, _VALUE)]
    site.feed(node, {_KEY: key, _VALUE: value})
    for t in old:
        if isinstance(t, Tensor):
            site.retire(t.node)
    return True


def _repeated(site: Site, tensor: Any, node: Node) -> Tensor | None:
    """[b, n, s, d] of Reshape(BroadcastTo(Unsqueeze(x, 2))) with each head g times in a row."""
    if not isinstance(tensor, Tensor) or tensor.node.op != "Reshape" or tensor.known_shape is None:
        return None
    wide = tensor.node.inputs[0]
    if not isinstance(wide, Tensor) or wide.node.op != "BroadcastTo" or wide.known_shape is None:
        return None
    narrow = wide.node.inputs[0]
    if not isinstance(narrow, Tensor) or narrow.node.op != "Unsqueeze":
        return None
    source, w, t = narrow.node.inputs[0], wide.known_shape, tensor.known_shape
    if not isinstance(source, Tensor) or source.known_shape is None or len(source.known_shape) != 4 or len(w) != 5:
        return None
    x = source.known_shape
    heads = isinstance(x[1], int) and isinstance(w[2], int) and t[1] == x[1] * w[2]
    if narrow.known_shape != (*x[:2], 1, *x[2:]) or w != (*x[:2], w[2], *x[2:]) or t != (x[0], t[1], *x[2:]):
        return None
    return source if heads and site.free(tensor.node, wide.node, narrow.node) else None


def by_position(site: Site, node: Node) -> bool:
    """FlashAttentionScore reads and writes heads behind positions, without a Transpose"""
    if node.attr("input_layout") not in ("BNSD", b"BNSD") or not site.free(node):
        return False
    out = node.outputs[3]
    readers = site.readers(out)
    if len(readers) != 1 or site.returned(out) or not _swaps(readers[0]) or not site.free(readers[0]):
        return False
    moved = [node.inputs[i] for i in (_QUERY, _KEY, _VALUE)]
    if not all(isinstance(t, Tensor) and _swaps(t.node) and site.free(t.node) for t in moved):
        return False
    sources = {i: t.node.inputs[0] for i, t in enumerate(moved) if isinstance(t, Tensor)}
    site.feed(node, sources)
    node.attrs["input_layout"] = kinds.Str("BSND")
    after = readers[0].outputs[0]
    out.record_shape(after.known_shape)
    site.replace(after, out)
    site.retire(readers[0])
    for t in moved:
        if isinstance(t, Tensor):
            site.retire(t.node)
    return True


def _swaps(node: Node) -> bool:
    """Whether a node swaps heads and positions."""
    if node.op != "Transpose":
        return False
    perm = array(node.inputs[1])
    return perm is not None and tuple(int(p) % 4 for p in perm.reshape(-1)) == _SWAP
