"""Tensors that are made and not computed: windows of signals and frequencies of a length, samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

aten = torch.ops.aten


def _kind(dtype: torch.dtype | None, more: dict[str, Any]) -> dict[str, Any]:
    kept = {name: more[name] for name in ("device", "layout", "pin_memory") if more.get(name) is not None}
    return {"dtype": dtype or torch.get_default_dtype(), **kept}


def _window(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The window whose values ``of`` makes of places and the count of steps; a periodic one lacks its last value."""

    def formula(window_length: int, periodic: bool = True, *numbers: Any, dtype: Any = None, **more: Any) -> Tensor:
        kind = _kind(dtype, more)
        if not kind["dtype"].is_floating_point:
            return NotImplemented
        if window_length <= 1:
            return torch.ones([window_length], **kind)
        steps = window_length if periodic else window_length - 1
        exact = {**kind, "dtype": torch.promote_types(kind["dtype"], torch.float32)}
        made = of(torch.arange(window_length, **exact), steps, *numbers)
        return made.to(kind["dtype"])

    return formula


def _cosines(*weights: float) -> Callable[..., Tensor]:
    """``w0 - w1 cos(a) + w2 cos(2a) ...`` with the angle going once around."""

    def of(at: Tensor, steps: int, *given: float) -> Tensor:
        used = (*given, *weights[len(given) :])
        terms = [w * (-1) ** k * torch.cos(at * (2 * math.pi * k / steps)) for k, w in enumerate(used) if k]
        return sum(terms, torch.full_like(at, used[0]))

    return of


def _bartlett(at: Tensor, steps: int) -> Tensor:
    return 1 - (at * (2 / steps) - 1).abs()


def _kaiser(at: Tensor, steps: int, beta: float = 12.0) -> Tensor:
    height = torch.special.i0(torch.full_like(at[:1], beta))
    return torch.special.i0(beta * (1 - (at * (2 / steps) - 1) ** 2).clamp(min=0).sqrt()) / height


_hann, _hamming, _blackman = (_window(_cosines(*w)) for w in ((0.5, 0.5), (0.54, 0.46), (0.42, 0.5, 0.08)))


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, **more: Any) -> Tensor:
    """0 to the middle and the negative ones back to -1, over n times d."""
    kind = _kind(dtype, more)
    at = torch.arange(n, **kind)
    return torch.where(at < (n + 1) // 2, at, at - n) * (1 / (n * d))


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, **more: Any) -> Tensor:
    """0 to the middle, over n times d."""
    return torch.arange(n // 2 + 1, **_kind(dtype, more)) * (1 / (n * d))


def _dirichlet(self: Tensor, generator: Any = None) -> Tensor:
    """Samples of a Dirichlet distribution: gamma samples as shares of their sum."""
    if generator is not None:
        return NotImplemented
    drawn = torch._standard_gamma(self)
    return drawn / drawn.sum(-1, keepdim=True)


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(("hann_window.default", "hann_window.periodic"), _hann),
    **{f"hamming_window.{name}": _hamming for name in ("default", "periodic", "periodic_alpha", "periodic_alpha_beta")},
    **dict.fromkeys(("blackman_window.default", "blackman_window.periodic"), _blackman),
    **dict.fromkeys(("bartlett_window.default", "bartlett_window.periodic"), _window(_bartlett)),
    **{f"kaiser_window.{name}": _window(_kaiser) for name in ("default", "periodic", "beta")},
    "_sample_dirichlet.default": _dirichlet,
    "fft_fftfreq.default": fftfreq,
    "fft_rfftfreq.default": rfftfreq,
}
