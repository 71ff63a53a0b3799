"""An ATen graph without the calls that cannot be converted, so that one of them does not hide what the rest does."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ge_converters.base.provenance import user_frame
from ge_converters.base.torch_compat import real_values
from ge_graph.command_line import told
from tair_debug.fx_summary import problems, target_text
from tair_debug.stepwise import Stepwise, Wanted
from tair_debug.terminal import place, reason


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that cannot be converted.

    Attributes:
        name: Its name in the ATen graph.
        target: Its operator.
        reason: Why.
        source: The user's line, such as ``model.py:12 in forward``.
        code: Text of that line.
    """

    name: str
    target: str
    reason: str
    source: str
    code: str

    @property
    def text(self) -> str:
        """What is the same for equal calls: operator, line and reason, in the reader's language."""
        where = f" ({place(self.source)}: {self.code})" if self.source else ""
        return f"{self.target}{where}: {reason(self.reason)}"

    def as_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def number(calls: Sequence[RefusedCall]) -> str:
    """How many calls are refused, in the reader's language."""
    count = len(calls)
    return told("1 call cannot be converted") if count == 1 else told(f"{count} calls cannot be converted")


def listed(calls: Sequence[RefusedCall]) -> list[str]:
    """A line for each kind of refused calls: by name if it is one, by number if they are several."""
    names: dict[str, list[str]] = {}
    for call in calls:
        names.setdefault(call.text, []).append(call.name)
    return [f"{each[0]} = {text}" if len(each) == 1 else f"{len(each)} x {text}" for text, each in names.items()]


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph whose refused calls are inputs.

    Attributes:
        gm: The graph; its last inputs are the results of ``calls``.
        calls: Nodes of the whole graph whose values these inputs take: a refused call, or an item of its results.
        refused: The refused calls.
    """

    gm: torch.fx.GraphModule
    calls: tuple[torch.fx.Node, ...]
    refused: tuple[RefusedCall, ...]

    def values(self, whole: torch.fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        """What the refused calls give when the whole graph runs eagerly."""
        run = Stepwise(whole, args, Wanted(Counter(self.calls)))
        return [run.take(call) for call in self.calls]


def cut(gm: torch.fx.GraphModule) -> Cut:
    """The graph without its refused calls; itself if there are none.

    A refused call's arguments are computed only if something else needs them.
    """
    with real_values():  # constants of a graph are real, whatever mode the caller traces in
        found = problems(gm)
    if not found:
        return Cut(gm, (), ())
    refused = tuple(_refused(node, reason) for node, reason in found.items())
    calls = [value for node in found for value in _values(node)]
    graph = torch.fx.Graph()
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    new: dict[torch.fx.Node, torch.fx.Node] = {n: graph.node_copy(n) for n in inputs}
    for call in calls:
        new[call] = graph.placeholder(f"{call.name}_given")
        new[call].meta = dict(call.meta)
    for node in gm.graph.nodes:
        if node not in new and node not in found:
            new[node] = graph.node_copy(node, lambda n: new[n])
    _drop_unused(graph)
    return Cut(torch.fx.GraphModule(gm, graph), tuple(calls), refused)


def _refused(node: torch.fx.Node, reason: str) -> RefusedCall:
    return RefusedCall(node.name, target_text(node.target), reason, *user_frame(node))


def _values(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """A call, or the items of its results if it has several."""
    items = [u for u in node.users if u.target is operator.getitem]
    return items if len(items) == len(node.users) and isinstance(node.meta.get("val"), (tuple, list)) else [node]


def _drop_unused(graph: torch.fx.Graph) -> None:
    """What only a refused call read; an operator that acts or writes stays."""
    for node in reversed(list(graph.nodes)):
        computed = node.op == "get_attr" or (node.op == "call_function" and not node.is_impure())
        if computed and not node.users:
            graph.erase_node(node)
