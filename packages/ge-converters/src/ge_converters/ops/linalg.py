"""Matrix decompositions and equations with the operators that GE has: Lu, Cholesky, Qr, Svd, inverse, solve.

LAPACK, and so torch, describes the row exchanges of an LU factorisation by pivots; GE's ``Lu`` gives the permutation
that they make together. One is computed from the other column by column, which is why n is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ge_converters.base.dtypes import cast, part_type
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import F32, F64, I32, Support
from ge_converters.emit.compute_types import move, shaped
from ge_converters.emit.shapes import broadcast, filled, ints
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType
_LARGEST: Final = 64

# Well conditioned, and positive definite.
_A = [[4.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.5, -1.0, 5.0]]
_B = [[1.0, -2.0, 0.5], [3.0, 1.0, 1.0], [0.5, 2.0, -1.0]]
_SINGULAR = [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]]
_SQUARE = [F32(value=_A), F64(value=_B), F32(value=[_A, _B])]
_POSITIVE = [F32(value=_A), F64(value=[_A, _A])]


def _long(value: int) -> Tensor:
    return ge.Const(value, dtype=_D.DT_INT64)


def _transposed(x: Tensor) -> Tensor:
    order = list(range(x.rank))
    order[-2], order[-1] = order[-1], order[-2]
    result = move("Transpose", x, ints(order))
    shape = x.known_shape
    result.record_shape(None if shape is None else (*shape[:-2], shape[-1], shape[-2]))
    return result


def _adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose, of rank ``x.rank``."""
    return _transposed(shaped(ge.Conj(x), x) if x.dtype.is_complex else x)


def _no_errors(x: Tensor) -> Tensor:
    """The info of LAPACK: zeros, as GE's operators stop with an error where it would not be zero."""
    real = ge.Real(x, Tout=_D.DT_FLOAT) if x.dtype == _D.DT_COMPLEX64 else x
    result: Tensor = ge.ZerosLike(cast(ge.ReduceSum(real, [-2, -1], keep_dims=False), _D.DT_INT32))
    return result


def _static(sizes: Sequence[Any], what: str) -> list[int]:
    if not all(isinstance(s, int) for s in sizes):
        raise Refusal(
            f"{what} has symbolic sizes {list(sizes)}; the graph is built matrix size by matrix size, mark them static"
        )
    return [int(s) for s in sizes]


# -- inverse, determinant, Cholesky ----------------------------------------------------------------------------------


