"""Products with weights of int8 that are dequantised first, in models of 16 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from ge_graph import attrs as kinds
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Shape, Tensor
from ge_graph.passes.base import array
from ge_graph.passes.fusion.base import FLOATS, factors, uncast
from ge_graph.passes.rewriter import Rewriter

_I8, _I64, _F32 = DataType.DT_INT8, DataType.DT_INT64, DataType.DT_FLOAT
_BF16 = DataType.DT_BF16
_HALVES: Final = frozenset({DataType.DT_FLOAT16, _BF16})
_WHOLE: Final = (_I8, DataType.DT_INT16, DataType.DT_INT32, _I64)  # each holds the ones before it
_STEP: Final = 32  # of a group's length
_LONGEST: Final = 65535  # of the summed dimension, and of a weight's columns


@dataclass(frozen=True, slots=True)
class _Weight:
    """What a weight is made of: ``(q - zero) * scale``.

    Attributes:
        q: int8 matrix.
        size: Its sizes.
        scale: A number for all, for each column of the result, or for each group of each column.
        zero: Likewise, or None.
        groups: How many groups a column has, 0 without.
    """

    q: Tensor
    size: tuple[int, int]
    scale: Tensor
    zero: Tensor | None
    groups: int


def weight_only(rewriter: Rewriter, node: Node) -> bool:
    """WeightQuantBatchMatmulV2 for x times a weight of int8 that is shifted and scaled, in 16 bits"""
    x, weight, bias = _operands(node)
    if x is None or weight is None or x.dtype not in _HALVES or not rewriter.free(node):
        return False
    turned = bool(node.attr("transpose_x2", False))
    found = _dequantised(rewriter, weight, turned)
    if found is None or not _takes(found.scale, x.dtype):
        return False
    result = node.outputs[0]
    rewriter.replace(result, _emit(rewriter, node, found, x, bias, turned, result.known_shape))
    rewriter.retire(node)
    return True


def scaled_after(rewriter: Rewriter, node: Node) -> bool:
    """WeightQuantBatchMatmulV2 for x times a weight of int8, whose result is scaled, in 16 bits"""
    result = node.outputs[0]
    if result.dtype not in _HALVES or not rewriter.free(node):
        return False
    scaled = node if node.op == "Mul" else rewriter.inner(node.inputs[0], "Mul")  # else rounded after it
    for made, scale in factors(scaled) if scaled is not None else ():
        moved = rewriter.inner(made, "Reshape")
        product = rewriter.inner(moved.inputs[0] if moved is not None else made, "MatMulV2")
        x, weight, bias = _operands(product) if product is not None else (None, None, None)
        cast = rewriter.inner(weight, "Cast")
        if product is None or cast is None or bias is not None:
            continue
        x, factor, q = uncast(rewriter, x), uncast(rewriter, scale), cast.inputs[0]
        turned = bool(product.attr("transpose_x2", False))
        if not isinstance(x, Tensor) or not isinstance(factor, Tensor) or not isinstance(q, Tensor):
            continue
        size = _matrix(q)
        if size is None or not x.dtype is factor.dtype is result.dtype:
            continue
        if not _along(factor, made, size[0 if turned else 1]):
            continue
        shape = product.outputs[0].known_shape
        made = _emit(rewriter, node, _Weight(q, size, factor, None, 0), x, None, turned, shape)
        if moved is not None:
            made = rewriter.like(result, "Reshape", (made, moved.inputs[1]), {}, result.known_shape)
        rewriter.replace(result, made)
        rewriter.retire(node)
        return True
    return False


def _operands(node: Node) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Rows, weight and bias of a product that is known to have elements; None if it is another one."""
    x, weight, bias, offset = (*node.inputs, None, None)[:4]
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or offset is not None:
        return None, None, None
    rows = node.outputs[0].known_shape
    if node.outputs[0].dtype is not x.dtype or rows is None or not _some(rows[0]):
        return None, None, None
    if node.attr("transpose_x1", False):  # the rows of a turned operand are bounded, too
        return None, None, None
    return x, weight, bias if isinstance(bias, Tensor) else None


