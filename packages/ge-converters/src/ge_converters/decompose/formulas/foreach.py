"""``_foreach_*`` ops as their elementwise ops: what optimisers call on lists of parameters.

These are decompositions, not converters: a list op is one elementwise op an element, and each of those has a converter
already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ge_converters.base.operators import aten

_SAME_NAME: Final = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt
sigmoid sign sin sinh sqrt tan tanh trunc add sub mul div pow addcmul addcdiv lerp clamp_max clamp_min max mm clone
"""
_KEYWORDS: Final = frozenset({"alpha", "value", "memory_format", "dtype"})


def _bound(either: Callable[..., Any], number: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: either(x, y) if isinstance(y, torch.Tensor) else number(x, y)


def _powsum(x: torch.Tensor, ord: Any, *, dtype: torch.dtype | None) -> torch.Tensor:
    return torch.sum(torch.pow(torch.abs(x if dtype is None else x.to(dtype)), ord))


def _functions() -> dict[str, Callable[..., Any]]:
    return {
        **{name: getattr(torch, name) for name in _SAME_NAME.split()},
        "maximum": _bound(torch.maximum, torch.clamp_min),
        "minimum": _bound(torch.minimum, torch.clamp_max),
        "norm": torch.linalg.vector_norm,
        "powsum": _powsum,
        "zero": torch.zeros_like,
        "copy": lambda x, source, _: aten.copy(x, source),
    }


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of all functional list ops that this torch has, for the table of AOTAutograd."""
    table: dict[Any, Callable[..., Any]] = {}
    for name, function in _functions().items():
        packet = getattr(torch.ops.aten, f"_foreach_{name}", None)
        for overload in () if packet is None else packet.overloads():
            op = getattr(packet, overload)
            if not any(a.is_out for a in op._schema.arguments):
                table[op] = _elementwise(op, function)
    return table


def _elementwise(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    arguments = op._schema.arguments
    lists = [isinstance(a.type, torch.ListType) for a in arguments]
    # addcmul and addcdiv with a number an element: that number is the elementwise op's `value`.
    names = ["value" if a.name == "scalars" and op._schema.name[15:].startswith("addc") else a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        given = {**defaults, **{a.name: v for a, v in zip(arguments, args)}, **kwargs}
        values = [given[a.name] for a in arguments]
        spread = list(lists)
        for i, name in enumerate(names):
            if name == "value" and isinstance(values[i], torch.Tensor):  # a 1-d tensor with a number an element
                values[i], spread[i] = [v.item() for v in values[i].unbind()], True
        count = max(len(v) for v, s in zip(values, spread) if s)
        return [_call(function, names, [v[i] if s else v for v, s in zip(values, spread)]) for i in range(count)]

    return run


def _call(function: Callable[..., Any], names: list[str], values: list[Any]) -> Any:
    positional = [v for n, v in zip(names, values) if n not in _KEYWORDS]
    return function(*positional, **{n: v for n, v in zip(names, values) if n in _KEYWORDS})


__all__ = ["decompositions"]
