"""Arithmetic, comparison, logic, bits, functions of one number, activations: one ATen function each where possible.

Types are never promoted: operands of one operator carry one type, and the result has the type that the graph
declares. 16-bit floats are computed in float32 and rounded once, as ATen does on the CPU.
"""

from __future__ import annotations

import torch

from ge_runtime.cpu.registry import rows

rows(
    {"Add": torch.add, "AddV2": torch.add},
    inplace="add_",
)
rows({"Mul": torch.mul}, inplace="mul_")
