"""What decides about a kernel beside element types: shapes, masks, constants. One row an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor


def index_on_ai_cpu(node: Node) -> str:
    """Why AI CPU runs an IndexByTensor, empty if AI Core does.

    With static sizes GE makes it Index, whose AI Core kernel wants indices of one shape, none of bool, along dimensions
    that lie side by side.
    """
    if any(not isinstance(d, int) for t in (*node.operands(), *node.outputs) for d in t.known_shape or ("?",)):
        return "sizes are not static"
    indices = [t for t in (node.inputs[1] or ()) if isinstance(t, Tensor)] if isinstance(node.inputs[1], tuple) else []
    if any(t.dtype is DataType.DT_BOOL for t in indices):
        return "an index is bool"
    if len({t.known_shape for t in indices}) > 1:
        return "the indices have different shapes"
    if not side_by_side(node):
        return "the indexed dimensions do not lie side by side"
    return ""


def side_by_side(node: Node) -> bool:
    """Whether the dimensions that an IndexByTensor indexes are neighbours."""
    mask = [bool(m) for m in node.attr("indices_mask", ())]
    return sum(mask) == 0 or True not in mask[mask.index(True) + sum(mask) :]


ON_AI_CPU: Final[Mapping[str, Callable[[Node], str]]] = {"IndexByTensor": index_on_ai_cpu}
"""Operator that AI Core runs under conditions to the reason for which a node is left to AI CPU."""

NOT_NAMED: Final[Mapping[tuple[str, str], tuple[str, frozenset[DataType], str, str]]] = {
    (chip, op): row
    for chip in ("ascend910b", "ascend910_93")
    for op, row in {
        "MatMulV2": (
            "bias",
            frozenset({DataType.DT_BF16}),
            "it launches MatMulV3, whose list names bias in float32 and float16",
            "hicann/ops-nn matmul/mat_mul_v3: kernel list and README.md",
        ),
        "MaxPoolWithArgmaxV1": (
            "x",
            frozenset({DataType.DT_FLOAT16, DataType.DT_BF16}),
            "its launch is for float32 alone on this core",
            "hicann/ops-nn pooling/max_pool3d_with_argmax_v2/op_api/max_pool_with_argmax_v1.cpp",
        ),
    }.items()
}
"""Chip and operator of which runs in other types are known, to a port, types that no list of kernels names for it
there, why, and who says so."""

WITH_CONSTANTS: Final[Mapping[str, str]] = {
    "ConcatV2": "ConcatV2D",
    "ReduceMean": "ReduceMeanD",
    "ReduceSum": "ReduceSumD",
    "SplitV": "SplitVD",
    "StridedSliceV2": "StridedSliceD",
}
"""Operator that GE replaces where axes, sizes or places are constants, seen in profiles of GE graphs."""

REPLACED: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("ascend950", op): (other, f"graph fusion rule {rule}")
    for op, other, rule in (
        ("BatchMatMulV2", "BatchMatMulV3", "BatchMatMulToBatchMatmulV3FusionPass"),
        ("Conv2D", "Conv2DV2", "Conv2dToConv2dV2FusionPass"),
        ("IndexByTensor", "Index", "IndexByTensorStaticFusionPass"),
        ("MatMulV2", "MatMulV3", "MatMulToMatmulV3FusionPass"),
    )
}
"""Chip and operator that GE replaces there, by published rules, to the other one and its source."""
