"""A program of static sizes as the ATen graph that AOTAutograd would make of it, recorded while it runs on values.

AOTAutograd runs a program twice on values without data, which costs nine tenths of a compilation. A recording runs it
once, with data, and keeps the calls that arrive below autograd: decomposed by our table, without writes but those to
inputs at the end, and with gradients as results beside the others. What it leaves to programs that take the whole way
are strides and aliases of results, and the cut of a training step in two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_aggregate, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from ge_converters.base.device_composites import decomposed
from ge_converters.decompose.table import decomposition_table
from ge_converters.decompose.whole import KeepWhole
from labs.fuzz.program import Program, RunResult, gradients

_BY_DATA: Final = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

UNRECORDED: Final = frozenset(("cond", "while", "masked", "rows found", "at tensor", "write masked"))
"""Operators whose way or sizes depend on data."""


class NotRecorded(Exception):
    """The program needs AOTAutograd: its sizes or its way depend on data, or its inputs share memory."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An ATen graph.

    Attributes:
        graph: Its results are those of the program, then the gradients of inputs that have one.
        constants: Its tensors by name.
        inputs: Its inputs without data.
        results: How many of its results are the program's.
        grads: Whether each input that asks for its gradient has one.
    """

    graph: torch.fx.Graph
    constants: dict[str, torch.Tensor]
    inputs: list[Any]
    results: int
    grads: tuple[bool, ...]

    def module(self) -> torch.fx.GraphModule:
        """The graph as a compiler gets it."""
        return torch.fx.GraphModule(self.constants, self.graph)

    def outcome(self, found: Sequence[torch.Tensor], args: list[torch.Tensor]) -> RunResult:
        """What a run gave, from the results of the graph and its inputs afterwards."""
        left = iter(found[self.results :])
        return RunResult(list(found[: self.results]), args, [next(left) if has else None for has in self.grads])

    @property
    def outputs(self) -> int:
        """How many results the graph has."""
        return self.results + sum(self.grads)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A compiled recording.

    Attributes:
        recording: What was compiled.
        call: Takes a list of inputs.
    """

    recording: Recording
    call: Callable[[list[torch.Tensor]], Any]

    def run(self, args: list[torch.Tensor]) -> RunResult:
        """One call."""
        args = [a.detach() for a in args]
        return self.recording.outcome(list(self.call(list(args))), args)


@cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    return decomposition_table({}, device_kernels=False)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the calls."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), dict[str, torch.Tensor]()
        self._mode = mode
        self._table = _table()
        self._nodes: dict[int, torch.fx.Node] = {}
        self._memory: dict[int, Any] = {}
        self._alive: list[Any] = []  # so that no other value gets the id of one that is known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(tag in func.tags for tag in _BY_DATA) and (func is not torch.ops.aten.index.Tensor or _masks(args[1])):
            raise NotRecorded(str(func))
        with self:
            rule = self._table.get(func)
            made = rule(*args, **kwargs) if rule is not None else NotImplemented
            made = func.decompose(*args, **kwargs) if made is NotImplemented else made
        if made is not NotImplemented:
            return made
        if func._schema.is_mutable:
            raise NotRecorded(f"{func} of a value that a rule made")
        given = map_aggregate((args, kwargs), self.node_of)
        result = func(*args, **kwargs)
        node = self.graph.call_function(func, tuple(given[0]), dict(given[1]))
        if isinstance(result, torch.Tensor):
            self.known(result, node)
            return result
        parts = []
        for i, value in enumerate(result):
            if isinstance(value, torch.Tensor):
                part = self.graph.call_function(operator.getitem, (node, i))
                self.known(value, part)
                value = part.meta["val"]
            parts.append(value)
        node.meta["val"] = type(result)(parts) if type(result) in (tuple, list) else tuple(parts)
        return result

    def known(self, value: torch.Tensor, node: torch.fx.Node) -> None:
        """The node is the value's."""
        node.meta["val"] = self._fake(value)
        self._nodes[id(value)] = node
        self._alive.append(value)

    def node_of(self, value: Any) -> Any:
        """The value's node, a constant's if no call made it; the value itself if it is no tensor."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = value
            self.known(value, self.graph.create_node("get_attr", name))
        return self._nodes[id(value)]

    def _fake(self, value: torch.Tensor) -> Any:
        memory = value.untyped_storage()
        key = memory.data_ptr() or id(value)
        if key not in self._memory:
            self._memory[key] = torch.empty(memory.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
            self._alive.append(memory)
        meta = torch.empty(0, dtype=value.dtype, device="meta")
        meta.set_(self._memory[key], value.storage_offset(), value.size(), value.stride())
        return FakeTensor(self._mode, meta, value.device)


def record(program: Program, mode: FakeTensorMode | None = None) -> Recording:
    """Run the program with its first inputs and keep its calls.

    Args:
        mode: That of its values without data; programs that are compiled together share one.

    Errors: NotRecorded for what only the whole way compiles; what eager raises.
    """
    if program.dynamic or any(given.base >= 0 for given in program.inputs):
        raise NotRecorded("sizes that vary, or inputs that share memory")
    args = [a.detach() for a in program.arguments()]
    recorder = _Recorder(FakeTensorMode(shape_env=ShapeEnv()) if mode is None else mode)
    for i, value in enumerate(args):
        recorder.known(value, recorder.graph.placeholder(f"arg{i}_1"))
    wrapped = [torch._to_functional_tensor(a) for a in args]
    torch._enable_functionalization(reapply_views=True)
    try:
        with KeepWhole(), decomposed({}), recorder:
            leaves = [w.requires_grad_() for w, given in zip(wrapped, program.inputs, strict=True) if given.grad]
            results = program.run(wrapped)
            grads = gradients(results, leaves)
            outputs = [_plain(r) for r in (*results, *(g for g in grads if g is not None))]
            written = [(a, _plain(w)) for a, w in zip(args, wrapped, strict=True)]
    except (RuntimeError, IndexError, ValueError) as error:  # what torch itself does not trace
        raise NotRecorded(str(error).partition("\n")[0]) from error
    finally:
        torch._disable_functionalization()
    nodes = [recorder.node_of(o) for o in outputs]
    for before, after in written:
        if after is not before:
            reach = 1 + sum((n - 1) * stride for n, stride in zip(before.shape, before.stride(), strict=True))
            if before.numel() and reach != before.numel():
                raise NotRecorded("a written input with gaps or shared elements: its new value has none, as views show")
            if after.stride() != before.stride():
                raise NotRecorded("a written input whose new value lies otherwise, as views show")
            target = recorder.node_of(before)
            copied = recorder.graph.call_function(torch.ops.aten.copy_.default, (target, recorder.node_of(after)))
            copied.meta["val"] = target.meta["val"]
    recorder.graph.output(tuple(nodes))
    recorder.graph.eliminate_dead_code()
    inputs = [n.meta["val"] for n in recorder.graph.nodes if n.op == "placeholder"]
    return Recording(recorder.graph, recorder.constants, inputs, len(results), tuple(g is not None for g in grads))


def joined(recordings: Sequence[Recording]) -> Recording:
    """One graph of several: their inputs one after the other, their results likewise, what they write at the end.

    Names of nodes begin with ``p``, the position of the recording and ``_``.
    """
    graph, constants = torch.fx.Graph(), dict[str, torch.Tensor]()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    nodes = [[*r.graph.nodes] for r in recordings]
    for number, each in enumerate(nodes):
        for node in each:
            if node.op == "placeholder":
                known[node] = graph.placeholder(f"p{number}_{node.name}")
                known[node].meta = node.meta
    writes, outputs = [], []
    for number, (recording, each) in enumerate(zip(recordings, nodes, strict=True)):
        for node in each:
            if node.op == "get_attr":
                name = f"_constant_{number}_{node.target}"
                constants[name] = recording.constants[node.target]
                known[node] = graph.create_node("get_attr", name)
                known[node].meta = node.meta
            elif node.target is torch.ops.aten.copy_.default:
                writes.append(node)
            elif node.op == "call_function":
                known[node] = _copied(graph, node, known, f"p{number}_{node.name}")
            elif node.op == "output":
                outputs += [known[n] for n in node.args[0]]
    for node in writes:
        _copied(graph, node, known, node.name)
    graph.output(tuple(outputs))
    inputs = [i for r in recordings for i in r.inputs]
    return Recording(graph, constants, inputs, len(outputs), ())


def _copied(graph: torch.fx.Graph, node: torch.fx.Node, known: Mapping[torch.fx.Node, Any], name: str) -> torch.fx.Node:
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    copied = graph.create_node("call_function", node.target, args, kwargs, name)
    copied.meta = node.meta
    return copied


def _masks(indices: Any) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _plain(value: torch.Tensor) -> torch.Tensor:
    if not torch._is_functional_tensor(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)
