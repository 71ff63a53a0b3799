"""How far two tensors are apart."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

_CHUNK: Final = 1 << 20
DEFAULTS: Final = {
    torch.float64: (1e-6, 1e-8),
    torch.float32: (1e-3, 1e-4),
    torch.float16: (1e-2, 1e-3),
    torch.bfloat16: (3e-2, 1e-2),
    torch.complex64: (1e-3, 1e-4),
    torch.complex128: (1e-6, 1e-8),
}
"""rtol and atol: what rounding adds up to over a deep network, not what one operator may lose."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element is good if it differs by at most ``atol + rtol * |expected|``; None takes the type's default."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """rtol and atol for a type; integers and bools must be equal."""
        rtol, atol = DEFAULTS.get(dtype, (0.0, 0.0))
        return (rtol if self.rtol is None else self.rtol), (atol if self.atol is None else self.atol)


@dataclass(frozen=True, slots=True)
class Measure:
    """The distance of two tensors.

    Attributes:
        ok: Whether every element is within tolerance.
        max_abs: Largest difference.
        max_rel: Largest difference over the largest expected value.
        cosine: Cosine of the angle between them, 1 for equal directions; NaN where one is zero or not finite.
        bad: Number of elements out of tolerance.
        why: What is wrong beside the numbers, such as another shape; empty if they could be compared.
    """

    ok: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = math.nan
    bad: int = 0
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; numbers that JSON lacks become texts."""
        return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def measure(got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance = Tolerance()) -> Measure:
    """Compare two tensors, a million elements at a time so that little memory is needed.

    NaN equals NaN, an infinity equals itself.
    """
    if got.shape != expected.shape or got.dtype is not expected.dtype:
        kinds = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (got, expected)]
        return Measure(False, why=f"got {kinds[0]}, expected {kinds[1]}")
    rtol, atol = tolerance.of(expected.dtype)
    a, b = (t.detach().reshape(-1) for t in (got, expected))
    total = _Sums()
    for start in range(0, a.numel(), _CHUNK):
        total.add(a[start : start + _CHUNK], b[start : start + _CHUNK], rtol, atol)
    return total.result()


class _Sums:
    def __init__(self) -> None:
        self.max_abs = self.largest = self.dot = self.aa = self.bb = 0.0
        self.bad = 0

    def add(self, got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> None:
        wide = torch.complex128 if got.dtype.is_complex else torch.float64
        a, b = got.to(wide), expected.to(wide)
        same = (got == expected) | (a.isnan() & b.isnan())
        error = torch.where(same, 0.0, (a - b).abs())
        error = torch.where(error.isnan(), math.inf, error)
        near = (error <= atol + rtol * b.abs()) & error.isfinite()
        self.bad += int((~same & ~near).sum())
        if rtol == atol == 0.0:
            self.bad += int((~same & (error == 0)).sum())  # integers beyond 2**53
        self.max_abs = max(self.max_abs, float(error.max()))
        finite = b.abs()[b.isfinite()]
        self.largest = max(self.largest, float(finite.max()) if finite.numel() else 0.0)
        self.dot += float((a * b.conj()).real.sum()) if wide.is_complex else float((a * b).sum())
        self.aa += float((a.abs() ** 2).sum())
        self.bb += float((b.abs() ** 2).sum())

    def result(self) -> Measure:
        norm = math.sqrt(self.aa) * math.sqrt(self.bb) if math.isfinite(self.aa + self.bb) else math.nan
        cosine = max(-1.0, min(1.0, self.dot / norm)) if norm > 0 else math.nan
        relative = self.max_abs / self.largest if self.largest else (math.inf if self.max_abs else 0.0)
        return Measure(self.bad == 0, self.max_abs, relative, cosine, self.bad)
