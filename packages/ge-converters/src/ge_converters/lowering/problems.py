"""All refusals of a graph as one readable error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ge_converters.base.errors import LoweringError
from ge_converters.base.provenance import fx_target, user_frame
from ge_graph.dtypes import BY_TORCH_NAME

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """One FX node that cannot be lowered.

    Attributes:
        node: The FX node.
        reason: What stands in the way.
        absent: Whether no converter exists at all.
        holder: For a node of an inner graph: the node of the outermost graph that it lies in.
    """

    node: torch.fx.Node
    reason: str
    absent: bool = False
    holder: torch.fx.Node | None = None


def raise_all(problems: Sequence[Problem], total: int) -> None:
    """Raise the error that lists every problem; does nothing without problems.

    Errors: LoweringError GE2001, with ``refused``: name of the node in the outermost graph to reason.
    """
    if not problems:
        return
    noun = "node" if total == 1 else "nodes"
    groups = _grouped(problems)
    shown = _chosen(list(groups.values()))
    rows = [
        (_target(g[0].node), _names(g), value_text(g[0].node.meta.get("val")), _place(g[0].node), g[0].reason)
        for g in shown
    ]
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    lines = ["  " + "  ".join([*(c.ljust(w) for c, w in zip(r, widths)), r[4]]).rstrip() for r in rows]
    hidden = len(problems) - sum(len(g) for g in shown)
    if hidden:
        lines.append(f"  … and {hidden} more")
    error = LoweringError(
        "GE2001",
        "\n".join([f"{len(problems)} of {total} {noun} cannot be lowered.", *lines]),
        next=_advice(problems),
    )
    error.refused = {str((p.holder or p.node).name): p.reason for p in problems}
    raise error


def _grouped(problems: Sequence[Problem]) -> dict[Any, list[Problem]]:
    """Problems that differ in nothing but the node, as a loop over layers makes them."""
    groups: dict[Any, list[Problem]] = {}
    for p in problems:
        key = (p.node.target, value_text(p.node.meta.get("val")), user_frame(p.node)[0], p.reason)
        groups.setdefault(key, []).append(p)
    return groups


def _target(node: torch.fx.Node) -> str:
    """The op as the user called it, for AOTAutograd wraps those that write arguments or have effects."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        wrapped = [a for a in node.args[:2] if isinstance(a, torch._ops.OpOverload)]
        if wrapped:
            return str(wrapped[0])
    return fx_target(node)


def _names(group: Sequence[Problem]) -> str:
    first = f"%{group[0].node.name}"
    return first if len(group) == 1 else f"{first} and {len(group) - 1} more"


def _chosen(groups: list[list[Problem]]) -> list[list[Problem]]:
    """At most as many as a terminal shows; every distinct reason is among them before any is repeated."""
    if len(groups) <= _SHOWN:
        return groups
    first: dict[Any, list[Problem]] = {}
    for g in groups:
        first.setdefault((g[0].node.target, g[0].reason), g)
    distinct = list(first.values())
    rest = [g for g in groups if not any(g is d for d in distinct)]
    return [*distinct, *rest][:_SHOWN]


def _advice(problems: Sequence[Problem]) -> str:
    absent = any(p.absent for p in problems)
    refused = any(not p.absent for p in problems)
    parts = []
    if absent:
        parts.append("register a converter or a decomposition for the missing ops (docs/adding_an_op.md)")
    if refused:
        parts.append("change the refused calls as their reasons say")
    parts.append('or set config.fallback = "split", which runs these nodes eagerly between GE graphs')
    return "; ".join(parts)


def _place(node: torch.fx.Node) -> str:
    place, _, function = user_frame(node)[0].partition(" in ")
    if not place:
        return "-"
    _, installed, inside = place.partition(f"site-packages{os.sep}")
    relative = inside if installed else os.path.relpath(place)
    return f"{place if relative.startswith('..') else relative} {function}"


def value_text(value: Any) -> str:
    """``f32[8, s0]`` for a tensor, ``(f32[2], i64[2])`` for several, the type's name for anything else."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        short = BY_TORCH_NAME[name].short if name in BY_TORCH_NAME else name
        return f"{short}[{', '.join(str(s) for s in value.shape)}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(value_text(v) for v in value)})"
    if value is None:
        return "-"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__}({value.node.expr})"
    return type(value).__name__
