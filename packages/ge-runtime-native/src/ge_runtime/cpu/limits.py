"""Which indices an operator takes: one table, for the kernels and for what Inductor makes of them.

ATen looks at most indices itself, before it reads or writes anything; code that Inductor makes counts negative ones
from the end instead. Where ATen trusts them, they are looked at before each call; where it does not, only in a trace,
whose program then looks at them whenever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from ge_runtime import errors
from ge_runtime.cpu import torch_compat
from ge_runtime.cpu.registry import Call
from ge_runtime.cpu.values import listed, traced


@dataclass(frozen=True, slots=True)
class IndexLimit:
    """Indices on one port.

    Attributes:
        index: The port.
        of: The port whose elements they choose.
        axis: Along which axis: a number, or the name of the attribute or port that has it.
        from_end: -1 counts from the end: always, never, or if the attribute of this name is set.
        skipped: Attribute with a number that is no index and stands for nothing.
        trusted: Whether ATen does not look at them.
    """

    index: str
    of: str
    axis: int | str = 0
    from_end: bool | str = False
    skipped: str = ""
    trusted: bool = False


_GATHERED: Final = "negative_index_support"
# Operators that are not here take coordinates, which their kernels look at in either program (``ensure``), or follow
# torch's advanced indexing, where both programs count from the end.
LIMITS: Final[dict[str, IndexLimit]] = {
    op: limit
    for ops, limit in {
        "Gather": IndexLimit("indices", "x", "batch_dims", _GATHERED),
        "GatherV2": IndexLimit("indices", "x", "axis", _GATHERED),
        "GatherV2D": IndexLimit("indices", "x", "axis"),
        "GatherElements": IndexLimit("index", "x", "dim"),
        "ScatterElements": IndexLimit("indices", "data", "axis"),
        "ScatterElementsV2 ScatterAddWithAxis": IndexLimit("indices", "var", "axis"),
        "ScatterAdd ScatterSub ScatterMul ScatterMax ScatterMin ScatterUpdate": IndexLimit("indices", "var"),
        "ScatterDiv": IndexLimit("indices", "var", trusted=True),  # Python's index, which counts from the end
        "InplaceIndexAdd IndexAdd": IndexLimit("indices", "var", "axis"),
        "InplaceUpdate InplaceAdd InplaceSub": IndexLimit("indices", "x"),
        "NLLLoss NLLLossGrad": IndexLimit("target", "x", 1, skipped="ignore_index", trusted=True),
        "SparseSoftmaxCrossEntropyWithLogits": IndexLimit("labels", "features", 1),
    }.items()
    for op in ops.split()
}


def ensure(condition: torch.Tensor, op: str, what: str) -> None:
    """Refuse elements; in a trace the compiled program does so when it runs."""
    if traced(condition):
        torch_compat.require(condition, f"{op}: {what}")
    elif not condition:
        raise errors.refused(op, what)


def ensure_sizes(op: str, name: str, given: torch.Tensor, sizes: Sequence[Any]) -> None:
    """Refuse a tensor that is not of these sizes, where ATen believes that it is."""
    if list(given.shape) != list(sizes):
        raise errors.refused(op, f"{name} is {list(given.shape)}, expected {list(sizes)}")


def ensure_elements(op: str, name: str, given: torch.Tensor | None, count: Any) -> None:
    """Refuse a tensor that does not have so many elements; None passes."""
    if given is not None and given.numel() != count:
        raise errors.refused(op, f"{name} has {given.numel()} elements, expected {count}")


def checks(ctx: Any, compiled: bool) -> Iterator[Call]:
    """Calls that look at the indices of a node, given as a ``plan_context.PlanContext``, before its kernel runs.

    Args:
        ctx: The node.
        compiled: Whether the program is for Inductor.
    """
    limit = LIMITS.get(ctx.node.op)
    if limit is None or not (limit.trusted or compiled) or ctx.edge(limit.index) is None or ctx.edge(limit.of) is None:
        return
    axis: Any = limit.axis
    if isinstance(axis, str):
        axis = ctx.attr(axis, 0) if ctx.edge(axis) is None else _numbers(ctx, axis)
    from_end = bool(ctx.attr(limit.from_end, False)) if isinstance(limit.from_end, str) else limit.from_end
    skipped = ctx.attr(limit.skipped, -100) if limit.skipped else None
    operands = ctx.tensor(limit.index), ctx.tensor(limit.of)
    yield Call(_check, (ctx.node.op, limit.index, *operands, axis, from_end, skipped))


def _numbers(ctx: Any, port: str) -> Any:
    for known in (ctx.host(port), ctx.const(port)):
        if known is not None:
            return known
    return ctx.tensor(port)


def _check(
    op: str, port: str, index: torch.Tensor, of: torch.Tensor, axis: Any, from_end: bool, skipped: int | None
) -> None:
    (dim,) = listed(axis) if not isinstance(axis, int) else (axis,)
    if not -of.dim() <= dim < max(of.dim(), 1):
        dim = of.dim() - 1  # the classes of a single sample; what is no axis at all the kernel refuses
    size = of.shape[dim] if of.dim() else 1
    if index.numel() == 0:
        return
    fits = (index >= (-size if from_end else 0)) & (index < size)
    fits = fits if skipped is None else fits | (index == skipped)
    ensure(fits.all(), op, f"'{port}' leaves [{-size if from_end else 0}, {size})")
