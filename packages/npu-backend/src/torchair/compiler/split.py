"""``config.fallback = "split"``: what GE cannot compute runs eagerly between GE graphs.

The ATen graph is cut into stages that take turns, eager first: a node stands in the earliest stage of its kind that
does not lie before what it reads. There are then exactly as many GE graphs as the longest chain of data between refused
nodes needs, which is the fewest possible. torch.fx's fuser makes the submodules.

Writes into inputs are taken out of the graph before it is cut and made when everything else has run: between the
stages nothing but data says what comes first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from ge_converters.base.provenance import fx_target, user_frame
from ge_converters.lowering.effects import effect_of
from ge_graph.errors import LoweringError
from torchair.passes.base import output_node, output_values, value_of

FxNode: TypeAlias = torch.fx.Node
Call: TypeAlias = Callable[[list[Any]], Any]
_PART = "ge_part_"


@dataclass(eq=False)
class GraphPart:
    """One GE graph of a split graph, in the place of its nodes.

    Attributes:
        run: What it was compiled to: a function of one list of arguments.
    """

    gm: torch.fx.GraphModule
    run: Call | None = None
    __name__ = "ge_part"

    def __call__(self, *args: Any) -> Any:
        assert self.run is not None
        return self.run(list(args))


def copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same nodes with the same metas in a module of its own, to be cut while ``gm`` stays as it is."""
    graph = torch.fx.Graph()
    environment: dict[FxNode, FxNode] = {}
    for node in gm.graph.nodes:
        environment[node] = graph.node_copy(node, environment.__getitem__)
    return torch.fx.GraphModule(gm, graph)


def refused_nodes(gm: torch.fx.GraphModule, error: LoweringError) -> set[str]:
    """Names of the nodes of ``gm`` that an error is about; what reads an input that GE does not know is among them."""
    own = {n.name: n for n in gm.graph.nodes}
    names: set[str] = set()
    for name in getattr(error, "refused", ()):
        node = own.get(name)
        if node is None or node.op == "output":
            continue
        names |= {u.name for u in node.users if u.op != "output"} if node.op == "placeholder" else {name}
    return names


def must_stay_whole(gm: torch.fx.GraphModule) -> bool:
    """Whether nodes mean something to those between them (scopes, waits), which a cut would lose."""
    return any(effect_of(n.target) is not None for n in gm.graph.nodes if n.op == "call_function")


def cut(gm: torch.fx.GraphModule, refused: Iterable[str]) -> list[GraphPart]:
    """Put a ``GraphPart`` in the place of each run of nodes that GE computes.

    Args:
        gm: ATen graph, edited in place.
        refused: Names of the nodes that stay as they are.

    Returns:
        The parts in the order in which they run.
    """
    graph = gm.graph
    kept = set(refused)
    writes = _take_writes(graph)
    _one_reader_each(gm)
    stages = _stages(graph, kept)
    groups: dict[int, dict[FxNode, int | None]] = {}
    for node, stage in stages.items():
        if stage % 2:
            groups.setdefault(stage, {})[node] = None
    for node in graph.nodes:
        if node.op == "get_attr" and node.users and (stage := stages.get(next(iter(node.users)), 0)) % 2:
            groups[stage][node] = None
    order = [groups[stage] for stage in sorted(groups)]
    fuse_by_partitions(gm, order, prefix=_PART, always_return_tuple=True)
    graph = gm.graph  # the fuser makes another one
    parts = []
    for node in list(graph.nodes):
        if node.op == "call_module" and str(node.target).startswith(_PART):
            parts.append(_call_part(gm, node))
    _write_back(graph, writes)
    graph.lint()
    return parts


def _take_writes(graph: torch.fx.Graph) -> list[tuple[str, list[int]]]:
    """Take ``copy_`` into inputs out; gives the input's name and which results of the graph are that input then.

    The values are results of the graph as long as it is cut.
    """
    output = output_node(graph)
    values = output_values(graph)
    writes: list[tuple[str, list[int]]] = []
    written: list[FxNode] = []
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy_.default or node.args[0].op != "placeholder":
            continue
        places = [i for i, v in enumerate(values) if v is node]
        writes.append((node.args[0].name, places))
        written.append(node.args[1])
        for i in places:
            values[i] = node.args[1]
    output.args = ((*values, *written),)
    for node in reversed(list(graph.nodes)):
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            graph.erase_node(node)
    return writes


