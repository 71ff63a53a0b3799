"""The body of a kept graph that runs on an engine: a GE graph, and how the ATen graph's inputs and results meet it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ge_converters.lowering import Lowered
from ge_converters.lowering.aliasing import Constant, InputAlias, InputBinding, Mutation, Nothing, Result, ScalarResult
from ge_graph import TensorSpec, serde
from ge_graph.dtypes import DataType
from torchair.artifact.plain import Unstorable, plain, position, unplain
from torchair.artifact.view_data import views_from_data, views_to_data
from torchair.runtime.views import ViewPlan

_PYTYPES: Final = {"int": int, "float": float, "bool": bool}
_NESTED: Final[dict[str, Any]] = {"": None, "tuple": tuple, "list": list}


@dataclass(slots=True)
class GeBody:
    """A GE graph that stands for an ATen graph.

    Attributes:
        plan: How the caller's results come from the graph's.
        static: Positions of inputs that are parameters, buffers or marked static.
    """

    lowered: Lowered
    plan: ViewPlan
    static: frozenset[int] = frozenset()

    @property
    def placeholders(self) -> int:
        """Number of the ATen graph's inputs."""
        return self.lowered.placeholders

    def text(self) -> str:
        """The graph for people."""
        from ge_graph.printer import to_text

        return to_text(self.lowered.graph).rstrip()

    def to_data(self) -> tuple[Iterable[bytes | memoryview], dict[str, Any]]:
        """Content of the body's file, and JSON for the manifest.

        Raises:
            Unstorable: A part has no form in a file.
        """
        lowered = self.lowered
        binding = {
            "inputs": [[b.fx_index, b.kind, *_spec(b.spec)] for b in lowered.inputs],
            "mutations": [[m.fx_index, m.ge_index] for m in lowered.mutations],
            "nested": "" if lowered.nested is None else lowered.nested.__name__,
            "outputs": [_output(o) for o in lowered.outputs],
            "placeholders": lowered.placeholders,
            "static": sorted(self.static),
            **views_to_data(self.plan),
        }
        return list(serde.to_chunks(lowered.graph)), binding

    @classmethod
    def from_data(cls, data: memoryview, body: Mapping[str, Any]) -> GeBody:
        """The body from its file and JSON.

        Raises:
            Exception: They are none.
        """
        graph = serde.from_bytes(data)
        inputs = tuple(_input(*row) for row in body["inputs"])
        outputs = tuple(_read_output(*row) for row in body["outputs"])
        count = position(body["placeholders"], 1 << 24)
        results = len(graph.outputs)
        mutations = tuple(Mutation(position(f, count), position(g, results)) for f, g in body["mutations"])
        for b in inputs:
            position(b.fx_index, count)
        for o in outputs:
            if isinstance(o, InputAlias):
                position(o.fx_index, count)
            elif isinstance(o, (Result, ScalarResult)):
                position(o.ge_index, results)
        _fit(graph, inputs, outputs)
        lowered = Lowered(graph, inputs, outputs, mutations, count, _NESTED[body["nested"]])
        static = frozenset(position(i, count) for i in body["static"])
        plan = views_from_data(body)
        if len(plan.returned) != len(outputs):
            raise ValueError(f"{len(plan.returned)} results returned of {len(outputs)}")
        return cls(lowered, plan, static)


# --- to JSON ---------------------------------------------------------------------------------------------------------


def _spec(spec: TensorSpec) -> list[Any]:
    return [spec.dtype.name, list(spec.size)]


def _output(binding: Any) -> list[Any]:
    if isinstance(binding, Result):
        order, stride = (None if v is None else [*v] for v in (binding.order, binding.spec.stride))
        return ["result", binding.ge_index, *_spec(binding.spec), order, stride]
    if isinstance(binding, ScalarResult):
        return ["number", binding.ge_index, binding.pytype.__name__]
    if isinstance(binding, InputAlias):
        return ["input", binding.fx_index]
    if isinstance(binding, Constant):
        return ["constant", plain(binding.value)]
    if isinstance(binding, Nothing):
        return ["nothing"]
    raise Unstorable(f"a result of kind {type(binding).__name__}")


# --- from JSON -------------------------------------------------------------------------------------------------------


def _fit(graph: Any, inputs: Sequence[InputBinding], outputs: Sequence[Any]) -> None:
    data = graph.inputs
    if [n.attr("index") for n in data] != list(range(len(inputs))):
        raise ValueError(f"{len(data)} inputs in the graph, {len(inputs)} in the binding")
    for node, binding in zip(data, inputs):
        if node.outputs[0].dtype is not binding.spec.dtype:
            raise ValueError(f"input {node.name} is {node.outputs[0].dtype.name}, bound as {binding.spec.dtype.name}")
    for o in outputs:
        if isinstance(o, Result) and graph.outputs[o.ge_index].dtype is not o.spec.dtype:
            raise ValueError(f"output {o.ge_index} is bound as {o.spec.dtype.name}")


def _read_spec(dtype: Any, size: Any, stride: Any = None) -> TensorSpec:
    for numbers in (size, size if stride is None else stride):
        if len(numbers) != len(size) or not all((type(d) is int and d >= 0) or type(d) is str for d in numbers):
            raise ValueError(f"sizes {str(size)[:80]}, strides {str(stride)[:80]}")
    return TensorSpec(DataType[dtype], tuple(size), None if stride is None else tuple(stride))


def _input(fx_index: Any, kind: Any, dtype: Any, size: Any) -> InputBinding:
    if kind not in ("tensor", "scalar"):
        raise ValueError(f"input kind {str(kind)[:40]}")
    return InputBinding(fx_index, kind, _read_spec(dtype, size))


def _read_output(kind: str, *rest: Any) -> Any:
    if kind == "result":
        index, dtype, size, order, stride = rest
        if order is not None and sorted(order) != list(range(len(size))):
            raise ValueError(f"order {str(order)[:80]}")
        return Result(index, _read_spec(dtype, size, stride), None if order is None else tuple(order))
    if kind == "number":
        return ScalarResult(rest[0], _PYTYPES[rest[1]])
    if kind == "input":
        return InputAlias(rest[0])
    if kind == "constant":
        return Constant(unplain(rest[0]))
    if kind == "nothing" and not rest:
        return Nothing()
    raise ValueError(f"result kind {str(kind)[:40]}")
