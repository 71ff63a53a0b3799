"""An ATen graph without the calls that cannot be converted, so that one of them does not hide what the rest does."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ge_converters.base.errors import LoweringError
from ge_converters.base.provenance import FxProvenance, user_frame
from ge_converters.base.torch_compat import real_values
from ge_converters.lowering.aliasing import InputAlias, Result, ScalarResult
from ge_graph import Graph, Node, Tensor
from tair_debug.fx_summary import problems, target_text
from tair_debug.refused import RefusedCall
from tair_debug.stepwise import Stepwise, Wanted
from tair_debug.terminal import REFUSED

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph whose refused calls are inputs.

    Attributes:
        gm: The graph; its last inputs are the results of ``calls``.
        calls: Nodes of the whole graph whose values these inputs take: a refused call, or an item of its results.
        refused: The refused calls.
        nodes: Their nodes in the whole graph.
        read: Nodes of the whole graph that refused calls read and that are the last outputs of ``gm``, if it was cut
            with ``keep``.
    """

    gm: torch.fx.GraphModule
    calls: tuple[torch.fx.Node, ...]
    refused: tuple[RefusedCall, ...]
    nodes: tuple[torch.fx.Node, ...] = ()
    read: tuple[torch.fx.Node, ...] = ()

    def values(self, whole: torch.fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        """What the refused calls give when the whole graph runs eagerly."""
        run = Stepwise(whole, args, Wanted(Counter(self.calls)))
        return [run.take(call) for call in self.calls]


def cut(gm: torch.fx.GraphModule, *, keep: bool = False) -> Cut:
    """The graph without its refused calls; itself if there are none.

    Args:
        gm: The graph.
        keep: Whether tensors that refused calls read are outputs of the graph too; else they are computed only if
            something else needs them.
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
    read = [n for n in dict.fromkeys(n for node in found for n in node.all_input_nodes) if keep and _is_tensor(n)]
    for call in calls:
        new[call] = graph.placeholder(f"{call.name}_given")
        new[call].meta = dict(call.meta)
    for node in gm.graph.nodes:
        if node not in new and node not in found:
            new[node] = graph.node_copy(node, lambda n: new[n])
    made = torch.fx.GraphModule(gm, graph)
    read = _returned_too(made, {node: new[node] for node in read})
    _drop_unused(graph)
    return Cut(made, tuple(calls), refused, tuple(found), tuple(read))


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _returned_too(gm: torch.fx.GraphModule, more: Mapping[torch.fx.Node, torch.fx.Node]) -> list[torch.fx.Node]:
    """Let the graph return more nodes; gives those that can be returned."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    first = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    output.args = ((*first, *more.values()),)
    with real_values():
        bad = problems(gm) if more else {}
    kept = {node: copy for node, copy in more.items() if copy not in bad}
    output.args = ((*first, *kept.values()),) if kept else (output.args[0][: len(first)],)
    return [*kept]


def rejoin(part: Cut, lowered: Lowered) -> dict[Node, RefusedCall]:
    """Put a node in the place of each refused call into the GE graph of what was cut with ``keep``, for people to see.

    Its operator type is the name of the ATen operator, which GE does not know. Gives these nodes.
    """
    if not part.nodes:
        return {}
    from ge_graph.passes.topology import SortNodes

    graph = lowered.graph
    own = lowered.outputs[: len(lowered.outputs) - len(part.read)]
    rest = lowered.outputs[len(own) :]
    tensors = {node: _tensor(lowered, binding) for node, binding in zip(part.read, rest)}
    inputs = {call: graph.node(name) for call in part.calls if (name := f"{call.name}_given") in graph}
    made: dict[Node, RefusedCall] = {}
    instead: dict[Tensor, Tensor] = {}
    for node, refused in zip(part.nodes, part.refused):
        values = [inputs[v].outputs[0] for v in _values(node) if v in inputs]
        read = [t for n in node.all_input_nodes if (t := tensors.get(n)) is not None]
        name = node.name if node.name not in graph else graph.unique_name(node.name)
        joined = graph.add(refused.target, read, {}, [(t.dtype, t.known_shape) for t in values], name=name)
        joined.provenance = FxProvenance(node)
        made[joined] = refused
        instead.update(zip(values, joined.outputs))
    returned = [t for binding in own if (t := _tensor(lowered, binding)) is not None]
    returned += [graph.outputs[m.ge_index] for m in lowered.mutations]
    graph.outputs = [*dict.fromkeys(t for t in returned if t in instead or t in graph.outputs)]
    graph.replace_nodes(instead)
    SortNodes().rewrite(graph)  # the joined nodes came last
    return made


def as_far_as_it_goes(gm: torch.fx.GraphModule, convert: Callable[[torch.fx.GraphModule], T]) -> tuple[Cut, T]:
    """What ``convert`` makes of a graph, or of the graph without its refused calls if it has some."""
    try:
        return Cut(gm, (), ()), convert(gm)
    except LoweringError as error:
        part = cut(gm, keep=True) if error.code == REFUSED else None
        if part is None or not part.nodes:
            raise
    return part, convert(part.gm)


def shown(
    gms: Sequence[torch.fx.GraphModule], convert: Callable[[torch.fx.GraphModule, str], Lowered]
) -> tuple[list[Graph], dict[Node, RefusedCall]]:
    """GE graphs of ATen graphs for people to see, and the nodes of their refused calls."""
    graphs: list[Graph] = []
    refused: dict[Node, RefusedCall] = {}
    for number, gm in enumerate(gms, 1):
        part, lowered = as_far_as_it_goes(gm, lambda gm, name=f"graph_{number}": convert(gm, name))  # type: ignore[misc]
        refused |= rejoin(part, lowered)
        graphs.append(lowered.graph)
    return graphs, refused


def _tensor(lowered: Lowered, binding: Any) -> Tensor | None:
    """The GE tensor behind an FX output: an output of the GE graph, or one of its inputs."""
    if isinstance(binding, Result | ScalarResult):
        return lowered.graph.outputs[binding.ge_index]
    if not isinstance(binding, InputAlias):
        return None
    index = next((i for i, b in enumerate(lowered.inputs) if b.fx_index == binding.fx_index), None)
    found = next((n for n in lowered.graph.inputs if n.attr("index") == index), None)
    return None if found is None else found.outputs[0]


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
