"""Results that are computed in the memory of the inputs that the caller writes them into."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_graph import DataType, EngineError, Graph, building
from ge_graph import ops as ge
from ge_graph.ir import Tensor
from ge_runtime.cpu import CpuEngine

_STEPS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Square": np.square,
    "Transpose": lambda x: x.T.copy(),
    "Identity": lambda x: x,
}


def data(index: int, *shape: int | str) -> Tensor:
    return ge.Data(index=index, dtype=DataType.DT_FLOAT, shape=shape)


def made(build: Callable[[], Any], written: str) -> Any:
    graph = Graph("g")
    with building(graph):
        graph.outputs = list(build())
    return CpuEngine().compile(graph, {"engine.written": written, "engine.check": "never"})


def memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_random_programs_that_write_their_inputs_agree_with_numpy(seed: int, size: int) -> None:
    rng = random.Random(seed)
    recipe: list[tuple[str, list[int]]] = []
    graph = Graph("random")
    with building(graph):
        edges = [data(0, 3, 3), data(1, 3, 3), data(2, 3, 3)]
        for _ in range(size):
            op = rng.choice(sorted(_STEPS))
            count = 2 if op in ("Add", "Sub", "Mul") else 1
            picked = [rng.randrange(max(0, len(edges) - 5), len(edges)) for _ in range(count)]
            found = getattr(ge, op)(*(edges[k] for k in picked), *([[1, 0]] if op == "Transpose" else []))
            found.record_shape((3, 3))
            edges.append(found)
            recipe.append((op, picked))
        chosen = [rng.randrange(max(0, len(edges) - 4), len(edges)) for _ in range(3)]
        graph.outputs = [edges[k] for k in chosen]
    pairs = {0: 1, 2: 0}
    run = CpuEngine().compile(graph, {"engine.written": ",".join(f"{i}:{o}" for i, o in pairs.items())})
    inputs = [torch.randn(3, 3), torch.randn(3, 3), torch.randn(3, 3).t()]
    for _ in range(3):
        values = [x.numpy().copy() for x in inputs]
        with np.errstate(over="ignore", invalid="ignore"):
            for op, picked in recipe:
                values.append(_STEPS[op](*(values[k] for k in picked)))
        kept = inputs[1].clone()
        results = run.run(inputs)
        for result, place in zip(results, chosen, strict=True):
            np.testing.assert_array_equal(result.numpy(), values[place])
        assert torch.equal(inputs[1], kept)
        for position, result in enumerate(results):
            for index, given_ in enumerate(inputs):
                own = pairs.get(index) == position and result is given_
                assert own or memory(result) != memory(given_)
        for index, position in pairs.items():
            inputs[index].copy_(results[position])


def _adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> Sequence[Any]:
    m1 = ge.Lerp(m, g, 0.1)
    v1 = ge.Add(ge.Mul(ge.Mul(g, g), 0.001), ge.Mul(v, 0.999))
    down = ge.Add(ge.RealDiv(ge.Sqrt(v1), -3.0), -1e-8)
    return [ge.Addcdiv(ge.Mul(p, 0.99), m1, down, 1.0), m1, v1]


def test_a_step_of_an_optimizer_takes_no_memory_for_what_it_updates() -> None:
    """Two buffers, for the square of the gradient and the root of the second moment, in the place of six and copies."""
    step = made(lambda: _adam(data(0, 8), data(1, 8), data(2, 8), data(3, 8)), "0:0,1:1,2:2")
    plain = made(lambda: _adam(data(0, 8), data(1, 8), data(2, 8), data(3, 8)), "3:0")
    inputs = [torch.rand(8) for _ in range(4)]
    expected = plain.run([x.clone() for x in inputs])
    given_ = [x.clone() for x in inputs]
    results = step.run(given_)
    assert all(r is x for r, x in zip(results, given_[:3], strict=True))
    assert all(torch.equal(r, e) for r, e in zip(results, expected, strict=True))
    assert torch.equal(given_[3], inputs[3])
    assert _buffers(step, [x.clone() for x in inputs]) == 2


def _buffers(executable: Any, inputs: list[torch.Tensor]) -> int:
    """How often a run asks for memory of its own for eight floats."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        executable.run(inputs)
    # beside ATen's calls there are records of GE's nodes, which count what is called inside
    return sum(e.cpu_memory_usage >= 32 for e in seen.events() if e.name.startswith("aten::"))


