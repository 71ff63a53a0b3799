"""Quotients of integers, where torch traces them as integers.

Dividing integers gives the default float type. Older releases of torch say so of fixed sizes only: with open sizes the
traced result has the integer type, and whoever believes it cuts off what stands behind the point. Written with floats
as operands, the type is right, and so is that of all that is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import QUOTIENTS_TRACED_AS_INTEGERS


def quotient(self: Any, other: Any) -> Any:
    """``self / other`` of integers, booleans among them; NotImplemented of all others."""
    common = torch.result_type(self, other)
    if common.is_floating_point or common.is_complex:
        return NotImplemented
    kind = torch.get_default_dtype()
    operands = (aten._to_copy.default(v, dtype=kind) if isinstance(v, Tensor) else v for v in (self, other))
    return aten.div.Tensor(*operands)


BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = (
    {"div.Tensor": quotient, "true_divide.Tensor": quotient} if QUOTIENTS_TRACED_AS_INTEGERS else {}
)
