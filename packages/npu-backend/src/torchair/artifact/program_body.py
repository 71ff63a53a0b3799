"""The body of a kept graph that is captured: a program of torch's operators, and what a replay needs to know of it.

The graph is a list of steps. A step names an operator, a function of numbers or a constant, and its arguments are
plain values and earlier steps. The steps of a file go through the same writer as those of a traced graph, which builds
the program from trees; names of the file are only looked up.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import torch

from torchair.artifact.plain import Unstorable, operator_name, operator_of, plain, position, unplain
from torchair.artifact.view_data import views_from_data, views_to_data
from torchair.runtime.fx_program import LINE, attribute, line_of, write_program
from torchair.runtime.host_tasks import HostTask, StepNumbers, host_program
from torchair.runtime.reduce_overhead import STATIC, USER, WRITTEN, CapturePlan, PlannedPrograms

FxNode: TypeAlias = torch.fx.Node
_KINDS: Final = (STATIC, WRITTEN, USER, "")
_MOST: Final = 1 << 24
_NUMBERS: Final[dict[str, Callable[..., Any]]] = {
    **{
        f"operator.{n}": getattr(operator, n)
        for n in (
            "add",
            "and_",
            "eq",
            "floordiv",
            "ge",
            "getitem",
            "gt",
            "le",
            "lt",
            "mod",
            "mul",
            "ne",
            "neg",
            "or_",
            "pow",
            "sub",
            "truediv",
        )
    },
    **{f"math.{n}": getattr(math, n) for n in ("ceil", "floor", "sqrt", "trunc")},
    **{f"torch.sym_{n}": getattr(torch, f"sym_{n}") for n in ("float", "int", "ite", "max", "min", "not")},
    **{f"builtins.{f.__name__}": f for f in (abs, bool, float, int, max, min, round)},
}
"""Functions of sizes and other numbers, by name."""
_NUMBER_NAMES: Final = {f: name for name, f in _NUMBERS.items()}


@dataclass(slots=True)
class ProgramBody:
    """A program that stands for an ATen graph.

    Attributes:
        plan: What runs.
        why: Why no file can hold it; empty if one can.
    """

    plan: CapturePlan
    why: str = ""
    _content: bytes = b""
    _binding: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: PlannedPrograms) -> ProgramBody:
        """The body of what was just planned; it keeps no graph."""
        body = cls(planned.plan)
        try:
            body._binding, body._content = _to_data(planned)
        except Unstorable as error:
            body.why = str(error)
        return body

    @property
    def placeholders(self) -> int:
        """Number of the ATen graph's inputs."""
        return len(self.plan.kinds)

    def text(self) -> str:
        """The program for people."""
        return self.plan.source.rstrip()

    def to_data(self) -> tuple[Iterable[bytes | memoryview], dict[str, Any]]:
        """Content of the body's file, and JSON for the manifest.

        Raises:
            Unstorable: A part has no form in a file.
        """
        if self.why:
            raise Unstorable(self.why)
        return [self._content], self._binding

    @classmethod
    def from_data(cls, data: memoryview, body: Mapping[str, Any]) -> ProgramBody:
        """The body from its file and JSON.

        Raises:
            Exception: They are none.
        """
        content = bytes(data)
        return cls(_from_data(content, body), "", content, dict(body))


# --- to JSON ---------------------------------------------------------------------------------------------------------


def _to_data(planned: PlannedPrograms) -> tuple[dict[str, Any], bytes]:
    plan, numbers = planned.plan, planned.plan.numbers
    constants: list[torch.Tensor] = []
    graphs = {
        "program": _steps(planned.graph, constants),
        "host": None if planned.host is None else _steps(planned.host, constants),
        "constants": [[plain(c.dtype), list(c.shape), plain(c.device)] for c in constants],
    }
    text = json.dumps(graphs, allow_nan=False, separators=(",", ":")).encode()
    binding = {
        "kinds": plan.kinds,
        "symbolic": plan.symbolic,
        "results": plan.results,
        "nested": plan.nested,
        "capture": plan.capture,
        "numbers": sorted(numbers.inputs),
        "memory": [[plain(t), plain(d)] for t, d in numbers.memory],
        "size": len(text),
        **views_to_data(plan.views),
    }
    return binding, b"".join([text, *map(_bytes, constants)])


