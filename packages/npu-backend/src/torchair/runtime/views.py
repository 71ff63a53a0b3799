"""Results that are views stay views.

An ATen graph may return a tensor together with views of it, or views of its inputs (saved for backward, mostly). To the
engine every result is memory of its own, so those views are taken off the graph and made again on the results, after
the run: they share memory as in eager, and nobody copies a weight to hand out its transpose. So are views that are not
row-major, such as a transpose, a slice of columns or an expanded row: GE would copy to make them, the host need not.

A view of an input that the call writes is made of the input: what the graph computes is dense, the input may be a view
itself, and torch gives the caller memory by the strides and the offset of the view that it gets here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from ge_converters.base.torch_compat import results_of_inputs
from torchair.passes.base import output_node, row_major, viewed


@dataclass(frozen=True, slots=True)
class View:
    """One step of a view: ``target(*args, **kwargs)``; nodes among the arguments are results or earlier views."""

    node: torch.fx.Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """How the values that the caller expects come from what the graph returns.

    Attributes:
        returned: What the graph returns: nodes or plain values, one an output.
        views: Steps to take on them, in order.
        wanted: What the caller expects: nodes of ``returned`` or of ``views``, or plain values.
    """

    returned: list[Any]
    views: list[View]
    wanted: list[Any]


def take_views(gm: torch.fx.GraphModule) -> ViewPlan:
    """Let the graph return the memory that its results lie in, and plan the views of it.

    Edits the output node of ``gm.graph`` and erases views that nobody else reads.
    """
    graph = gm.graph
    output = output_node(graph)
    bare = not isinstance(output.args[0], (tuple, list))
    wanted: list[Any] = [output.args[0]] if bare else list(output.args[0])
    chains = {n: chain for n in wanted if isinstance(n, torch.fx.Node) and (chain := _chain(n))}
    shared = Counter(_base(chains, n) for n in dict.fromkeys(n for n in wanted if isinstance(n, torch.fx.Node)))
    written = _written_back(graph)
    replayed: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for n, chain in chains.items():
        base = _base(chains, n)
        own = base.op != "placeholder" and base not in written and shared[base] == 1
        if rest := _not_dense(chain) if own else chain:
            replayed[n] = rest
    if not replayed:
        return ViewPlan(wanted, [], wanted)
    steps: dict[torch.fx.Node, View] = {}
    for chain in replayed.values():
        for node in chain:
            steps.setdefault(node, View(node, node.target, node.args, dict(node.kwargs)))
    returned: dict[Any, None] = {}
    for value in wanted:
        if value not in steps and isinstance(value, torch.fx.Node):
            returned[value] = None
    for step in steps.values():
        torch.fx.map_arg((step.args, step.kwargs), lambda n: None if n in steps else returned.setdefault(n))
    plain = [v for v in wanted if not isinstance(v, torch.fx.Node)]
    plan = ViewPlan([*returned, *plain], list(steps.values()), wanted)
    output.args = (tuple(plan.returned),)
    for node in reversed(steps):
        if not node.users:
            graph.erase_node(node)
    return plan


def view_the_inputs(gm: torch.fx.GraphModule) -> None:
    """Make results that are views of what an input becomes views of that input, in the forward graph being compiled.

    torch reads no value of these results. Nothing happens to a graph of which torch says nothing.
    """
    of_inputs = results_of_inputs()
    if not of_inputs.views:
        return
    graph = gm.graph
    output = output_node(graph)
    returned = output.args[0]
    inputs = graph.find_nodes(op="placeholder")
    if not isinstance(returned, (tuple, list)) or max(of_inputs.views) >= len(returned):
        return  # somebody else's graph
    updates = {returned[at]: inputs[of] for at, of in of_inputs.updates.items() if of < len(inputs)}
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    updates |= {n.args[1]: n.args[0] for n in copies}
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    wanted = list(returned)
    for at, of in of_inputs.views.items():
        chain = _chain(wanted[at]) if isinstance(wanted[at], torch.fx.Node) else []
        starts = [i for i, node in enumerate(chain) if updates.get(node.args[0]) is inputs[of]]
        if not starts:
            continue
        chain = chain[starts[-1] :]
        made[chain[0].args[0]] = inputs[of]
        for node in chain:
            if node not in made:
                with graph.inserting_before(output):
                    made[node] = graph.node_copy(node, lambda n: made.get(n, n))
        wanted[at] = made[chain[-1]]
    output.args = (tuple(wanted),)
    for node in reversed(made):
        if node.op == "call_function" and not node.users and viewed(node) is not None:
            graph.erase_node(node)


def _written_back(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Values that the graph copies into its inputs. A view of one is a view of the input to the caller, who rebuilds
    it from the strides and the offset that we return.
    """
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {n.args[1] for n in copies if isinstance(n.args[1], torch.fx.Node)}


def _base(chains: dict[torch.fx.Node, list[torch.fx.Node]], node: torch.fx.Node) -> torch.fx.Node:
    chain = chains.get(node)
    base = chain[0].args[0] if chain else node
    assert isinstance(base, torch.fx.Node)
    return base


def _not_dense(chain: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """The end of a chain of views, from the last value on that is row-major as GE's results are."""
    for i in reversed(range(len(chain))):
        value = chain[i].meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        if row_major(value):
            return chain[i + 1 :]
    return chain


def _chain(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The views from the memory's owner to ``node``, first step first; empty if ``node`` owns its memory."""
    chain: list[torch.fx.Node] = []
    source = viewed(node)
    while source is not None:
        chain.append(node)
        node, source = source, viewed(source)
    return chain[::-1]
