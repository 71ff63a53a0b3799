"""Four-bit integers. Torch has no such type: an int4 edge holds one int8 an element, and packs are int32 of eight.

The lowest four bits of a pack are its first element.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, plan
from ge_runtime.errors import refused


def unpack(x: Tensor) -> Tensor:
    """int8 (.., 8 n) of the packs int32 (.., n)."""
    parts = (x.unsqueeze(-1) >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
    return torch.where(parts > 7, parts - 16, parts).to(torch.int8).flatten(-2)


def pack(x: Tensor) -> Tensor:
    """The packs int32 (.., n) of int8 (.., 8 n)."""
    parts = (x.unflatten(-1, (-1, 8)).to(torch.int64) & 15) << torch.arange(0, 32, 4)
    total = parts.sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


@plan("Bitcast")
def _plan_bitcast(ctx: PlanContext) -> Call | None:
    """Between int32 and int4; all else is the kernel's."""
    before, after = ctx.dtype("x"), ctx.out_dtype()
    if DataType.DT_INT4 not in (before, after):
        return None
    ctx.attr("type")
    if not ctx.attr("keep_dim", False) or DataType.DT_INT32 not in (before, after):
        raise refused("Bitcast", f"{before} to {after}", "accepted with keep_dim between int32 and int4")
    return Call(unpack if after is DataType.DT_INT4 else pack, (ctx.tensor("x"),), views=False)
