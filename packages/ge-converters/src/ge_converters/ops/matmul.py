"""Matrix products: one GE operator with transposition flags and bias wherever eager's result allows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, I8, I32, I64, U8, Support, TensorLike
from ge_converters.emit.arithmetic import HALF_TYPES, as_number
from ge_converters.emit.products import before_transpose, product
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_MIDDLE: Final = 128  # of the values of uint8

Number: TypeAlias = "int | float | Tensor"


def scaled(x: Tensor, factor: Number) -> Tensor:
    """``factor * x`` in the type of ``x``; nothing for factor 1."""
    factor = as_number(factor, x.dtype)
    if not isinstance(factor, Tensor) and factor == 1:
        return x
    result: Tensor = ge.Mul(x, dtype_promote(factor, target_dtype=x.dtype))
    return result


def _is(value: Number, number: int) -> bool:
    return not isinstance(value, Tensor) and value == number


def _combined(self: Tensor, a: Tensor, b: Tensor, beta: Number, alpha: Number, rank: int) -> Tensor:
    """``beta * self + alpha * (a @ b)``; halves go through float32 so that the result is rounded once, as in eager."""
    dtype = a.dtype
    inner = DataType.DT_FLOAT if dtype in HALF_TYPES and not (_is(beta, 0) and _is(alpha, 1)) else dtype
    result = scaled(product(cast(a, inner), cast(b, inner), rank=rank), alpha)
    if not _is(beta, 0):
        result = ge.Add(scaled(cast(self, inner), beta), result)
    return cast(result, dtype)


def _pairs(*shapes: tuple[int, ...]) -> list[list[TensorLike]]:
    return [[make(*s) for s in shapes] for make in (F32, F16, BF16, I32, I64, U8, I8, F64)]


@register_fx_node_ge_converter(
    {
        aten.mm.default: [
            *(Support(*p) for p in _pairs((4, 8), (8, 3))),
            Support(F32(4, 8, strides=(1, 4)), F32(8, 3, strides=(1, 8))),
            Support(F32(1, 8), F32(8, 1)),
            Support(F32(0, 8), F32(8, 3)),
            Support(F32(4, 0), F32(0, 3)),
        ],
        aten.bmm.default: [
            *(Support(*p) for p in _pairs((2, 4, 8), (2, 8, 3))),
            Support(F32(2, 4, 8, strides=(32, 1, 4)), F32(2, 8, 3)),
            Support(F32(0, 4, 8), F32(0, 8, 3)),
            Support(F32(2, 4, 0), F32(2, 0, 3)),
        ],
    },
    source="native_functions.yaml: mm, bmm; GE MatMulV2, BatchMatMulV2",
)
def mm(self: Tensor, mat2: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n, m]; mat2 [m, p] -> [n, p]; or a batch [b, ...] of each.
    Dtypes: floats, integers; see ``product``.
    Emits:  MatMulV2, BatchMatMulV2; a Transpose of an operand becomes its flag.
    """
    return product(self, mat2, rank=self.rank)


@register_fx_node_ge_converter(
    {
        aten.addmm.default: [
            *(Support(*p) for p in _pairs((3,), (4, 8), (8, 3))),
            *(Support(make(4, 3), make(4, 8), make(8, 3)) for make in (F32, F16, BF16)),
            Support(F32(), F32(4, 8), F32(8, 3)),
            Support(F32(4, 1), F32(4, 8), F32(8, 3)),
            *(Support(make(3), make(4, 8), make(8, 3), beta=0.5, alpha=2) for make in (F32, F16, BF16)),
            Support(F32(3), F32(4, 8), F32(8, 3), beta=0),
            Support(F32(value=[float("nan")] * 3), F32(4, 8), F32(8, 3), beta=0, alpha=0.5),
            Support(I64(3), I64(4, 8), I64(8, 3), beta=3, alpha=-2),
            Support(F32(3), F32(4, 8), F32(8, 3, strides=(1, 8))),
        ],
        aten.baddbmm.default: [
            *(Support(*p) for p in _pairs((2, 4, 3), (2, 4, 8), (2, 8, 3))),
            Support(F32(3), F32(2, 4, 8), F32(2, 8, 3), beta=0.5, alpha=2),
            Support(F16(2, 4, 3), F16(2, 4, 8), F16(2, 8, 3), beta=0, alpha=0.25),
            Support(BF16(2, 1, 3), BF16(2, 4, 8), BF16(2, 8, 3), alpha=0.125),
        ],
    },
    source="native_functions.yaml: addmm, baddbmm; GE MatMulV2, BatchMatMulV2, Mul, Add",
    names={"batch1": "mat1", "batch2": "mat2"},
)
def addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self broadcasts to [n, p]; mat1 [n, m]; mat2 [m, p] -> [n, p]; or a batch [b, ...] of each.
    Dtypes: floats, integers; see ``product``.
    Emits:  MatMulV2 with bias if alpha == beta == 1 and self is [p]; else MatMulV2 or BatchMatMulV2, Mul, Add, halves
            in float32.
    """
    if _is(beta, 1) and _is(alpha, 1) and self.rank == 1 and mat1.rank == 2:
        return product(mat1, mat2, self)
    return _combined(self, mat1, mat2, beta, alpha, mat1.rank)


@declare_supported(
    [
        *(Support(*p) for p in _pairs((4, 3), (2, 4, 8), (2, 8, 3))),
        Support(F32(3), F32(2, 4, 8), F32(2, 8, 3), beta=0.5, alpha=2),
        # eager adds the products in half precision
        Support(BF16(4, 3), BF16(2, 4, 8), BF16(2, 8, 3), beta=0, alpha=0.25).within(3e-2, 2e-2),
    ]
)
@register_fx_node_ge_converter(aten.addbmm.default, source="native_functions.yaml: addbmm; GE BatchMatMulV2, ReduceSum")
def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self broadcasts to [n, p]; batch1 [b, n, m]; batch2 [b, m, p] -> [n, p].
    Dtypes: floats, integers; see ``product``.
    Emits:  BatchMatMulV2, ReduceSum, Mul, Add; halves in float32.
    """
    dtype = batch1.dtype
    inner = DataType.DT_FLOAT if dtype in HALF_TYPES else dtype
    products = product(cast(batch1, inner), cast(batch2, inner), rank=3)
    result = scaled(ge.ReduceSum(products, [0], keep_dims=False), alpha)
    if not _is(beta, 0):
        result = ge.Add(scaled(cast(self, inner), beta), result)
    return cast(result, dtype)


