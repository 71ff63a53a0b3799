"""Orthogonal polynomials by their recurrences, as eager evaluates them: a row of functions for each family.

A degree that is a number gives as many steps; degrees that are elements of a tensor give a loop up to the largest of
them, which keeps for each element the polynomial of its own degree. Between -1 and 1 eager takes the trigonometric form
of high degrees, so the loop ends at the largest degree that is not taken there.

Source: documentation of ``torch.special``; the limits are those of its CPU kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_UNROLLED: Final = 32  # steps of a degree that is a number, which become so many operators each
_HERMITE: Final = {torch.float32: 128, torch.float64: 512}  # eager gives NaN beyond

# Degree k, polynomials of the degrees k and k - 1, and x; gives the polynomial of degree k + 1.
Step = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Family:
    """How the polynomials of a family are evaluated.

    Attributes:
        first: The polynomial of degree 1.
        step: The recurrence.
        above: Degrees above it are trigonometric between -1 and 1.
        waves: That form, of degree and x.
        limited: Whether eager gives NaN for degrees above ``_HERMITE``.
    """

    first: Callable[[Tensor], Tensor]
    step: Step
    above: int = 0
    waves: Callable[[Any, Tensor], Tensor] | None = None
    limited: bool = False


def _twice(k: Any, now: Tensor, before: Tensor, x: Tensor) -> Tensor:
    return (x + x) * now - before


def _wave_t(n: Any, x: Tensor) -> Tensor:
    return torch.cos(n * torch.acos(x))


def _wave_u(n: Any, x: Tensor) -> Tensor:
    angle = torch.acos(x)
    return torch.sin((n + 1) * angle) / torch.sin(angle)


def _wave_v(n: Any, x: Tensor) -> Tensor:
    angle = torch.acos(x)
    at_end = torch.where(_even(n, x), n + n + 1, -(n + n + 1))  # the quotient is 0 / 0 there
    inside = torch.cos((n + 0.5) * angle) / torch.cos(angle / 2)
    return torch.where(torch.sin(angle / 2) == 1, at_end.to(x.dtype), inside)


def _wave_w(n: Any, x: Tensor) -> Tensor:
    angle = torch.acos(x)
    inside = torch.sin((n + 0.5) * angle) / torch.sin(angle / 2)
    return torch.where(torch.cos(angle / 2) == 1, (n + n + 1) * torch.ones_like(x), inside)


def _even(n: Any, like: Tensor) -> Tensor:
    return torch.full_like(like, n % 2 == 0, dtype=torch.bool) if isinstance(n, int) else n % 2 == 0


_T: Final = Family(lambda x: x, _twice, 6, _wave_t)
_U: Final = Family(lambda x: x + x, _twice, 8, _wave_u)
_V: Final = Family(lambda x: x + x - 1, _twice, 8, _wave_v)
_W: Final = Family(lambda x: x + x + 1, _twice, 8, _wave_w)
_FAMILIES: Final = {
    "chebyshev_polynomial_t": _T,
    "chebyshev_polynomial_u": _U,
    "chebyshev_polynomial_v": _V,
    "chebyshev_polynomial_w": _W,
    "shifted_chebyshev_polynomial_t": _T,
    "shifted_chebyshev_polynomial_u": _U,
    "shifted_chebyshev_polynomial_v": _V,
    "shifted_chebyshev_polynomial_w": _W,
    "hermite_polynomial_h": Family(
        lambda x: x + x, lambda k, now, before, x: (x + x) * now - (k + k) * before, limited=True
    ),
    "hermite_polynomial_he": Family(lambda x: x, lambda k, now, before, x: x * now - k * before, limited=True),
    "laguerre_polynomial_l": Family(
        lambda x: 1 - x, lambda k, now, before, x: ((k + k + (1 - x)) * now - k * before) / (k + 1)
    ),
    "legendre_polynomial_p": Family(
        lambda x: x, lambda k, now, before, x: ((k + k + 1) * x * now - k * before) / (k + 1)
    ),
}


def _of_number(family: Family, x: Tensor, n: int) -> Tensor:
    if n < 0:
        return torch.zeros_like(x)
    if family.limited and n > _HERMITE[x.dtype]:
        return torch.full_like(x, math.nan)
    before, now = torch.ones_like(x), family.first(x) * 1
    for k in range(1, n):
        before, now = now, family.step(k, now, before, x)
    if family.waves is not None and n > family.above:
        return torch.where(x.abs() < 1, family.waves(n, x), now)
    return now if n else before


def _of_tensor(family: Family, x: Tensor, n: Tensor) -> Tensor:
    """``x`` and the whole numbers ``n`` of one shape."""
    zero = torch.zeros_like(x)
    wavy = None if family.waves is None else (x.abs() < 1) & (n > family.above)
    counted = n if wavy is None else torch.where(wavy, 0, n)
    if family.limited:
        counted = torch.where(n > _HERMITE[x.dtype], 0, n)
    most = torch.cat([counted.flatten(), counted.new_ones(1)]).max()  # of no element as well

    def more(k: Tensor, now: Tensor, before: Tensor, found: Tensor, most: Tensor, x: Tensor, n: Tensor) -> Tensor:
        return k < most

    def advance(k: Tensor, now: Tensor, before: Tensor, found: Tensor, most: Tensor, x: Tensor, n: Tensor) -> Any:
        after = family.step(k, now, before, x)
        return k + 1, after, now + 0, torch.where(n == k + 1, after, found)

    first = family.first(x) * 1
    found = torch.where(n == 0, 1, torch.where(n == 1, first, zero))
    start = (torch.ones_like(most), first, torch.ones_like(x), found)
    _, _, _, found = torch.ops.higher_order.while_loop(more, advance, start, (most, x, n))
    if family.limited:
        found = torch.where(n > _HERMITE[x.dtype], math.nan, found)
    if family.waves is None:
        return found
    return torch.where(wavy, family.waves(n, x), found)


def _evaluated(family: Family, shifted: bool) -> Callable[[Any, Any], Any]:
    def apply(x: Any, n: Any) -> Any:
        result = torch.result_type(x, n)
        dtype = result if result.is_floating_point else torch.get_default_dtype()
        if dtype not in _HERMITE:
            return NotImplemented  # eager has no kernel for it
        like = x if isinstance(x, Tensor) else n
        x = x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=like.device)
        x = x + x - 1 if shifted else x
        if not isinstance(n, Tensor) and int(n) <= _UNROLLED:
            return _of_number(family, x, int(n))
        degrees = n.to(torch.int64) if isinstance(n, Tensor) else torch.full((), int(n), device=like.device)
        x, degrees = (t.clone() for t in torch.broadcast_tensors(x, degrees))
        return _of_tensor(family, x, degrees)

    return apply


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    f"special_{name}.{overload}": _evaluated(family, name.startswith("shifted"))
    for name, family in _FAMILIES.items()
    for overload in ("default", "n_scalar", "x_scalar")
}
