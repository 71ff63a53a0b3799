"""The other forms of an operator, each with the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from ge_graph import attrs as kinds
from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Shape, Tensor
from ge_graph.kernels import conditions
from ge_graph.passes.base import array
from ge_graph.passes.chips import bounds
from ge_graph.passes.chips.context import FormContext

Form: TypeAlias = Callable[[FormContext, Node], "list[Tensor] | None"]
_D = DataType
_LARGEST: Final = 2**31 - 1


def _retyped(
    ctx: FormContext,
    node: Node,
    new: Callable[[str, Tensor], DataType],
    move: Callable[[FormContext, Tensor, DataType], Tensor],
) -> list[Tensor]:
    """The same operator with other types: ``new`` says which a port gets, ``move`` leads there and back."""
    ports = schema.require(node.op)
    inputs: list[Any] = []
    for port, entry in zip(ports.inputs, node.inputs):
        if isinstance(entry, tuple):
            inputs.append(tuple(move(ctx, t, new(port.name, t)) for t in entry))
        else:
            inputs.append(entry if entry is None else move(ctx, entry, new(port.name, entry)))
    types = [new(port.name, t) for port, t in zip(ports.outputs, node.outputs)]
    made = ctx.add(node.op, inputs, dict(node.attrs), *zip(types, (t.known_shape for t in node.outputs)))
    for mine, old in zip(made, node.outputs):
        mine.format = old.format
    return [move(ctx, mine, old.dtype) if ctx.reads(old) else mine for mine, old in zip(made, node.outputs)]


def through(dtype: DataType, sources: tuple[DataType, ...], ctx: FormContext, node: Node) -> list[Tensor] | None:
    """In a type that holds every value: an operator that moves or compares gives the same elements there."""
    return _retyped(ctx, node, lambda _, t: dtype if t.dtype in sources else t.dtype, FormContext.cast)


def as_bits(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """An operator that only moves elements moves float64 as int64."""
    if any(t.dtype is _D.DT_DOUBLE and t.known_shape is None for t in (*node.operands(), *node.outputs)):
        return None

    def move(ctx: FormContext, tensor: Tensor, dtype: DataType) -> Tensor:
        return tensor if tensor.dtype is dtype else ctx.bits(tensor, dtype)

    return _retyped(ctx, node, lambda _, t: _D.DT_INT64 if t.dtype is _D.DT_DOUBLE else t.dtype, move)


# -- int32 for int64 -------------------------------------------------------------------------------------------------


def _static(shape: Shape | None, *axes: int) -> int | None:
    """The product of sizes, all of them without axes; None if one is not a number."""
    if shape is None or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    total = 1
    for size in [shape[a] for a in axes] if axes else shape:
        if not isinstance(size, int):
            return None
        total *= size
    return total


def _in_range(tensor: Any, *axes: int) -> bool:
    """Whether places along axes are numbers of int32."""
    count = _static(tensor.known_shape, *axes) if isinstance(tensor, Tensor) else None
    return count is not None and count <= _LARGEST


def _narrow(ctx: FormContext, node: Node, *ports: str) -> list[Tensor]:
    def new(port: str, tensor: Tensor) -> DataType:
        return _D.DT_INT32 if port in ports and tensor.dtype is _D.DT_INT64 else tensor.dtype

    return _retyped(ctx, node, new, FormContext.cast)


def bag_places(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """EmbeddingBag: indices are rows of the table, offsets places in the indices."""
    if not _in_range(node.inputs[0], 0) or not _in_range(node.inputs[1]):
        return None
    return _narrow(ctx, node, "indices", "offsets", "offset2bag", "bag_size", "max_indices")


def volume_places(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """MaxPool3DWithArgmaxV2: places are those of one volume."""
    if not _in_range(node.inputs[0], -3, -2, -1) or node.attr("data_format", "NCDHW") not in ("NCDHW", b"NCDHW"):
        return None
    y, places = node.outputs
    made = ctx.add(
        node.op,
        node.inputs,
        node.attrs | {"dtype": kinds.Int(int(_D.DT_INT32))},
        (y.dtype, y.known_shape),
        (_D.DT_INT32, places.known_shape),
    )
    made[0].format, made[1].format = y.format, places.format
    return [made[0], ctx.cast(made[1], places.dtype) if ctx.reads(places) else made[1]]


def filter_sizes(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """Conv3DBackpropFilter: the sizes of the filter, which the result has."""
    if not bounds.fits(node.inputs[1], _D.DT_INT32) and not _in_range(node.outputs[0]):
        return None
    return _narrow(ctx, node, "filter_size")


def classes(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """NLLLossGrad: targets are classes, or the class to be ignored."""
    x, ignored = node.inputs[0], node.attr("ignore_index", -100)
    axis = 1 if isinstance(x, Tensor) and x.known_shape is not None and len(x.known_shape) > 1 else 0
    if not _in_range(x, axis) or not -_LARGEST - 1 <= ignored <= _LARGEST:
        return None
    return _narrow(ctx, node, "target")


def small_integers(*ports: str, results: Callable[[Node], bool]) -> Form:
    """In int32 where the graph shows that operands and results fit."""

    def form(ctx: FormContext, node: Node) -> list[Tensor] | None:
        names = [p.name for p in schema.require(node.op).inputs]
        wide = [e for p, e in zip(names, node.inputs) if p in ports and e is not None]
        if not all(isinstance(e, Tensor) and bounds.fits(e, _D.DT_INT32) for e in wide) or not results(node):
            return None
        return _narrow(ctx, node, *ports, *(p.name for p in schema.require(node.op).outputs[:1]))

    return form


def _kept(node: Node) -> bool:
    return True


def _sums_fit(node: Node) -> bool:
    sums = bounds.running(node)
    return sums is not None and sums[0] >= -_LARGEST and sums[1] <= _LARGEST


def _powers_fit(node: Node) -> bool:
    base, exponent = bounds.bounds(node.inputs[0]), bounds.bounds(node.inputs[1])
    if base is None or exponent is None or exponent[0] < 0 or exponent[1] > 31:
        return False
    return bool(max(abs(base[0]), abs(base[1])) ** exponent[1] <= _LARGEST)


def _quotients_fit(node: Node) -> bool:
    dividends = bounds.bounds(node.inputs[0])
    return dividends is not None and dividends[0] > -_LARGEST - 1  # its quotient by -1 is none


def ordered_as_float(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """Integers below 2^24 are float32 numbers in the same order."""
    interval = bounds.bounds(node.inputs[0])
    if interval is None or interval[0] < -(2**24) or interval[1] > 2**24:
        return None
    source = node.inputs[0].dtype  # type: ignore[union-attr]  # bounds are those of a tensor
    names = (schema.require(node.op).inputs[0].name, schema.require(node.op).outputs[0].name)
    return _retyped(
        ctx, node, lambda p, t: _D.DT_FLOAT if p in names and t.dtype is source else t.dtype, FormContext.cast
    )


# -- other operators -------------------------------------------------------------------------------------------------


def identity_in_float32(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """Eye: ones and zeros are the same in every type."""
    y = node.outputs[0]
    if y.dtype is not _D.DT_DOUBLE:
        return None
    attrs = node.attrs | {"dtype": kinds.Int(int(_D.DT_FLOAT))}
    return [ctx.cast(ctx.one("Eye", (), attrs, _D.DT_FLOAT, y.known_shape), y.dtype)]


def _deep(shape: Shape | None) -> Shape | None:
    return None if shape is None else (*shape[:2], 1, *shape[2:])


def _on_volumes(ctx: FormContext, op: str, before: list[Tensor], x: Tensor, attrs: Any, y: Tensor) -> list[Tensor]:
    """An operator on volumes of depth 1; in float32 where its definition does not list the type."""
    dtype = x.dtype if x.dtype in schema.require(op).inputs[len(before)].domain else _D.DT_FLOAT
    plane = ctx.cast(x, dtype)
    deep = ctx.one("Unsqueeze", (plane,), {"axes": kinds.ListInt([2])}, dtype, _deep(x.known_shape))
    made = ctx.one(op, (*before, deep), attrs, dtype, _deep(y.known_shape))
    flat = ctx.one("Squeeze", (made,), {"axis": kinds.ListInt([2])}, dtype, y.known_shape)
    result = ctx.cast(flat, y.dtype)
    result.format = y.format
    return [result]


def _volume_attrs(node: Node) -> dict[str, Any] | None:
    """Attributes of AvgPool3D for windows of AvgPoolV2 that mean the same."""
    ksize, strides, pads = (list(node.attr(name, ())) for name in ("ksize", "strides", "pads"))
    plain = node.attr("data_format", "NCHW") in ("NCHW", b"NCHW") and not node.attr("ceil_mode", False)
    counted = node.attr("padding_mode", "CALCULATED") in ("CALCULATED", b"CALCULATED")
    if not plain or not counted or node.attr("global_pooling", False) or len(ksize) != 4 or len(pads) != 4:
        return None
    return {
        "ksize": kinds.ListInt([1, *ksize[2:]]),
        "strides": kinds.ListInt([1, *strides[2:]]),
        "pads": kinds.ListInt([0, 0, *pads]),
        "ceil_mode": kinds.Bool(False),
        "count_include_pad": kinds.Bool(not node.attr("exclusive", True)),
        "divisor_override": kinds.Int(node.attr("divisor_override", 0)),
        "data_format": kinds.Str("NCDHW"),
    }


def planes_as_volumes(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """AvgPoolV2: a plane is a volume of depth 1."""
    attrs, x, y = _volume_attrs(node), node.inputs[0], node.outputs[0]
    if attrs is None or not isinstance(x, Tensor):
        return None
    return _on_volumes(ctx, "AvgPool3D", [], x, attrs, y)


def gradient_of_volumes(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """AvgPoolV2Grad: as planes_as_volumes, where the sizes are a constant."""
    attrs, sizes, grad = _volume_attrs(node), bounds.constant(node.inputs[0]), node.inputs[1]
    y = node.outputs[0]
    if attrs is None or sizes is None or sizes.size != 4 or not isinstance(grad, Tensor):
        return None
    shape = ctx.constant(np.insert(sizes.reshape(-1), 2, 1).astype(np.int32), _D.DT_INT32)
    return _on_volumes(ctx, "AvgPool3DGrad", [shape], grad, attrs, y)


def adaptive_volumes(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """AdaptiveAvgPool2d: a plane is a volume of depth 1."""
    x, y, sizes = node.inputs[0], node.outputs[0], list(node.attr("output_size", ()))
    if not isinstance(x, Tensor) or x.known_shape is None or len(x.known_shape) != 4 or len(sizes) != 2:
        return None
    attrs = {"output_size": kinds.ListInt([1, *sizes]), "data_format": kinds.Str("NCDHW")}
    return _on_volumes(ctx, "AdaptiveAvgPool3d", [], x, attrs, y)


def batched_product(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """MatMulV2 as a batched product of no batch axes; a bias that is added afterwards would round floats twice."""
    x1, x2, bias = node.inputs[:3]
    if node.inputs[3] is not None or node.attr("offset_x", 0) or (bias is not None and node.outputs[0].dtype.is_float):
        return None
    attrs = {f"adj_x{i}": kinds.Bool(node.attr(f"transpose_x{i}", False)) for i in (1, 2)}
    y = node.outputs[0]
    made = ctx.one("BatchMatMulV2", (x1, x2, None, None), attrs, y.dtype, y.known_shape)
    return [made if bias is None else ctx.one("Add", (made, bias), {}, y.dtype, y.known_shape)]


def wide_bias(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """MatMulV2: float32, in which products are added up, holds every bias of a half type."""
    bias = node.inputs[2]
    if not isinstance(bias, Tensor) or bias.dtype not in (_D.DT_BF16, _D.DT_FLOAT16):
        return None
    return _retyped(ctx, node, lambda port, t: _D.DT_FLOAT if port == "bias" else t.dtype, FormContext.cast)


def filled_by_choice(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """MaskedFill: one of two tensors where a condition holds."""
    x, mask, value = node.inputs[:3]
    y = node.outputs[0]
    return [ctx.one("SelectV2", (mask, value, x), {}, y.dtype, y.known_shape)]


def sign_by_comparison(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """Sign: what is above zero less what is below."""
    x, y = node.inputs[0], node.outputs[0]
    if not isinstance(x, Tensor) or x.dtype is not _D.DT_INT64:
        return None
    zero = ctx.constant(0, x.dtype)
    parts = [ctx.cast(ctx.one(op, (x, zero), {}, _D.DT_BOOL, y.known_shape), _D.DT_INT32) for op in ("Greater", "Less")]
    return [ctx.cast(ctx.one("Sub", parts, {}, _D.DT_INT32, y.known_shape), y.dtype)]


def repeated_product(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """Pow: integers to a constant power from 2 to 4 by products, which wrap around alike."""
    x, y, power = node.inputs[0], node.outputs[0], bounds.number(node.inputs[1])
    same = isinstance(x, Tensor) and x.known_shape == y.known_shape is not None and x.dtype is y.dtype
    if not same or not y.dtype.is_integer or power not in (2, 3, 4):
        return None
    square = ctx.one("Mul", (x, x), {}, y.dtype, y.known_shape)
    other = {2: None, 3: x, 4: square}[power]
    return [square if other is None else ctx.one("Mul", (square, other), {}, y.dtype, y.known_shape)]


def truncated(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """RealDiv of integers truncates."""
    y = node.outputs[0]
    if not y.dtype.is_integer:
        return None
    return [ctx.one("TruncateDiv", node.inputs, {}, y.dtype, y.known_shape)]


def padded_halves(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """PadV3 of int64 moves pairs of int32, where both halves of the fill are alike: 0 or -1."""
    x, y, pads, fill = node.inputs[0], node.outputs[0], bounds.constant(node.inputs[1]), node.inputs[2]
    constant = node.attr("mode", "constant") in ("constant", b"constant")
    number = 0 if fill is None else bounds.number(fill)
    if not isinstance(x, Tensor) or x.dtype is not _D.DT_INT64 or pads is None or x.known_shape is None:
        return None
    if not constant or number not in (0, -1) or not node.attr("paddings_contiguous", True) or y.known_shape is None:
        return None
    halves = ctx.one("Bitcast", (x,), {"type": kinds.Type(_D.DT_INT32)}, _D.DT_INT32, (*x.known_shape, 2))
    inputs = (
        halves,
        ctx.constant(np.append(pads.reshape(-1), (0, 0)).astype(pads.dtype), node.inputs[1].dtype),  # type: ignore[union-attr]  # a constant is a tensor
        ctx.constant(number, _D.DT_INT32),
    )
    made = ctx.one("PadV3", inputs, dict(node.attrs), _D.DT_INT32, (*y.known_shape, 2))
    return [ctx.one("Bitcast", (made,), {"type": kinds.Type(_D.DT_INT64)}, _D.DT_INT64, y.known_shape)]


def chosen_by_logic(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """SelectV2 of bool: the condition and the first, or not the condition and the second."""
    condition, first, second = node.inputs[:3]
    y = node.outputs[0]
    if y.dtype is not _D.DT_BOOL or not isinstance(condition, Tensor):
        return None

    def known(tensor: Any) -> bool | None:
        value = bounds.constant(tensor)
        return bool(value.reshape(-1)[0]) if value is not None and value.shape == () else None

    def logic(op: str, *parts: Any) -> Tensor:
        return ctx.one(op, parts, {}, _D.DT_BOOL, y.known_shape)

    def other() -> Tensor:
        return ctx.one("LogicalNot", (condition,), {}, _D.DT_BOOL, condition.known_shape)

    if known(first) is True:
        return [logic("LogicalOr", condition, second)]
    if known(first) is False:
        return [logic("LogicalAnd", other(), second)]
    if known(second) is True:
        return [logic("LogicalOr", other(), first)]
    if known(second) is False:
        return [logic("LogicalAnd", condition, first)]
    parts = [ctx.one("LogicalAnd", p, {}, _D.DT_BOOL, None) for p in ((condition, first), (other(), second))]
    return [logic("LogicalOr", *parts)]


def drawn_as_bits(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """StatelessBernoulli: fresh coins of one constant probability, drawn as the bits of a dropout."""
    shape, chance, seed, offset = node.inputs[:4]
    y = node.outputs[0]
    value = array(chance)
    if (bounds.number(seed), bounds.number(offset)) != (-1, 0) or value is None or value.size != 1:
        return None
    number = float(value.reshape(-1)[0])
    if not 0 < number <= 1:
        return None
    prob, one = ctx.constant(number, _D.DT_FLOAT), ctx.constant(1.0, _D.DT_FLOAT)
    bits = ctx.one("DropOutGenMask", (shape, prob), {"seed": kinds.Int(0), "seed2": kinds.Int(0)}, _D.DT_UINT8, None)
    ones = ctx.one("Fill", (shape, one), {}, _D.DT_FLOAT, y.known_shape)
    kept = ctx.one("DropOutDoMask", (ones, bits, prob), {}, _D.DT_FLOAT, y.known_shape)
    zero = ctx.constant(0.0, _D.DT_FLOAT)
    return [ctx.cast(ctx.one("NotEqual", (kept, zero), {}, _D.DT_BOOL, y.known_shape), y.dtype)]


# -- places ----------------------------------------------------------------------------------------------------------


def one_index(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """IndexByTensor by one index gathers along its dimension, whatever the sizes are."""
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    mask = [bool(m) for m in node.attr("indices_mask", ())]
    if not isinstance(indices, tuple) or len(indices) != 1 or sum(mask) != 1 or indices[0].dtype is _D.DT_BOOL:
        return None
    axis = ctx.constant(mask.index(True), _D.DT_INT64)
    attrs = {"negative_index_support": kinds.Bool(True)}
    return [ctx.one("GatherV2", (x, indices[0], axis), attrs, y.dtype, y.known_shape)]


def indices_of_one_shape(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """IndexByTensor with its indices broadcast, and its indexed dimensions moved side by side to the front."""
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if not isinstance(x, Tensor) or x.known_shape is None or not isinstance(indices, tuple):
        return None
    shapes = [i.known_shape for i in indices]
    if any(shape is None or not all(isinstance(d, int) for d in shape) for shape in (*shapes, y.known_shape)):
        return None
    mask = [bool(m) for m in node.attr("indices_mask", ())] + [False] * len(x.known_shape)
    shape = np.broadcast_shapes(*shapes)  # type: ignore[arg-type]  # all are integers
    target = ctx.constant(np.array(shape, np.int64), _D.DT_INT64)
    wide = tuple(
        i if i.known_shape == shape else ctx.one("BroadcastTo", (i, target), {}, i.dtype, shape) for i in indices
    )
    if not conditions.side_by_side(node):
        rank = len(x.known_shape)
        order = sorted(range(rank), key=lambda d: not mask[d])  # a place that is not side by side stands in front too
        moved = tuple(x.known_shape[d] for d in order)
        x = ctx.one("Transpose", (x, ctx.constant(np.array(order, np.int64), _D.DT_INT64)), {}, x.dtype, moved)
        mask = [mask[d] for d in order]
    attrs = node.attrs | {"indices_mask": kinds.ListInt([int(m) for m in mask[: len(x.known_shape or ())]])}
    return [ctx.one(node.op, (x, wide), attrs, y.dtype, y.known_shape)]


def counted_in_integers(ctx: FormContext, node: Node) -> list[Tensor] | None:
    """Histogram by HistogramV2, which counts in int32: the same numbers where the type of the result holds them."""
    x, y = node.inputs[0], node.outputs[0]
    if not isinstance(x, Tensor):
        return None
    count, largest = _static(x.known_shape), 2**24 if y.dtype is _D.DT_FLOAT else _LARGEST
    if count is None or count > largest or x.dtype not in schema.require("HistogramV2").inputs[0].domain:
        return None
    limits = [float(node.attr(name, 0.0)) for name in ("min", "max")]
    if not x.dtype.is_float and any(value != int(value) for value in limits):
        return None
    parts = [ctx.constant([value], x.dtype) for value in limits]
    attrs = {"bins": kinds.Int(node.attr("bins", 100))}
    return [ctx.cast(ctx.one("HistogramV2", (x, *parts), attrs, _D.DT_INT32, y.known_shape), y.dtype)]


_FROM_BF16: Final = partial(through, _D.DT_FLOAT, (_D.DT_BF16,))
_SORTED_FIRST: Final = partial(through, _D.DT_FLOAT, (_D.DT_INT8, _D.DT_UINT8, _D.DT_INT16))

FORMS: Final[Mapping[str, tuple[Form, ...]]] = {
    "AdaptiveAvgPool2d": (adaptive_volumes,),
    "AsStrided": (as_bits,),
    "AvgPoolV2": (planes_as_volumes,),
    "AvgPoolV2Grad": (gradient_of_volumes,),
    "Conv3DBackpropFilter": (filter_sizes,),
    "Cummin": (_FROM_BF16,),
    "Cumsum": (small_integers("x", results=_sums_fit),),
    "EmbeddingBag": (bag_places,),
    "Eye": (identity_in_float32,),
    "Histogram": (counted_in_integers,),
    "IndexByTensor": (as_bits, one_index, indices_of_one_shape),
    "MaskedFill": (small_integers("x", "value", results=_kept), filled_by_choice),
    "MatMulV2": (wide_bias, batched_product),
    "MatrixDiagPartV3": (_FROM_BF16,),
    "MatrixSetDiagV3": (_FROM_BF16,),
    "MaxPool3DWithArgmaxV2": (volume_places,),
    "MaxPoolWithArgmaxV1": (partial(through, _D.DT_FLOAT, (_D.DT_FLOAT16,)),),
    "NLLLossGrad": (classes,),
    "PadV3": (small_integers("x", "constant_values", results=_kept), padded_halves),
    "Pow": (small_integers("x1", "x2", results=_powers_fit), repeated_product),
    "RealDiv": (small_integers("x1", "x2", results=_quotients_fit), truncated),
    "SelectV2": (chosen_by_logic,),
    "Sign": (small_integers("x", results=_kept), sign_by_comparison),
    "Sort": (ordered_as_float,),
    "StatelessBernoulli": (drawn_as_bits,),
    "TensorScatterMax": (_FROM_BF16,),
    "TensorScatterMin": (_FROM_BF16,),
    "TopKV2": (ordered_as_float,),
}
"""Operator to its other forms, in the order of trying."""
