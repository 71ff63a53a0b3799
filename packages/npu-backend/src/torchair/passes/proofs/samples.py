"""Values on which rewrites are tested, and when two results are the same."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

KINDS: Final = ("ordinary", "repeated", "special", "dense", "extreme")
"""What tensors are filled with: usual numbers; one number everywhere; a few NaN, infinities, zeros of both signs and
denormal numbers among usual ones; as many of these as usual ones; the largest and smallest of the type."""
NO_INFINITIES: Final = ("ordinary", "repeated", "undefined", "extreme")
"""The same for what is another function of infinities only: undefined is special without them."""


def fill(value: torch.Tensor, kind: str, seed: int) -> torch.Tensor:
    """Write values of a kind into a tensor of any layout; the same for the same seed. Returns the tensor."""
    if not value.numel():
        return value
    # what is odd must not stand in the same places for each kind
    generator = torch.Generator().manual_seed(31 * seed + (*KINDS, "undefined").index(kind))
    size, dtype = tuple(value.shape), value.dtype
    if dtype.is_complex:
        parts = [fill(torch.empty(size, dtype=dtype.to_real()), kind, seed + i) for i in (0, 1)]
        made = torch.complex(*(p.float() if p.dtype == torch.float16 else p for p in parts)).to(dtype)
    elif dtype.is_floating_point:
        made = _floats(size, dtype, kind, generator)
    elif dtype == torch.bool:
        made = torch.ones(size, dtype=dtype) if kind == "repeated" else torch.rand(size, generator=generator) < 0.5
    else:
        made = _integers(size, dtype, kind, generator)
    with torch.no_grad():
        if any(s == 0 and n > 1 for s, n in zip(value.stride(), size)):  # memory that is read several times
            made = made[tuple(slice(0, 1) if s == 0 else slice(None) for s in value.stride())]
            inner = value[tuple(slice(0, 1) if s == 0 else slice(None) for s in value.stride())]
            inner.copy_(made)
        else:
            value.copy_(made)
    return value


def _floats(size: tuple[int, ...], dtype: torch.dtype, kind: str, generator: torch.Generator) -> torch.Tensor:
    made = torch.randn(size, generator=generator, dtype=torch.float64)
    if kind == "repeated":
        made = torch.full(size, 0.75, dtype=torch.float64)
    elif kind != "ordinary":
        known = torch.finfo(dtype)
        odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, known.smallest_normal / 2]
        if kind == "undefined":
            odd = [n for n in odd if not math.isinf(n)]
        if kind == "extreme":
            odd = [known.max, known.min, known.smallest_normal, -known.smallest_normal]
        # each of them as often as the others: a small tensor has them all
        order = torch.randperm(made.numel(), generator=generator).reshape(size)
        chosen = order % (len(odd) + 2 if kind == "dense" else 8 * len(odd))
        for place, number in enumerate(odd):
            made[chosen == place] = number
    return made.to(dtype)


def _integers(size: tuple[int, ...], dtype: torch.dtype, kind: str, generator: torch.Generator) -> torch.Tensor:
    if kind == "repeated":
        return torch.ones(size, dtype=dtype)
    if kind != "extreme":  # as indices they are valid nearly everywhere
        return torch.randint(0, 2, size, generator=generator).to(dtype)
    known = torch.iinfo(dtype)
    odd = torch.tensor([known.min, known.max, known.min + 1, known.max - 1, 0, 1], dtype=torch.int64).to(dtype)
    order = torch.randperm(math.prod(size), generator=generator).reshape(size)
    return odd[order % len(odd)]


def types(value: Any) -> Any:
    """The element types of a result."""
    return [types(v) for v in value] if isinstance(value, (tuple, list)) else getattr(value, "dtype", type(value))


def difference(old: Any, new: Any, tolerance: float, kind: str = "ordinary") -> str:
    """How two results differ; empty if they do not.

    Bits count, but for those of NaN. With a tolerance, finite numbers may differ by so much of the largest one, or by
    less than the smallest normal number; and of extreme operands, all finite, an inner result may leave the type in one
    order of operations only: what is not finite is not compared there, nor are numbers of 16 bits, which a lost score
    or weight changes.
    """
    if isinstance(old, (tuple, list)) and isinstance(new, (tuple, list)):
        if len(old) != len(new):
            return f"{len(new)} results, {len(old)} before"
        found = (difference(a, b, tolerance, kind) for a, b in zip(old, new))
        return next((text for text in found if text), "")
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return "" if _one(old) == _one(new) else f"{new!r}, {old!r} before"
    if old.dtype != new.dtype or old.shape != new.shape:
        return f"{_kind(new)}, {_kind(old)} before"
    old, new = old.detach().cpu(), new.detach().cpu()
    if old.dtype.is_complex:
        old, new = torch.view_as_real(old), torch.view_as_real(new)
    wrong = _differing(old, new, tolerance, kind)
    if not bool(wrong.any()):
        return ""
    first = torch.nonzero(wrong.reshape(-1) if wrong.dim() == 0 else wrong)[0].tolist()
    place = tuple(first) if wrong.dim() else ()
    return f"element {list(place)} is {new[place].item()!r}, {old[place].item()!r} before"


def _differing(old: torch.Tensor, new: torch.Tensor, tolerance: float, kind: str) -> torch.Tensor:
    if not old.dtype.is_floating_point:
        return old != new
    a, b = old.double(), new.double()
    wrong = (a != b) | ((a == 0) & (torch.signbit(a) != torch.signbit(b)))
    wrong &= ~(torch.isnan(a) & torch.isnan(b))
    if tolerance:
        finite = torch.isfinite(a) & torch.isfinite(b)
        scale = a[finite].abs().max() if bool(finite.any()) else torch.zeros(())
        wrong &= ~(finite & ((a - b).abs() <= max(tolerance * float(scale), torch.finfo(old.dtype).tiny)))
        if kind == "extreme":
            wrong &= finite if torch.finfo(old.dtype).bits > 16 else torch.zeros_like(wrong)
    return wrong


def _one(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
