"""Negative arguments: paddings that crop and may be symbols, dims that torch's own rule for sizes counts wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import from_data


def _crops(padding: Any) -> bool:
    """Whether a symbolic padding is negative now; its sign is guarded, its size is not.

    Converters take numbers of any sign, for they see them; of a symbol they see no sign. What only the data tell has
    none while tracing, and is taken to add.
    """
    return any(isinstance(p, torch.SymInt) and _negative(p) for p in padding)


def _negative(p: Any) -> bool:
    return not from_data(p) and bool(p < 0)


def _parts(padding: Any) -> tuple[list[Any], list[Any]]:
    """What a padding adds, and what it takes away."""
    negative = [_negative(p) for p in padding]
    added = [0 if n else p for p, n in zip(padding, negative, strict=True)]
    return added, [p if n else 0 for p, n in zip(padding, negative, strict=True)]


def _padded(op: Any) -> Callable[..., Any]:
    def formula(self: Tensor, padding: Any) -> Any:
        if not _crops(padding):
            return NotImplemented
        added, lost = _parts(padding)
        return aten.constant_pad_nd(op(self, added), lost)

    return formula


def _padded_backward(op: Any) -> Callable[..., Any]:
    def formula(grad_output: Tensor, self: Tensor, padding: Any) -> Any:
        if not _crops(padding):
            return NotImplemented
        added, lost = _parts(padding)
        return op(aten.constant_pad_nd(grad_output, [-p for p in lost]), self, added)

    return formula


def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Of a dim counted from the end torch's rule for sizes gives a result of another rank."""
    if dim is None or dim >= 0:
        return NotImplemented
    return aten.unique_consecutive(self, return_inverse, return_counts, dim + self.dim())


_PADS: Final = tuple(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))

BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = {
    **{f"{name}.default": _padded(getattr(aten, name).default) for name in _PADS},
    **{f"{name}_backward.default": _padded_backward(getattr(aten, f"{name}_backward").default) for name in _PADS},
    "unique_consecutive.default": unique_consecutive,
}
