"""What one compilation did and how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NOT_CONVERSION: Final = frozenset(("prepare", "load converters", "engine"))


@dataclass(slots=True)
class CompileReport:
    """One compiled graph.

    Attributes:
        model_id: Number of the dynamo graph in this process.
        phase: ``forward`` or ``backward``.
        graph_id: Number of the GE graph in this process.
        fx_nodes: Calls in the ATen graph as it came from AOTAutograd.
        ge_ops: Operators of the optimized GE graph; inputs and constants do not count. 0 if nothing was lowered.
        stages: Stage to seconds, in the order they ran.
        total_s: Seconds spent in this library for the graph; the first graph of a model counts as ``prepare`` what came
            before AOTAutograd: imports, keys of caches, the table of decompositions.
        parts: For a graph that was split: what runs where, one line a GE graph or eager node, in the order they run.
        rewrites: Under ``config.debug.verify_rewrites``: how many rewrites were evaluated, then one line for each pass
            some of whose rewrites could not be, with the reasons; empty without the option.
    """

    model_id: int
    phase: str
    graph_id: int
    fx_nodes: int = 0
    ge_ops: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    total_s: float = 0.0
    parts: list[str] = field(default_factory=list)
    rewrites: list[str] = field(default_factory=list)

    @property
    def conversion_s(self) -> float:
        """Seconds from the FX graph to the verified GE graph: passes, lowering, verification."""
        return sum(took for name, took in self.stages.items() if name not in NOT_CONVERSION)