@declare_supported([Support(*p) for p in _pairs((4, 8), (8,))])
@register_fx_node_ge_converter(aten.mv.default, source="native_functions.yaml: mv; GE MatMulV2")
def mv(self: Tensor, vec: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n, m]; vec [m] -> [n].
    Dtypes: floats, integers; see ``product``.
    Emits:  Unsqueeze, MatMulV2, Squeeze.
    """
    result: Tensor = ge.Squeeze(product(self, ge.Unsqueeze(vec, axes=[1])), axis=[1])
    return result


@declare_supported(
    [
        Support(F32(3), F32(3, 4), F32(4)),
        Support(BF16(3), BF16(3, 4), BF16(4)),
        Support(F32(3), F32(3, 4), F32(4), beta=0.5, alpha=2),
        Support(F32(), F32(3, 4), F32(4)),
        Support(I64(3), I64(3, 4), I64(4), beta=2),
    ]
)
@register_fx_node_ge_converter(aten.addmv.default, source="native_functions.yaml: addmv; GE MatMulV2, Mul, Add")
def addmv(
    self: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self broadcasts to [n]; mat [n, m]; vec [m] -> [n].
    Dtypes: floats, integers; see ``product``.
    Emits:  Unsqueeze, MatMulV2, Mul, Add, Squeeze; halves in float32.
    """
    column = self if self.rank == 0 else ge.Unsqueeze(self, axes=[1])
    result: Tensor = ge.Squeeze(_combined(column, mat, ge.Unsqueeze(vec, axes=[1]), beta, alpha, 2), axis=[1])
    return result


@declare_supported([*(Support(*p) for p in _pairs((8,), (8,))), Support(F32(0), F32(0))])
@register_fx_node_ge_converter(aten.dot.default, source="native_functions.yaml: dot; GE Dot")
def dot(self: Tensor, tensor: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n]; tensor [n] -> [].
    Dtypes: any number type, both equal.
    Emits:  Dot, halves in float32 and rounded once; Mul, ReduceSum for the other types.
    """
    if self.dtype == DataType.DT_FLOAT or self.dtype in HALF_TYPES:
        inner: Tensor = ge.Dot(self, tensor)
        return inner
    return ge.ReduceSum(ge.Mul(self, tensor), [0], keep_dims=False)


@declare_supported([Support(f(8), f(8)) for f in (F32, F64, I64, BF16)])
@register_fx_node_ge_converter(aten.vdot.default, source="native_functions.yaml: vdot; GE Dot")
def vdot(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n]; other [n] -> [].
    Dtypes: real number types; complex operands are conjugated first.
    Emits:  as dot.
    """
    return dot(ge.Conj(self) if self.dtype.is_complex else self, other, meta_outputs=meta_outputs)


