"""The choice of experts."""

from __future__ import annotations

from ge_graph import attrs as kinds
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_graph.passes.fusion.base import FLOATS, last_axis, number, rank_of
from ge_graph.passes.rewriter import Rewriter

_I32 = DataType.DT_INT32
_MOST = 1024  # of k


def _softmax(rewriter: Rewriter, tensor: object) -> Tensor | None:
    """The logits of a softmax over the last axis that nobody else reads."""
    node = rewriter.inner(tensor, "SoftmaxV2")
    if node is None or not isinstance(node.inputs[0], Tensor) or not isinstance(tensor, Tensor):
        return None
    rank, axes = rank_of(tensor), node.attr("axes", (-1,))
    x = node.inputs[0]
    alike = x.dtype is tensor.dtype and x.dtype in FLOATS and rank in (2, 3)
    return x if alike and len(axes) == 1 and last_axis(axes[0], rank) else None


def _experts(rewriter: Rewriter, top: Node) -> tuple[Tensor, int] | None:
    """(logits, k) of the largest shares."""
    k = number(top.inputs[1])
    x = _softmax(rewriter, top.inputs[0])
    if (
        x is None
        or k is None
        or not rewriter.free(top)
        or not top.attr("largest", True)
        or not top.attr("sorted", True)
    ):
        return None
    shape = x.known_shape
    if shape is None or not isinstance(shape[-1], int) or not 1 <= k <= min(shape[-1], _MOST):
        return None
    return (x, int(k)) if last_axis(top.attr("dim", -1), len(shape)) else None


def chosen(rewriter: Rewriter, top: Node) -> bool:
    """MoeGatingTopKSoftmax for the largest shares of a softmax"""
    experts = _experts(rewriter, top)
    if experts is None or any(_renormalises(rewriter, top, n) for n in rewriter.readers(top.outputs[0])):
        return False
    x, k = experts
    return _replace(rewriter, top, top.outputs[0], "MoeGatingTopKSoftmax", x, {"k": kinds.Int(k)}, _I32)


def renormalised(rewriter: Rewriter, node: Node) -> bool:
    """MoeGatingTopKSoftmaxV2 for the largest shares of a softmax, made to sum up to one"""
    shares = node.inputs[0]
    if not isinstance(shares, Tensor) or shares.node.op != "TopKV2" or not _renormalises(rewriter, shares.node, node):
        return False
    experts = _experts(rewriter, shares.node)
    if experts is None or not rewriter.free(node):
        return False
    x, k = experts
    attrs = {"k": kinds.Int(k), "renorm": kinds.Int(1)}
    return _replace(rewriter, shares.node, node.outputs[0], "MoeGatingTopKSoftmaxV2", x, attrs, DataType.DT_FLOAT)


def _renormalises(rewriter: Rewriter, top: Node, node: Node) -> bool:
    """Whether a node divides the shares by their sum, and nobody else reads them."""
    shares = top.outputs[0]
    if node.op != "RealDiv" or node.inputs[0] is not shares or rewriter.returned(shares):
        return False
    total = rewriter.inner(node.inputs[1], "ReduceSum")
    if total is None or total.inputs[0] is not shares or not total.attr("keep_dims", False):
        return False
    axis = number(total.inputs[1])
    return axis is not None and last_axis(axis, rank_of(shares)) and len(rewriter.readers(shares)) == 2


def _replace(
    rewriter: Rewriter, top: Node, shares: Tensor, op: str, x: Tensor, attrs: dict[str, kinds.Attr], third: DataType
) -> bool:
    index = top.outputs[1]
    shape = index.known_shape
    last = shape if third is _I32 else x.known_shape
    outputs = [(shares.dtype, shape), (_I32, shape), (third, last)]
    y, expert, _ = rewriter.before(top, op, (x, None), attrs, outputs)
    if index.dtype is not _I32:
        (expert,) = rewriter.before(
            top, "Cast", (expert,), {"dst_type": kinds.Int(int(index.dtype))}, [(index.dtype, shape)]
        )
    rewriter.replace(index, expert)
    last_node = shares.node
    rewriter.replace(shares, y)
    rewriter.retire(last_node)
    rewriter.retire(top)
    return True
