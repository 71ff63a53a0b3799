"""``npu_wait_tensor`` as data flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchair.torch_ops import name_of

if TYPE_CHECKING:
    from torchair.config import NpuBaseConfig


class ThreadWaits:
    """``air.wait_tensor(x, y)`` -> ``x2 = air.after(x, y)``, and what follows reads ``x2`` instead of ``x``.

    The function promises that users of the *old* name wait too, so the order has to become an edge.
    """

    name = "ThreadWaits"
    why = "after the user's passes, which may insert waits; before lowering, which only knows edges"

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """Always; graphs without such waits are left alone."""
        return True

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Rewrite every wait."""
        graph = gm.graph
        waits = [n for n in graph.nodes if name_of(n.target) == "wait_tensor"]
        if not waits:
            return 0
        position = {node: i for i, node in enumerate(graph.nodes)}
        for node in waits:
            held, dependency = node.args
            with graph.inserting_before(node):
                after = graph.call_function(torch.ops.air.after.default, (held, dependency))
            after.meta = {**held.meta, "stack_trace": node.stack_trace}
            later = [u for u in held.users if position.get(u, -1) > position[node] and u.op != "output"]
            for user in later:
                user.replace_input_with(held, after)
            graph.erase_node(node)
        return len(waits)