@declare_supported([Support(x) for x in _SQUARE])
@register_fx_node_ge_converter(aten.linalg_inv_ex.default, source="aten linalg_inv_ex; GE MatrixInverse")
def linalg_inv_ex(A: Tensor, *, check_errors: bool = False, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """The inverse and LAPACK's info.

    Dtypes: float32, float64, complex.
    Errors: A singular matrix stops the graph with an error whether or not check_errors is set.
    Emits:  MatrixInverse.
    """
    inverse = ge.MatrixInverse(A)
    inverse.record_shape(A.known_shape)
    return inverse, _no_errors(inverse)


@declare_supported([Support(x, upper=u) for x in _POSITIVE for u in (False, True)])
@register_fx_node_ge_converter(aten.linalg_cholesky_ex.default, source="aten linalg_cholesky_ex; GE Cholesky")
def linalg_cholesky_ex(
    self: Tensor, *, upper: bool = False, check_errors: bool = False, meta_outputs: Any
) -> tuple[Tensor, Tensor]:
    """The Cholesky factor and LAPACK's info.

    Errors: A matrix that is not positive definite stops the graph with an error.
    Emits:  Cholesky, and Transpose for the upper factor.
    """
    factor = cholesky(self, upper, meta_outputs=meta_outputs[0])
    factor.record_shape(self.known_shape)
    return factor, _no_errors(factor)


@declare_supported([Support(x, u) for x in _POSITIVE for u in (False, True)])
@register_fx_node_ge_converter(aten.cholesky.default, source="aten cholesky; GE Cholesky")
def cholesky(self: Tensor, upper: bool = False, *, meta_outputs: TensorSpec) -> Tensor:
    """The Cholesky factor."""
    factor = ge.Cholesky(_adjoint(self) if upper else self)  # one triangle is read: the one that torch reads
    factor.record_shape(self.known_shape)
    return _adjoint(factor) if upper else factor


@declare_supported([Support(x).only(0) for x in _SQUARE])
@register_fx_node_ge_converter(aten._linalg_det.default, source="aten _linalg_det; GE MatrixDeterminant, Lu")
def _linalg_det(A: Tensor, *, meta_outputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The determinant and the LU factorisation that its gradient uses.

    Emits:  MatrixDeterminant, Lu.
    """
    return (ge.MatrixDeterminant(A), *_factors_if_any(A, meta_outputs[1]))


@declare_supported([Support(x).only(0, 1) for x in _SQUARE])
@register_fx_node_ge_converter(aten._linalg_slogdet.default, source="aten _linalg_slogdet; GE LogMatrixDeterminant, Lu")
def _linalg_slogdet(A: Tensor, *, meta_outputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sign and logarithm of the determinant, and the LU factorisation that their gradient uses.

    Emits:  LogMatrixDeterminant, Lu.
    """
    sign, logarithm = ge.LogMatrixDeterminant(A)
    if A.dtype.is_complex:
        logarithm = ge.Real(logarithm, Tout=meta_outputs[1].dtype)
    return (sign, logarithm, *_factors_if_any(A, meta_outputs[2]))


# -- LU --------------------------------------------------------------------------------------------------------------


def _lane(x: Tensor, i: int) -> Tensor:
    """Entry i of the last dim, kept as a dim of 1."""
    result: Tensor = ge.GatherV2(x, ints([i]), _long(-1))
    return result


def _mask(n: int, i: int) -> Tensor:
    return ge.Const(np.arange(n) == i)


def _factored(x: Tensor, meta: TensorSpec) -> tuple[Tensor, Tensor]:
    """LU and pivots of a batch of matrices."""
    sizes = _static(meta.size, "the matrix")
    factors, rows = _exchanged(x, sizes)
    pivots, left = _pivots(rows, sizes)
    return _as_lapack(factors, rows, left, sizes)[0], pivots


def _exchanged(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Both factors as GE's operator gives them, and the row of the input that each of their rows comes from.

    The operator takes square matrices. A matrix with more rows is factored beside columns that are orthogonal to its
    own: no exchange of the first columns depends on those to their right, and what was regular stays regular.
    """
    rows, columns = sizes[-2:]
    if columns == 0:
        return x, broadcast(ge.Const(np.arange(rows, dtype=np.int64)), ints(sizes[:-1]))
    if rows > columns:
        start = ints([*[0] * (len(sizes) - 1), columns])
        others = ge.Slice(ge.Qr(x, full_matrices=True)[0], start, ints([*sizes[:-1], rows - columns]))
        x = ge.ConcatV2([x, others], len(sizes) - 1)
    factors, order = ge.Lu(x, output_idx_type=_D.DT_INT64)
    order.record_shape(tuple(sizes[:-1]))
    if rows > columns:
        factors = ge.Slice(factors, ints([0] * len(sizes)), ints(sizes))
    factors.record_shape(tuple(sizes))
    return factors, order


def _as_lapack(factors: Tensor, rows: Tensor, left: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The factors and the order of their rows without the exchanges of the columns put beside a matrix.

    Args:
        factors: As GE's operator gives them.
        rows: Likewise.
        left: The order of the rows as the exchanges of the matrix' own columns leave it behind them.
        sizes: Of the matrix.
    """
    count, batch = sizes[-1], sizes[:-2]
    if count in (0, sizes[-2]):
        return factors, rows
    chosen = ge.Slice(rows, ints([0] * (len(batch) + 1)), ints([*batch, count]))
    behind = ge.Slice(left, ints([*[0] * len(batch), count]), ints([*batch, sizes[-2] - count]))
    order = ge.ConcatV2([chosen, behind], len(batch))
    order.record_shape(rows.known_shape)
    return _rows(factors, ge.GatherElements(_inverse(rows), order, dim=len(batch))), order


def _pivots(rows: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """LAPACK's pivots from the order of the rows, and the order that these exchanges leave behind the last of them."""
    count = _bounded(sizes)
    places, pivots = ge.Const(np.arange(sizes[-2], dtype=np.int64)), []
    current = broadcast(places, ints(sizes[:-1]))
    for i in range(count):
        wanted = ge.Equal(current, _lane(rows, i))
        at = ge.ReduceSum(ge.SelectV2(wanted, places, _long(0)), [-1], keep_dims=True)
        exchanged = ge.SelectV2(wanted, _lane(current, i), current)
        current = ge.SelectV2(_mask(sizes[-2], i), _long(-1), exchanged)  # this place is done
        pivots.append(ge.Add(at, _long(1)))
    joined = ge.ConcatV2(pivots, len(sizes) - 2) if count else ge.Fill(ints([*sizes[:-2], 0]), _long(0))
    return cast(joined, _D.DT_INT32), current


def _bounded(sizes: Sequence[int]) -> int:
    n = sizes[-1]
    if n > _LARGEST:
        raise Refusal(
            f"matrices of {n} columns: LAPACK's pivots are found column by column from GE Lu's permutation, which is "
            f"done up to {_LARGEST}; use torch.linalg.solve or inv, which need no pivots"
        )
    return n


def _permutation(pivots: Tensor, sizes: Sequence[int], count: int) -> Tensor:
    """Row of the input for each row of the factors, from the pivots of the first ``count`` rows."""
    n = _bounded(sizes)
    places = ge.Const(np.arange(n, dtype=np.int64))
    rows, exchange = broadcast(places, ints(sizes)), cast(pivots, _D.DT_INT64)
    for i in range(count):
        other = ge.Equal(places, ge.Sub(_lane(exchange, i), _long(1)))
        mine = _lane(rows, i)
        theirs = ge.ReduceSum(ge.SelectV2(other, rows, _long(0)), [-1], keep_dims=True)
        rows = ge.SelectV2(_mask(n, i), theirs, ge.SelectV2(other, mine, rows))
    rows.record_shape(tuple(sizes))
    return rows


@declare_supported(
    [
        Support(x).fixed_sizes()
        for x in [*_SQUARE, F32(4, 7, 7), F64(3, 2, 9, 9), F32(value=_SINGULAR), F32(7, 3), F64(2, 5, 4), F32(3, 0)]
    ]
)
@register_fx_node_ge_converter(aten.linalg_lu_factor_ex.default, source="aten linalg_lu_factor_ex; GE Lu")
def linalg_lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False, meta_outputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """LU factors in one matrix, pivots, and LAPACK's info.

    Shapes: A [.., m, n] with m >= n; a matrix with more columns is decomposed into this before.
    Errors: Refusal without pivoting, for symbolic sizes and for more columns than are done.
    Emits:  Lu, and five small operators a column for the pivots; Qr beside it for m > n.
    """
    _needs_pivot(pivot)
    factors, pivots = _factored(A, meta_outputs[0])
    return factors, pivots, _first_zero(factors, _static(meta_outputs[0].size, "the matrix"))


def _first_zero(factors: Tensor, sizes: Sequence[int]) -> Tensor:
    """The info of LAPACK's LU: number of the first pivot that is zero, counted from 1; 0 if there is none."""
    n = sizes[-1]
    if n == 0:
        return ge.Fill(ints(sizes[:-2]), ge.Const(0, dtype=_D.DT_INT32))
    pivots = ge.MatrixDiagPart(_square(factors, sizes))
    zero = ge.Equal(pivots, ge.ZerosLike(pivots))
    numbers = ge.Const(np.arange(1, n + 1, dtype=np.int32))
    none = ge.Const(n + 1, dtype=_D.DT_INT32)
    first = ge.ReduceMin(ge.SelectV2(zero, numbers, none), [-1], keep_dims=False)
    result: Tensor = ge.SelectV2(ge.Equal(first, none), ge.Const(0, dtype=_D.DT_INT32), first)
    return result


def _square(factors: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first rows, as many as there are columns."""
    if sizes[-2] == sizes[-1]:
        return factors
    result: Tensor = ge.Slice(factors, ints([0] * len(sizes)), ints([*sizes[:-2], sizes[-1], sizes[-1]]))
    return result


def _needs_pivot(pivot: bool) -> None:
    if not pivot:
        raise Refusal("pivot=False: GE Lu always exchanges rows; leave pivot out")


def _unit_lower(factors: Tensor) -> Tensor:
    """The lower factor with its ones."""
    shape = factors.known_shape
    result = ge.Add(ge.Tril(factors, diagonal=-1), _identity(factors))
    result.record_shape(shape)
    return result


def _identity(x: Tensor) -> Tensor:
    """Ones on the diagonal, of the size of a batch of square matrices."""
    like = ge.Real(x, Tout=part_type(x.dtype)) if x.dtype.is_complex else x  # OnesLike does not know complex64
    result = ge.Tril(ge.Triu(cast(ge.OnesLike(like), x.dtype)))
    result.record_shape(x.known_shape)
    return result


@declare_supported([Support(x).fixed_sizes() for x in [*_SQUARE, F32(7, 3), F64(2, 5, 4), F32(3, 0)]])
@register_fx_node_ge_converter(aten.linalg_lu.default, source="aten linalg_lu; GE Lu, Tril, Triu, Qr")
def linalg_lu(A: Tensor, *, pivot: bool = True, meta_outputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U with A = P L U.

    Shapes: A [.., m, n] with m >= n; a matrix with more columns is decomposed into this before.
    Errors: Refusal without pivoting, for symbolic sizes and, of m > n, for more columns than are done.
    Emits:  Lu, Tril, Triu; P from comparing the permutation with the row numbers; for m > n Qr and what
        ``linalg_lu_factor_ex`` needs for its pivots.
    """
    _needs_pivot(pivot)
    sizes = _static(A.known_shape or (None,), "the matrix")
    factors, rows = _exchanged(A, sizes)
    if sizes[-2] != sizes[-1]:
        factors, rows = _as_lapack(factors, rows, _pivots(rows, sizes)[1], sizes)
    lower = ge.Add(ge.Tril(factors, diagonal=-1), _diagonal(A.dtype, *sizes[-2:]))
    return _permutation_matrix(rows, sizes[-2], A.dtype), lower, ge.Triu(_square(factors, sizes))


def _diagonal(dtype: DataType, rows: int, columns: int) -> Tensor:
    """Ones on the diagonal of a matrix."""
    ones = np.eye(rows, columns, dtype={_D.DT_FLOAT: np.float32, _D.DT_COMPLEX64: np.complex64}.get(dtype))
    return ge.Const(ones.astype(np.complex128) if dtype == _D.DT_COMPLEX128 else ones)


def _permutation_matrix(rows: Tensor, n: int, dtype: DataType) -> Tensor:
    places = ge.Const(np.arange(n, dtype=np.int64)[:, None])
    return cast(ge.Equal(places, ge.Unsqueeze(rows, axes=[-2])), dtype)


_PACKED = [
    (F32(3, 3), I32(value=[2, 3, 3])),
    (F32(2, 4, 3), I32(value=[[2, 4, 3], [1, 2, 3]])),
    (F64(3, 5), I32(value=[3, 3, 3])),
]


@declare_supported(
    [Support(*p).fixed_sizes() for p in _PACKED]
    + [Support(*_PACKED[1], d, p).fixed_sizes() for d, p in ((True, False), (False, True))]
)
@register_fx_node_ge_converter(aten.lu_unpack.default, source="aten lu_unpack; GE Tril, Triu, Slice")
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True, *, meta_outputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U from the factors in one matrix and the pivots; what is not asked for is empty.

    Errors: Refusal for symbolic sizes.
    Emits:  Tril, Triu, Slice; the permutation row by row.
    """
    sizes = _static(LU_data.known_shape or (None,), "the matrix")
    rows, columns = sizes[-2:]
    least = min(rows, columns)
    nothing = filled([0], 0, LU_data.dtype)
    p, lower, upper = nothing, nothing, nothing
    if unpack_pivots:
        order = _permutation(LU_pivots, [*sizes[:-2], rows], least)
        p = _permutation_matrix(order, rows, meta_outputs[0].dtype)
    if unpack_data:
        start = ints([0] * len(sizes))
        lower = ge.Tril(ge.Slice(LU_data, start, ints([*sizes[:-1], least])), diagonal=-1)
        lower = ge.Add(lower, _diagonal(LU_data.dtype, rows, least))
        upper = ge.Triu(ge.Slice(LU_data, start, ints([*sizes[:-2], least, columns])))
    return p, lower, upper


# -- equations -------------------------------------------------------------------------------------------------------


def _batched(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """A matrix for each entry of the batch of the result."""
    shape = x.known_shape
    if shape is not None and tuple(shape) == tuple(sizes):
        return x
    whole = _static(sizes, "an operand whose batch is broadcast")
    result = broadcast(x, ints(whole))
    result.record_shape(tuple(whole))
    return result


def _triangular(matrix: Tensor, rhs: Tensor, upper: bool, adjoint: bool = False) -> Tensor:
    result = ge.MatrixTriangularSolve(matrix, rhs, lower=not upper, adjoint=adjoint)
    result.record_shape(rhs.known_shape)
    return result


@declare_supported(
    [
        Support(F32(value=_A), F32(3, 2), left=True).only(0, 3),
        Support(F32(value=_B), F32(2, 3), left=False).only(0),
        Support(F32(value=[_A, _B]), F32(2, 3, 2)).only(0),
        Support(F32(value=[_A, _B]), F32(3, 2)).only(0).fixed_sizes(),
        Support(F32(value=[_A, _B]), F32(2, 3)).only(0),
        Support(F32(value=_A), F32(3)).only(0),
        Support(F64(value=_B), F64(4, 3, 2)).only(0).fixed_sizes(),
        Support(F64(value=_B), F64(3, 2)).fixed_sizes(),
    ]
)
@register_fx_node_ge_converter(aten._linalg_solve_ex.default, source="aten _linalg_solve_ex; GE MatrixSolve, Lu")
def _linalg_solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False, meta_outputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X with A X = B (X A = B if not left), the LU factorisation that its gradient uses, and LAPACK's info.

    Shapes: A [.., n, n]; B [.., n, k], or one vector a matrix; leading dims broadcast.
    Errors: A singular matrix stops the graph with an error.
    Emits:  MatrixSolve, Lu.
    """
    factors, pivots = _factors_if_any(A, meta_outputs[1])
    sizes = list(meta_outputs[0].size)
    shape_a, shape_b = A.known_shape or (), B.known_shape or ()
    vector = len(sizes) == A.rank - 1  # the result of a matrix has the rank of A; sizes may be other symbols
    if vector:
        rhs = ge.Unsqueeze(B, axes=[-1])
        rhs.record_shape((*shape_b, 1))
        sizes.append(1)
    else:
        rhs = B
    matrix, rhs = _batched(A, (*sizes[:-2], *shape_a[-2:])), _batched(rhs, sizes)
    if left or vector:
        solution = ge.MatrixSolve(matrix, rhs)
    else:
        turned = ge.MatrixSolve(_transposed(matrix), _transposed(rhs))
        turned.record_shape((*sizes[:-2], sizes[-1], sizes[-2]))
        solution = _transposed(turned)
    solution = ge.Squeeze(solution, axis=[-1]) if vector else solution
    return solution, factors, pivots, _no_errors(A)


def _factors_if_any(x: Tensor, meta: TensorSpec) -> Any:
    """The factorisation where it can be had; the result itself does not need it."""
    try:
        return _factored(x, meta)
    except Refusal:
        return None, None


@declare_supported(
    [Support(F32(value=_A), F32(3, 2), upper=u, unitriangular=t) for u in (False, True) for t in (False, True)]
    + [
        Support(F32(value=_A), F32(2, 3), upper=True, left=False),
        Support(F64(value=_A), F64(4, 3, 2), upper=False).fixed_sizes(),
        Support(F32(value=[_A, _B]), F32(3, 2), upper=True).fixed_sizes(),
    ]
)
@register_fx_node_ge_converter(
    aten.linalg_solve_triangular.default, source="aten linalg_solve_triangular; GE MatrixTriangularSolve"
)
def linalg_solve_triangular(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False, meta_outputs: TensorSpec
) -> Tensor:
    """X with self X = B (X self = B if not left), of self only one triangle being read.

    Emits:  MatrixTriangularSolve.
    """
    sizes = meta_outputs.size
    matrix = _unit(self, upper) if unitriangular else self
    matrix = _batched(matrix, (*sizes[:-2], *(self.known_shape or ())[-2:]))
    rhs = _batched(B, sizes)
    if left:
        return _triangular(matrix, rhs, upper)
    return _transposed(_triangular(_transposed(matrix), _transposed(rhs), not upper))


def _unit(x: Tensor, upper: bool) -> Tensor:
    if not upper:
        return _unit_lower(x)
    result = ge.Add(ge.Triu(x, diagonal=1), _identity(x))
    result.record_shape(x.known_shape)
    return result


@declare_supported(
    [
        Support(F32(3, 2), F32(value=_A), u, t, d)
        for u, t, d in ((True, False, False), (False, True, False), (True, True, True), (False, False, True))
    ]
)
@register_fx_node_ge_converter(aten.triangular_solve.default, source="aten triangular_solve; GE MatrixTriangularSolve")
def triangular_solve(
    self: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    meta_outputs: Any,
) -> tuple[Tensor, Tensor]:
    """X with A X = self or transpose(A) X = self, and a copy of A."""
    sizes = meta_outputs[0].size
    matrix = _unit(A, upper) if unitriangular else A
    matrix = _batched(matrix, (*sizes[:-2], *(A.known_shape or ())[-2:]))
    if transpose:
        matrix, upper = _transposed(matrix), not upper
    return _triangular(matrix, _batched(self, sizes), upper), _batched(A, meta_outputs[1].size)


@declare_supported([Support(F32(3, 2), F32(value=_A), u) for u in (False, True)])
@register_fx_node_ge_converter(aten.cholesky_solve.default, source="aten cholesky_solve; GE MatrixTriangularSolve")
def cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False, *, meta_outputs: TensorSpec) -> Tensor:
    """X with (factor times its conjugate transpose) X = self."""
    sizes = meta_outputs.size
    factor = _batched(input2, (*sizes[:-2], *(input2.known_shape or ())[-2:]))
    return _by_cholesky(factor, _batched(self, sizes), upper)


def _by_cholesky(factor: Tensor, rhs: Tensor, upper: bool) -> Tensor:
    first = _triangular(factor, rhs, upper, adjoint=upper)
    return _triangular(factor, first, upper, adjoint=not upper)


@declare_supported([Support(F32(value=_A), u) for u in (False, True)])
@register_fx_node_ge_converter(aten.cholesky_inverse.default, source="aten cholesky_inverse; GE MatrixTriangularSolve")
def cholesky_inverse(self: Tensor, upper: bool = False, *, meta_outputs: TensorSpec) -> Tensor:
    """Inverse of the matrix whose Cholesky factor is given."""
    return _by_cholesky(self, _batched(_identity(self), meta_outputs.size), upper)


@declare_supported(
    [
        Support(F32(value=_A), I32(value=[2, 3, 3]), F32(3, 3), left=s, adjoint=a).fixed_sizes()
        for s in (True, False)
        for a in (True, False)
    ]
    + [
        Support(
            F64(value=[_A, _B]), I32(value=[[1, 2, 3], [3, 3, 3]]), F64(2, 3, 2), left=True, adjoint=a
        ).fixed_sizes()
        for a in (True, False)
    ]
)
@register_fx_node_ge_converter(aten.linalg_lu_solve.default, source="aten linalg_lu_solve; GE MatrixTriangularSolve")
def linalg_lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False, meta_outputs: TensorSpec
) -> Tensor:
    """X with A X = B, or X A = B, or the same with the conjugate transpose of A, from the LU factorisation of A.

    Emits:  MatrixTriangularSolve twice; the rows exchanged by GatherElements.
    """
    sizes = _static(meta_outputs.size, "the result")
    n = (LU.known_shape or (0,))[-1]
    factors = _batched(LU, (*sizes[:-2], n, n))
    exchanged = _static(pivots.known_shape or (None,), "pivots")
    rows = _permutation(pivots, exchanged, exchanged[-1])
    rhs = _batched(B, sizes)
    if not left:
        rhs, adjoint = _adjoint(rhs), not adjoint
    lower = _unit_lower(factors)
    if adjoint:
        solution = _triangular(lower, _triangular(factors, rhs, True, adjoint=True), False, adjoint=True)
        result = _rows(solution, _inverse(rows))
    else:
        result = _triangular(factors, _triangular(lower, _rows(rhs, rows), False), True)
    result.record_shape(rhs.known_shape)
    return result if left else _adjoint(result)


def _inverse(rows: Tensor) -> Tensor:
    """The permutation that undoes another."""
    (n,) = _static((rows.known_shape or (None,))[-1:], "pivots")
    places = ge.Const(np.arange(n, dtype=np.int64)[:, None])
    hits = ge.Equal(ge.Unsqueeze(rows, axes=[-2]), places)
    result = ge.ReduceSum(ge.SelectV2(hits, ge.Const(np.arange(n, dtype=np.int64)), _long(0)), [-1], keep_dims=False)
    result.record_shape(rows.known_shape)
    return result


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    index = broadcast(ge.Unsqueeze(rows, axes=[-1]), ints(_static(x.known_shape or (None,), "the right side")))
    return move("GatherElements", x, index, dim=x.rank - 2)


# -- QR, singular values, eigenvalues --------------------------------------------------------------------------------


_TALL = [F32(4, 3), F64(2, 4, 3), F32(2, 4)]


@declare_supported([Support(x, m) for x in _TALL for m in ("reduced", "complete")])
@register_fx_node_ge_converter(aten.linalg_qr.default, source="aten linalg_qr; GE Qr")
def linalg_qr(A: Tensor, mode: str = "reduced", *, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """Q and R; the signs of their columns and rows are the operator's choice.

    Emits:  Qr.
    """
    if mode == "r":
        _, r = ge.Qr(A, full_matrices=False)
        return ge.Const(np.zeros(0, dtype={_D.DT_FLOAT: np.float32, _D.DT_DOUBLE: np.float64}[A.dtype])), r
    q, r = ge.Qr(A, full_matrices=mode == "complete")
    return q, r


@declare_supported([Support(x, f) for x in _TALL for f in (False, True)] + [Support(F32(4, 3), False, False)])
@register_fx_node_ge_converter(aten._linalg_svd.default, source="aten _linalg_svd; GE Svd")
def _linalg_svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None, meta_outputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """U, the singular values, and the conjugate transpose of V.

    Emits:  Svd, Transpose.
    """
    sigma, u, v = ge.Svd(A, compute_uv=compute_uv, full_matrices=full_matrices)
    sigma = _real(sigma, meta_outputs[1].dtype)
    if not compute_uv:
        return u, sigma, v
    v.record_shape((*meta_outputs[2].size[:-2], meta_outputs[2].size[-1], meta_outputs[2].size[-2]))
    return u, sigma, _adjoint(v)


def _real(x: Tensor, dtype: DataType) -> Tensor:
    return ge.Real(x, Tout=dtype) if x.dtype.is_complex else x


@declare_supported(
    [Support(x) for x in _POSITIVE]
    # the signs of eigenvectors are the operator's choice
    + [Support(x, "U").shape_only() for x in _POSITIVE]
    + [Support(F32(value=_A), u, False) for u in ("L", "U")]
)
@register_fx_node_ge_converter(aten._linalg_eigh.default, source="aten _linalg_eigh; GE SelfAdjointEig")
def _linalg_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True, *, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a matrix that is its own conjugate transpose, one triangle being read.

    Emits:  SelfAdjointEig.
    """
    x = A if UPLO.upper() == "L" else _adjoint(A)
    values, vectors = ge.SelfAdjointEig(x, compute_v=compute_v)
    return _real(values, meta_outputs[0].dtype), vectors
