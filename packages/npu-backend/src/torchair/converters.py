"""Converters of our own ops that are not scopes or stream marks (those are part of lowering itself)."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ge_converters.registry import register_fx_node_ge_converter
from ge_graph import Tensor
from ge_graph import ops as ge


@functools.cache
def register() -> None:
    """Register them, once."""
    register_fx_node_ge_converter(torch.ops.air.after.default, source="spec of npu_wait_tensor")(_after)


def _after(self: Tensor, dependency: Tensor, *, meta_outputs: Any) -> Tensor:
    """``self``, available once the producer of ``dependency`` has run.

    Shapes: any. Dtypes: any. Emits: Identity with a control edge.
    """
    made: Tensor = ge.Identity(self, dependencies=(dependency,))
    return made
