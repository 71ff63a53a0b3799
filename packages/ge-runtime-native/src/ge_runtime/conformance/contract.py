"""Rules that hold for every engine, whatever its kernels: memory, order, refusals, repetition.

A rule takes the engine and returns what is wrong, or an empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge_graph import DataType, EngineError, Graph, GraphError, Literal, building, schema
from ge_graph import ops as ge
from ge_graph.attrs import Int
from ge_graph.ir import Shape, Tensor
from ge_runtime.api import Engine
from ge_runtime.conformance.case import Array, as_array, mismatch

Rule = Callable[[Engine], str]
_F = DataType.DT_FLOAT


def _data(index: int, shape: Shape, dtype: DataType = _F) -> Tensor:
    return ge.Data(index=index, dtype=dtype, shape=shape)


def _numbers(*shape: int) -> Array:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _graph(build: Callable[[], Tensor | Sequence[Tensor]]) -> Graph:
    graph = Graph("contract")
    with building(graph):
        outputs = build()
    graph.outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    return graph


def _run(engine: Engine, graph: Graph, inputs: Sequence[Any], options: dict[str, str] | None = None) -> list[Array]:
    executable = engine.compile(graph, options or {})
    executable.run(inputs)
    return [as_array(r) for r in executable.run(inputs)]


def _overlap(arrays: Sequence[Array]) -> str:
    for i, a in enumerate(arrays):
        for j in range(i):
            if np.shares_memory(a, arrays[j]):
                return f"array {i} shares memory with array {j}"
    return ""


def results_own_their_memory(engine: Engine) -> str:
    """An input, a constant, views of both, one edge twice, two views of one value: nothing is shared."""

    def build() -> list[Tensor]:
        x = _data(0, (2, 3))
        constant = ge.Const(_numbers(2, 3))
        value = ge.Add(x, x)
        return [
            x,
            ge.Identity(x),
            ge.Transpose(x, [1, 0]),
            constant,
            ge.Reshape(constant, [3, 2]),
            value,
            value,
            ge.Transpose(value, [1, 0]),
            ge.Reshape(value, [6]),
            ge.BroadcastTo(ge.Reshape(value, [2, 3, 1]), [2, 3, 4]),
        ]

    x = _numbers(2, 3)
    results = _run(engine, _graph(build), [x])
    return _overlap([x, *results]) or mismatch(
        results,
        [
            x,
            x,
            x.T,
            x,
            x.reshape(3, 2),
            2 * x,
            2 * x,
            2 * x.T,
            (2 * x).reshape(6),
            np.broadcast_to((2 * x)[..., None], (2, 3, 4)),
        ],
        None,
    )


def constants_survive_runs(engine: Engine) -> str:
    """A caller that writes into a result changes no later run."""
    graph = _graph(lambda: [ge.Const(_numbers(3)), ge.Add(_data(0, (3,)), ge.Const(_numbers(3)))])
    executable = engine.compile(graph, {})
    for _ in range(3):
        results = [as_array(r) for r in executable.run([_numbers(3)])]
        wrong = mismatch(results, [_numbers(3), 2 * _numbers(3)], None)
        if wrong:
            return wrong
        for r in results:
            r[...] = -1
    return ""


def earlier_results_survive_later_runs(engine: Engine) -> str:
    """Runs do not share buffers."""
    executable = engine.compile(_graph(lambda: ge.Mul(ge.Add(_data(0, (4,)), 1.0), 2.0)), {})
    kept = [as_array(executable.run([_numbers(4) * k])[0]) for k in range(4)]
    return mismatch(kept, [(_numbers(4) * k + 1) * 2 for k in range(4)], None)


def strides_do_not_matter(engine: Engine) -> str:
    """Transposed, sliced, reversed-copy and repeated inputs give the values of dense ones."""
    graph = _graph(lambda: ge.Add(ge.Mul(_data(0, (3, 2)), 2.0), _data(1, (3, 2))))
    base = _numbers(4, 6)
    x, y = base[:2, :3].T, base[::2, ::3].repeat(2, 0)[:3]
    return mismatch(_run(engine, graph, [x, y]), [2 * x + y], None)


def one_array_for_two_inputs(engine: Engine) -> str:
    """The same array may be passed twice; it is not written to."""
    graph = _graph(lambda: ge.Mul(ge.Sub(ge.Add(_data(0, (3,)), _data(1, (3,))), 1.0), 3.0))
    x = _numbers(3)
    return mismatch(_run(engine, graph, [x, x]), [(2 * x - 1) * 3], None) or mismatch([x], [_numbers(3)], None)


def empty_and_scalar(engine: Engine) -> str:
    """Tensors without elements and of rank 0 pass."""
    graph = _graph(lambda: [ge.Add(_data(0, (0, 3)), 1.0), ge.Mul(_data(1, ()), 2.0)])
    inputs = [np.zeros((0, 3), np.float32), np.array(3.0, np.float32)]
    return mismatch(_run(engine, graph, inputs), [inputs[0], np.array(6.0, np.float32)], None)


def one_program_for_every_size(engine: Engine) -> str:
    """Sizes are read from the data, not from the first run."""

    def build() -> list[Tensor]:
        x = _data(0, ("s0", "s1"))
        sizes = ge.Shape(x, dtype=DataType.DT_INT64)
        rows, columns = ge.Gather(sizes, 0), ge.Gather(sizes, 1)
        total = ge.Mul(rows, columns)
        flat = ge.Reshape(x, ge.Pack([total], N=1))
        pairs = ge.Reshape(ge.Add(flat, 1.0), ge.Pack([columns, rows], N=2))
        return [pairs, ge.FloorDiv(total, 2), ge.Cast(rows, dst_type=DataType.DT_FLOAT)]

    executable = engine.compile(_graph(build), {})
    for shape in ((2, 3), (2, 3), (5, 1), (1, 7), (0, 4)):
        x = _numbers(*shape)
        want = [(x + 1).reshape(shape[::-1]), np.array(x.size // 2), np.array(shape[0], np.float32)]
        wrong = mismatch(executable.run([x]), want, None)
        if wrong:
            return f"size {shape}: {wrong}"
    return ""


def _refused(action: Callable[[], Any], code: str) -> str:
    try:
        action()
    except (EngineError, GraphError) as error:
        return "" if error.code.startswith(code) else f"expected {code}, got {error.code}: {error}"
    return f"expected {code}, nothing was raised"


def wrong_inputs_are_refused(engine: Engine) -> str:
    """Number, element type, rank and size of inputs are checked, in later runs too."""
    executable = engine.compile(_graph(lambda: ge.Add(_data(0, (2, "s0")), 1.0)), {})
    good = _numbers(2, 3)
    others = ([good.astype(np.float64)], [good.astype(np.int32)], [good[0]], [_numbers(3, 2)], ["x"])
    for bad in ([], [good, good], *others):
        executable.run([good])
        wrong = _refused(lambda bad=bad: executable.run(bad), "GE4004")  # type: ignore[misc]
        if wrong:
            return f"{bad!r}: {wrong}"
    return ""


def broken_graphs_are_refused(engine: Engine) -> str:
    """A graph that breaks its schema does not compile."""
    graph = Graph("broken")
    x = graph.add("Data", [None], {"index": Int(0)}, [(_F, (2,))]).outputs[0]
    y = graph.add("LogicalNot", [x], {}, [(_F, (2,))]).outputs[0]
    graph.outputs = [y]
    return _refused(lambda: engine.compile(graph, {}), "GE3")


def missing_kernels_are_listed_when_compiling(engine: Engine) -> str:
    """Every operator without a kernel is named at once, before anything runs."""

    names = ("ConformanceWithoutKernel", "ConformanceWithoutKernelEither")
    for name in names:
        schema.register_schema({"op": name, "in": ["x f32"], "out": ["y f32"]})

    def build() -> list[Tensor]:
        x = _data(0, (2,))
        return [getattr(ge, name)(x) for name in names]

    graph = _graph(build)
    try:
        engine.compile(graph, {})
    except EngineError as error:
        named = [name in str(error) for name in names]
        # GE itself stops at the first operator that no kernel library has
        fine = all(named) if error.code == "GE4003" else error.code == "GE4020" and any(named)
        return "" if fine else f"not helpful: {error}"
    return "nothing was raised"


def bfloat16_constants(engine: Engine) -> str:
    """Raw bytes of a type that numpy lacks."""
    raw = np.array([0x3F80, 0xC000, 0x7F80], "<u2").view(np.uint8)
    graph = _graph(lambda: ge.Cast(ge.Const(Literal(DataType.DT_BF16, (3,), raw)), dst_type=DataType.DT_FLOAT))
    return mismatch(_run(engine, graph, []), [np.array([1.0, -2.0, np.inf], np.float32)], None)


def references_are_updated_in_place(engine: Engine) -> str:
    """Assign writes through to the caller's array; a view taken before keeps its values; results are copies."""
    graph = Graph("reference")
    with building(graph):
        state = graph.add("RefData", [None], {"index": Int(0)}, [(_F, (2, 2))]).outputs[0]
        before = ge.Transpose(state, [1, 0])
        early = ge.Add(before, 0.0)
        written = ge.Assign(state, ge.Add(state, 1.0), dependencies=[early])
        graph.outputs = [before, written, early]
    x = _numbers(2, 2)
    executable = engine.compile(graph, {})
    for step in range(3):
        results = [as_array(r) for r in executable.run([x])]
        old = _numbers(2, 2) + step
        wrong = mismatch([x, *results], [old + 1, old.T, old + 1, old.T], None) or _overlap([x, *results])
        if wrong:
            return f"run {step}: {wrong}"
    return ""


