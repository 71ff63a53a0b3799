"""Quotients of integers, where torch traces them as integers.

Dividing two tensors of one integer type gives the default float type. Older releases of torch say so of fixed sizes
only: with open sizes the traced result has the integer type, and whoever believes it cuts off what stands behind the
point. Written with both operands as floats, the type is right, and so is that of all that is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import QUOTIENTS_TRACED_AS_INTEGERS


def quotient(self: Any, other: Any) -> Any:
    """``self / other`` of two tensors of one integer type, bool among them; NotImplemented of all others."""
    if not isinstance(self, Tensor) or not isinstance(other, Tensor) or self.dtype != other.dtype:
        return NotImplemented
    if self.dtype.is_floating_point or self.dtype.is_complex:
        return NotImplemented
    kind = torch.get_default_dtype()
    return aten.div.Tensor(aten._to_copy.default(self, dtype=kind), aten._to_copy.default(other, dtype=kind))


BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = (
    {"div.Tensor": quotient} if QUOTIENTS_TRACED_AS_INTEGERS else {}
)
