"""Decompositions and equations of matrices (the last two dims), Fourier transforms (of the last dim)."""

from __future__ import annotations

import torch
from torch import Tensor

from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.cpu.values import one, torch_dtype
from ge_runtime.errors import refused

_SOURCE = "operator headers linalg_ops and matrix_calculation_ops"


def _adjoint(x: Tensor, adjoint: bool) -> Tensor:
    return x.mH if adjoint else x


def _as_given(x: Tensor) -> Tensor:
    """Column by column in memory, so that ATen factors x itself, as Lu does, and not its transpose."""
    return x.mT.contiguous().mT


# A matrix that is singular, or for Cholesky not positive definite, is an error.
rows(
    {
        "MatrixInverse": lambda x, *, adjoint=False: torch.linalg.inv(_adjoint(x, adjoint)),
        "MatrixDeterminant": lambda x: torch.linalg.det(_as_given(x)),
        "MatrixTriangularSolve": lambda matrix, rhs, *, lower=True, adjoint=False: (  # reads one triangle only
            torch.linalg.solve_triangular(_adjoint(matrix, adjoint), rhs, upper=lower == adjoint)
        ),
        "Cholesky": lambda x: torch.linalg.cholesky(x),
        "Qr": lambda x, *, full_matrices=False: tuple(
            torch.linalg.qr(x, mode="complete" if full_matrices else "reduced")
        ),
    },
    source=_SOURCE,
)
# The inverse ones divide by the length; RFFT gives, and IRFFT takes, the first half of the spectrum.
rows({"FFT": lambda x: torch.fft.fft(x), "IFFT": lambda x: torch.fft.ifft(x)}, source="operator header spectral_ops")
rows(
    {
        "RFFT": lambda input, fft_length: torch.fft.rfft(input, n=one(fft_length)),
        "IRFFT": lambda x, fft_length: torch.fft.irfft(x, n=one(fft_length)),
    },
    host=("fft_length",),
    source="operator header spectral_ops",
)


@kernel("LogMatrixDeterminant", source=_SOURCE)
def log_matrix_determinant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sign of the determinant and log of its absolute value."""
    sign, logarithm = torch.linalg.slogdet(_as_given(x))
    return sign, logarithm.to(x.dtype)


@kernel("MatrixSolve", source=_SOURCE)
def matrix_solve(matrix: Tensor, rhs: Tensor, *, adjoint: bool = False) -> Tensor:
    """x with matrix @ x = rhs, rhs a matrix of columns."""
    if rhs.dim() != matrix.dim():
        raise refused("MatrixSolve", f"rhs of rank {rhs.dim()} for matrices of rank {matrix.dim()}")
    return torch.linalg.solve(_adjoint(matrix, adjoint), rhs)


@kernel("Svd", source=_SOURCE)
def svd(x: Tensor, *, compute_uv: bool = True, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, u and v with x = u @ diag(sigma) @ adjoint(v); u and v are empty unless asked for."""
    if not compute_uv:
        return torch.linalg.svdvals(x).to(x.dtype), x.new_empty(0), x.new_empty(0)
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
        raise refused("Lu", f"matrices must be square, got {tuple(input.shape[-2:])}")
    factors, pivots, _ = torch.linalg.lu_factor_ex(input)
    permutation, _, _ = torch.lu_unpack(factors, pivots, unpack_data=False)
    places = torch.arange(input.shape[-1], dtype=input.real.dtype)
    sources = (permutation.mT.real @ places.unsqueeze(-1)).squeeze(-1).round()
    return factors, sources.to(torch_dtype(output_idx_type))
