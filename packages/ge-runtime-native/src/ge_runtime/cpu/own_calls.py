"""A node without kernel that stands for a call of the user's operator: the user's CPU implementation runs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ge_graph import schema
from ge_graph.ir import Given, Node, OwnCall
from ge_runtime.cpu import registry
from ge_runtime.cpu.registry import Kernel
from ge_runtime.cpu.torch_compat import runs_on_the_cpu


def kernel_of(node: Node) -> Kernel | None:
    """The kernel of a node's operator; else the call of a user's operator that the node stands for; else None."""
    found = registry.find(node.op)
    call = None if found is not None or node.provenance is None else node.provenance.own_call
    if call is None or call.node_op != node.op or not runs_on_the_cpu(call.function):
        return found
    return Kernel(node.op, _caller(node, call), source=str(call.function))


def stands_in(node: Node) -> bool:
    """Whether the user's implementation computes a node."""
    call = None if node.provenance is None else node.provenance.own_call
    return call is not None and call.node_op == node.op and registry.find(node.op) is None


def say(node: Node) -> None:
    """Tell that the user's implementation stands in, once for all graphs that share what was told."""
    call = None if node.provenance is None else node.provenance.own_call
    if call is not None and stands_in(node) and node.op not in call.told:
        call.told.add(node.op)
        warnings.warn(
            f"{node.op} has no kernel on the embedded engine: the CPU implementation of {call.function} computes it. "
            f'`from ge_runtime.cpu import kernel`, then `@kernel("{node.op}")` registers one',
            stacklevel=2,
        )


def _caller(node: Node, call: OwnCall) -> Any:
    """The implementation as a kernel: it gets tensors in port order, and what it writes are copies."""
    op_schema = schema.get(node.op)
    by_name = {} if op_schema is None else dict(op_schema.in_place)  # input port to output port
    firsts: dict[int, int] = {}  # input port to its first operand
    count = 0
    for port, entry in enumerate(node.inputs):
        firsts[port] = count
        count += 0 if entry is None else len(entry) if isinstance(entry, tuple) else 1
    updated = {output: firsts[port] for port, output in by_name.items() if firsts.get(port) in call.written}

    def run(*ports: Any, **attributes: Any) -> Any:
        operands = [t for t in pytree.tree_leaves(ports) if isinstance(t, torch.Tensor)]
        for position in call.written:
            operands[position] = operands[position].clone()
        args, keywords = pytree.tree_map(
            lambda v: operands[v.position] if isinstance(v, Given) else v,
            (call.args, dict(call.keywords)),
            is_leaf=lambda v: isinstance(v, Given),
        )
        returned = call.function(*args, **keywords)
        own = iter([returned] if isinstance(returned, torch.Tensor) else returned or ())
        results = [operands[updated[i]] if i in updated else next(own) for i in range(len(node.outputs))]
        return results[0] if len(results) == 1 else tuple(results)

    return run
