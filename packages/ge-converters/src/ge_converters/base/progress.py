"""Who follows a conversion: the log, a report, a record on disk, or nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from ge_graph import Graph

Note: TypeAlias = Callable[[str], None]


class Progress:
    """Who follows a conversion; this one does nothing."""

    def timed(self, stage: str) -> AbstractContextManager[Note]:
        """Surrounds a stage; what it gives takes one line about the stage's result."""
        return contextlib.nullcontext(_ignore)

    def ge_graph(self, label: str, graph: Graph) -> None:
        """The graph as lowered (``original``), after each pass that changed it (its name), and in the end
        (``optimized``)."""

    def ge_rewrite(self, name: str, graph: Graph) -> AbstractContextManager[None]:
        """Surrounds each pass over the graph."""
        return contextlib.nullcontext()

    def ge_unchanged(self, label: str) -> None:
        """A pass that changed nothing."""


def _ignore(note: str) -> None:
    pass
