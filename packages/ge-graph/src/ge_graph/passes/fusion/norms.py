"""Norms of the sum with a residual."""

from __future__ import annotations

from typing import Any

from ge_graph import attrs as kinds
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.fusion.base import FLOATS
from ge_graph.passes.rewriter import Rewriter


def _sum(rewriter: Rewriter, node: Node) -> Node | None:
    """The Add of two tensors of one shape and type in front of a norm, all whose other readers stand after it."""
    x = node.inputs[0]
    if not isinstance(x, Tensor) or x.node.op != "Add" or x.dtype not in FLOATS or not rewriter.free(x.node, node):
        return None
    a, b = x.node.inputs[:2]
    alike = all(
        isinstance(t, Tensor) and t.known_shape == x.known_shape is not None and t.dtype is x.dtype for t in (a, b)
    )
    return x.node if alike and rewriter.all_later(x, node) else None


def _last(gamma: Any, x: Tensor) -> bool:
    """Whether a weight is one number for each place of the last axis."""
    shape = x.known_shape
    return isinstance(gamma, Tensor) and shape is not None and gamma.known_shape == shape[-1:]


def rms_norm_of_sum(rewriter: Rewriter, node: Node) -> bool:
    """AddRmsNorm for RmsNorm of a sum"""
    add, gamma = _sum(rewriter, node), node.inputs[1]
    if add is None or not _last(gamma, add.outputs[0]) or not isinstance(gamma, Tensor):
        return False
    x = add.outputs[0]
    if gamma.dtype is not x.dtype:
        return False
    y, rstd = node.outputs
    results = [(t.dtype, t.known_shape) for t in (y, rstd, x)]
    attrs = {"epsilon": node.attrs["epsilon"]} if "epsilon" in node.attrs else {}
    made = rewriter.before(node, "AddRmsNorm", (add.inputs[0], add.inputs[1], gamma), attrs, results)
    _swap(rewriter, node, add, dict(zip((y, rstd, x), made)))
    return True


def layer_norm_of_sum(rewriter: Rewriter, node: Node) -> bool:
    """AddLayerNorm for LayerNormV4 of a sum in float32"""
    add = _sum(rewriter, node)
    if add is None:
        return False
    x = add.outputs[0]
    sizes, (gamma, beta) = array(node.inputs[1]), node.inputs[2:4]
    single = x.dtype is DataType.DT_FLOAT and sizes is not None and sizes.size == 1
    if not single or not all(_last(t, x) and isinstance(t, Tensor) and t.dtype is x.dtype for t in (gamma, beta)):
        return False
    y, mean, rstd = node.outputs
    results = [(t.dtype, t.known_shape) for t in (y, mean, rstd, x)]
    attrs = {"epsilon": node.attrs["epsilon"]} if "epsilon" in node.attrs else {}
    others = [n for n in rewriter.readers(x) if n is not node]
    attrs |= {"additional_output": kinds.Bool(bool(others) or rewriter.returned(x))}
    inputs = (add.inputs[0], add.inputs[1], gamma, beta, None)
    made = rewriter.before(node, "AddLayerNorm", inputs, attrs, results)
    _swap(rewriter, node, add, dict(zip((y, mean, rstd, x), made)))
    return True


def _swap(rewriter: Rewriter, node: Node, add: Node, mapping: dict[Tensor, Tensor]) -> None:
    for old in node.outputs:
        rewriter.replace(old, mapping[old])
    rewriter.retire(node)
    old = add.outputs[0]
    rewriter.replace(old, mapping[old])
    rewriter.retire(add)
