"""Scopes, stream markers and prints of the forward graph that show up in the backward graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchair.torch_ops import name_of

if TYPE_CHECKING:
    import torch

    from torchair.config import NpuBaseConfig


class DropForwardMarkers:
    """Remove ``air.*`` nodes from a backward graph.

    AOTAutograd traces forward and backward as one graph and copies every node with side effects into both halves; in
    the backward half they would print twice and enclose nothing.
    """

    name = "DropForwardMarkers"
    why = "before the user's passes, so that what those insert into a backward graph stays"

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """In backward graphs."""
        return phase == "backward"

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Erase the nodes, last first, so that a wait goes before the record it waits for."""
        marks = [n for n in gm.graph.nodes if name_of(n.target)]
        for node in reversed(marks):
            gm.graph.erase_node(node)
        return len(marks)
