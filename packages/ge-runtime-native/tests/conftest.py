"""One GE operator as a graph of its own, run by the embedded engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ge_graph import Graph, building, ops
from ge_graph.dtypes import BY_TORCH_NAME
from ge_graph.ir import Tensor
from ge_runtime.cpu import CpuEngine


def run_operator(op: str, *operands: Any, **attrs: Any) -> Any:
    """Build ``op`` from torch tensors (graph inputs), lists of them, and Python values (constants); run it.

    Returns what the operator gives: one tensor, or a list of them.
    """
    graph, feeds = Graph("case"), []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            feeds.append(value)
            dtype = BY_TORCH_NAME[str(value.dtype).removeprefix("torch.")]
            return ops.Data(index=len(feeds) - 1, dtype=dtype, shape=tuple(value.shape))
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, torch.Tensor) for v in value):
            return [place(v) for v in value]
        return value

    with building(graph):
        found = getattr(ops, op)(*(place(v) for v in operands), **attrs)
        graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    results = CpuEngine().compile(graph, {}).run(feeds)
    return results[0] if len(results) == 1 else results


@pytest.fixture
def run() -> Callable[..., Any]:
    """``run("MatMul", a, b, transpose_x1=True)``."""
    return run_operator