@declare_supported(
    [
        Support(I8(32, 8), I8(8, 16)),
        Support(I8(32, 8), I8(8, 16, strides=(1, 8))),
        Support(U8(32, 8), I8(8, 16, strides=(1, 8))),
    ]
)
@register_fx_node_ge_converter(aten._int_mm.default, source="native_functions.yaml: _int_mm; GE QuantBatchMatmulV3")
def _int_mm(self: Tensor, mat2: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n, m]; mat2 [m, p] -> [n, p].
    Dtypes: int8 -> int32; uint8 on the left, less 128, which is added back times the sums of mat2.
    Emits:  QuantBatchMatmulV3, whose scale counts for other results; chips have no int8 kernel of MatMulV2.
    """
    if self.dtype is DataType.DT_UINT8:
        wide = ge.Sub(cast(self, DataType.DT_INT32), ge.Const(_MIDDLE, dtype=DataType.DT_INT32))
        rest = _int_mm(cast(wide, DataType.DT_INT8), mat2, meta_outputs=meta_outputs)
        sums = ge.ReduceSum(cast(mat2, DataType.DT_INT32), [0], keep_dims=True)
        whole: Tensor = ge.Add(rest, ge.Mul(sums, ge.Const(_MIDDLE, dtype=DataType.DT_INT32)))
        return whole
    (a, flag_a), (b, flag_b) = before_transpose(self), before_transpose(mat2)
    one = ge.Const([1.0], dtype=DataType.DT_FLOAT)
    code = int(meta_outputs.dtype)
    result: Tensor = ge.QuantBatchMatmulV3(a, b, one, dtype=code, transpose_x1=flag_a, transpose_x2=flag_b)
    return result


def _aligned(x: Tensor, rank: int) -> Tensor:
    missing = rank - x.rank
    return x if missing <= 0 else ge.Unsqueeze(x, axes=list(range(missing)))


@declare_supported(
    [
        Support(F32(4, 8), F32(8, 3)),
        Support(F32(2, 4, 8), F32(8, 3)),
        Support(F32(4, 8), F32(2, 8, 3)),
        Support(F32(2, 1, 4, 8), F32(3, 8, 5)),
        Support(F32(8), F32(8)),
        Support(F32(4, 8), F32(8)),
        Support(F32(8), F32(2, 8, 3)),
        Support(F16(2, 3, 4, 8), F16(2, 3, 8, 5)),
        Support(BF16(2, 4, 8), BF16(2, 8, 5)),
        Support(I64(2, 4, 8), I64(8, 5)),
    ]
)
@register_fx_node_ge_converter(aten.matmul.default, source="native_functions.yaml: matmul; GE MatMulV2, BatchMatMulV2")
def matmul(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: as torch.matmul: [.., n, m] by [.., m, p], leading dims broadcast, 1-d operands are rows or columns.
    Dtypes: floats, integers; see ``product``.
    Emits:  MatMulV2 or BatchMatMulV2, with Unsqueeze and Squeeze for 1-d operands and missing leading dims.
    """
    if self.rank == 1 and other.rank == 1:
        return dot(self, other, meta_outputs=meta_outputs)
    row, column = self.rank == 1, other.rank == 1
    a_rank, b_rank = (2 if row else self.rank), (2 if column else other.rank)
    rank = max(a_rank, b_rank)
    a = ge.Unsqueeze(self, axes=list(range(rank - 1))) if row else _aligned(self, rank)
    if column:
        b = ge.Unsqueeze(other, axes=[*range(rank - 2), rank - 1])
    else:
        b = _aligned(other, rank)
    result = product(a, b, rank=rank)
    if row or column:
        result = ge.Squeeze(result, axis=[-2 if row else -1])
    return result


@declare_supported(
    [
        *(Support(make(4, 8), make(3, 8), make(3)) for make in (F32, F16, BF16)),
        Support(F32(4, 8), F32(3, 8)),
        Support(F32(2, 4, 8), F32(3, 8), F32(3)),
        Support(F32(2, 5, 4, 8), F32(3, 8)),
        Support(F32(8), F32(3, 8), F32(3)),
    ]
)
@register_fx_node_ge_converter(aten.linear.default, source="native_functions.yaml: linear; GE MatMulV2, BatchMatMulV2")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: input [.., m]; weight [p, m]; bias [p] -> [.., p].
    Dtypes: float32, float16, bfloat16.
    Emits:  MatMulV2 with bias for a matrix; BatchMatMulV2 and Add for more leading dims.
    """
    if weight.rank < 2:
        raise Refusal("the weight is a vector, GE's product takes a matrix; use torch.matmul")
    rank = max(input.rank, 2)
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    x = _aligned(input, 2)
    result = product(x, ge.Transpose(_aligned(weight, rank), swapped), bias, rank=rank)
    return result if input.rank > 1 else ge.Squeeze(result, axis=[0])


@declare_supported(
    [
        Support(F32(4, 3), F32(5, 3, 6), F32(4, 6), [1, 3], [0], [1, 2], [2, 3]).within(1e-5, 1e-5),
        Support(F32(2, 3), F32(2, 3), F32(2, 3), [], [], [], [1]),
    ]
)
@register_fx_node_ge_converter(aten._trilinear.default, source="native_functions.yaml: _trilinear; GE Mul, ReduceSum")
def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: each operand gets axes of size 1 at its expand places; the product of all three is summed over sumdim.
    Dtypes: floats; halves in float32.
    Emits:  Unsqueeze, Mul, Mul, ReduceSum; unroll_dim chooses between equal ways and is not read.
    """
    dtype = meta_outputs.dtype
    inner = DataType.DT_FLOAT if dtype in HALF_TYPES else dtype
    operands = []
    for x, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        wide = cast(x, inner)
        operands.append(ge.Unsqueeze(wide, axes=list(axes)) if axes else wide)
    terms = ge.Mul(ge.Mul(operands[0], operands[1]), operands[2])
    return cast(ge.ReduceSum(terms, list(sumdim), keep_dims=False) if sumdim else terms, dtype)
