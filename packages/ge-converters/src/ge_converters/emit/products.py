"""Products of matrices, with transposition flags where an operand is a Transpose."""

from __future__ import annotations

from typing import Final

from ge_converters.base.dtypes import cast
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

# What MatMulV2 and BatchMatMulV2 multiply with a result of the same type.
PRODUCT_TYPES: Final = frozenset({DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_BF16, DataType.DT_INT32})
_NARROW_INTEGERS: Final = frozenset({DataType.DT_INT8, DataType.DT_UINT8, DataType.DT_INT16})


def before_transpose(x: Tensor) -> tuple[Tensor, bool]:
    """The operand of a Transpose that swaps the last two axes, and True; else ``x`` and False.

    The product's transposition flag takes the place of the Transpose, which the passes drop once nothing reads it.
    """
    node = x.node
    if node.op != "Transpose":
        return x, False
    source, perm = node.inputs
    if not isinstance(source, Tensor) or not isinstance(perm, Tensor) or perm.node.op != "Const":
        return x, False
    order = perm.node.attr("value").reshape(-1).tolist()
    rank = len(order)
    order = [i % rank for i in order]
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    return (source, True) if rank >= 2 and order == swapped else (x, False)


def _spread_product(a: Tensor, b: Tensor) -> Tensor:
    """The product as a sum of elementwise products, for types that no GE matrix operator takes; exact, not fast."""
    terms = ge.Mul(ge.Unsqueeze(a, axes=[-1]), ge.Unsqueeze(b, axes=[-3]))
    result: Tensor = ge.ReduceSum(terms, [-2], keep_dims=False)
    return result


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, *, rank: int = 2) -> Tensor:
    """``a @ b``, plus a 1-d ``bias`` of their type; ``rank`` is that of both operands.

    Dtypes: float32, float16, bfloat16, int32 in one operator; narrower integers through int32, whose low bits are the
    wrapped result; int64, float64 and complex as a sum of elementwise products.
    """
    dtype = a.dtype
    if dtype in _NARROW_INTEGERS:
        wide = product(cast(a, DataType.DT_INT32), cast(b, DataType.DT_INT32), rank=rank)
        result = cast(wide, dtype)
    elif dtype not in PRODUCT_TYPES:
        result = _spread_product(a, b)
    else:
        (a, flag_a), (b, flag_b) = before_transpose(a), before_transpose(b)
        if rank == 2:
            made: Tensor = ge.MatMulV2(a, b, bias, transpose_x1=flag_a, transpose_x2=flag_b)
            return made
        result = ge.BatchMatMulV2(a, b, adj_x1=flag_a, adj_x2=flag_b)
    return result if bias is None else ge.Add(result, bias)
