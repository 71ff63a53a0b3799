"""Operators of torch_npu that overwrite operands without saying so: their schemas name no written argument.

A program that reads its cache in the next step counts on the writing, which eager does. So dynamo's graph is told:
each result that holds an operand's new value is copied into the operand, and all that follows treats the operand as
written. Where the operand is memory of the caller, it has the new value after the graph.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

# Operator: which arguments it overwrites, and which result has the new value of each. After torch_npu's documentation.
WRITTEN: Final = {"npu_kv_rmsnorm_rope_cache": {"k_cache": 0, "ckv_cache": 1}}


def tell_of_written_operands(gm: torch.fx.GraphModule) -> None:
    """Add the copies to a graph of dynamo, in place; nothing if there is no such operator."""
    changed = False
    for node in list(gm.graph.nodes):
        name, schema = _operator(node)
        for argument, result in WRITTEN.get(name, {}).items():
            operand = _passed(node, schema, argument)
            if isinstance(operand, torch.fx.Node):
                with gm.graph.inserting_after(node):
                    value = gm.graph.call_function(operator.getitem, (node, result))
                with gm.graph.inserting_after(value):
                    gm.graph.call_method("copy_", (operand, value))
                changed = True
    if changed:
        gm.recompile()


def _operator(node: torch.fx.Node) -> tuple[str, Any]:
    """Name and schema of torch_npu's operator that a node calls; nothing for any other node."""
    target = node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "npu":
        return "", None
    return target._schema.name.partition("::")[2], target._schema


def _passed(node: torch.fx.Node, schema: Any, name: str) -> Any:
    at = [a.name for a in schema.arguments].index(name)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name)