def plain_inputs_are_never_written(engine: Engine) -> str:
    """An updating operator on a plain input or a value that others read works on a copy."""

    def build() -> list[Tensor]:
        x = _data(0, (3, 2))
        value = ge.Add(x, 1.0)
        rows = ge.Const(np.array([1], np.int64))
        patch = ge.Const(np.array([[9, 9]], np.float32))
        last = ge.Add(value, 0.0)
        # a device needs an order between those that write and those that read
        return [
            ge.ScatterUpdate(x, rows, patch, dependencies=[value]),
            ge.ScatterUpdate(value, rows, patch, dependencies=[last]),
            last,
        ]

    x = _numbers(3, 2)
    first, second = x.copy(), x + 1
    first[1], second[1] = 9, 9
    wrong = mismatch(_run(engine, _graph(build), [x]), [first, second, x + 1], None)
    return wrong or mismatch([x], [_numbers(3, 2)], None)


def traced_runs_show_every_node(engine: Engine) -> str:
    """The callback sees each computing node once, in an order that data permits, with true operands and results."""

    def build() -> Tensor:
        x = _data(0, (2, 2))
        return ge.Mul(ge.Relu(ge.Sub(ge.Add(x, x), 3.0)), 2.0)

    x = _numbers(2, 2)
    seen: list[tuple[str, list[Array], list[Array]]] = []

    def on_node(node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        seen.append((node.op, [as_array(i).copy() for i in inputs], [as_array(o).copy() for o in outputs]))

    executable = engine.compile(_graph(build), {})
    try:
        result = as_array(executable.run_traced([x], on_node)[0])
    except EngineError as error:
        # an engine that runs a graph as a whole says so
        return "" if error.code == "GE4025" and not seen else f"expected GE4025, got {error}"
    if [s[0] for s in seen] != ["Add", "Sub", "Relu", "Mul"]:
        return f"saw {[s[0] for s in seen]}"
    values = [2 * x, 2 * x - 3, np.maximum(2 * x - 3, 0), np.maximum(2 * x - 3, 0) * 2]
    wrong = mismatch([s[2][0] for s in seen], values, None) or mismatch([result], values[-1:], None)
    return wrong or mismatch([s[1][0] for s in seen], [x, *values[:3]], None)


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        results_own_their_memory,
        constants_survive_runs,
        earlier_results_survive_later_runs,
        strides_do_not_matter,
        one_array_for_two_inputs,
        empty_and_scalar,
        one_program_for_every_size,
        wrong_inputs_are_refused,
        broken_graphs_are_refused,
        missing_kernels_are_listed_when_compiling,
        bfloat16_constants,
        references_are_updated_in_place,
        plain_inputs_are_never_written,
        traced_runs_show_every_node,
    )
}
