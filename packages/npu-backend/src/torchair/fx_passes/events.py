"""Tagged events in a graph: they become the graph's own records and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ge_graph.errors import ConfigError
from torchair.torch_ops import name_of

if TYPE_CHECKING:
    from torchair.config import NpuBaseConfig


class PairTaggedEvents:
    """``tagged_event_record(t)`` -> ``record()``, ``tagged_event_wait(t)`` -> ``wait([that record])``.

    ``record_tagged_stream`` goes: memory of a graph belongs to its engine, which knows all streams.
    """

    name = "PairTaggedEvents"
    why = "before lowering, which knows no tags; captured graphs keep the ops, there they are the device's own events"

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
