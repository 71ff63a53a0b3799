"""Operators on lists of tensors: one formula applied to each entry, 16-bit floats in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import number, rounded, wide
from ge_runtime.cpu.registry import kernel, rows

_SOURCE = "ops-nn: foreach, documentation"
List: TypeAlias = "Sequence[Tensor]"
Formula: TypeAlias = "Callable[..., Tensor]"

_UNARY: Final[dict[str, Formula]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "ACos": torch.acos,
    "Asin": torch.asin,
    "ASin": torch.asin,
    "Atan": torch.atan,
    "ATan": torch.atan,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Erfc": torch.erfc,
    "Exp": torch.exp,
    "Expm1": torch.expm1,
    "Log": torch.log,
    "Log10": torch.log10,
    "Log1p": torch.log1p,
    "Log2": torch.log2,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
_BINARY: Final[dict[str, Formula]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Pow": torch.pow,
}
_SCALED: Final = ("Add", "Sub")  # the list forms of these have a factor for the second list
_FUSED: Final[dict[str, Formula]] = {"Addcdiv": torch.div, "Addcmul": torch.mul}


def _entry(scalars: Tensor, index: int, like: Tensor) -> Tensor:
    """One number in the type ``like`` is computed in; a short list repeats its last entry."""
    flat = scalars.reshape(-1)
    return flat[min(index, flat.numel() - 1)].to(wide(like).dtype)


def _lists(fn: Formula) -> Callable[..., list[Tensor]]:
    """``fn`` of the entries of each list."""
    formula = rounded(fn)
    return lambda *lists: [formula(*entries) for entries in zip(*lists, strict=True)]


def _numbered(fn: Formula) -> Callable[..., list[Tensor]]:
    """``fn`` of the entries of each list and one of the numbers, which come last."""
    formula = rounded(fn)

    def run(*operands: Any) -> list[Tensor]:
        *lists, numbers = operands
        entries = enumerate(zip(*lists, strict=True))
        return [formula(*each, _entry(numbers, i, each[0])) for i, each in entries]

    return run


def _scaled(fn: Formula) -> Formula:
    return lambda a, b, alpha: fn(a, b * alpha)


def _fused(fn: Formula) -> Formula:
    return lambda a, b, c, scalar: a + fn(b, c) * scalar


rows({f"Foreach{name}": _lists(fn) for name, fn in _UNARY.items()}, source=_SOURCE)
for _name, _fn in _BINARY.items():
    _form = _numbered(_scaled(_fn)) if _name in _SCALED else _lists(_fn)
    rows(
        {f"Foreach{_name}List": _form, f"Foreach{_name}Scalar Foreach{_name}ScalarList": _numbered(_fn)}, source=_SOURCE
    )
for _name, _fn in _FUSED.items():
    _ops = " ".join(f"Foreach{_name}{form}" for form in ("Scalar", "ScalarList", "List"))
    rows({_ops: _numbered(_fused(_fn))}, source=_SOURCE)
rows(
    {
        "ForeachLerpScalar": _numbered(torch.lerp),
        "ForeachLerpList": _lists(torch.lerp),
        "ForeachPowScalarAndTensor": lambda scalar, x: _numbered(lambda t, s: torch.pow(s, t))(x, scalar),
    },
    source=_SOURCE,
)


@kernel("ForeachNorm", source=_SOURCE)
def foreach_norm(x: List, scalar: Tensor) -> list[Tensor]:
    """Norm of all elements, shape (1): order 1 or infinite as given, any other order counts as 2."""
    order = number(scalar)
    order = order if order in (1.0, float("inf")) else 2.0
    return [torch.linalg.vector_norm(t.double(), order).reshape(1).to(t.dtype) for t in x]


def _to_odd(t: Tensor) -> Tensor:
    low = torch.floor(t)
    return torch.where((low == t) | (low % 2 != 0), low, low + 1)


_ROUNDINGS: Final[dict[int, Formula]] = {
    1: torch.round,
    2: torch.floor,
    3: torch.ceil,
    4: lambda t: torch.sign(t) * torch.floor(t.abs() + 0.5),
    5: torch.trunc,
    6: _to_odd,
    7: torch.frac,
}


@kernel("ForeachRoundOffNumber", source=_SOURCE)
def foreach_round_off_number(x: List, roundMode: Tensor) -> list[Tensor]:
    """Rounding by code; an unknown code leaves the values."""
    return _lists(_ROUNDINGS.get(int(number(roundMode)), torch.clone))(x)
