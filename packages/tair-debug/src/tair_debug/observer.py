"""What the compiler tells while it works: one protocol, called at every stage. Observers look, they change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import torch

from ge_graph import Graph


@dataclass(frozen=True, slots=True)
class GraphId:
    """Which compilation an event belongs to.

    Attributes:
        model_id: Number of the dynamo graph in this process, from 0; forward and backward share it.
        phase: Which half of a training graph it is; inference is forward.
        graph_id: Number of the GE graph in this process, from 1.
    """

    model_id: int
    phase: Literal["forward", "backward"]
    graph_id: int


@runtime_checkable
class CompileObserver(Protocol):
    """Gets every stage of a compilation. An exception in an observer reaches the user.

    An observer may also have ``unchanged(stage, label, kind)``, which is called for a pass that ran and changed
    nothing; ``kind`` is ``fx`` or ``ge``. And ``captured(stage, identity, dump)``, which is called for each graph that
    a device captured while running: ``identity`` tells it from others alive, ``dump(path)`` writes it as JSON.
    """

    def dynamo_graph(self, model_id: int, gm: torch.fx.GraphModule) -> None:
        """The graph as dynamo captured it."""

    def fx_graph(self, stage: GraphId, label: str, gm: torch.fx.GraphModule) -> None:
        """An ATen graph: ``label`` is empty right after AOTAutograd, else the pass that has just run."""

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        """A GE graph: ``original`` after lowering, the name of a pass, ``optimized`` after all passes."""

    def output_code(self, stage: GraphId, code: str) -> None:
        """The program that the engine runs, as text."""


class Silent:
    """An observer that ignores every event; others override what they care for."""

    def dynamo_graph(self, model_id: int, gm: torch.fx.GraphModule) -> None:
        """Ignored."""

    def fx_graph(self, stage: GraphId, label: str, gm: torch.fx.GraphModule) -> None:
        """Ignored."""

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        """Ignored."""

    def unchanged(self, stage: GraphId, label: str, kind: Literal["fx", "ge"]) -> None:
        """Ignored."""

    def output_code(self, stage: GraphId, code: str) -> None:
        """Ignored."""


_active: Final[list[CompileObserver]] = []


@contextmanager
def observing(observer: CompileObserver) -> Iterator[None]:
    """Let ``observer`` see every compilation that happens inside the block."""
    _active.append(observer)
    try:
        yield
    finally:
        _active.remove(observer)


def active() -> tuple[CompileObserver, ...]:
    """The observers of the open ``observing`` blocks."""
    return tuple(_active)
