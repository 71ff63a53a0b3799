"""Arguments of a call by the names of its schema; a default that is written out is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def spelled(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, in the order of the schema, without those that have their default.

    A target without a schema, such as ``operator.getitem``, has places for names.
    """
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    known = {a.name: a for a in schema.arguments}
    given = {**dict(zip(known, args)), **kwargs}
    ordered = [name for name in known if name in given] + [name for name in given if name not in known]
    return {
        name: given[name]
        for name in ordered
        if name not in known or not (known[name].has_default_value() and _equal(given[name], known[name].default_value))
    }


def canonical(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as tracing writes them: by place wherever the schema allows it, and nothing that has its default.

    A call that does not fit its schema, or whose target has none, stays as it is.
    """
    schema = getattr(target, "_schema", None)
    if schema is None or len(args) > len(schema.arguments):
        return tuple(args), dict(kwargs)
    given = spelled(target, args, kwargs)
    places = [a for a in schema.arguments if not a.kwarg_only]
    last = max((i for i, a in enumerate(places) if a.name in given), default=-1)
    if any(a.name not in given and not a.has_default_value() for a in places[: last + 1]):
        return tuple(args), dict(kwargs)
    by_place = tuple(given.pop(a.name) if a.name in given else a.default_value for a in places[: last + 1])
    return by_place, given


def _equal(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple)):
        entries = default if isinstance(default, (list, tuple)) else [default] * len(value)
        return len(value) == len(entries) and all(map(_equal, value, entries))
    if value is None or default is None:
        return value is default
    plain = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    return isinstance(value, plain) and bool(value == default)
