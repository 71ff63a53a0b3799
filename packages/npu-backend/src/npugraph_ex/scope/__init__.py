"""Scopes of captured graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ge_graph.errors import ConfigError
from torchair import scope as _scopes
from torchair.names import door
from torchair.scope import npu_stream_switch

__all__ = ["deterministic", "limit_core_num", "npu_stream_switch"]

__getattr__ = door(__name__)


def limit_core_num(op_aicore_num: int | str, op_vectorcore_num: int | str, stream: Any = None):  # type: ignore[no-untyped-def]
    """Operators inside use at most so many cores; see ``torchair.scope.limit_core_num``.

    Args:
        op_aicore_num: AI cores.
        op_vectorcore_num: Vector cores.
        stream: The stream whose limit it is; None is the current one. Only a device has streams.
    """
    return _scopes.limit_core_num(op_aicore_num, op_vectorcore_num)


@contextmanager
def deterministic(level: int = 1) -> Iterator[None]:
    """Operators inside give the same bits in every run.

    Args:
        level: 0 for off, 1 or 2 for on.

    Errors: ConfigError GE1030 for another level.
    """
    if level not in (0, 1, 2):
        raise ConfigError("GE1030", f"deterministic: level must be 0, 1 or 2, got {level!r}", next="deterministic(1)")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(bool(level))
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
