"""What is known of one registered converter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import torch

from ge_converters.base.errors import Refusal
from ge_converters.base.provenance import target_name
from ge_converters.base.support import Support
from ge_converters.registry.takes import Condition

Target: TypeAlias = "torch._ops.OpOverload | Callable[..., Any]"
Converter: TypeAlias = "Callable[..., Any]"


@dataclass(slots=True, eq=False)
class Entry:
    """One registered converter.

    Attributes:
        target: What it converts: an ``OpOverload`` or a Python function found in FX graphs.
        fn: The converter.
        source: Where its behaviour is taken from.
        where: ``file.py:41`` of the converter.
        layer: ``"built-in"``, ``"user"`` or ``"automatic"``.
        wants_meta: Whether the converter takes ``meta_outputs``.
        supports: Declared call forms: those of this op, then those of the function for all ops that it serves.
        forms: The declared call forms of this op alone.
        given: The function as it was registered; the converter itself, or what it calls.
        takes: Which calls it takes, the others being decomposed; None for all.
    """

    target: Target
    fn: Converter
    source: str
    where: str
    layer: str
    wants_meta: bool
    supports: tuple[Support, ...] = ()
    forms: tuple[Support, ...] = ()
    given: Any = field(default=None, repr=False)
    parameters: Any = field(default=None, repr=False)
    takes: Condition | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name of the target."""
        return target_name(self.target)

    @property
    def refuses(self) -> str:
        """Why every form of the op is refused: set for converters that never return, as their annotation says."""
        if getattr(self.fn, "__annotations__", {}).get("return") not in (NoReturn, "NoReturn"):
            return ""
        names = [n for n, p in inspect.signature(self.fn).parameters.items() if p.default is inspect.Parameter.empty]
        try:
            self.fn(**dict.fromkeys(names))
        except Refusal as refusal:
            return refusal.reason
        return "always refused"


def where_is(fn: Converter) -> str:
    """``file.py:41`` of a function; its name if it has no file."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(fn)