def _some(size: Any) -> bool:
    """Whether a size is known not to be 0: a symbol of an input is above 1, one that data give may be 0."""
    return size > 0 if isinstance(size, int) else "u" not in str(size)


def _matrix(q: Tensor) -> tuple[int, int] | None:
    """The sizes of an int8 matrix of a size that GE's operator takes."""
    shape = q.known_shape
    if shape is None or len(shape) != 2 or q.dtype is not _I8:
        return None
    sizes = [n for n in shape if isinstance(n, int) and 0 < n <= _LONGEST]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def _takes(scale: Tensor, dtype: DataType) -> bool:
    """Whether a scale may have the type of the rows: float16 has no place for small numbers of float32."""
    return scale.dtype is dtype or (scale.dtype is _F32 and dtype is _BF16)


def _dequantised(rewriter: Rewriter, weight: Tensor, turned: bool) -> _Weight | None:
    whole = uncast(rewriter, weight)
    folded = rewriter.inner(whole, "Reshape")
    scaled = rewriter.inner(folded.inputs[0] if folded is not None else whole, "Mul")
    if scaled is None:
        return None
    for shifted, scale in factors(scaled):
        source, zero = _shifted(rewriter, shifted)
        if source is None or not isinstance(scale, Tensor):
            continue
        q = _unfolded(rewriter, source) if folded is not None else source
        size = None if q is None else _matrix(q)
        if q is None or size is None or size != weight.known_shape:
            continue
        groups = 0 if folded is None else _groups(scaled.outputs[0].known_shape, size, turned)
        if groups is not None and all(_fits(t, size, turned, groups) for t in (scale, zero) if t is not None):
            return _Weight(q, size, scale, zero, groups)
    return None


def _shifted(rewriter: Rewriter, tensor: Any) -> tuple[Tensor | None, Tensor | None]:
    """The int8 values, in the view that was scaled, and what was taken off."""
    tensor, zero = _wide(rewriter, tensor), None
    sub = rewriter.inner(tensor, "Sub")
    if sub is not None:
        tensor, zero = _wide(rewriter, sub.inputs[0]), _wide(rewriter, sub.inputs[1])
        if not isinstance(zero, Tensor) or zero.dtype not in _WHOLE:
            return None, None
        zero = None if _is_zero(zero) else zero
    folded = rewriter.inner(tensor, "Reshape")
    source = tensor if folded is None else _wide(rewriter, folded.inputs[0])
    return (tensor if isinstance(source, Tensor) and source.dtype is _I8 else None), zero


def _wide(rewriter: Rewriter, tensor: Any) -> Any:
    """What Casts read that make whole numbers wider, floats of them, or other floats."""
    node = rewriter.inner(tensor, "Cast")
    while node is not None:
        source = node.inputs[0]
        if not isinstance(source, Tensor) or not _keeps(source.dtype, node.outputs[0].dtype):
            break
        tensor, node = source, rewriter.inner(source, "Cast")
    return tensor


def _keeps(source: DataType, made: DataType) -> bool:
    if made in FLOATS:
        return source in FLOATS or source in _WHOLE
    return made in _WHOLE and source in _WHOLE and _WHOLE.index(source) <= _WHOLE.index(made)


def _is_zero(tensor: Tensor) -> bool:
    node = tensor.node
    while node.op in ("Reshape", "Cast", "Unsqueeze") and isinstance(node.inputs[0], Tensor):
        node = node.inputs[0].node
    value = array(node.inputs[1]) if node.op == "Fill" else array(node.outputs[0])
    return value is not None and not value.any()


def _unfolded(rewriter: Rewriter, tensor: Tensor) -> Tensor | None:
    """The matrix that was viewed as groups."""
    node = rewriter.inner(tensor, "Reshape")
    source = None if node is None else _wide(rewriter, node.inputs[0])
    return source if isinstance(source, Tensor) else None


