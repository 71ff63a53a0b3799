"""Calls that a converter does not take, as its registration says: a formula serves them.

It is torch's own where torch has one that does; the others are rows here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.torch_compat import known_decompositions
from ge_converters.decompose.formulas import general, windows
from ge_converters.registry import Registry
from ge_converters.registry.signatures import loaded_op


def _batch_norm_in_use(input: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, *numbers: float) -> Any:
    return torch.ops.aten._native_batch_norm_legit_functional(input, weight, bias, mean, var, False, *numbers)[:3]


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "aten.multilabel_margin_loss_forward.default": general.multilabel_margin_loss,
    "aten.linalg_cross.default": general.cross,
    "aten._upsample_bilinear2d_aa.default": windows.FORMULAS["_upsample_bilinear2d_aa.default"],
    "aten._upsample_bicubic2d_aa.default": windows.FORMULAS["_upsample_bicubic2d_aa.default"],
    "aten.adaptive_max_pool3d.default": windows.adaptive_max_pool3d,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_in_use,  # torch's formula writes
}


def decompositions(registry: Registry) -> dict[Any, Callable[..., Any]]:
    """For each op whose converter takes some calls only what serves the others, by overload."""
    found = {}
    for name in sorted(registry.partly()):
        op = loaded_op(name, strict=False)
        formula = FORMULAS.get(name) or known_decompositions().get(op)
        if formula is not None:  # without one the converter says what it does not take
            found[op] = _where_not_taken(registry, op, formula)
    return found


def _where_not_taken(registry: Registry, op: Any, formula: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        entry = registry.find(op)
        if entry is not None and (entry.takes is None or entry.takes(*args, **kwargs)):
            return NotImplemented
        return formula(*args, **kwargs)

    return decompose
