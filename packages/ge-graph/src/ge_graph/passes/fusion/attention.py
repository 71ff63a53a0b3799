"""Attention written out, and the forms in which its operands need not be copied first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge_graph import attrs as kinds
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Shape, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.fusion.base import FLOATS, factors, last_axis, number, rank_of, uncast
from ge_graph.passes.rewriter import Rewriter

_F32 = DataType.DT_FLOAT
_FAR = 2**31 - 1
_SWAP = (0, 2, 1, 3)
_REPEATS = 8  # softmax_max and softmax_sum repeat each value this often
_WIDEST = 512  # of a head
_NODES = 64  # looked at to learn the bound of a mask
_LARGEST = float(np.finfo(np.float32).max)
_MOVES = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Transpose", "BroadcastTo", "StridedSliceV2", "Cast"})
_QUERY, _KEY, _VALUE, _BIAS = range(4)


def written_out(rewriter: Rewriter, node: Node) -> bool:
    """FlashAttentionScore for softmax(q k^T * scale + bias) v"""
    out = node.outputs[0]
    if rank_of(out) != 4 or out.dtype not in FLOATS or not _plain(node, False) or not rewriter.free(node):
        return False
    weights = uncast(rewriter, node.inputs[0])
    value = node.inputs[1]
    soft = rewriter.inner(weights, "SoftmaxV2")
    if soft is None or not isinstance(value, Tensor) or not _over_last(soft):
        return False
    scores = _scores(rewriter, uncast(rewriter, soft.inputs[0]))
    if scores is None:
        return False
    product, scale, biases = scores
    query, key = product.inputs[:2]
    turned = _turned(rewriter, product)
    if not isinstance(query, Tensor) or not isinstance(key, Tensor):
        return False
    shape = key.known_shape if turned is None else _swapped(key.known_shape)
    if shape is None or not _fits(query, key, shape, value, out):
        return False
    if biases and out.dtype is DataType.DT_FLOAT16:
        return False
    bias = _stretched(rewriter, node, biases, product.outputs[0]) if biases else None
    if biases and bias is None:
        return False
    if turned is not None:
        perm = rewriter.constant(np.asarray(turned, np.int64), DataType.DT_INT64)
        (key,) = rewriter.before(node, "Transpose", (key.node.inputs[0], perm), {}, [(key.dtype, shape)])
    shape = query.known_shape
    assert shape is not None
    attrs = {
        "scale_value": kinds.Float(scale),
        "keep_prob": kinds.Float(1.0),
        "pre_tockens": kinds.Int(_FAR),
        "next_tockens": kinds.Int(_FAR),
        "head_num": kinds.Int(shape[1]),
        "input_layout": kinds.Str("BNSD"),
        "inner_precise": kinds.Int(0),
        "sparse_mode": kinds.Int(0),
        "pse_type": kinds.Int(0),
    }
    statistics = (*shape[:3], _REPEATS)
    outputs = [(_F32, statistics), (_F32, statistics), (out.dtype, (0,)), (out.dtype, out.known_shape)]
    inputs = (query, key, value, bias, *[None] * 8)
    made = rewriter.before(node, "FlashAttentionScore", inputs, attrs, outputs)[3]
    rewriter.replace(out, made)
    rewriter.retire(node)
    for rule in (grouped, by_position):
        rule(rewriter, made.node)
    return True


def _plain(node: Node, transposed: bool) -> bool:
    """Whether a product has no more than two operands, the second as wanted."""
    right = bool(node.attr("adj_x2", False)) is transposed and not node.attr("adj_x1", False)
    return right and not any(t is not None for t in node.inputs[2:])


def _over_last(soft: Node) -> bool:
    axes = soft.attr("axes", (-1,))
    return len(axes) == 1 and last_axis(axes[0], 4)


def _scores(rewriter: Rewriter, tensor: Any) -> tuple[Node, float, list[Tensor]] | None:
    """(product of query and key, factor, what is added)."""
    for biases, rest in _added(rewriter, tensor):
        scale, inner = 1.0, uncast(rewriter, rest)
        scaled = rewriter.inner(inner, "Mul", "Muls", "RealDiv")
        if scaled is not None:
            factor, inner = _factor(scaled)
            if factor is None:
                continue
            scale = factor
        product = rewriter.inner(uncast(rewriter, inner), "BatchMatMulV2")
        if product is not None and (_plain(product, True) or _turned(rewriter, product) is not None):
            return product, scale, biases
    return None


def _added(rewriter: Rewriter, tensor: Any, depth: int = 2) -> list[tuple[list[Tensor], Any]]:
    """(biases, rest), whichever operand of each sum is the bias."""
    add = rewriter.inner(tensor, "Add") if depth else None
    if add is None:
        return [([], tensor)]
    return [
        ([a, *more], rest)
        for a, b in factors(add)
        if isinstance(a, Tensor)
        for more, rest in _added(rewriter, b, depth - 1)
    ]


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


def _turned(rewriter: Rewriter, product: Node) -> list[int] | None:
    """How to transpose what the key was made of, where that Transpose also swaps the last axes for the product."""
    key = product.inputs[1]
    if not _plain(product, False) or not isinstance(key, Tensor) or key.node.op != "Transpose":
        return None
    perm = array(key.node.inputs[1])
    if perm is None or perm.size != 4 or not rewriter.free(key.node):
        return None
    a, b, c, d = (int(p) for p in perm.reshape(-1))
    return [a, b, d, c]


def _swapped(shape: Shape | None) -> Shape | None:
    return None if shape is None else (*shape[:-2], shape[-1], shape[-2])


def _fits(query: Tensor, key: Tensor, key_shape: Shape, value: Tensor, out: Tensor) -> bool:
    shapes = [query.known_shape, key_shape, value.known_shape, out.known_shape]
    if any(s is None or len(s) != 4 for s in shapes) or len({t.dtype for t in (query, key, value, out)}) != 1:
        return False
    q, k, v, y = (s for s in shapes if s is not None)
    if not all(isinstance(n, int) and n > 0 for n in (q[1], q[3], v[3])) or q[3] != v[3]:
        return False
    if not isinstance(q[3], int) or q[3] > _WIDEST:
        return False
    return bool(q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2] and y == q)


def _bounded(biases: list[Tensor]) -> bool:
    """Whether nothing in the sum of biases can be -inf, by what the graph says; what is read is not known."""
    waiting: list[Any] = list(biases)
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
        else:
            return False
    return most <= _LARGEST


def _stretched(rewriter: Rewriter, at: Node, biases: list[Tensor], scores: Tensor) -> Tensor | None:
    """The sum of biases with all heads and rows, as the operator takes it; layers share it."""
    wanted = scores.known_shape
    shapes = [t.known_shape for t in biases]
    if wanted is None or any(s is None or len(s) > 4 for s in shapes):
        return None
    if any(t.dtype is not scores.dtype for t in biases):
        return None
    fulls = [(1,) * (4 - len(s)) + tuple(s) for s in shapes if s is not None]
    if any(a not in (1, b) for f in fulls for a, b in zip(f, wanted)):
        return None
    bounded = _bounded(biases)
    if not bounded and wanted[-1] == 0:
        return None
    key = (*biases, wanted[1:])
    known = rewriter.shared.get(key)
    if known is not None and rewriter.earlier(known, at):
        return known
    full = tuple(max(d, key=lambda n: n != 1) for d in zip(*fulls))
    rank = max(len(s) for s in shapes if s is not None)
    target = (full[0], *wanted[1:])
    sizes = [-1 if a == b and i >= 4 - rank else b for i, (a, b) in enumerate(zip(full, target))]
    whole = full == target and rank == 4
    if not whole and not all(isinstance(n, int) for n in sizes):
        return None
    (bias,) = biases if len(biases) == 1 else rewriter.before(at, "Add", biases, {}, [(scores.dtype, full[4 - rank :])])
    if not bounded:
        bias = _with_nan_rows(rewriter, at, bias)
    if not whole:
        operand = rewriter.constant(np.asarray(sizes, np.int64), DataType.DT_INT64)
        (bias,) = rewriter.before(at, "BroadcastTo", (bias, operand), {}, [(bias.dtype, target)])
    rewriter.shared[key] = bias
    return bias


def _with_nan_rows(rewriter: Rewriter, at: Node, bias: Tensor) -> Tensor:
    """A bias whose rows of nothing but -inf are NaN, and so are those with an inf.

    Written out they give NaN, in the fused operator a row of -inf gives zeros. The largest of a row less itself is 0
    for a number, NaN otherwise.
    """
    shape = bias.known_shape
    assert shape is not None
    one = [(bias.dtype, (*shape[:-1], 1))]
    axis = rewriter.constant(np.asarray([-1], np.int64), DataType.DT_INT64)
    (most,) = rewriter.before(at, "ReduceMax", (bias, axis), {"keep_dims": kinds.Bool(True)}, one)
    (zero,) = rewriter.before(at, "Sub", (most, most), {}, one)
    (result,) = rewriter.before(at, "Add", (bias, zero), {}, [(bias.dtype, shape)])
    return result


def grouped(rewriter: Rewriter, node: Node) -> bool:
    """FlashAttentionScore reads key and value heads that were repeated for it once"""
    sources = [_repeated(rewriter, node.inputs[i]) for i in (_KEY, _VALUE)]
    if node.attr("input_layout") not in ("BNSD", b"BNSD") or not rewriter.free(node) or None in sources:
        return False
    key, value = sources
    assert key is not None
    assert value is not None
    if key.known_shape != value.known_shape:
        return False
    old = [node.inputs[i] for i in (_KEY, _VALUE)]
    rewriter.feed(node, {_KEY: key, _VALUE: value})
    for t in old:
        if isinstance(t, Tensor):
            rewriter.retire(t.node)
    return True


def _repeated(rewriter: Rewriter, tensor: Any) -> Tensor | None:
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
    return source if heads and rewriter.free(tensor.node, wide.node, narrow.node) else None


def by_position(rewriter: Rewriter, node: Node) -> bool:
    """FlashAttentionScore reads and writes positions before heads, without a Transpose"""
    if node.attr("input_layout") not in ("BNSD", b"BNSD") or not rewriter.free(node):
        return False
    out = node.outputs[3]
    readers = rewriter.readers(out)
    if len(readers) != 1 or rewriter.returned(out) or not _swaps(readers[0]) or not rewriter.free(readers[0]):
        return False
    moved = [node.inputs[i] for i in (_QUERY, _KEY, _VALUE)]
    if not all(isinstance(t, Tensor) and _swaps(t.node) and rewriter.free(t.node) for t in moved):
        return False
    before = [t.node.inputs[0] for t in moved if isinstance(t, Tensor)]
    rewriter.feed(node, {i: t for i, t in enumerate(before) if isinstance(t, Tensor)})
    node.attrs["input_layout"] = kinds.Str("BSND")
    after = readers[0].outputs[0]
    out.record_shape(after.known_shape)
    rewriter.replace(after, out)
    rewriter.retire(readers[0])
    for t in moved:
        if isinstance(t, Tensor):
            rewriter.retire(t.node)
    return True


def _swaps(node: Node) -> bool:
    """Whether a node swaps heads and positions."""
    if node.op != "Transpose":
        return False
    perm = array(node.inputs[1])
    return perm is not None and tuple(int(p) % 4 for p in perm.reshape(-1)) == _SWAP


# -- without gradients -----------------------------------------------------------------------------------------------

# Attributes of FlashAttentionScore, and their names there.
_RENAMED = {
    "scale_value": "scale",
    "head_num": "num_heads",
    "pre_tockens": "pre_tokens",
    "next_tockens": "next_tokens",
    "input_layout": "input_layout",
    "inner_precise": "inner_precise",
}
_MASK = 6


def is_narrow(node: Node) -> bool:
    """Whether a FlashAttentionScore has a result of 16 bits."""
    return node.outputs[3].dtype in FLOATS - {_F32}


def without_statistics(rewriter: Rewriter, node: Node) -> bool:
    """FusedInferAttentionScore for a FlashAttentionScore of 16 bits whose statistics nobody reads"""
    query, key, value = (node.inputs[i] for i in (_QUERY, _KEY, _VALUE))
    out = node.outputs[3]
    if not rewriter.free(node) or not all(rewriter.unread(t) for t in node.outputs[:3]) or not is_narrow(node):
        return False
    if node.attr("keep_prob", 1.0) != 1.0 or node.attr("sparse_mode", 0) != 0:
        return False
    if any(t is not None for i, t in enumerate(node.inputs) if i not in (_QUERY, _KEY, _VALUE, _MASK)):
        return False
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or not isinstance(value, Tensor):
        return False
    heads = _heads(node, query, key, value)
    mask = node.inputs[_MASK]
    if heads is None or any(t.dtype is not out.dtype for t in (query, key, value)) or not _one_for_all_heads(mask):
        return False
    attrs = {new: node.attrs[old] for old, new in _RENAMED.items() if old in node.attrs}
    attrs |= {"num_key_value_heads": kinds.Int(heads)}
    inputs = (query, (key,), (value,), None, mask, *[None] * 26)
    outputs = [(out.dtype, out.known_shape), (_F32, None)]
    made, _ = rewriter.before(node, "FusedInferAttentionScore", inputs, attrs, outputs)
    rewriter.replace(out, made)
    rewriter.retire(node)
    return True


def _heads(node: Node, query: Tensor, key: Tensor, value: Tensor) -> int | None:
    """The number of key heads, where all heads have one width that the operator takes."""
    axis = {"BNSD": 1, b"BNSD": 1, "BSND": 2, b"BSND": 2}.get(node.attr("input_layout"))
    shapes = [t.known_shape for t in (query, key, value)]
    if axis is None or any(s is None or len(s) != 4 for s in shapes):
        return None
    widths = {s[3] for s in shapes if s is not None}
    width, heads = widths.pop(), shapes[1][axis] if shapes[1] is not None else None
    good = not widths and isinstance(width, int) and width % 16 == 0 and 0 < width <= _WIDEST
    return heads if good and isinstance(heads, int) else None


def _one_for_all_heads(mask: Any) -> bool:
    if mask is None:
        return True
    shape = mask.known_shape if isinstance(mask, Tensor) else None
    return shape is not None and (len(shape) == 2 or (len(shape) == 4 and shape[1] == 1))
