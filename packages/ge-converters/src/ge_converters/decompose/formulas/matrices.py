"""Matrix functions in ATen ops: reflectors, the exponential, factors of wide matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten

# Type: the norm up to which eager takes a Taylor polynomial, and how often a matrix is halved before. As many times as
# the type has bits: of a larger matrix no digit of the result would be known.
_EXPONENTIAL: Final = {torch.float32: (3.010066362817634, 24), torch.float64: (1.090863719290036, 53)}
_DEGREE: Final = 20


def _reflectors(input: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """V and T with H1 H2 … = 1 - V T Vᴴ, for Hi = 1 - tau_i v_i v_iᴴ with v_i below the diagonal of ``input``."""
    count = tau.shape[-1]
    ones = torch.eye(input.shape[-2], count, dtype=input.dtype, device=input.device)
    v = torch.tril(input.narrow(-1, 0, count), -1) + ones
    coupling = tau.unsqueeze(-1) * torch.triu(v.mH @ v, 1)
    return v, torch.linalg.solve_triangular(coupling, torch.diag_embed(tau), upper=True, unitriangular=True)


def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflectors."""
    rows, columns = input.shape[-2:]
    ones = torch.eye(rows, columns, dtype=input.dtype, device=input.device)
    if input.numel() == 0 or tau.shape[-1] == 0:
        return ones.expand(input.shape).clone()
    v, t = _reflectors(input, tau)
    return ones - v @ (t @ v.narrow(-2, 0, columns).mH)


def ormqr(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """A matrix times the product of reflectors or its conjugate transpose, from the left or from the right."""
    if input3.numel() == 0 or input2.shape[-1] == 0:
        return input3.clone()
    v, t = _reflectors(self, input2)
    t = t.mH if transpose else t
    return input3 - (v @ (t @ (v.mH @ input3)) if left else ((input3 @ v) @ t) @ v.mH)


def matrix_exp(self: Tensor) -> Tensor:
    """The Taylor polynomial of the matrix halved until its norm is small, squared as often as it was halved.

    The number of halvings depends on the values: all squarings that may be needed are computed, and those that a matrix
    needs are taken.
    """
    if self.numel() == 0:
        return self.clone()
    inner = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    limit, halvings = _EXPONENTIAL[inner.to_real()]
    a = self.to(inner)
    norm = a.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    scale = torch.ones_like(norm)
    for k in range(halvings):
        scale = torch.where(norm > limit * 2.0**k, 0.5 ** (k + 1), scale)
    result = _taylor(a * scale)
    for k in range(halvings):
        result = torch.where(norm > limit * 2.0**k, result @ result, result)
    return result.to(self.dtype)


def _taylor(a: Tensor) -> Tensor:
    """The exponential series up to ``_DEGREE``, a multiple of 4, by powers of the fourth power."""
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    second = a @ a
    third = second @ a
    fourth = second @ second
    total = one / math.factorial(_DEGREE)
    for first in range(_DEGREE - 4, -1, -4):
        c = [1.0 / math.factorial(first + i) for i in range(4)]
        head = fourth / math.factorial(_DEGREE) if first == _DEGREE - 4 else total @ fourth
        total = head + (c[0] * one + c[1] * a + c[2] * second + c[3] * third)
    return total


# -- beside converters -----------------------------------------------------------------------------------------------


def _wide(A: Tensor) -> bool:
    """Whether a matrix has more columns than rows: its pivots are those of its leading square.

    Symbolic sizes are compared under a guard: those of a factorised matrix are fixed afterwards in any case.
    """
    rows, columns = A.shape[-2:]
    return bool(rows < columns)


def _behind(p: Tensor, A: Tensor) -> Tensor:
    """The columns behind the leading square, their rows in the order of its factors: moved, not multiplied."""
    rows, columns = A.shape[-2:]
    rest = A.narrow(-1, rows, columns - rows)
    if rows == 0:
        return rest
    order = (p.real if p.is_complex() else p).argmax(-2)
    return rest.gather(-2, order.unsqueeze(-1).expand(rest.shape))


def lu(A: Tensor, *, pivot: bool = True) -> Any:
    """P, L and U of wide matrices: U is continued by a triangular system."""
    if not _wide(A):
        return NotImplemented
    rows = A.shape[-2]
    p, lower, upper = aten.linalg_lu(A.narrow(-1, 0, rows), pivot=pivot)
    rest = torch.linalg.solve_triangular(lower, _behind(p, A), upper=False, unitriangular=True)
    return p, lower, torch.cat([upper, rest], -1)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Both factors of wide matrices in one, and the pivots."""
    if not _wide(A):
        return NotImplemented
    rows = A.shape[-2]
    factors, pivots, info = aten.linalg_lu_factor_ex(A.narrow(-1, 0, rows), pivot=pivot, check_errors=check_errors)
    p, _, _ = aten.lu_unpack(factors, pivots, False, True)
    rest = torch.linalg.solve_triangular(factors, _behind(p, A), upper=False, unitriangular=True)
    return torch.cat([factors.mT, rest.mT], -2).mT, pivots, info  # column by column in memory, as LAPACK leaves them


def gcd(self: Tensor, other: Tensor) -> Any:
    """The greatest common divisor in int64, which GE Gcd does not take: Euclid's steps, as many as may be needed."""
    if torch.result_type(self, other) is not torch.int64:
        return NotImplemented
    a, b = (x.to(torch.int64).abs() for x in torch.broadcast_tensors(self, other))
    for _ in range(91):  # two numbers of 63 bits need no more: their quotients would all have to be 1
        left = torch.remainder(a, torch.clamp(b, min=1))
        a, b = torch.where(b == 0, a, b), left
    return torch.where(b == 0, a, b)


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "linalg_householder_product.default": householder_product,
    "ormqr.default": ormqr,
    "linalg_matrix_exp.default": matrix_exp,
}

BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = {
    "linalg_lu.default": lu,
    "linalg_lu_factor_ex.default": lu_factor_ex,
    "gcd.default": gcd,
}
