"""What the modules of this folder share: the table of programs and small tensors to call them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Programs(dict[str, Any]):
    """Name -> function, sets of arguments, whether gradients are compared; filled by ``@program(...)``."""

    def __call__(self, *argument_sets: Any, grad: bool = False) -> Callable[[Any], Any]:
        def enter(fn: Any) -> Any:
            self[fn.__name__] = (fn, argument_sets, grad)
            return fn

        return enter


def ramp(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 0.5


def leaf(*shape: int) -> torch.Tensor:
    return ramp(*shape).requires_grad_()


def num(value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


SOME = num([True, False, True, True, False])
ONE = num([False, False, False, True, False])
NONE = num([False] * 5)
