"""Operators on lists of tensors: one formula applied to each entry, 16-bit floats in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import number, wide
from ge_runtime.cpu.registry import kernel

_SOURCE = "ops-nn: foreach, documentation"
List: TypeAlias = "Sequence[Tensor]"
Unary: TypeAlias = "Callable[[Tensor], Tensor]"
Binary: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"

_UNARY: Final[dict[str, Unary]] = {
    "Abs": torch.abs, "Acos": torch.acos, "ACos": torch.acos, "Asin": torch.asin, "ASin": torch.asin,
    "Atan": torch.atan, "ATan": torch.atan, "Cos": torch.cos, "Cosh": torch.cosh, "Erf": torch.erf, "Erfc": torch.erfc,
    "Exp": torch.exp, "Expm1": torch.expm1, "Log": torch.log, "Log10": torch.log10, "Log1p": torch.log1p,
    "Log2": torch.log2, "Neg": torch.neg, "Reciprocal": torch.reciprocal, "Sigmoid": torch.sigmoid, "Sin": torch.sin,
    "Sinh": torch.sinh, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip

_BINARY: Final[dict[str, Binary]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Maximum": torch.maximum,
    "Minimum": torch.minimum, "Pow": torch.pow,
}  # fmt: skip
_SCALED: Final = ("Add", "Sub")  # the list forms of these have a factor for the second list

_TERNARY: Final[dict[str, Binary]] = {"Addcdiv": torch.div, "Addcmul": torch.mul}


def _each(fn: Unary) -> Callable[..., list[Tensor]]:
    def run(x: List) -> list[Tensor]:
        return [fn(wide(t)).to(t.dtype) for t in x]

    return run


def _with_list(fn: Binary) -> Callable[..., list[Tensor]]:
    def run(x1: List, x2: List) -> list[Tensor]:
        return [fn(wide(a), wide(b)).to(a.dtype) for a, b in zip(x1, x2, strict=True)]

    return run


def _with_scaled_list(fn: Binary) -> Callable[..., list[Tensor]]:
    def run(x1: List, x2: List, alpha: Tensor) -> list[Tensor]:
        return [
            fn(wide(a), wide(b) * alpha.reshape(()).to(wide(b).dtype)).to(a.dtype) for a, b in zip(x1, x2, strict=True)
        ]

    return run


def _entry(scalars: Tensor, index: int, like: Tensor) -> Tensor:
    """One number in the type ``like`` is computed in; a short list repeats its last entry."""
    flat = scalars.reshape(-1)
    return flat[min(index, flat.numel() - 1)].to(wide(like).dtype)


def _with_scalar(fn: Binary) -> Callable[..., list[Tensor]]:
    def run(x: List, scalar: Tensor) -> list[Tensor]:
        return [fn(wide(t), _entry(scalar, i, t)).to(t.dtype) for i, t in enumerate(x)]

    return run


def _fused(fn: Binary) -> Callable[..., list[Tensor]]:
    def run(x1: List, x2: List, x3: List, scalars: Tensor) -> list[Tensor]:
        return [
            (wide(a) + fn(wide(b), wide(c)) * _entry(scalars, i, a)).to(a.dtype)
            for i, (a, b, c) in enumerate(zip(x1, x2, x3, strict=True))
        ]

    return run


for _name, _unary in _UNARY.items():
    kernel(f"Foreach{_name}", source=_SOURCE)(_each(_unary))
for _name, _binary in _BINARY.items():
    kernel(f"Foreach{_name}List", source=_SOURCE)((_with_scaled_list if _name in _SCALED else _with_list)(_binary))
    kernel(f"Foreach{_name}Scalar", f"Foreach{_name}ScalarList", source=_SOURCE)(_with_scalar(_binary))
for _name, _ternary in _TERNARY.items():
    kernel(*(f"Foreach{_name}{form}" for form in ("Scalar", "ScalarList", "List")), source=_SOURCE)(_fused(_ternary))


@kernel("ForeachLerpScalar", source=_SOURCE)
def foreach_lerp_scalar(x1: List, x2: List, weight: Tensor) -> list[Tensor]:
    """``x1 + weight * (x2 - x1)``."""
    return [torch.lerp(wide(a), wide(b), _entry(weight, 0, a)).to(a.dtype) for a, b in zip(x1, x2, strict=True)]


@kernel("ForeachLerpList", source=_SOURCE)
def foreach_lerp_list(x1: List, x2: List, weight: List) -> list[Tensor]:
    """``x1 + weight * (x2 - x1)`` with a weight an element."""
    return [torch.lerp(wide(a), wide(b), wide(w)).to(a.dtype) for a, b, w in zip(x1, x2, weight, strict=True)]


@kernel("ForeachPowScalarAndTensor", source=_SOURCE)
def foreach_pow_scalar_and_tensor(scalar: Tensor, x: List) -> list[Tensor]:
    """``scalar ** x``."""
    return [torch.pow(_entry(scalar, 0, t), wide(t)).to(t.dtype) for t in x]


@kernel("ForeachNorm", source=_SOURCE)
def foreach_norm(x: List, scalar: Tensor) -> list[Tensor]:
    """Norm of all elements, shape (1): order 1 or infinite as given, any other order counts as 2."""
    order = number(scalar)
    order = order if order in (1.0, float("inf")) else 2.0
    return [torch.linalg.vector_norm(t.double(), order).reshape(1).to(t.dtype) for t in x]


def _half_away(t: Tensor) -> Tensor:
    return torch.sign(t) * torch.floor(t.abs() + 0.5)


def _to_odd(t: Tensor) -> Tensor:
    low = torch.floor(t)
    return torch.where((low == t) | (low % 2 != 0), low, low + 1)


_ROUNDINGS: Final[dict[int, Unary]] = {
    1: torch.round, 2: torch.floor, 3: torch.ceil, 4: _half_away, 5: torch.trunc, 6: _to_odd, 7: torch.frac,
}  # fmt: skip


@kernel("ForeachRoundOffNumber", source=_SOURCE)
def foreach_round_off_number(x: List, roundMode: Tensor) -> list[Tensor]:
    """Rounding by code; an unknown code leaves the values."""
    fn = _ROUNDINGS.get(int(number(roundMode)), torch.clone)
    return [fn(wide(t)).to(t.dtype) for t in x]
