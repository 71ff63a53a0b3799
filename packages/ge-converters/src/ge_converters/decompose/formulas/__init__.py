"""Decompositions that torch does not register: ops that are a formula in other ATen ops, a module for each kind.

``FORMULAS`` of a module are for ops without converter. ``BESIDE_CONVERTERS`` are for arguments that the op's converter
cannot take, and return NotImplemented for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from ge_converters.decompose.formulas import (
    complex_numbers,
    double_pools,
    foreach,
    general,
    internal,
    jagged,
    learned_quantization,
    made_numbers,
    matrices,
    negative_numbers,
    orthogonal_polynomials,
    quantized,
    quotients,
    segments,
    special,
    view_copies,
    view_gradients,
    windows,
)

_MODULES: Final = (
    general,
    internal,
    jagged,
    learned_quantization,
    made_numbers,
    matrices,
    orthogonal_polynomials,
    quantized,
    segments,
    special,
    view_gradients,
    windows,
)
_BESIDE: Final = (windows, matrices, complex_numbers, double_pools, negative_numbers, quotients)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The formulas by overload, for the table of AOTAutograd."""
    tables = [module.FORMULAS for module in _MODULES]
    return {
        **view_copies.decompositions(),
        **foreach.decompositions(),
        **{op: f for table in tables for op, f in _by_overload(table)},
    }


def beside_converters() -> dict[Any, Callable[..., Any]]:
    """Formulas for arguments that the op's converter cannot take."""
    return {op: f for module in _BESIDE for op, f in _by_overload(module.BESIDE_CONVERTERS)}


def _by_overload(table: dict[str, Callable[..., Any]]) -> Iterator[tuple[Any, Callable[..., Any]]]:
    for name, function in table.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is not None:  # this torch has it
            yield op, function
