"""What a graph costs before there is a device: operations, bytes, memory, and time by a chip's published figures.

shapes = cost.Shapes(graph, {"s0": 128})
work = cost.work.of(shapes, node)                  # operations, bytes read and written
cost.Memory(graph).at({"s0": 128}).peak            # lifetimes are found once, sizes as often as asked for
"""

from __future__ import annotations

from ge_graph.cost import chips
from ge_graph.cost.analysis import MemoryAnalysis, cost_analysis, memory_analysis
from ge_graph.cost.memory import Memory, MemoryPlan
from ge_graph.cost.sizes import Shapes, bind, number, symbols
from ge_graph.cost.work import Work

__all__ = [
    "Memory",
    "MemoryAnalysis",
    "MemoryPlan",
    "Shapes",
    "Work",
    "bind",
    "chips",
    "cost_analysis",
    "memory_analysis",
    "number",
    "symbols",
]
