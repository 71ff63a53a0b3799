"""Ops of ours that mark a graph (scopes, records, waits, prints, events): what becomes of them before lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
                "GE1065",
                f"the graph waits for event {tag!r}, which nothing before it records; recorded: {recorded}",
                next="record the event inside the same compiled function, in front of the wait",
            )
        made = graph.call_function(torch.ops.air.wait.default, ([marks[tag]],))
        made.meta = {"stack_trace": node.stack_trace}


class ScopeSuperKernels(FxPass):
    """``npu.super_kernel_scope_begin(name)`` -> a scope with that attribute, ``.._end(name)`` -> its end.

    Before lowering, which knows scopes; captured graphs keep the ops, there they are the runtime's own.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """In mode max-autotune."""
        return bool(config.mode.value == "max-autotune")

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Rewrite every scope.

        Errors: ConfigError GE1055 for an end that has another name than the scope that is open.
        """
        opened: list[str] = []
        edits = 0
        for node in list(gm.graph.nodes):
            kind = _SUPER_KERNELS.get(str(node.target))
            if kind is None:
                continue
            name = node.args[0] if node.args else node.kwargs.get("scope_name")
            with gm.graph.inserting_before(node):
                if kind == "begin":
                    opened.append("" if name is None else str(name))
                    edits += 1
                    label = name or f"super_kernel_{edits}"  # GE has no ranges without a name
                    made = gm.graph.call_function(
                        torch.ops.air.scope_enter.default, (["_super_kernel_scope"], [str(label)])
                    )
                else:
                    _match(node, name, opened)
                    made = gm.graph.call_function(torch.ops.air.scope_exit.default)
            made.meta = {"stack_trace": node.stack_trace}
            gm.graph.erase_node(node)
        return edits


_SUPER_KERNELS: Final = {
    f"npu.super_kernel_scope_{kind}{overload}": kind for kind in ("begin", "end") for overload in ("", ".default")
}


def _match(node: torch.fx.Node, name: object, opened: list[str]) -> None:
    """Close the innermost scope; an end without a name closes any."""
    if opened and name in (None, opened[-1]):
        opened.pop()
        return
    what = f"{opened[-1]!r} is open" if opened else "no scope is open"
    raise ConfigError(
        "GE1055",
        f"scopes of the graph: {node.name} ends the super kernel {name!r}, {what}",
        next="end every scope of torch.npu.super_kernel_scope_begin in the function that begins it, by its own name",
    )
