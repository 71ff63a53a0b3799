"""RMSNorm as one operator in graphs, also where torch has none.

``aten._fused_rms_norm`` came with torch 2.9; 2.8 has one of this name with other arguments and one result. There an
operator of ours with the same arguments and results takes its place.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from ge_converters.base.operators import AbsentOperator, aten

__all__ = ["FUSED_RMS_NORM", "own_rms_norm"]

_SPACE: Final = "torchair"
_SCHEMA: Final = (
    "_fused_rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)"
)


def _parts(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As aten's: float32 arithmetic and one rounding; the reciprocal root has ones for the normalised sizes."""
    wide = input if input.dtype == torch.float64 else input.float()
    axes = list(range(input.dim() - len(normalized_shape), input.dim()))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    root = torch.rsqrt(wide.pow(2).mean(axes, keepdim=True) + least)
    normal = wide * root
    return (normal if weight is None else normal * weight).to(input.dtype), root


@functools.cache
def _library() -> Any:
    library = torch.library.Library(_SPACE, "FRAGMENT")
    library.define(_SCHEMA)
    library.impl("_fused_rms_norm", _parts, "CompositeExplicitAutograd")
    return library


def own_rms_norm() -> Any:
    """``torchair::_fused_rms_norm``: arguments, results and numbers of ``aten._fused_rms_norm`` of torch 2.9."""
    _library()  # the operator lives as long as the library
    return torch.ops.torchair._fused_rms_norm.default


def _fused_rms_norm() -> Any:
    there = aten._fused_rms_norm.default
    return own_rms_norm() if isinstance(there, AbsentOperator) else there


FUSED_RMS_NORM: Final = _fused_rms_norm()
