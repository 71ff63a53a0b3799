"""From an ATen graph to the GE graph that an engine gets: lower, GE passes, verify.

This order stands here alone; the backend, exports, the self-test of converters and the debug commands all come through
it, so that what is compared, printed or tested is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from ge_converters.base.progress import Progress
from ge_converters.lowering import Lowered, lower
from ge_converters.registry import Registry
from ge_graph import passes
from ge_graph.verify import verify

Prepared: TypeAlias = tuple[Lowered, Sequence[passes.Pass]]


def _as_it_is(lowered: Lowered) -> Prepared:
    return lowered, passes.DEFAULT


def convert_graph(
    gm: torch.fx.GraphModule,
    *,
    name: str = "graph_1",
    registry: Registry | None = None,
    specialise: bool = False,
    keep_values: bool = False,
    prepare: Callable[[Lowered], Prepared] = _as_it_is,
    progress: Progress = Progress(),
) -> Lowered:
    """Convert an ATen graph to a verified GE graph.

    Args:
        gm: Functional ATen graph whose nodes carry ``meta["val"]``.
        name: Name of the GE graph.
        registry, specialise, keep_values: See ``ge_converters.lowering.lower``.
        prepare: Looks at the bindings before the GE passes; gives those to go on with and the passes to run.
        progress: Who follows it.

    Errors: LoweringError as ``lower`` says, GraphError for what GE would refuse.
    """
    with progress.timed("lower") as note:
        lowered = lower(gm, name=name, registry=registry, specialise=specialise, keep_values=keep_values)
        note(f"{len(gm.graph.nodes)} FX nodes to {len(lowered.graph.nodes)} GE nodes")
    progress.ge_graph("original", lowered.graph)
    return finish(*prepare(lowered), progress)


def finish(
    lowered: Lowered, chosen: Sequence[passes.Pass] = passes.DEFAULT, progress: Progress = Progress()
) -> Lowered:
    """The stages after lowering, for a caller that has a lowered graph already; changes it in place.

    Errors: GraphError for what GE would refuse.
    """
    graph = lowered.graph
    before = len(graph.nodes)
    with progress.timed("GE passes") as note:
        passes.run(graph, chosen, on_pass=progress.ge_graph, on_idle=progress.ge_unchanged, around=progress.ge_rewrite)
        note(f"{before} to {len(graph.nodes)} GE nodes")
    with progress.timed("verify") as note:
        verify(graph)
        note(f"{len(graph.nodes)} GE nodes")
    progress.ge_graph("optimized", graph)
    return lowered
