"""Import path of existing scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchair.names import door

__all__ = ["get_npu_default_decompositions"]

__getattr__ = door(__name__)


def get_npu_default_decompositions() -> dict[Any, Callable[..., Any]]:
    """The functions that replace ATen ops while a graph is traced for this backend, by op."""
    from ge_converters.decompose.table import decomposition_table

    return dict(decomposition_table({}))