def _bytes(constant: torch.Tensor) -> bytes:
    return bytes(constant.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


def _steps(gm: Any, constants: list[torch.Tensor]) -> list[list[Any]]:
    numbers: dict[FxNode, int] = {}
    steps: list[list[Any]] = []
    for node in gm.graph.nodes:
        step = _step(gm, node, numbers, constants)
        numbers[node] = len(steps)
        steps.append(step)
    return steps


def _step(gm: Any, node: FxNode, numbers: Mapping[FxNode, int], constants: list[torch.Tensor]) -> list[Any]:
    if node.op == "placeholder":
        return ["input", node.name]
    if node.op == "output":
        return ["output", _argument(node.args[0], numbers)]
    if node.op == "get_attr":
        return ["constant", node.name, _constant(attribute(gm, str(node.target)), constants)]
    if node.op != "call_function":
        raise Unstorable(f"a {node.op} node")
    args = [_argument(a, numbers) for a in node.args]
    kwargs = {k: _argument(v, numbers) for k, v in node.kwargs.items()}
    kind, target = _target(node.target)
    return [kind, node.name, target, args, kwargs, line_of(node)]


def _constant(value: Any, constants: list[torch.Tensor]) -> int:
    if isinstance(value, torch.fx.GraphModule):
        raise Unstorable("a graph inside the graph")
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or value.layout is not torch.strided:
        raise Unstorable(f"a constant of type {type(value).__name__}")
    if value.is_quantized or value.is_conj() or value.is_neg() or not value.is_contiguous():
        raise Unstorable("a constant that is no plain tensor")
    constants.append(value)
    return len(constants) - 1


def _target(target: Any) -> tuple[str, str]:
    if isinstance(target, HostTask):
        return "task", operator_name(target.target)
    if not isinstance(target, torch._ops.OpOverload) and target in _NUMBER_NAMES:
        return "number", _NUMBER_NAMES[target]
    return "call", operator_name(target)


def _argument(value: Any, numbers: Mapping[FxNode, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"step": numbers[value]}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return {"tuple" if isinstance(value, tuple) else "list": [_argument(v, numbers) for v in value]}
    return plain(value)


# --- from JSON -------------------------------------------------------------------------------------------------------


class _Reader:
    """Makes graphs of the steps of a file.

    Args:
        constants: The tensors that they read.
        numbers: Whom their tasks ask who captures.
    """

    def __init__(self, constants: list[torch.Tensor], numbers: StepNumbers) -> None:
        self._constants, self._numbers = constants, numbers
        self.tasks = 0

    def graph(self, steps: list[Any]) -> Any:
        """A graph, and its constants by name."""
        graph = torch.fx.Graph()
        made = SimpleNamespace(graph=graph)
        nodes: list[FxNode] = []
        for number, step in enumerate(steps):
            if (step[0] == "output") != (number == len(steps) - 1):
                raise ValueError("a program ends with its results")
            nodes.append(self._node(made, nodes, *step))
        return made

    def _node(self, made: Any, nodes: list[FxNode], kind: str, name: Any, *rest: Any) -> FxNode:
        graph: torch.fx.Graph = made.graph
        if kind == "output":
            return graph.output(_value(name, nodes))
        if type(name) is not str:
            raise ValueError("the name of a step")
        if kind == "input":
            if any(n.op != "placeholder" for n in nodes):
                raise ValueError("inputs come first")
            return graph.create_node("placeholder", f"input_{len(nodes)}", name=name)
        if kind == "constant":
            word = f"constant_{position(rest[0], len(self._constants))}"
            setattr(made, word, self._constants[rest[0]])
            return graph.create_node("get_attr", word, name=name)
        target, args, kwargs, line = rest
        function = self._function(kind, target, str(line))
        known = {a.name for a in operator_of(target)._schema.arguments} if kind != "number" else set()
        if not kwargs.keys() <= known:
            raise ValueError(f"{target[:80]} has no parameter {min(kwargs.keys() - known)[:40]!r}")
        node = graph.create_node(
            "call_function",
            function,
            tuple(_value(a, nodes) for a in args),
            {k: _value(v, nodes) for k, v in kwargs.items()},
            name=name,
        )
        node.meta[LINE] = str(line)
        return node

    def _function(self, kind: str, name: Any, line: str) -> Callable[..., Any]:
        if kind == "number":
            return _NUMBERS[name]
        if kind == "call":
            called: Callable[..., Any] = operator_of(name)
            return called
        if kind != "task":
            raise ValueError(f"a step of kind {str(kind)[:40]}")
        self.tasks += 1
        return HostTask(operator_of(name), self._numbers.captor, line)


def _value(encoded: Any, nodes: list[FxNode]) -> Any:
    if isinstance(encoded, dict) and len(encoded) == 1:
        ((kind, content),) = encoded.items()
        if kind == "step":
            return nodes[position(content, len(nodes))]
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](_value(v, nodes) for v in content)
    return unplain(encoded)


def _from_data(content: bytes, body: Mapping[str, Any]) -> CapturePlan:
    size = position(body["size"], len(content) + 1)
    graphs = json.loads(content[:size])
    constants = _read_constants(content[size:], graphs["constants"])
    kinds, results = list(body["kinds"]), list(body["results"])
    if any(k not in _KINDS for k in kinds):
        raise ValueError("kinds of inputs")
    count = len(kinds)
    numbers = StepNumbers(frozenset(position(i, count) for i in body["numbers"]))
    numbers.memory = [_memory(*row) for row in body["memory"]]
    reader = _Reader(constants, numbers)
    graph = reader.graph(graphs["program"])
    inputs = sum(n.op == "placeholder" for n in graph.graph.nodes)
    if inputs != count + len(numbers.memory):
        raise ValueError(f"{inputs} inputs of the program for {count} and {len(numbers.memory)} numbers")
    numbers.tasks = reader.tasks
    if graphs["host"] is not None:
        numbers.values = host_program(reader.graph(graphs["host"]))
    views = views_from_data(body)
    for result in results:
        position(result + 1, inputs + 1)
    if len(results) != len(views.returned) or len(results) != len(list(graph.graph.nodes)[-1].args[0]):
        raise ValueError(f"{len(results)} results, {len(views.returned)} expected")
    program, source = write_program(graph, "a program from the cache")
    symbolic = [position(i, count) for i in body["symbolic"]]
    nested, capture = (body[name] is True for name in ("nested", "capture"))
    return CapturePlan(program, source, kinds, symbolic, results, views, nested, numbers, capture)


def _memory(dtype: Any, device: Any) -> tuple[torch.dtype, torch.device]:
    made = unplain(dtype), unplain(device)
    if not isinstance(made[0], torch.dtype) or not isinstance(made[1], torch.device):
        raise ValueError("memory of a number")
    return made[0], made[1]


def _read_constants(data: bytes, rows: list[Any]) -> list[torch.Tensor]:
    found, at = [], 0
    for dtype, size, device in rows:
        kind, place = _memory(dtype, device)
        count = math.prod(position(n, _MOST * _MOST) for n in size)
        end = at + count * kind.itemsize
        if end > len(data):
            raise ValueError("the constants are cut off")
        raw = torch.tensor(bytearray(data[at:end]), dtype=torch.uint8)
        found.append(raw.view(kind).reshape(size).to(place))
        at = end
    if at != len(data):
        raise ValueError("bytes after the constants")
    return found
