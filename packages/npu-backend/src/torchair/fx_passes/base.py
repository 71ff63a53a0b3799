"""What an FX pass is, and what passes ask of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from torchair.config import NpuBaseConfig

Target = Any


class FxPass(Protocol):
    """A rewrite of an ATen graph that keeps its results.

    Attributes:
        name: ``VerbObject``, as the log and the debug record show it.
        why: What it is good for, and why it stands where it stands.
    """

    name: str
    why: str

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """Whether to run under this configuration; ``phase`` is ``forward`` or ``backward``."""

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Edit ``gm.graph`` in place; returns the number of edits."""


def value_of(node: Any) -> Any:
    """The fake tensor or symbolic number that a node stands for; plain values stand for themselves."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def same_dim(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for every input; asks the expressions, so no guard comes into being."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        if not (isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt)):
            return False
        return bool(a.node.expr == b.node.expr)
    return bool(a == b)


def same_sizes(a: Any, b: Any) -> bool:
    """``same_dim`` for whole shapes or stride tuples."""
    return len(a) == len(b) and all(map(same_dim, a, b))


def is_view(node: torch.fx.Node) -> bool:
    """Whether the op's result shares memory with its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def output_node(graph: torch.fx.Graph) -> torch.fx.Node:
    """The node that returns."""
    return next(iter(reversed(graph.nodes)))


def output_values(graph: torch.fx.Graph) -> list[Any]:
    """What the graph returns, one entry an output."""
    returned = output_node(graph).args[0]
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]
