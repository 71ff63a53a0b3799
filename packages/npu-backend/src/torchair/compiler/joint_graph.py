"""Forward and backward as one graph: ``aot_config_enable_joint_graph``.

With ``aot_config_output_loss_index = 0`` the forward graph computes the gradients too, as for a loss whose own gradient
is 1; the backward graph only scales them. Without it the backward graph is the whole joint graph: it runs the forward
again from the inputs and saves nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from ge_converters.base.operators import aten
from ge_graph.errors import ConfigError
from torchair.passes.base import output_node, output_values, value_of

FxNode: TypeAlias = torch.fx.Node
Halves = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


def partition(loss_index: int | None) -> Callable[..., Halves]:
    """The ``partition_fn`` for AOTAutograd.

    Args:
        loss_index: Value of ``aot_config_output_loss_index``.

    Errors: the function raises ConfigError GE1057 for a graph that has no such form.
    """
    return functools.partial(_with_loss if loss_index is not None else _recomputing)


def _refuse(why: str) -> ConfigError:
    return ConfigError(
        "GE1057",
        f"experimental_config.aot_config_enable_joint_graph: {why}",
        next="let the compiled function return the loss alone, or switch the option off",
    )


def _inputs(joint: torch.fx.GraphModule) -> tuple[list[FxNode], list[FxNode]]:
    placeholders = [n for n in joint.graph.nodes if n.op == "placeholder"]
    tangents = [n for n in placeholders if str(n.target).startswith("tangents")]
    return [n for n in placeholders if n not in tangents], tangents


def _with_loss(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Halves:
    from ge_converters.base.torch_compat import split_joint_graph

    graph = joint.graph
    _, tangents = _inputs(joint)
    values = output_values(graph)
    if len(tangents) != 1 or value_of(tangents[0]).numel() != 1:
        shown = ", ".join(f"{list(value_of(t).shape)}" for t in tangents) or "none"
        raise _refuse(f"aot_config_output_loss_index = 0 needs one result with a gradient, of one element; got {shown}")
    (tangent,) = tangents
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    one = value_of(tangent)
    with graph.inserting_after(last):
        ones = graph.call_function(aten.full.default, (list(one.shape), 1), {"dtype": one.dtype, "device": one.device})
    ones.meta["val"] = one
    tangent.replace_all_uses_with(ones)
    scaled, saved = [], []
    with graph.inserting_before(output_node(graph)):
        for gradient in values[num_fwd_outputs:]:
            node = ones if gradient is tangent else gradient
            scaled.append(_scaled(graph, node, tangent) if isinstance(node, torch.fx.Node) else node)
            if isinstance(node, torch.fx.Node) and node not in saved:
                saved.append(node)
    output_node(graph).args = ((*values[:num_fwd_outputs], *scaled),)
    return split_joint_graph(joint, saved, num_fwd_outputs=num_fwd_outputs)


def _scaled(graph: torch.fx.Graph, gradient: FxNode, tangent: FxNode) -> FxNode:
    """The gradient of the loss times the loss's own; times 1 it keeps its bits."""
    value, factor = value_of(gradient), value_of(tangent)
    scalar = graph.call_function(aten.view.default, (tangent, []))
    scalar.meta["val"] = factor.new_empty(())
    made = graph.call_function(aten.mul.Tensor, (gradient, scalar))
    made.meta["val"] = value
    if torch.result_type(value, scalar.meta["val"]) != value.dtype:
        made.meta["val"] = value.to(torch.result_type(value, scalar.meta["val"]))
        made = graph.call_function(aten._to_copy.default, (made,), {"dtype": value.dtype})
        made.meta["val"] = value
    return made


def _recomputing(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Halves:
    from ge_converters.base.torch_compat import split_joint_graph

    for node in joint.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
            raise _refuse(f"{node.name} draws random numbers, which the joint graph would draw a second time")
    primals, _ = _inputs(joint)
    saved = [n for n in primals if isinstance(value_of(n), torch.Tensor)]
    return split_joint_graph(joint, saved, num_fwd_outputs=num_fwd_outputs)
