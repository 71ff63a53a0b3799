"""Ops of ours that mark a graph (scopes, records, waits, prints, events): what becomes of them before lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ge_graph.errors import ConfigError
from torchair.oplib.torch_ops import name_of
from torchair.passes.base import FxPass

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig


class DropForwardMarkers(FxPass):
    """Remove ``air.*`` nodes from a backward graph.

    AOTAutograd traces forward and backward as one graph and copies every node with side effects into both halves; in
    the backward half they would print twice and enclose nothing.

    Before the user's passes, so that what those insert into a backward graph stays.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        return phase == "backward"

    def run(self, gm: torch.fx.GraphModule) -> int:
        marks = [n for n in gm.graph.nodes if name_of(n.target)]
        for node in reversed(marks):
            gm.graph.erase_node(node)
        return len(marks)


class ThreadWaits(FxPass):
    """``air.wait_tensor(x, y)`` -> ``x2 = air.after(x, y)``, and what follows reads ``x2`` instead of ``x``.

    The function promises that users of the *old* name wait too, so the order has to become an edge.

    After the user's passes, which may insert waits; before lowering, which only knows edges.
    """

    def run(self, gm: torch.fx.GraphModule) -> int:
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


class PairTaggedEvents(FxPass):
    """``tagged_event_record(t)`` -> ``record()``, ``tagged_event_wait(t)`` -> ``wait([that record])``.

    ``record_tagged_stream`` goes: memory of a graph belongs to its engine, which knows all streams.

    Before lowering, which knows no tags; captured graphs keep the ops, there they are the device's own events.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """In mode max-autotune; graphs without tagged events are left alone."""
        return bool(config.mode.value == "max-autotune")

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Rewrite every tagged event.

        Errors: ConfigError GE1065 for a wait whose event no node before it records.
        """
        graph = gm.graph
        marks: dict[str, torch.fx.Node] = {}
        edits = 0
        for node in list(graph.nodes):
            kind = name_of(node.target)
            if kind not in ("tagged_event_record", "tagged_event_wait", "record_tagged_stream"):
                continue
            edits += 1
            with graph.inserting_before(node):
                if kind == "tagged_event_record":
                    mark = marks[str(node.args[0])] = graph.call_function(torch.ops.air.record.default)
                    mark.meta = {"val": torch.empty(0, device="meta"), "stack_trace": node.stack_trace}
                elif kind == "tagged_event_wait":
                    self._wait(graph, node, marks)
            graph.erase_node(node)
        return edits

    def _wait(self, graph: torch.fx.Graph, node: torch.fx.Node, marks: dict[str, torch.fx.Node]) -> None:
        tag = str(node.args[0])
        if tag not in marks:
            recorded = ", ".join(map(repr, marks)) or "none"
            raise ConfigError(
                "GE1065", f"the graph waits for event {tag!r}, which nothing before it records; recorded: {recorded}",
                next="record the event inside the same compiled function, in front of the wait",
            )  # fmt: skip
        made = graph.call_function(torch.ops.air.wait.default, ([marks[tag]],))
        made.meta = {"stack_trace": node.stack_trace}
