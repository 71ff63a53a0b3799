"""Decompositions and equations of matrices (the last two dims), Fourier transforms (of the last dim)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ge_runtime import errors
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import one, torch_dtype

_SOURCE = "operator headers linalg_ops and matrix_calculation_ops"


def _adjoint(x: Tensor, adjoint: bool) -> Tensor:
    return x.mH if adjoint else x


@kernel("MatrixInverse", source=_SOURCE)
def matrix_inverse(x: Tensor, *, adjoint: bool = False) -> Tensor:
    """The inverse of x or of its conjugate transpose; a singular matrix is an error."""
    return torch.linalg.inv(_adjoint(x, adjoint))


def _as_given(x: Tensor) -> Tensor:
    """Column by column in memory, so that ATen factors x itself, as Lu does, and not its transpose."""
    return x.mT.contiguous().mT


@kernel("MatrixDeterminant", source=_SOURCE)
def matrix_determinant(x: Tensor) -> Tensor:
    """The determinant."""
    return torch.linalg.det(_as_given(x))


@kernel("LogMatrixDeterminant", source=_SOURCE)
def log_matrix_determinant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sign of the determinant and log of its absolute value."""
    sign, logarithm = torch.linalg.slogdet(_as_given(x))
    return sign, logarithm.to(x.dtype)


@kernel("MatrixSolve", source=_SOURCE)
def matrix_solve(matrix: Tensor, rhs: Tensor, *, adjoint: bool = False) -> Tensor:
    """x with matrix @ x = rhs, rhs a matrix of columns; a singular matrix is an error."""
    if rhs.dim() != matrix.dim():
        raise errors.refused("MatrixSolve", f"rhs of rank {rhs.dim()} for matrices of rank {matrix.dim()}")
    return torch.linalg.solve(_adjoint(matrix, adjoint), rhs)


@kernel("MatrixTriangularSolve", source=_SOURCE)
def matrix_triangular_solve(matrix: Tensor, rhs: Tensor, *, lower: bool = True, adjoint: bool = False) -> Tensor:
    """x with matrix @ x = rhs, of the matrix only the lower or upper triangle being read."""
    return torch.linalg.solve_triangular(_adjoint(matrix, adjoint), rhs, upper=lower == adjoint)


@kernel("Cholesky", source=_SOURCE)
def cholesky(x: Tensor) -> Tensor:
    """The lower triangular factor; a matrix that is not positive definite is an error."""
    return torch.linalg.cholesky(x)


@kernel("Qr", source=_SOURCE)
def qr(x: Tensor, *, full_matrices: bool = False) -> tuple[Tensor, Tensor]:
    """q and r; all columns of q if full_matrices."""
    q, r = torch.linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return q, r


@kernel("Svd", source=_SOURCE)
def svd(x: Tensor, *, compute_uv: bool = True, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, u and v with x = u @ diag(sigma) @ adjoint(v); u and v are empty unless asked for."""
    if not compute_uv:
        nothing = x.new_empty(0)
        return torch.linalg.svdvals(x).to(x.dtype), nothing, nothing.clone()
    u, sigma, vh = torch.linalg.svd(x, full_matrices=full_matrices)
    return sigma.to(x.dtype), u, vh.mH.resolve_conj()  # a mark would travel along the edge


@kernel("SelfAdjointEig", source=_SOURCE)
def self_adjoint_eig(x: Tensor, *, compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order and eigenvectors of self-adjoint matrices, whose lower triangle is read."""
    if not compute_v:
        return torch.linalg.eigvalsh(x).to(x.dtype), x.new_empty(0)
    values, vectors = torch.linalg.eigh(x)
    return values.to(x.dtype), vectors


@kernel("Lu", source=_SOURCE)
def lu(input: Tensor, *, output_idx_type: int) -> tuple[Tensor, Tensor]:
    """Both factors in one square matrix, and for each of its rows the row of the input that it comes from."""
    if input.shape[-1] != input.shape[-2]:
        raise errors.refused("Lu", f"matrices must be square, got {tuple(input.shape[-2:])}")
    factors, pivots, _ = torch.linalg.lu_factor_ex(input)
    permutation, _, _ = torch.lu_unpack(factors, pivots, unpack_data=False)
    places = torch.arange(input.shape[-1], dtype=input.real.dtype)
    sources = (permutation.mT.real @ places.unsqueeze(-1)).squeeze(-1).round()
    return factors, sources.to(torch_dtype(output_idx_type))


@kernel("FFT", source="operator header spectral_ops; no factor")
def fft(x: Tensor) -> Tensor:
    """The transform of the last dim."""
    return torch.fft.fft(x)


@kernel("IFFT", source="operator header spectral_ops; divided by the length")
def ifft(x: Tensor) -> Tensor:
    """The inverse transform of the last dim."""
    return torch.fft.ifft(x)


@kernel("RFFT", host=("fft_length",), source="operator header spectral_ops: the first half of the spectrum")
def rfft(input: Tensor, fft_length: Any) -> Tensor:
    """The transform of real numbers, cut or padded to fft_length."""
    return torch.fft.rfft(input, n=one(fft_length))


@kernel("IRFFT", host=("fft_length",), source="operator header spectral_ops; divided by the length")
def irfft(x: Tensor, fft_length: Any) -> Tensor:
    """fft_length real numbers from the first half of their spectrum."""
    return torch.fft.irfft(x, n=one(fft_length))
