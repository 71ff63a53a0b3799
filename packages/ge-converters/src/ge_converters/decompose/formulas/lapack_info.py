"""``torch.linalg.*_ex``, whose ``info`` says of each matrix whether, and where, its factorisation broke down.

GE's operators stop the graph there instead. So info is found first, from operators that do not stop, and the matrices
that broke down are replaced by the identity; what eager leaves in their results is not defined, ours is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten

_LARGEST: Final = 128  # rows of a matrix whose leading minors are computed side by side


def _sound(A: Tensor, info: Tensor) -> Tensor:
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return torch.where((info == 0)[..., None, None], A, eye)


def _or_nan(result: Tensor, info: Tensor, dims: int) -> Tensor:
    good = (info == 0).reshape([*info.shape, *[1] * dims])
    return torch.where(good, result, torch.full((), torch.nan, dtype=result.dtype, device=result.device))


def _is_float(A: Any) -> bool:
    return isinstance(A, torch.Tensor) and A.dim() > 1 and (A.is_floating_point() or A.is_complex())


def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    """The inverse; info counts to the first pivot that is zero."""
    if check_errors or not _is_float(A):
        return NotImplemented
    info = aten.linalg_lu_factor_ex(A.detach())[2]
    return torch.return_types.linalg_inv_ex((_or_nan(torch.linalg.inv(_sound(A, info)), info, 2), info))


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """The solution of a system; info as of the inverse."""
    if check_errors or not _is_float(A) or not isinstance(B, torch.Tensor):
        return NotImplemented
    info = aten.linalg_lu_factor_ex(A.detach())[2]
    solution = torch.linalg.solve(_sound(A, info), B, left=left)
    return torch.return_types.linalg_solve_ex((_or_nan(solution, info, solution.dim() - info.dim()), info))


def cholesky_ex(input: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """The factor; info is the order of the first leading minor that is not positive."""
    A = input
    if check_errors or not _is_float(A) or A.shape[-1] > _LARGEST:
        return NotImplemented
    whole = _hermitian(A.detach(), upper)
    order = torch.arange(A.shape[-1], device=A.device)
    inside = torch.maximum(order[:, None], order) <= order[:, None, None]  # [k, i, j]: whether i, j <= k
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    sign, _ = torch.linalg.slogdet(torch.where(inside, whole.unsqueeze(-3), eye))
    positive = (sign.real if sign.is_complex() else sign) > 0
    unbroken = torch.cumprod(positive.to(torch.int32), -1).sum(-1).to(torch.int32)
    info = torch.where(unbroken == A.shape[-1], torch.zeros_like(unbroken), unbroken + 1)
    factor = torch.linalg.cholesky(_sound(A, info), upper=upper)
    return torch.return_types.linalg_cholesky_ex((_or_nan(factor, info, 2), info))


def _hermitian(A: Tensor, upper: bool) -> Tensor:
    """The matrix of which Cholesky reads one triangle."""
    strict = A.triu(1) if upper else A.tril(-1)
    return strict + strict.mH + torch.diag_embed(torch.diagonal(A, dim1=-2, dim2=-1))


WITH_INFO: Final[dict[Any, Callable[..., Any]]] = {
    torch.linalg.inv_ex: inv_ex,
    torch.linalg.solve_ex: solve_ex,
    torch.linalg.cholesky_ex: cholesky_ex,
}
