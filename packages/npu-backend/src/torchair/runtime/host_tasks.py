"""What changes between replays of a captured program without another capture: numbers of the host.

A number that decides no size reaches a captured program in two ways. Tasks that take it in a list on the host are
captured as groups of their own and replaced before a replay; the rest reads a tensor that the host fills.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from ge_converters.base.torch_compat import real_values
from ge_graph import escape
from ge_graph.errors import EngineError, GeError
from torchair.passes.base import value_of
from torchair.passes.step_numbers import TASKS, host_lists, is_number, step_inputs
from torchair.runtime.fx_program import HasGraph, line_of, write_program

FxNode: TypeAlias = torch.fx.Node


class TaskRecorder(Protocol):
    """Who captures tasks that can be replaced."""

    def launch(self, task: HostTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a task so that it can be replaced; returns its results."""


class HostTask:
    """An operator in a program that is captured as a group of its own, or simply called when nobody captures.

    Args:
        where: The user's line, empty if none is known.
    """

    def __init__(self, target: torch._ops.OpOverload, captor: threading.local, where: str) -> None:
        name = target._schema.name.split("::")[1]
        packet = getattr(torch.ops.npu, name)
        self.target, self.out = target, packet.out
        self.workspace = getattr(torch.ops.npu, TASKS[name].workspace).default
        self.lists = TASKS[name].lists
        self.where = where
        self._captor = captor
        self.__name__ = name

    def __str__(self) -> str:
        return f"{self.target}, whose task is replaced before a replay"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder: TaskRecorder | None = getattr(self._captor, "recorder", None)
        return self.target(*args, **kwargs) if recorder is None else recorder.launch(self, args, kwargs)


@dataclass(slots=True)
class StepNumbers:
    """What a program needs from the host before each run.

    Attributes:
        inputs: Positions of arguments that are such numbers.
        values: Of one list of arguments: the lists of each task, in their order, and the numbers that lie in memory.
        memory: Element type and device of each of the latter, which are the program's last arguments.
        tasks: How many tasks are replaced.
        captor: Who captures on this thread.
    """

    inputs: frozenset[int] = frozenset()
    values: Callable[[list[Any]], tuple[Any, Any]] = lambda args: ((), ())
    memory: list[tuple[torch.dtype, torch.device]] = field(default_factory=list)
    tasks: int = 0
    captor: threading.local = field(default_factory=threading.local)


def take_step_numbers(gm: torch.fx.GraphModule) -> tuple[StepNumbers, HasGraph | None]:
    """Let a graph take the numbers that change in every step as a replay can change them.

    Tasks that an update can replace become ``HostTask``; numbers that lie in memory become further inputs. Edits
    ``gm.graph`` only if there are any.

    Returns:
        The numbers, and the graph of which ``StepNumbers.values`` is the program; None if there are none.
    """
    graph = gm.graph
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    found = step_inputs(graph)
    if not found:
        return StepNumbers(), None
    made = StepNumbers(frozenset(i for i, n in enumerate(inputs) if n in found))
    known = _known_numbers(graph, found)
    tasks = [n for n in graph.nodes if host_lists(n) and _reads(n, known)]
    held = [n for n in graph.nodes if n.target is torch.ops.aten.scalar_tensor.default and n.args[0] in known]
    part = _host_part(gm, [n.kwargs for n in tasks], [n.args[0] for n in held])
    made.values = host_program(part)
    made.tasks = len(tasks)
    for node in tasks:
        node.target = HostTask(node.target, made.captor, line_of(node))
    for number, node in enumerate(held):
        with graph.inserting_before(_after(inputs)):
            moved = graph.placeholder(f"held_{number}")
        moved.meta["val"] = value_of(node)
        made.memory.append((value_of(node).dtype, value_of(node).device))
        node.replace_all_uses_with(moved)
        graph.erase_node(node)
        inputs.append(moved)
    return made, part


def _after(inputs: Sequence[FxNode]) -> FxNode:
    return inputs[-1].next


def _known_numbers(graph: torch.fx.Graph, found: frozenset[FxNode]) -> set[FxNode]:
    """The inputs, and the numbers that are made of them."""
    known: set[FxNode] = set(found)
    for node in graph.nodes:
        if node.op == "call_function" and is_number(node) and any(n in known for n in node.all_input_nodes):
            known.add(node)
    return known


def _reads(node: FxNode, known: set[FxNode]) -> bool:
    return any(n in known for n in node.all_input_nodes)


