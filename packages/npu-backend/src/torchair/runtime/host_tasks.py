"""What changes between replays of a captured program without another capture: numbers of the host.

A number that decides no size reaches a captured program in two ways. Tasks that take it in a list on the host are
captured as groups of their own and replaced before a replay; the rest reads a tensor that the host fills. What the host
computes besides, of its own tensors, is no part of the capture either: operators of the device read copies of it, and
results are computed anew for each run.
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
from torchair.passes.step_numbers import (
    TASKS,
    changing_values,
    host_lists,
    is_number,
    numbers_without_sizes,
    on_host,
    step_inputs,
)
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
        values: Of one list of arguments: the lists of each task, in their order, and the numbers and tensors of the
            host that the program takes.
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
    """Let a graph take what changes in every step as a replay can change it.

    Tasks that an update can replace become ``HostTask``; numbers that lie in memory, and what the host computes of
    tensors, become further inputs. Edits ``gm.graph`` only if there are any.

    Returns:
        The numbers, and the graph of which ``StepNumbers.values`` is the program; None if there are none.
    """
    graph = gm.graph
    inputs = graph.find_nodes(op="placeholder")
    found, own = step_inputs(graph), on_host(graph)
    given = _given(graph, own)
    if not found and not given:
        return StepNumbers(), None
    free = found | _without_sizes(graph)
    known = _known_numbers(graph, found)
    tasks = [n for n in graph.nodes if host_lists(n) and _reads(n, known)]
    scalars = [n for n in graph.nodes if n.target is torch.ops.aten.scalar_tensor.default and n not in own]
    held = [n for n in scalars if n.args[0] in known]
    part = _host_part(gm, [n.kwargs for n in tasks], [*(n.args[0] for n in held), *(g.node for g in given)], own)
    made = StepNumbers(values=host_program(part), tasks=len(tasks))
    for node in tasks:
        node.target = HostTask(node.target, made.captor, line_of(node))
    after = inputs[-1]
    for node in held:
        after = _handed(graph, after, made, value_of(node))
        node.replace_all_uses_with(after)
        graph.erase_node(node)
    for each in given:
        after = _handed(graph, after, made, each.value)
        each.node.replace_all_uses_with(after, delete_user_cb=each.users.__contains__)
    for node in reversed(graph.nodes):
        if node in own and node.op != "placeholder" and not node.users:
            graph.erase_node(node)
    unread = {n for n in free if not n.users}
    made.inputs = frozenset(i for i, n in enumerate(inputs) if n in found or n in unread)
    return made, part


@dataclass(frozen=True, slots=True)
class _Given:
    """What a program takes of what the host computes: for operators of the device a copy there, or as a result."""

    node: FxNode
    users: frozenset[FxNode]
    value: torch.Tensor


def _given(graph: torch.fx.Graph, own: frozenset[FxNode]) -> list[_Given]:
    """Constants without dimensions are left out where an operator of the device reads them: they are numbers to it."""
    changing = changing_values(graph)
    found: list[_Given] = []
    for node in graph.nodes:
        value = value_of(node)
        if node not in own or not isinstance(value, torch.Tensor):
            continue
        results = frozenset(u for u in node.users if u.op == "output")
        readers = frozenset(u for u in node.users if u not in own and _on_device(u)) - results
        if results and node.op != "placeholder":
            found.append(_Given(node, results, value))
        if readers and (value.dim() or node in changing):
            found.append(_Given(node, readers, _copy_on_device(value, readers)))
    return found


def _copy_on_device(value: torch.Tensor, readers: frozenset[FxNode]) -> torch.Tensor:
    """What stands for a tensor of the host on the device; a number of torch's widest type has the width of the others
    there, as devices have no such type."""
    made = [v for n in readers for v in _on_device(n)]
    narrow = value.dtype == torch.float64 and not value.dim() and all(v.dtype != torch.float64 for v in made)
    return value.to(device=made[0].device, dtype=torch.float32 if narrow else value.dtype)


def _on_device(node: FxNode) -> list[torch.Tensor]:
    """The results of a node that do not lie on the host."""
    values = value_of(node)
    made = values if isinstance(values, (tuple, list)) else (values,)
    return [v for v in made if isinstance(v, torch.Tensor) and v.device.type != "cpu"]


def _handed(graph: torch.fx.Graph, after: FxNode, made: StepNumbers, value: torch.Tensor) -> FxNode:
    """One input more, behind the others."""
    with graph.inserting_after(after):
        moved = graph.placeholder(f"held_{len(made.memory)}")
    moved.meta["val"] = value
    made.memory.append((value.dtype, value.device))
    return moved


def _without_sizes(graph: torch.fx.Graph) -> frozenset[FxNode]:
    """Inputs that are numbers and decide no size."""
    return frozenset(numbers_without_sizes(graph))


def _known_numbers(graph: torch.fx.Graph, found: frozenset[FxNode]) -> set[FxNode]:
    """The inputs, and the numbers that are made of them."""
    known: set[FxNode] = set(found)
    for node in graph.nodes:
        if node.op == "call_function" and is_number(node) and any(n in known for n in node.all_input_nodes):
            known.add(node)
    return known


def _reads(node: FxNode, known: set[FxNode]) -> bool:
    return any(n in known for n in node.all_input_nodes)


def _host_part(
    gm: torch.fx.GraphModule, tasks: Sequence[Any], held: Sequence[Any], own: frozenset[FxNode]
) -> torch.fx.GraphModule:
    """The part of a graph that computes ``own`` and numbers from its arguments; a number that a result tells is left
    out."""
    part = torch.fx.Graph()
    copies: dict[FxNode, FxNode] = {}
    for node in gm.graph.nodes:
        of_numbers = node.op == "call_function" and is_number(node) and all(n in copies for n in node.all_input_nodes)
        if node.op == "placeholder" or of_numbers or node in own:
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
