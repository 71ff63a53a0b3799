"""What an operator computes and moves, by its definition: floating point operations, bytes read, bytes written.

A multiplication and an addition are two operations, and only matrix products, convolutions and attentions are counted,
as ``torch.utils.flop_counter`` does. Elements are read and written once; what an operator may leave untouched (rows
that a gather does not take, memory that a scatter does not write) is not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ge_graph import schema
from ge_graph.cost import attention, network
from ge_graph.cost.sizes import Numbers, Shapes, port
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor

_Flops: TypeAlias = "Callable[[Shapes, Node], int | None]"


@dataclass(frozen=True, slots=True)
class Work:
    """What a node does.

    Attributes:
        flops: Operations of the cube unit; None if the sizes are not known.
        least: Those that no kernel can leave out: an attention may skip what its mask hides.
        read: Bytes read; None if a size is not known.
        written: Bytes written.
        elements: Elements that the vector unit computes, 0 for pure moves and for what the cube unit does.
        dtype: Element type in which the cube unit, or else the vector unit, computes.
        unit: ``cube``, ``vector``, ``move`` (bytes only), ``none`` (no work on the device) or ``network``.
        traffic: What is exchanged with other ranks.
    """

    flops: int | None
    least: int | None
    read: int | None
    written: int | None
    elements: int | None
    dtype: DataType
    unit: str
    traffic: network.Traffic = network.NONE

    @property
    def bytes(self) -> int | None:
        """Bytes read and written."""
        return None if self.read is None or self.written is None else self.read + self.written


def of(shapes: Shapes, node: Node) -> Work:
    """The work of one node."""
    dtype = _compute_type(node)
    if node.op in FREE:
        return Work(0, 0, 0, 0, 0, dtype, "none")
    unit = "cube" if is_counted(node.op) or is_uncounted(node.op) else _unit(node)
    flops = _FLOPS[node.op](shapes, node) if is_counted(node.op) else None if unit == "cube" else 0
    outs = node.outputs
    elements: int | None = 0
    if unit == "vector":
        updated, targets = _updated(node)
        whole = [t for at, entry in enumerate(node.inputs) if at not in updated for t in _tensors(entry)]
        counts = [shapes.elements(t) for t in (*whole, *(t for t in outs if t.index not in targets))]
        elements = None if any(c is None for c in counts) else max((c for c in counts if c is not None), default=0)
    # of chosen places those may be empty, of sequences only the run knows how long they are
    least = _least(shapes, node) if node.op in _ATTENTIONS else 0 if node.op in (*_CHOSEN, *_INDEXED) else flops
    traffic = network.of(shapes, node)
    return Work(flops, least, _read(shapes, node), _written(shapes, node), elements, dtype, unit, traffic)


def is_counted(op: str) -> bool:
    """Whether the operations of an operator are counted."""
    return op in _FLOPS


def is_uncounted(op: str) -> bool:
    """Whether an operator multiplies matrices and no formula here says how many operations that is."""
    return op not in _FLOPS and op not in _NO_PRODUCTS and _PRODUCTS.search(op) is not None


# Parts of names of operators that multiply matrices, and those that only sound so.
_PRODUCTS: Final = re.compile(
    r"Mat[Mm]ul|Conv[123][Dd]|Attention|FFN|MlaProlog|LSTM|GRU|DeltaRule|LightningIndexer|Einsum|Gemm(?!a)|"
    r"FullyConnection|FusedLinear"
)
_NO_PRODUCTS: Final = frozenset(
    [
        "AttentionUpdate",
        "AttentionToFFN",
        "FFNToAttention",
        "AttentionWorkerScheduler",
        "AttentionWorkerCombine",
        "KvQuantSparseFlashAttentionMetadata",
        "RingAttentionUpdate",
        "FfnWorkerBatching",
    ]
)


def _compute_type(node: Node) -> DataType:
    """Type of the first operand that is no list of sizes; of an operator without operands that of its result."""
    for entry in node.inputs:
        first = entry[0] if isinstance(entry, tuple) and entry else entry
        if isinstance(first, Tensor) and not (node.op in _SIZE_FIRST and first is node.inputs[0]):
            return first.dtype
    return node.outputs[0].dtype if node.outputs else DataType.DT_UNDEFINED


def _unit(node: Node) -> str:
    if network.is_network(node.op):
        return "network"
    return "move" if node.op in MOVES else "vector"


# -- operations --------------------------------------------------------------------------------------------------------


def _shape(shapes: Shapes, operand: Any) -> Numbers | None:
    return shapes.of(operand) if isinstance(operand, Tensor) else None


def _product(x: str, *turned: str) -> _Flops:
    """A matrix product: elements of the result times the length that is summed over.

    Args:
        x: The port of the left matrix.
        turned: Attributes of which one says that the left matrix is transposed.
    """

    def flops(shapes: Shapes, node: Node) -> int | None:
        left, out = _shape(shapes, port(node, x)), shapes.elements(node.outputs[0])
        if left is None or out is None or not left:
            return None
        transposed = any(bool(node.attr(name)) for name in turned) and len(left) > 1
        return 2 * out * left[-2 if transposed else -1]

    return flops


def _turned_product(shapes: Shapes, node: Node) -> int | None:
    """TransposeBatchMatMul: ``perm_x1`` puts the batch first and the summed length last."""
    left, out = _shape(shapes, port(node, "x1")), shapes.elements(node.outputs[0])
    order = list(node.attr("perm_x1") or ())
    if left is None or out is None:
        return None
    summed = int(order[-1]) if left and len(order) == len(left) else -1
    return 2 * out * left[summed] if left else None


def _grouped(shapes: Shapes, node: Node) -> int | None:
    """GroupedMatmul and its like: each row of x meets one weight, whatever group it is in."""
    x, weight = port(node, "x"), port(node, "weight")
    xs = x if isinstance(x, tuple) else (x,)
    weights = weight if isinstance(weight, tuple) else (weight,)
    total = 0
    for at, left in enumerate(xs):
        rows, matrix = _shape(shapes, left), _shape(shapes, weights[min(at, len(weights) - 1)] if weights else None)
        if rows is None or matrix is None or len(matrix) < 2 or not rows:
            return None
        turned = bool(node.attr("transpose_weight"))
        k, n = (matrix[-1], matrix[-2]) if turned else (matrix[-2], matrix[-1])
        if int(node.attr("group_type", 0) or 0) == 2:  # groups along the summed length: x is [k, m] as a whole
            total += 2 * math.prod(rows) * n
            continue
        taken = math.prod(rows) // k if k else 0
        total += 2 * taken * k * n
    return total


def _ffn(shapes: Shapes, node: Node) -> int | None:
    rows = _shape(shapes, port(node, "x"))
    first, second = _shape(shapes, port(node, "weight1")), _shape(shapes, port(node, "weight2"))
    if rows is None or first is None or second is None or not rows:
        return None
    tokens = math.prod(rows[:-1])
    return 2 * tokens * (first[-1] * first[-2] + second[-1] * second[-2])


def _out_channels(node: Node, kernel: Numbers, operand: Any) -> int:
    """Number of result channels of a filter, by its layout."""
    name = operand.format.name if isinstance(operand, Tensor) else ""
    return kernel[-1] if name.endswith("HWCN") else kernel[0]


def _convolution(source: str | None) -> _Flops:
    """A convolution: each element of ``source`` (None: of the result) meets the filter of one channel.

    For a transposed convolution, and for the gradient of the input, that is the operand whose channels are the filter's
    first dimension.
    """

    def flops(shapes: Shapes, node: Node) -> int | None:
        operand = port(node, "filter")
        kernel = _shape(shapes, operand)
        met = node.outputs[0] if source is None else port(node, source)
        count = shapes.elements(met) if isinstance(met, Tensor) else None
        if kernel is None or count is None or not kernel:
            return None
        channels = _out_channels(node, kernel, operand)
        return 2 * count * (math.prod(kernel) // channels) if channels else 0

    return flops


def _convolution_filter(shapes: Shapes, node: Node) -> int | None:
    """The gradient of the filter: each element of the result's gradient meets one channel of it."""
    kernel, out = shapes.of(node.outputs[0]), port(node, "out_backprop")
    count = shapes.elements(out) if isinstance(out, Tensor) else None
    if kernel is None or count is None or not kernel:
        return None
    channels = _out_channels(node, kernel, node.outputs[0])
    return 2 * count * (math.prod(kernel) // channels) if channels else 0


def _depthwise(shapes: Shapes, node: Node) -> int | None:
    kernel, out = _shape(shapes, port(node, "filter")), shapes.elements(node.outputs[0])
    operand = port(node, "filter")
    if kernel is None or out is None or len(kernel) < 2:
        return None
    window = kernel[:2] if isinstance(operand, Tensor) and operand.format.name.startswith("HW") else kernel[-2:]
    return 2 * out * math.prod(window)


def _first(entry: Any) -> Any:
    return entry[0] if isinstance(entry, tuple) and entry else entry


def _attended(shapes: Shapes, node: Node) -> attention.Heads | None:
    """Sizes of the attention of a node; of a cache in blocks the blocks that a row of the table can name."""
    query, key, value = (_shape(shapes, _first(node.inputs[i])) for i in range(3))
    if query is None or key is None or value is None:
        return None
    count = int(node.attr("head_num", 0) or node.attr("num_heads", 0) or 0)
    layout, kv_heads = str(node.attr("input_layout", "BSH")), int(node.attr("num_key_value_heads", 0) or 0)
    table = _shape(shapes, port(node, "block_table"))
    if table is None:
        told = attention.read(layout, count, query, key, value, kv_heads)
        if told is None or not isinstance(node.inputs[1], tuple) or len(node.inputs[1]) < 2:
            return told
        return told._replace(batch=len(node.inputs[1]))  # a list of one key a sequence
    plain = attention.read(layout, count, query, query, query)
    if plain is None:
        return None
    block = int(node.attr("block_size", 0) or 0) or key[1]
    return plain._replace(keys=table[-1] * block)


def _attention(products: tuple[int, int]) -> _Flops:
    """Products over the depth of query and key, and over the width of the value."""

    def flops(shapes: Shapes, node: Node) -> int | None:
        told = _attended(shapes, node)
        if told is None:
            return None
        return 2 * told.scores * (products[0] * told.depth + products[1] * told.width)

    return flops


def _prolog(shapes: Shapes, node: Node) -> int | None:
    """MlaProlog and its like: each token meets every element of the four weights once."""
    token = _shape(shapes, port(node, "token_x"))
    weights = [_shape(shapes, port(node, n)) for n in ("weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr")]
    if token is None or not token or any(w is None for w in weights):
        return None
    return 2 * math.prod(token[:-1]) * sum(math.prod(w) for w in weights if w is not None)


def _chosen(shapes: Shapes, node: Node) -> int | None:
    """SparseFlashAttention and its like: each row and head of the query meets the keys that its indices name."""
    query, places, out = (_shape(shapes, x) for x in (node.inputs[0], port(node, "sparse_indices"), node.outputs[0]))
    if query is None or places is None or out is None or not query or not places or not out:
        return None
    rope = _shape(shapes, port(node, "query_rope")) or (0,)
    keys = places[-1] * int(node.attr("sparse_block_size", 1) or 1)
    return 2 * math.prod(query[:-1]) * keys * (query[-1] + rope[-1] + out[-1])


def _indexed(shapes: Shapes, node: Node) -> int | None:
    """LightningIndexer and its like: each row and head of the query meets all keys of its sequence."""
    query, key = _shape(shapes, port(node, "query")), _shape(shapes, port(node, "key"))
    if query is None or key is None or not query or len(key) < 2:
        return None
    table = _shape(shapes, port(node, "block_table"))
    keys = table[-1] * key[1] if table else key[0] if len(key) == 3 else key[1]
    return 2 * math.prod(query) * keys


def _least(shapes: Shapes, node: Node) -> int | None:
    """Operations on the pairs of query and key that the band shows; 0 where only the run knows lengths."""
    told, products = _attended(shapes, node), _ATTENTIONS[node.op]
    if told is None:
        return None
    if told.packed or any(isinstance(port(node, name), Tensor) for name in _LENGTHS):
        return 0
    return 2 * told.batch * told.heads * _shown(node, told) * (products[0] * told.depth + products[1] * told.width)


def _shown(node: Node, told: attention.Heads) -> int:
    """Pairs of a row of the query and one of the key that are inside the band of the attention."""
    mode = int(node.attr("sparse_mode", 0) or 0)
    before, after = (
        int(next((node.attr(n) for n in names if node.attr(n) is not None), _FAR))
        for names in (("pre_tockens", "pre_tokens"), ("next_tockens", "next_tokens"))
    )
    if mode in (2, 3):  # the triangle below the diagonal that begins at the first, or ends at the last pair
        before, after = _FAR, 0 if mode == 2 else told.keys - told.queries
    elif mode == 1:
        before = after = _FAR
    elif mode:
        return 0
    return sum(max(0, min(told.keys - 1, row + after) - max(0, row - before) + 1) for row in range(told.queries))


_FAR: Final = 1 << 40
# Where the numbers of rows that count are operands.
_LENGTHS: Final = (
    "actual_seq_qlen",
    "actual_seq_kvlen",
    "actual_seq_lengths",
    "actual_seq_lengths_kv",
    "block_table",
    "prefix",
)
# Products over the depth of query and key, and over the width of the value. The gradient: scores again, their gradient
# by the value, the gradients of value, query and key.
_ATTENTIONS: Final[Mapping[str, tuple[int, int]]] = {
    **{
        op: (1, 1)
        for op in ("FlashAttentionScore", "PromptFlashAttention", "IncreFlashAttention", "FusedInferAttentionScore")
    },
    "FlashAttentionScoreGrad": (3, 2),
}
_CHOSEN: Final = ("SparseFlashAttention", "KvQuantSparseFlashAttention")
_INDEXED: Final = ("LightningIndexer", "QuantLightningIndexer")
_SIZE_FIRST: Final = frozenset({"Conv2DBackpropInput", "Conv3DBackpropInput", "Conv2DTranspose", "Conv3DTranspose"})
_PLAIN: Final = _product("x1", "transpose_x1", "adj_x1", "is_trans_a", "trans_x1")
_FLOPS: Final[Mapping[str, _Flops]] = {
    **{
        op: _PLAIN
        for op in (
            "MatMul",
            "MatMulV2",
            "MatMulV3",
            "BatchMatMul",
            "BatchMatMulV2",
            "BatchMatMulV3",
            "QuantBatchMatmulV3",
            "QuantBatchMatmulV4",
            "FusedMatMul",
            "FusedQuantMatMul",
            "MatmulAllReduce",
            "MatmulAllReduceAddRmsNorm",
            "GemmV3",
            "MatmulReduceScatter",
            "MatmulReduceScatterV2",
            "AllGatherMatmul",
            "AllGatherMatmulV2",
            "DualLevelQuantBatchMatmul",
            "QuantBatchMatmulInplaceAdd",
            "QuantMatmulDequant",
        )
    },
    "GemmV2": _product("a", "transpose_a"),
    "GEMM": _product("a", "transpose_a"),
    "WeightQuantBatchMatmulV2": _product("x", "transpose_x"),
    "FullyConnection": _product("x"),
    "TransposeBatchMatMul": _turned_product,
    "TransposeQuantBatchMatMul": _turned_product,
    **{
        op: _grouped
        for op in (
            "GroupedMatmul",
            "GroupedMatmulSwigluQuant",
            "GroupedMatmulSwigluQuantV2",
            "GroupedMatmulFinalizeRouting",
            "GroupedMatmulAdd",
        )
    },
    "FFN": _ffn,
    **{
        op: _convolution(None)
        for op in ("Conv1D", "Conv2D", "Conv2DV2", "Conv3D", "Conv3DV2", "QuantConv2D", "ExtendConv2D", "QuantConv3D")
    },
    **{
        op: _convolution("x")
        for op in (
            "Conv2DTranspose",
            "Conv3DTranspose",
            "Conv3DTransposeV2",
            "Deconvolution",
            "Conv2DTransposeD",
            "Conv3DTransposeD",
            "ExtendConvTranspose",
        )
    },
    **{
        op: _convolution("out_backprop")
        for op in (
            "Conv2DBackpropInput",
            "Conv3DBackpropInput",
            "Conv3DBackpropInputV2",
            "Conv2DBackpropInputD",
            "Conv3DBackpropInputD",
        )
    },
    **{
        op: _convolution_filter
        for op in (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "Conv2DBackpropFilterD",
            "Conv3DBackpropFilterD",
        )
    },
    "DepthwiseConv2D": _depthwise,
    **{op: _attention(products) for op, products in _ATTENTIONS.items()},
    **{op: _prolog for op in ("MlaProlog", "MlaPrologV2", "MlaPrologV3")},
    **{op: _chosen for op in _CHOSEN},
    **{op: _indexed for op in _INDEXED},
}

# -- bytes -------------------------------------------------------------------------------------------------------------

# No work on the device: inputs, constants, and what only says how the same memory is looked at.
VIEWS: Final = frozenset(
    [
        "Bitcast",
        "ExpandDims",
        "Flatten",
        "FlattenV2",
        "Identity",
        "Reshape",
        "ReshapeV2",
        "Squeeze",
        "SqueezeV2",
        "SqueezeV3",
        "Unsqueeze",
        "UnsqueezeV2",
        "UnsqueezeV3",
    ]
)
SOURCES: Final = frozenset(("Data", "RefData", "Const", "Constant", "ConstPlaceHolder", "FileConstant", "Variable"))
FREE: Final = VIEWS | SOURCES | {"NetOutput", "NoOp", "ControlTrigger", "Shape", "ShapeN", "Rank", "Size"}
MOVES: Final = frozenset(
    [
        "AsStrided",
        "BroadcastTo",
        "Concat",
        "ConcatD",
        "ConcatV2",
        "ConcatV2D",
        "DepthToSpace",
        "Diag",
        "Expand",
        "Fill",
        "FillV2",
        "Gather",
        "GatherD",
        "GatherElements",
        "GatherElementsV2",
        "GatherNd",
        "GatherV2",
        "GatherV2D",
        "EmbeddingBag",
        "Index",
        "IndexByTensor",
        "IndexPutV2",
        "Pack",
        "Pad",
        "PadD",
        "PadV3",
        "PagedCacheLoad",
        "Range",
        "ReverseV2",
        "Roll",
        "ScatterElements",
        "ScatterElementsV2",
        "ScatterNdUpdate",
        "ScatterPaKvCache",
        "ScatterUpdate",
        "Slice",
        "SliceD",
        "SpaceToDepth",
        "Split",
        "SplitD",
        "SplitV",
        "SplitVD",
        "Stack",
        "StridedSlice",
        "StridedSliceD",
        "StridedSliceV2",
        "TensorMove",
        "Tile",
        "TileD",
        "TransData",
        "Transpose",
        "TransposeD",
        "Unpack",
        "ViewCopy",
        "ZerosLike",
        "OnesLike",
        "Assign",
    ]
)
# Of these operands only as many elements are read as the result has.
_TAKEN: Final[Mapping[str, tuple[int, ...]]] = {
    op: (0,)
    for op in (
        "Gather",
        "GatherV2",
        "GatherV2D",
        "GatherNd",
        "GatherElements",
        "GatherElementsV2",
        "GatherD",
        "Index",
        "IndexByTensor",
        "StridedSlice",
        "StridedSliceD",
        "StridedSliceV2",
        "Slice",
        "SliceD",
        "AsStrided",
    )
}
_FILLED: Final = frozenset(("Fill", "FillV2", "ZerosLike", "OnesLike", "Range"))
# Beginnings and parts of names of operators that update an operand in place, and only the places that others name.
_PARTLY: Final = re.compile(
    r"Scatter|IndexPut|Inplace(Index|Scatter)|MoeInplaceIndex|.*Cache|.*Kvcache|StridedSliceAssign|SliceWrite|ViewCopy|"
    r".*UpdateScatter|MlaProlog|MaskedScatter"
)


def _updated(node: Node) -> tuple[set[int], set[int]]:
    """Positions of operands and results of which only some places are written."""
    row = schema.get(node.op)
    if row is None or not row.in_place or not _PARTLY.match(node.op):
        return set(), set()
    return {source for source, _ in row.in_place}, {target for _, target in row.in_place}


def _read(shapes: Shapes, node: Node) -> int | None:
    if node.op in _FILLED:
        return 0
    taken, (updated, _) = _TAKEN.get(node.op, ()), _updated(node)
    total = 0
    for at, entry in enumerate(node.inputs):
        for tensor in entry if isinstance(entry, tuple) else (entry,):
            if tensor is None or at in updated:
                continue
            size = shapes.bytes(tensor)
            if at in taken and node.outputs:
                result = shapes.elements(node.outputs[0])
                size = None if size is None or result is None else min(size, -(-result * tensor.dtype.bits // 8))
            if size is None:
                return None
            total += size
    return total


def _written(shapes: Shapes, node: Node) -> int | None:
    """Results; of those that are updated at some places as much as the largest of the other operands has."""
    updated, targets = _updated(node)
    total = 0
    if updated:
        others = [shapes.bytes(t) for at, e in enumerate(node.inputs) if at not in updated for t in _tensors(e)]
        if any(size is None for size in others):
            return None
        total = max((size for size in others if size is not None), default=0)
    for tensor in node.outputs:
        if tensor.index in targets:
            continue
        size = shapes.bytes(tensor)
        if size is None:
            return None
        total += size
    return total


def _tensors(entry: Any) -> Sequence[Tensor]:
    return entry if isinstance(entry, tuple) else (entry,) if isinstance(entry, Tensor) else ()
