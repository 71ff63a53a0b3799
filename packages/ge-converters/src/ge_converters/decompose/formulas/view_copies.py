"""Ops that copy what a view would show, such as ``slice_copy``: the view and a copy, for every one that torch has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from ge_converters.base.torch_traces import view_copies

_CONVERTED: Final = (
    "aten.alias_copy.default",
    "aten.as_strided_copy.default",
    "aten.detach_copy.default",
    "aten.lift_fresh_copy.default",
    "aten.permute_copy.default",
    "aten.unbind_copy.int",
    "aten.view_copy.default",
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The copies by overload, but for those that have converters."""
    return {copy: _copied(view) for copy, view in view_copies().items() if str(copy) not in _CONVERTED}


@functools.cache
def _copied(view: Any) -> Callable[..., Any]:
    def formula(*args: Any, **kwargs: Any) -> Any:
        shown = view(*args, **kwargs)
        return pytree.tree_map(lambda t: torch.ops.aten.clone(t, memory_format=torch.contiguous_format), shown)

    return formula
