"""Ops that copy what a view would show, such as ``slice_copy``: the view and a copy, for every one that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ge_converters.base.torch_compat import view_copies


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The copies by overload, but for those with converters, as GE has one operator for them."""
    served = (torch.ops.aten.as_strided_copy.default, torch.ops.aten.lift_fresh_copy.default)
    return {copy: _copied(view) for copy, view in view_copies().items() if copy not in served}


def _copied(view: Any) -> Callable[..., Any]:
    def formula(*args: Any, **kwargs: Any) -> Any:
        shown = view(*args, **kwargs)
        return pytree.tree_map(lambda t: torch.ops.aten.clone(t, memory_format=torch.contiguous_format), shown)

    return formula
