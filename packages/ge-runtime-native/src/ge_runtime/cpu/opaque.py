"""Kernels that a trace cannot look into: there they are one operator of torch, which runs the kernel when the program
does.

For kernels that compute with numpy, or that draw numbers: their result's size and type follow from sizes and
attributes, never from elements.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, Final

import torch

from ge_runtime.cpu.torch_compat import drawing_operator

# The calls of the trace that is being made; None outside of one.
_TRACE: Final[ContextVar[list[_Call] | None]] = ContextVar("trace", default=None)
_CALLS: Final[weakref.WeakValueDictionary[int, _Call]] = weakref.WeakValueDictionary()
_NUMBERS: Final = itertools.count()


class _Call:
    """A kernel and what a call of it is given: tensors and numbers by position among all of them, the rest as it is."""

    def __init__(self, kernel: Callable[..., torch.Tensor], args: Sequence[Any], attrs: dict[str, Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        self._kernel, self._attrs = kernel, attrs
        self._args = [self._place(a) for a in args]

    def _place(self, value: Any) -> Callable[[Sequence[torch.Tensor], Sequence[int]], Any]:
        """What gives the value when the program runs."""
        if isinstance(value, (list, tuple)):
            parts = [self._place(v) for v in value]
            return lambda tensors, numbers: [part(tensors, numbers) for part in parts]
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return lambda tensors, _, at=len(self.tensors) - 1: tensors[at]  # type: ignore[misc]
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            self.numbers.append(value)
            return lambda _, numbers, at=len(self.numbers) - 1: numbers[at]  # type: ignore[misc]
        return lambda *_: value

    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> torch.Tensor:
        """The kernel's result as memory of its own, row by row."""
        result = self._kernel(*(place(tensors, numbers) for place in self._args), **self._attrs)
        return result.contiguous()


def _run(
    which: int, tensors: list[torch.Tensor], numbers: list[int], sizes: list[int], dtype: torch.dtype
) -> torch.Tensor:
    return _CALLS[which].run(tensors, numbers)


def _of_trace(
    which: int, tensors: list[torch.Tensor], numbers: list[int], sizes: list[int], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype)


@lru_cache(maxsize=1)
def _operator() -> Any:
    """torch's operator for all of them, made when the first trace needs it."""
    operator: Any = drawing_operator("ge_runtime::kernel", _run)
    operator.register_fake(_of_trace)
    return operator


@contextmanager
def traced_calls() -> Iterator[list[Any]]:
    """A trace is made inside; what it gives must live as long as the program."""
    calls: list[_Call] = []
    token = _TRACE.set(calls)
    try:
        yield calls
    finally:
        _TRACE.reset(token)


def opaque(result: Callable[..., tuple[Sequence[Any], torch.dtype]]) -> Callable[..., Callable[..., torch.Tensor]]:
    """Make a kernel with one result such an operator.

    Args:
        result: Size and type of the result, from the kernel's arguments.
    """

    def wrap(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @wraps(kernel)
        def run(*args: Any, **attrs: Any) -> torch.Tensor:
            calls = _TRACE.get()
            if calls is None:
                return kernel(*args, **attrs)
            sizes, dtype = result(*args, **attrs)
            call, which = _Call(kernel, args, attrs), next(_NUMBERS)
            calls.append(call)
            _CALLS[which] = call
            made: torch.Tensor = _operator()(which, call.tensors, call.numbers, list(sizes), dtype)
            call.tensors, call.numbers = [], []  # the trace has them
            return made

        return run

    return wrap