def test_a_result_that_is_a_view_of_a_written_input_is_copied() -> None:
    run = made(lambda: [ge.Transpose(data(0, 2, 2), [1, 0])], "0:0")
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (found,) = run.run([x])
    assert memory(found) != memory(x)
    assert found.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_the_old_value_of_a_written_input_may_be_a_result_too() -> None:
    def build() -> Sequence[Tensor]:
        x = data(0, 2)
        return [ge.Neg(x), ge.Identity(x)]

    run, x = made(build, "0:0"), torch.tensor([1.0, 2.0])
    negated, old = run.run([x])
    assert (negated.tolist(), old.tolist()) == ([-1.0, -2.0], [1.0, 2.0])
    assert memory(old) != memory(x)


def test_inputs_stay_as_they_were_where_a_check_may_end_the_run() -> None:
    graph = Graph("g")
    with building(graph):
        x = data(0, 2)
        graph.outputs = [ge.Neg(x)]
        graph.output_control.append(ge.Assert(ge.Greater(data(1, 2), 0.0), [ge.Const([1])]))
    run = CpuEngine().compile(graph, {"engine.written": "0:0", "engine.check": "never"})
    x = torch.ones(2)
    with pytest.raises(EngineError, match="Assert"):
        run.run([x, torch.zeros(2)])
    assert x.tolist() == [1.0, 1.0]


def test_a_larger_result_does_not_go_into_the_input() -> None:
    run = made(lambda: [ge.Add(data(0, "s0", 2), data(1, "s1", 2))], "0:0")
    x = torch.ones(1, 2)
    (found,) = run.run([x, torch.ones(3, 2)])
    assert found.shape == (3, 2)
    assert x.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("value", [1.0, -1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_addcdiv_divides_and_then_multiplies(value: float, dtype: torch.dtype) -> None:
    kind = DataType.DT_FLOAT if dtype is torch.float32 else DataType.DT_FLOAT16

    def build() -> Sequence[Tensor]:
        three = [ge.Data(index=i, dtype=kind, shape=(64,)) for i in range(3)]
        return [ge.Addcdiv(*three, ge.Const(np.array(value, np.float32 if kind is DataType.DT_FLOAT else np.float16)))]

    torch.manual_seed(0)
    a, b, c = (torch.rand(64).add(0.5).to(dtype) for _ in range(3))
    graph = Graph("g")
    with building(graph):
        graph.outputs = list(build())
    (found,) = CpuEngine().compile(graph, {}).run([a, b, c])
    wide = [t.float() for t in (a, b, c)]
    expected = (wide[0] + (wide[1] / wide[2]) * torch.tensor(value, dtype=dtype).float()).to(dtype)
    assert torch.equal(found, expected)


def test_what_a_normalisation_computes_beside_its_statistics_may_be_overwritten() -> None:
    """Its result is memory of its own, so that the activation after it needs none."""

    def build() -> Sequence[Tensor]:
        x, *vectors = data(0, 2, 3, 4, 4), *(data(i, 3) for i in range(1, 5))
        y, mean, var, _, _ = ge.BatchNormV3(x, *vectors)
        return [ge.Relu(y), mean, var]

    run = made(build, "3:1,4:2")
    assert ".relu_()" in run.source
    inputs = [torch.randn(2, 3, 4, 4), *(torch.rand(3) for _ in range(4))]
    mean, var = (v.clone() for v in inputs[3:])
    y, *_ = torch.native_batch_norm(*inputs[:3], mean, var, True, 0.1, 1e-5)
    results = run.run([x.clone() for x in inputs])
    assert all(torch.equal(r, e) for r, e in zip(results, (y.relu(), mean, var), strict=True))
