"""Whether one FX node can be converted and, if not, why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.lowering.calls import NoConverter
from ge_converters.lowering.graph_lowering import GraphLowering
from ge_converters.registry import Entry, Registry
from ge_graph import building


@dataclass(frozen=True, slots=True)
class Convertible:
    """The node can be converted."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Refused:
    """A converter exists and says no to this call form."""

    reason: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Nobody converts this op; ``near`` names ops that are converted and look alike."""

    near: tuple[str, ...] = ()


Explanation: TypeAlias = "Convertible | Refused | Absent"


def explain(node: torch.fx.Node, registry: Registry) -> Explanation:
    """Found, Refused or Absent for one node, found by lowering it on a scratch graph."""
    walk = GraphLowering(node.graph.owning_module or torch.nn.Module(), "scratch", registry)
    with building(walk.graph):
        for argument in node.all_input_nodes:
            held = walk.held(argument) if argument.op == "get_attr" else None
            # a graph that the node runs is asked too; a tensor is as good as any other of its type
            is_graph = isinstance(held, torch.nn.Module)
            walk.env[argument] = held if is_graph else walk.stand_in(argument.meta.get("val", held))
        try:
            walk.lower_call(node)
            if walk.problems:  # in a graph that the node runs
                return Refused(walk.problems[0].reason.removeprefix("refused: "))
            entry = registry.find(node.target)
            return Convertible(entry) if entry is not None else Convertible(_own(node.target))
        except Refusal as refusal:
            return Refused(refusal.reason)
        except NoConverter as missing:
            return Absent(missing.near)
        except LoweringError as e:
            return Refused(str(e))


def _own(target: Any) -> Entry:
    return Entry(target, GraphLowering.lower_call, "the walk itself", f"{__file__}", "built-in", False)
