"""Which calls of an op its converter takes, said where the converter is registered; torch's formula serves the others.

A condition is a function of the call's arguments, tensors without data among them, asked while the graph is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch

from ge_converters.base.dtypes import to_ge
from ge_converters.base.torch_compat import surely_equal
from ge_graph import DataType, schema

Condition: TypeAlias = "Callable[..., bool]"

_HALVES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Takes:
    """Calls whose element type GE's schema lists, and for which one more condition holds.

    Attributes:
        op: The GE operator. Its first port has to list the type that torch promotes the tensors to; half types that it
            lacks go through float32, in which eager computes too. Empty if any type will do.
        also: What else has to hold.

    Example:
        >>> Takes("GLU")(torch.ones(2, dtype=torch.float64))
        True
        >>> Takes("HardShrink")(torch.ones(2, dtype=torch.float64))
        False
    """

    op: str = ""
    also: Condition | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the converter takes a call with these arguments."""
        if self.op and not _listed(self.op, (*args, *kwargs.values())):
            return False
        return self.also is None or self.also(*args, **kwargs)


def _listed(op: str, arguments: Iterable[Any]) -> bool:
    types = {a.dtype for a in arguments if isinstance(a, torch.Tensor)}
    if not types:
        return True
    dtype = reduce(torch.promote_types, types)
    domain = schema.require(op).inputs[0].domain
    return to_ge(dtype) in domain or (dtype in _HALVES and DataType.DT_FLOAT in domain)


def alike(*tensors: torch.Tensor | None) -> bool:
    """Whether all tensors have one element type and, for every size of the graph, one shape; None is left out."""
    first, *others = [t for t in tensors if t is not None]
    return one_type(*tensors) and all(
        t.dim() == first.dim() and all(map(surely_equal, t.shape, first.shape)) for t in others
    )


def one_type(*arguments: Any) -> bool:
    """Whether all tensors among the arguments have one element type."""
    return len({a.dtype for a in arguments if isinstance(a, torch.Tensor)}) <= 1


def real(*arguments: Any) -> bool:
    """No tensor among the arguments is complex: ATen's gradient is conjugated, GE's is not."""
    return not any(a.is_complex() for a in arguments if isinstance(a, torch.Tensor))


def pair(self: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> bool:
    """The two first tensors are alike."""
    return alike(self, target)


def weighted_pair(
    self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, *_: Any, **__: Any
) -> bool:
    """The three first tensors are alike."""
    return alike(self, target, weight)


def gradient_of_pair(grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Prediction and target are alike; the gradient, of any shape, has their type."""
    return alike(self, target) and one_type(grad_output, self)


def sizes_are_numbers(self: torch.Tensor, output_size: Any, *_: Any, **__: Any) -> bool:
    """The wanted sizes are numbers: GE has an attribute for them."""
    return all(isinstance(s, int) for s in output_size)