def _write_back(graph: torch.fx.Graph, writes: Sequence[tuple[str, list[int]]]) -> None:
    inputs = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    output = output_node(graph)
    values = output_values(graph)
    count = len(values) - len(writes)
    final, extra = values[:count], values[count:]
    with graph.inserting_before(output):
        for (name, places), value in zip(writes, extra, strict=True):
            made = graph.call_function(torch.ops.aten.copy_.default, (inputs[name], value))
            made.meta["val"] = value_of(inputs[name])
            for i in places:
                final[i] = made
    output.args = (tuple(final),)


def _one_reader_each(gm: torch.fx.GraphModule) -> None:
    """Give each reader of a constant or of an inner graph a node of its own, so that it moves with its reader."""
    for node in list(gm.graph.nodes):
        if node.op != "get_attr":
            continue
        for user in list(node.users)[1:]:
            with gm.graph.inserting_before(node):
                twin = gm.graph.node_copy(node)
            user.replace_input_with(node, twin)


def _stages(graph: torch.fx.Graph, kept: set[str]) -> dict[FxNode, int]:
    """Node to stage: even ones run eagerly, odd ones on GE."""
    stages: dict[FxNode, int] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        ready = max((stages.get(n, 0) for n in node.all_input_nodes), default=0)
        if node.target is operator.getitem or (node.name not in kept and _is_number(node)):
            stages[node] = ready  # where its source is
        else:
            eager = node.name in kept or not node.users
            stages[node] = ready + (ready % 2 if eager else 1 - ready % 2)
    return stages


def _is_number(node: FxNode) -> bool:
    return isinstance(value_of(node), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _call_part(gm: torch.fx.GraphModule, node: FxNode) -> GraphPart:
    name = str(node.target)
    part = GraphPart(getattr(gm, name))
    delattr(gm, name)
    with gm.graph.inserting_before(node):
        made = gm.graph.call_function(part, node.args)
    made.meta.update(node.meta)
    made.name = name
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
    return part


def bytes_of(values: Iterable[Any]) -> int:
    """Bytes of tensors, with the sizes of the present trace."""
    total = 0
    for value in values:
        if isinstance(value, (list, tuple)):
            total += bytes_of(value)
        elif isinstance(value, torch.Tensor):
            sizes = (s.node.hint if isinstance(s, torch.SymInt) and s.node.has_hint() else s for s in value.shape)
            count = 1
            for size in sizes:
                count *= size if isinstance(size, int) else 1
            total += count * value.dtype.itemsize
    return total


def described(gm: torch.fx.GraphModule, refused: Iterable[str], reasons: dict[str, str]) -> list[str]:
    """One line for each node that runs eagerly: what, where, what passes through it, why."""
    lines = []
    chosen = set(refused)
    for node in gm.graph.nodes:
        if node.name in chosen and node.target is not operator.getitem:
            wrapped = next((a for a in node.args[:2] if isinstance(a, torch._ops.OpOverload)), None)
            what = str(wrapped) if wrapped is not None else fx_target(node)
            read, made = bytes_of(map(value_of, node.all_input_nodes)), bytes_of([value_of(node)])
            place = user_frame(node)[0]
            where = f" at {place}" if place else ""
            lines.append(f"{what} (%{node.name}{where}): {read} bytes in, {made} bytes out; {reasons[node.name]}")
    return lines


def parts_of(gm: torch.fx.GraphModule) -> list[str]:
    """What runs where, one line each, in the order of the program."""
    lines = []
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or _is_number(node):
            continue
        if isinstance(node.target, GraphPart):
            count = sum(n.op == "call_function" for n in node.target.gm.graph.nodes)
            lines.append(f"GE: {node.name}, {count} nodes")
        else:
            lines.append(f"eager: {fx_target(node)} (%{node.name})")
    return lines
