"""The protocol every engine speaks. Torch-free: what a tensor is belongs to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ge_graph.ir import Graph, Literal, Node


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether an engine can serve here and now.

    Attributes:
        available: True if ``compile`` can work.
        reason: Why (not), in one or more plain sentences.
        devices: Device types whose tensors it takes, ``("cpu",)``.
    """

    available: bool
    reason: str
    devices: tuple[str, ...] = ()


@runtime_checkable
class Executable(Protocol):
    """A compiled graph."""

    @property
    def source(self) -> str:
        """The program as text, for dumps; empty if the engine has none."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the graph.

        Args:
            inputs: One tensor per Data or RefData node, in index order. Strides are arbitrary. RefData inputs are
                updated in place by Assign and its relatives, nothing else is written.

        Returns:
            One tensor per graph output. They share memory neither with inputs nor constants nor each other, unless the
            caller asked an engine for a result in an input's place.

        Errors:
            EngineError GE4004 if number, type or size of the inputs is not the graph's; GE4005 if a kernel fails.
        """

    def run_traced(
        self, inputs: Sequence[Any], on_node: Callable[[Node, Sequence[Any], Sequence[Any]], None]
    ) -> list[Any]:
        """Like ``run``, and call ``on_node(node, inputs, outputs)`` after each node; keep no tensor beyond the call.

        Errors:
            EngineError GE4025 if the engine runs graphs as a whole.
        """


def boxed(executable: Executable, *, guarded: bool) -> Callable[[list[Any]], list[Any]]:
    """``run`` as a function of a list that it empties, so that an engine can free each input after its last use.

    Args:
        executable: May have a method ``boxed`` of its own with the same keyword; else ``run`` is called.
        guarded: Somebody else has made sure that number, types and sizes of the inputs are the graph's, as dynamo's
            guards do; the executable need not look again. Numbers may stand for scalar inputs nevertheless.

    Errors: as ``Executable.run``.
    """
    own = getattr(executable, "boxed", None)
    if own is not None:
        return own(guarded=guarded)  # type: ignore[no-any-return]

    def run(inputs: list[Any]) -> list[Any]:
        results = executable.run(inputs)
        inputs.clear()
        return results

    return run


@runtime_checkable
class Engine(Protocol):
    """Something that runs GE graphs; found through the entry points ``ge_runtime.engines``.

    May have a method ``opened_groups(groups, seconds)``: a context in which the process groups that a graph names
    exist, made together with the other processes of each.
    """

    @property
    def name(self) -> str:
        """Short name, as TAIR_ENGINE and the configuration use it."""

    def probe(self) -> Capability:
        """Say whether the engine can serve here, without side effects and without raising."""

    def place(self, value: Literal) -> Any:
        """A constant as a tensor of the engine's own, in memory that graphs may write to."""

    def compile(self, graph: Graph, options: Mapping[str, str]) -> Executable:
        """Plan the graph once; the executable may be run any number of times.

        Errors:
            GraphError if the graph breaks a rule of its schemas; EngineError GE4003 for operators without a kernel,
            GE4007 for an option the engine does not take, GE4010 if the engine is not available.
        """