def _groups(view: Shape | None, size: tuple[int, int], turned: bool) -> int | None:
    """How many groups of the summed dimension a view of a turned weight [n, k] has: [n, groups, length], or n groups
    one below the other."""
    (n, k), length = size, view[-1] if view else 0
    if not turned or not view or not isinstance(length, int) or length <= 0:
        return None
    if length % _STEP or length >= k or k % length or view[:-1] not in ((n, k // length), (n * k // length,)):
        return None
    return k // length


def _fits(parameter: Tensor, size: tuple[int, int], turned: bool, groups: int) -> bool:
    """Whether there is one number for all, for each column of the result, or for each group of each column."""
    shape, columns = parameter.known_shape, size[0 if turned else 1]
    if shape is None:
        return False
    if groups:
        return shape in ((columns, groups, 1), (columns * groups, 1))
    if all(d == 1 for d in shape):
        return len(shape) <= 2
    return shape == (columns, 1) if turned else shape in ((columns,), (1, columns))


def _along(scale: Tensor, result: Tensor, columns: Any) -> bool:
    """Whether a factor of a result is one number, or one for each of its columns."""
    shape, size = scale.known_shape, result.known_shape
    if shape is None or size is None or len(shape) > len(size) or not all(d == 1 for d in shape[:-1]):
        return False
    return size[-1] == columns and (not shape or shape[-1] in (1, columns))


def _emit(
    rewriter: Rewriter,
    at: Node,
    found: _Weight,
    x: Tensor,
    bias: Tensor | None,
    turned: bool,
    shape: Shape | None,
) -> Tensor:
    """The product in front of a node."""
    dtype = x.dtype
    columns = found.size[0 if turned else 1]
    several = any(_count(t) > 1 for t in (found.scale, found.zero) if t is not None)

    def as_type(tensor: Tensor, wanted: DataType) -> Tensor:
        if tensor.dtype is wanted:
            return tensor
        attrs = {"dst_type": kinds.Int(int(wanted))}
        return rewriter.before(at, "Cast", (tensor,), attrs, [(wanted, tensor.known_shape)])[0]

    def as_parameter(tensor: Tensor) -> Tensor:
        sizes = (columns, found.groups) if found.groups else (_count(tensor),)
        while tensor.node.op in ("Reshape", "Unsqueeze") and tensor.known_shape != sizes:
            source = tensor.node.inputs[0]
            if not isinstance(source, Tensor) or source.known_shape is None or _count(source) != _count(tensor):
                break
            tensor = source
        if tensor.known_shape != sizes:
            tensor = _moved(rewriter, at, "Reshape", tensor, sizes)
        if several and sizes == (1,):  # scale and offset have one shape
            tensor = _moved(rewriter, at, "BroadcastTo", tensor, (columns,))
        return as_type(tensor, dtype)

    scale, offset = as_parameter(found.scale), None
    if found.zero is not None:
        zero = as_parameter(found.zero)
        (offset,) = rewriter.before(at, "Neg", (zero,), {}, [(dtype, zero.known_shape)])
    if bias is not None:  # added before the result is rounded
        bias = as_type(bias, _F32 if dtype is _BF16 else dtype)
    attrs = {
        "transpose_x": kinds.Bool(False),
        "transpose_weight": kinds.Bool(turned),
        "antiquant_group_size": kinds.Int(found.size[1] // found.groups if found.groups else 0),  # of a turned one
        "dtype": kinds.Int(-1),
    }
    inputs = (x, found.q, scale, offset, None, None, bias)
    return rewriter.before(at, "WeightQuantBatchMatmulV2", inputs, attrs, [(dtype, shape)])[0]


def _moved(rewriter: Rewriter, at: Node, op: str, tensor: Tensor, sizes: tuple[Any, ...]) -> Tensor:
    operand = rewriter.constant(list(sizes), _I64, at)
    return rewriter.before(at, op, (tensor, operand), {}, [(tensor.dtype, sizes)])[0]


def _count(tensor: Tensor) -> int:
    return math.prod(map(int, tensor.known_shape or ()))
