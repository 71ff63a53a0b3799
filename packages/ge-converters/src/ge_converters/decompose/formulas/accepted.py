"""What a formula computes of its arguments, as a row above it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from ge_converters.base.errors import Declined

GIVEN: Final = ()  # of an argument that a formula needs
OFF: Final = (None, 0)  # None, False, zero
INT8: Final = (None, 1, torch.int8)  # 1 is torch's number of it


def accepted(**values: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of a formula: arguments that it computes for a few values alone.

    Args:
        values: For an argument, its values; ``GIVEN``: all but None.

    Raises:
        Declined: From the formula, for the first argument with another value. A tensor equals none of them.
    """

    def decorate(formula: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(formula)

        @functools.wraps(formula)
        def checked(*args: Any, **keywords: Any) -> Any:
            call = signature.bind(*args, **keywords)
            call.apply_defaults()
            for name, known in values.items():
                value = call.arguments[name]
                if value is None if known == GIVEN else isinstance(value, torch.Tensor) or value not in known:
                    raise Declined(name, value, _text(known))
            return formula(*args, **keywords)

        return checked

    return decorate


def _text(known: tuple[Any, ...]) -> str:
    if known == GIVEN:
        return "a value"
    named = [str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else repr(v) for v in known]
    return " or ".join(named)
