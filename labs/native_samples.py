"""What both sides of `make native` share: which entries, which sample of each, which operators of a graph count."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ge_graph import Graph
from labs import opinfo

_FREE = frozenset(["Data", "RefData", "Const", "Constant", "NetOutput"])


@functools.cache
def entries(names: tuple[str, ...] = ()) -> list[Any]:
    return [op for op, _ in opinfo.all_checks(names, ("f32",))]


def first_sample(op: Any) -> tuple[Any, Any] | None:
    """(arguments, keyword arguments) of the first float32 sample that eager takes; None if it takes none."""
    torch.manual_seed(5)
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
        args, kwargs = opinfo.clone(((sample.input, *sample.args), sample.kwargs))
        try:
            op.op(*opinfo.clone(args), **opinfo.clone(kwargs))
        except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError):
            continue
        return args, kwargs
    return None


def live(graph: Graph) -> list[str]:
    """Operator types of the nodes that an engine runs: those that lead to a result or have an effect."""
    wanted = [t.node for t in graph.outputs]
    wanted += [n for n in graph.nodes if not n.outputs]
    seen = set()
    while wanted:
        node = wanted.pop()
        if node in seen:
            continue
        seen.add(node)
        wanted += [t.node for t in node.operands()]
        wanted += list(getattr(node, "control", ()))
    return [n.op for n in graph.nodes if n in seen and n.op not in _FREE]
