"""Ops whose result lies in another order of memory than torch's meta functions or formulas say.

``as_strided`` of a result reads its memory, so the traced strides have to be those of the kernel. Such a call is traced
on row-major operands and its result brought into the kernel's order: in the graph two transpositions, which cancel
unless somebody reads the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten

Formula = Callable[..., Any]
_CHANNELS_LAST: Final = ((0, 2, 3, 1), (0, 2, 3, 4, 1))


def channels_last_format(value: Tensor) -> torch.memory_format | None:
    """The format with channels innermost if the value has it; asking sets no guard."""
    if _order(value) not in _CHANNELS_LAST:
        return None
    return torch.channels_last if value.dim() == 4 else torch.channels_last_3d


def _of_self(self: Tensor, *_: Any, **__: Any) -> Tensor:
    return aten.empty_like.default(self)  # dense, even if the operand has gaps


def _channels_last(self: Tensor, *_: Any, **__: Any) -> Tensor | None:
    return self if _order(self) in _CHANNELS_LAST else None


def _of_both(self: Tensor, other: Any, *_: Any, **__: Any) -> Tensor | None:
    """The order that an elementwise kernel takes; that of add is traced as it is."""
    if not isinstance(other, Tensor) or self.device != other.device:
        return None
    return aten.add.Tensor(self.detach(), other.detach())


def _of_product(self: Tensor, other: Tensor, *_: Any, **__: Any) -> Tensor | None:
    """A product with a power, which eager makes row by row unless the exponent is an integer."""
    if not other.is_floating_point():
        return _of_both(self, other)
    return aten.add.Tensor(self.detach(), _always_row_major(other))


def _row_major_second(self: Any, exponent: Tensor, *_: Any, **__: Any) -> Tensor:
    return _always_row_major(exponent)


def _row_major(self: Tensor, *_: Any, **__: Any) -> Tensor | None:
    order = _order(self)
    # kernels of normalisation know row-major and channels-last, and copy all else
    if order is None or order in _CHANNELS_LAST:
        return None
    return aten.empty.memory_format(self.shape, dtype=self.dtype, device=self.device)


def _always_row_major(self: Tensor, *_: Any, **__: Any) -> Tensor:
    return aten.empty.memory_format(self.shape, dtype=self.dtype, device=self.device)


# Op -> the tensor whose order its result has; None where the traced one is right.
ORDERED: Final[dict[str, Callable[..., Tensor | None]]] = {
    "roll.default": _channels_last,
    "log_sigmoid_forward.default": _always_row_major,
    "channel_shuffle.default": _channels_last,
    "native_channel_shuffle.default": _channels_last,
    "addr.default": _of_self,
    "put.default": _of_self,
    "index_fill.int_Scalar": _of_self,
    "index_fill.int_Tensor": _of_self,
    "div.Tensor_mode": _of_both,
    "copysign.Tensor": _of_both,
    "xlogy.Tensor": _of_both,
    "logaddexp.default": _of_both,
    "logaddexp2.default": _of_both,
    "hypot.default": _of_both,
    "logical_and.default": _of_both,
    "logical_or.default": _of_both,
    "logical_xor.default": _of_both,
    "complex.default": _of_both,
    "ldexp.Tensor": _of_product,
    "pow.Scalar": _row_major_second,
    "_native_batch_norm_legit_functional.default": _row_major,
    "_native_batch_norm_legit.no_stats": _row_major,
    "_native_batch_norm_legit_no_training.default": _row_major,
    "_batch_norm_with_update_functional.default": _row_major,
    "_batch_norm_no_update.default": _row_major,
}


def ordered(table: dict[Any, Formula]) -> dict[Any, Formula]:
    """Formulas for these ops, in front of those that ``table`` has."""
    formulas: dict[Any, Formula] = {}
    for name, like in ORDERED.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is not None:  # this torch has it
            formulas[op] = _in_order(op, like, table.get(op))
    return formulas


def _in_order(op: Any, like: Callable[..., Tensor | None], plain: Formula | None) -> Formula:
    def formula(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if all(t.dim() < 2 or _order(t) == tuple(range(t.dim())) for t in tensors):
            return NotImplemented if plain is None else plain(*args, **kwargs)
        model = like(*args, **kwargs)
        order = None if model is None else _order(model)
        if order is None:
            return NotImplemented if plain is None else plain(*args, **kwargs)
        dense = [a.contiguous() if isinstance(a, Tensor) else a for a in args]
        if all(d is a for d, a in zip(dense, args)):  # dense by the numbers of this call, not by the symbols
            return NotImplemented if plain is None else plain(*args, **kwargs)
        result = op(*dense, **kwargs)
        if isinstance(result, Tensor):
            return _laid_out(result, order)
        first, *others = result
        return (_laid_out(first, order), *others)

    return formula


def _laid_out(value: Tensor, order: tuple[int, ...]) -> Tensor:
    if order == tuple(range(value.dim())):
        return value
    back = sorted(range(len(order)), key=order.__getitem__)
    moved = aten.clone.default(aten.permute.default(value, order), memory_format=torch.contiguous_format)
    return aten.permute.default(moved, back)


def _order(value: Tensor) -> tuple[int, ...] | None:
    """Dimensions from outermost to innermost in memory; None if elements do not lie side by side."""
    if value.layout is not torch.strided:
        return None
    left, inner, expected = list(range(value.dim())), list[int](), 1
    while left:
        fits = [d for d in reversed(left) if _is(value.size(d), 1)]
        fits = fits or [d for d in reversed(left) if _is(value.stride(d), expected)]
        if not fits:
            return None
        inner.append(fits[0])
        left.remove(fits[0])
        expected = expected * value.size(fits[0])
    order = tuple(reversed(inner))
    long = [d for d in order if not _is(value.size(d), 1)]
    return tuple(range(value.dim())) if long == sorted(long) else order


def _is(a: Any, b: Any) -> bool:
    """By the expressions of sizes, so that no guard comes into being."""
    a, b = (n.node.expr if isinstance(n, torch.SymInt) else n for n in (a, b))
    return bool(a == b)
