"""``x[i]`` with a 0-d tensor of integers: eager reads the number and selects; so does a trace, with a symbol for it.

Python's binding of ``__getitem__`` takes a number that it can hold, no symbol; ``select`` takes both.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

# A 0-d tensor of another type is a mask (bool, uint8) or an error.
_NUMBERS: Final = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def read(self: torch.Tensor, index: Any) -> Any:
    """``self[index]``; NotImplemented if no 0-d integer tensor stands in ``index``."""
    selected = _selected(self, index)
    if selected is None:
        return NotImplemented
    part, rest = selected
    return part[rest] if rest else part


def write(self: torch.Tensor, index: Any, value: Any) -> Any:
    """``self[index] = value``; NotImplemented if no 0-d integer tensor stands in ``index``."""
    selected = _selected(self, index)
    if selected is None:
        return NotImplemented
    part, rest = selected
    operator.setitem(part, rest or (...,), value)
    return None


def _selected(self: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """The view with every dimension gone that a 0-d tensor indexes, and the rest of the index for it."""
    items = [_bounds(i) for i in (index if isinstance(index, tuple) else (index,))]
    numbered = [i for i, item in enumerate(items) if _is_number(item)]
    taken = [_dimensions(item) for item in items]
    if not numbered or None in taken:
        return None
    open_ended = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    part = self
    for i in reversed(numbered):
        dim = sum(taken[:i]) if i < open_ended else self.dim() - sum(taken[i:])  # type: ignore[arg-type]
        part = part.select(dim, items[i].item())
    return part, tuple(item for i, item in enumerate(items) if i not in numbered)


def _is_number(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and not item.dim() and item.dtype in _NUMBERS


def _bounds(item: Any) -> Any:
    """A slice with the numbers that its tensors hold."""
    if isinstance(item, slice):
        return slice(*(b.item() if _is_number(b) else b for b in (item.start, item.stop, item.step)))
    return item


def _dimensions(item: Any) -> int | None:
    """How many dimensions an entry of an index takes; None if that is not plain to see."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(item, (list, tuple)):
        return 1 if all(type(i) is int for i in item) else None
    return 1