def _host_part(gm: torch.fx.GraphModule, tasks: Sequence[Any], held: Sequence[Any]) -> torch.fx.GraphModule:
    """The part of a graph that computes numbers from its arguments; a number that a result tells is left out."""
    part = torch.fx.Graph()
    copies: dict[FxNode, FxNode] = {}
    for node in gm.graph.nodes:
        of_numbers = node.op == "call_function" and is_number(node) and all(n in copies for n in node.all_input_nodes)
        if node.op == "placeholder" or of_numbers:
            copies[node] = part.node_copy(node, copies.__getitem__)
    lists = [tuple(_lists(kwargs).items()) for kwargs in tasks]
    part.output(torch.fx.map_arg((tuple(lists), tuple(held)), copies.__getitem__))
    part.eliminate_dead_code()
    return torch.fx.GraphModule(gm, part)


def host_program(part: HasGraph) -> Callable[[list[Any]], tuple[Any, Any]]:
    """What computes ``StepNumbers.values``."""
    return write_program(part, "numbers of the host")[0]


def _lists(kwargs: Any) -> dict[str, Any]:
    names = frozenset().union(*(row.lists for row in TASKS.values()))
    return {k: v for k, v in kwargs.items() if k in names and v is not None}


@dataclass(slots=True)
class _Group:
    """One captured task that can be replaced."""

    task: HostTask
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    workspace: torch.Tensor
    outs: list[torch.Tensor]
    handle: Any
    event: Any
    lists: Any = None


class NpuTasks:
    """Groups of tasks on a device, by the names that torch_npu has under ``torch.npu``.

    Args:
        npu: The module ``torch.npu``.
    """

    NEEDED = (
        "ExternalEvent",
        "Stream",
        "current_stream",
        "stream",
        "graph_task_group_begin",
        "graph_task_group_end",
        "graph_task_update_begin",
        "graph_task_update_end",
    )

    def __init__(self, npu: Any) -> None:
        self._npu = npu
        self._groups: list[_Group] = []
        self._stream = npu.Stream()

    def launch(self, task: HostTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a task while its stream is captured; it waits there for its update."""
        npu = self._npu
        shapes = torch.fx.node.map_aggregate((args, kwargs), _on_meta)
        made = task.target(*shapes[0], **shapes[1])
        device = next(a.device for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
        outs = [torch.empty(v.shape, dtype=v.dtype, device=device) for v in made]
        workspace = task.workspace(*args, **kwargs)
        stream, event = npu.current_stream(), npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        npu.graph_task_group_begin(stream)
        with real_values():  # in a first run torch watches the calls of the traced program, and this is none of them
            task.out(*args, **kwargs, workspace=workspace, out=outs)
        handle = npu.graph_task_group_end(stream)
        self._groups.append(_Group(task, args, kwargs, workspace, outs, handle, event, _lists(kwargs)))
        return tuple(outs)

    def update(self, lists: Sequence[Any]) -> None:
        """Replace the tasks whose lists are others now, and let all of them run in the next replay.

        Errors: EngineError GE4005 with the operator and the user's line if one is refused; the next update replaces it.
        """
        npu, stream = self._npu, self._stream
        stream.wait_stream(npu.current_stream())  # the last replay reads the tasks that are replaced
        with npu.stream(stream):
            for group, new in zip(self._groups, map(dict, lists), strict=True):
                if new != group.lists:
                    self._replace(group, new)
                group.event.record(stream)
        npu.current_stream().wait_stream(stream)

    def _replace(self, group: _Group, new: dict[str, Any]) -> None:
        npu, stream = self._npu, self._stream
        group.lists = None  # what it has is not known until the new task is there
        npu.graph_task_update_begin(stream, group.handle)
        try:
            group.task.out(*group.args, **{**group.kwargs, **new}, workspace=group.workspace, out=group.outs)
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # the stream must not stay open; the first error says what it is
                npu.graph_task_update_end(stream)
            if isinstance(error, GeError):
                raise
            given = ", ".join(f"{name} = {value}" for name, value in new.items())
            raise EngineError(
                "GE4005",
                f"{group.task.target}: its captured task cannot be replaced for {escape.line(given, 300)}: "
                f"{type(error).__name__}: {str(error)[:500]}",
                where=group.task.where,
                next="compare the lists with the operator's documentation",
            ) from error
        npu.graph_task_update_end(stream)
        group.lists = new


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
