"""FX arguments and aten schema to the parameters of a converter: one plan per op, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ge_converters.registry import Entry

_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


class Plan:
    """How a converter is called.

    Attributes:
        positional: Name and default of every positional argument of the schema, in order.
        keywords: Name, Python name and default of every keyword-only argument.
    """

    __slots__ = ("positional", "keywords", "count")

    def __init__(self, target: torch._ops.OpOverload) -> None:
        arguments = target._schema.arguments
        self.positional = [(a.name, _default(a)) for a in arguments if not a.kwarg_only]
        self.keywords = [(a.name, _python_name(a.name), _default(a)) for a in arguments if a.kwarg_only]
        self.count = len(self.positional)

    def bind(self, args: Any, kwargs: Any, convert: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """All parameters of the call, defaults filled in, each passed through ``convert``."""
        given = [convert(a) for a in args]
        if len(given) < self.count:
            for name, default in self.positional[len(given) :]:
                given.append(convert(kwargs[name]) if name in kwargs else default)
        if not self.keywords:
            return given, {}
        return given, {
            python_name: convert(kwargs[name]) if name in kwargs else default
            for name, python_name, default in self.keywords
        }


def plan_for(entry: Entry) -> Plan | None:
    """The plan of a converter; None for Python functions, whose arguments are passed as they stand."""
    if entry.plan is None and isinstance(entry.target, torch._ops.OpOverload):
        entry.plan = Plan(entry.target)
    return entry.plan  # type: ignore[no-any-return]


def _python_name(name: str) -> str:
    import keyword

    return f"{name}_" if keyword.iskeyword(name) else name


def _default(argument: Any) -> Any:
    if not argument.has_default_value():
        return None
    value = argument.default_value
    if isinstance(value, int) and not isinstance(value, bool) and "MemoryFormat" in str(argument.real_type):
        return _FORMATS[value]
    return value
