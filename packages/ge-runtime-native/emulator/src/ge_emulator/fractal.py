"""FRACTAL_NZ: a matrix in tiles of 16 rows, one column of tiles after the other; what does not fill a tile is zero.

A matrix (.., m, n) lies as (.., n1, m1, 16, n0): n0 is 16, or 32 for types of one byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F

from ge_emulator.refusal import INVALID, CannRefusal

FORMAT: Final = 29


def to_matrix(tiles: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The dense matrix (.., m, n) of tiles (.., n1, m1, m0, n0)."""
    if tiles.dim() != len(dims) + 2 or len(dims) < 2:
        raise CannRefusal(INVALID, f"FRACTAL_NZ: {list(tiles.shape)} holds no tensor of {list(dims)}")
    whole = tiles.movedim(-4, -2).flatten(-4, -3).flatten(-2, -1)
    return whole[..., : dims[-2], : dims[-1]].contiguous()


def to_tiles(matrix: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The tiles of these sizes (.., n1, m1, m0, n0) of a dense matrix."""
    n1, m1, m0, n0 = dims[-4:]
    m, n = matrix.shape[-2:]
    if m > m1 * m0 or n > n1 * n0:
        raise CannRefusal(INVALID, f"FRACTAL_NZ: {list(dims)} has no room for {list(matrix.shape)}")
    padded = F.pad(matrix, (0, n1 * n0 - n, 0, m1 * m0 - m))
    return padded.unflatten(-1, (n1, n0)).unflatten(-3, (m1, m0)).movedim(-2, -4)


def sizes(dims: Sequence[int], dtype: torch.dtype) -> list[int]:
    """Of the tiles of a matrix."""
    n0 = 32 if dtype.itemsize == 1 else 16
    return [*dims[:-2], -(-dims[-1] // n0), -(-dims[-2] // 16), 16, n0]
