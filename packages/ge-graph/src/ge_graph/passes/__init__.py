"""Passes over the GE graph: each a class that keeps what the graph computes, together a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from ge_graph import schema
from ge_graph.ir import Graph
from ge_graph.kernels import Oracle
from ge_graph.passes.base import Pass, PassResult
from ge_graph.passes.batches import UnjoinBatches
from ge_graph.passes.broadcasts import SpreadLate
from ge_graph.passes.chips import Choice, FitChip, Price
from ge_graph.passes.cleanup import DropDeadNodes
from ge_graph.passes.constants import MergeConstants
from ge_graph.passes.cse import MergeShapeArithmetic
from ge_graph.passes.fusion import FuseOperators
from ge_graph.passes.identities import DropIdentities
from ge_graph.passes.layout import FoldLayout
from ge_graph.passes.moves import JoinMoves
from ge_graph.passes.ref_data import ReplaceDataWithRefData, WriteInputsInPlace
from ge_graph.passes.size_inputs import DropSymbolicInputs
from ge_graph.passes.sizes import FoldSizes
from ge_graph.passes.topology import SortNodes
from ge_graph.passes.twins import MergeTwins
from ge_graph.passes.written import ProtectWrittenTensors

__all__ = [
    "Choice",
    "DEFAULT",
    "DropDeadNodes",
    "DropIdentities",
    "DropSymbolicInputs",
    "FitChip",
    "FoldLayout",
    "FoldSizes",
    "FuseOperators",
    "JoinMoves",
    "MergeConstants",
    "MergeShapeArithmetic",
    "MergeTwins",
    "Pass",
    "PassResult",
    "Price",
    "ProtectWrittenTensors",
    "ReplaceDataWithRefData",
    "SortNodes",
    "SpreadLate",
    "UnjoinBatches",
    "WriteInputsInPlace",
    "for_chip",
    "run",
]

DEFAULT: Final[tuple[Pass, ...]] = (
    FoldSizes(),
    DropIdentities(),
    MergeConstants(),
    SpreadLate(),
    MergeShapeArithmetic(),
    UnjoinBatches(),
    JoinMoves(),
    FoldLayout(),
    MergeTwins(),
    FuseOperators(),
    DropDeadNodes(),
    ProtectWrittenTensors(),
)


def for_chip(
    oracle: Oracle,
    chosen: Sequence[Pass] = DEFAULT,
    *,
    price: Price = lambda graph, nodes: None,
    say: Callable[[Choice], None] | None = None,
) -> list[Pass]:
    """Passes, and the one that gives operators the form which a chip has a kernel for, in its place.

    Args:
        oracle: The chip.
        chosen: The passes.
        price, say: As ``FitChip`` has them; ``ge_graph.cost.forms.price`` is by published figures.
    """
    at = next((i for i, p in enumerate(chosen) if isinstance(p, DropDeadNodes)), len(chosen))
    return [*chosen[:at], FitChip(oracle, price, say), *chosen[at:]]


def run(
    graph: Graph,
    passes: Sequence[Pass] = DEFAULT,
    on_pass: Callable[[str, Graph], None] | None = None,
    on_idle: Callable[[str], None] | None = None,
    *,
    check: bool = False,
    around: Callable[[str, Graph], AbstractContextManager[None]] | None = None,
) -> list[PassResult]:
    """Run passes in order; the graph is changed in place.

    Args:
        passes: What to run; ``DEFAULT`` needs nothing but the graph.
        on_pass: Called with the name of a pass and the graph after each pass that changed something.
        on_idle: Called with the name of each pass that changed nothing.
        check: Hold each pass to its claim, see ``Pass.run``.
        around: Surrounds each pass, given its name and the graph.

    Raises:
        GraphError: GE3051 if a pass does not do what it says.
    """
    results = []
    for step in passes:
        surrounded = nullcontext() if around is None else around(step.name, graph)
        with schema.at_release(graph.release), surrounded:
            result = step.run(graph, check=check)
        results.append(result)
        if result.changed:
            if on_pass is not None:
                on_pass(step.name, graph)
        elif on_idle is not None:
            on_idle(step.name)
    return results
