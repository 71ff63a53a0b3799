"""Counts the memory that a running graph holds, as a device's allocator would see it.

Every result of a node takes a block, whatever the engine does on the host (a transposed tensor is a view there and a
copy on a device); the block is freed when the last tensor in it is. When that is, and how large it is, is what happens
in the run, and nobody's plan. Inputs and constants have memory of their own and are not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ge_graph.cost.memory import aligned, shared_input
from ge_graph.ir import Node, Tensor
from ge_runtime.cpu.engine import CpuExecutable


class _Block:
    """A piece of memory and how many tensors lie in it."""

    __slots__ = ("size", "holders")

    def __init__(self, size: int) -> None:
        self.size, self.holders = size, 0


class Account:
    """Bytes in blocks while a graph runs.

    Args:
        left_out: Bytes of a result that nobody reads and the engine leaves out; a device has it while the node runs.

    Attributes:
        live: Bytes held now.
        peak: Most bytes held at one time.
    """

    def __init__(self, left_out: Callable[[Tensor], int | None] = lambda edge: None) -> None:
        self.live = self.peak = 0
        self._left_out = left_out
        self._of: dict[Tensor, _Block | None] = {}

    def on_node(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Enter the results of a node; its operands still live."""
        passing = 0
        for edge, value in zip(node.outputs, outputs):
            if not isinstance(value, torch.Tensor):
                passing += aligned(self._left_out(edge) or 0)
                continue
            shared = shared_input(node, edge.index)
            if shared is not None:
                block = self._of.get(shared)  # none: memory of an input or a constant
            else:
                block = _Block(aligned(value.numel() * value.element_size()))
                self.live += block.size
            self._of[edge] = block
            if block is not None:
                block.holders += 1
                weakref.finalize(value, self._left, block)
        self.peak = max(self.peak, self.live + passing)

    def run(self, program: CpuExecutable, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a graph and count; outside autograd, where a view does not keep the tensor alive that it looks at."""
        with torch.inference_mode():
            return program.run_traced(inputs, self.on_node)

    def _left(self, block: _Block) -> None:
        block.holders -= 1
        if not block.holders:
            self.live -= block.size
