"""Costs of a graph under the names that JAX gives them: ``cost_analysis`` and ``memory_analysis``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ge_graph.cost import chips, time, work
from ge_graph.cost.memory import Memory
from ge_graph.cost.sizes import Shapes, symbols
from ge_graph.errors import GraphError
from ge_graph.ir import Graph


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Memory in bytes; blocks begin at multiples of 512.

    Attributes:
        argument_size_in_bytes: Inputs of the graph.
        output_size_in_bytes: Results, those that are an input's memory too.
        alias_size_in_bytes: Results that are an input's memory.
        temp_size_in_bytes: Intermediate results, constants left out.
        constant_size_in_bytes: Constants and weights inside the graph.
        peak_memory_in_bytes: All of it at the worst moment.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    constant_size_in_bytes: int
    peak_memory_in_bytes: int


def _sizes(graph: Graph, sizes: Mapping[str, int] | None) -> Shapes:
    missing = [s for s in symbols(graph) if s not in (sizes or {})]
    if missing:
        raise GraphError(
            "GE3072",
            f"graph '{graph.name}' has sizes that are open: {', '.join(missing)}",
            next="give their values: cost_analysis({'s0': 128})",
        )
    return Shapes(graph, sizes)


def cost_analysis(graph: Graph, sizes: Mapping[str, int] | None = None, soc: str | None = None) -> dict[str, float]:
    """Operations and bytes of a graph.

    Args:
        graph: The graph.
        sizes: Values of its symbols.
        soc: A chip, to have ``optimal_seconds`` too: a bound by published peaks.

    Returns:
        ``flops``, ``bytes accessed``; operators whose sizes are not known count as nothing, and ``unknown operators``
        says how many they are.

    Raises:
        GraphError: GE3072 if a symbol has no value, GE3073 for a chip without figures.
    """
    shapes = _sizes(graph, sizes)
    figures = chips.figures(soc) if soc is not None else None
    flops = moved = seconds = 0.0
    unknown = 0
    for node in graph.nodes:
        done = work.of(shapes, node)
        flops += done.flops or 0
        moved += done.bytes or 0
        unknown += done.flops is None or done.bytes is None
        seconds += time.of(done, figures, node).bound if figures is not None else 0.0
    found = {"flops": flops, "bytes accessed": moved, "unknown operators": float(unknown)}
    return found if figures is None else {**found, "optimal_seconds": seconds}


def memory_analysis(graph: Graph, sizes: Mapping[str, int] | None = None) -> MemoryAnalysis:
    """Memory of a graph.

    Raises:
        GraphError: GE3072 if a symbol has no value.
    """
    made = Memory(graph).at(_sizes(graph, sizes))
    return MemoryAnalysis(
        made.arguments,
        made.outputs + made.aliased,
        made.aliased,
        made.packed - made.outputs,
        made.constants,
        made.total,
    )
