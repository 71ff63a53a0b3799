"""Whether scopes are balanced and waits can end."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from ge_graph.errors import ConfigError
from torchair.oplib.torch_ops import name_of

FxNode: TypeAlias = torch.fx.Node


def effect(node: FxNode) -> str:
    """``scope_enter``, ``scope_exit``, ``record``, ``wait``, or nothing."""
    name = name_of(node.target)
    return name if name in ("scope_enter", "scope_exit", "record", "wait") else ""


def scope_problem(graph: torch.fx.Graph) -> str:
    """What is wrong with the scopes and waits of a graph, with the node; empty if nothing is.

    A graph that has no problem here cannot dead-lock: every wait stands after what it waits for, so the order of the
    nodes is one that satisfies all waits, whatever streams they are on.
    """
    opened: list[FxNode] = []
    seen: set[FxNode] = set()
    for node in graph.nodes:
        kind = effect(node)
        if kind == "scope_enter":
            keys, values = node.args[:2]
            if len(keys) != len(values):
                return f"{node.format_node()} gives {len(values)} values for {len(keys)} keys"
            opened.append(node)
        elif kind == "scope_exit":
            if not opened:
                return f"{node.name} closes a scope but none is open"
            opened.pop()
        elif kind == "wait":
            problem = _wait_problem(node, seen)
            if problem:
                return problem
        seen.add(node)
    return f"the scope of {opened[-1].name} {opened[-1].args} is never closed" if opened else ""


def _wait_problem(node: FxNode, seen: set[FxNode]) -> str:
    producers: Any = node.args[0] if node.args else []
    producers = list(producers) if isinstance(producers, (list, tuple)) else [producers]
    if not producers:
        return f"{node.name} waits for nothing"
    for producer in producers:
        if not isinstance(producer, torch.fx.Node):
            return f"{node.name} waits for {producer!r}, which is never recorded: a dead-lock"
        if producer not in seen:
            return f"{node.name} stands in front of {producer.name}, for which it waits: a dead-lock"
    return ""


def check_scopes(graph: torch.fx.Graph) -> None:
    """Refuse scopes that are not closed and waits that cannot end.

    Errors: ConfigError GE1055.
    """
    problem = scope_problem(graph)
    if problem:
        raise ConfigError(
            "GE1055",
            f"scopes of the graph: {problem}",
            next="close every scope in the function that opens it, without a graph break inside, and record before "
            "waiting",
        )
