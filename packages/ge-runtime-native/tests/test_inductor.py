"""A graph through torch's Inductor gives what the kernels give, keeps sizes open, and refuses what it cannot repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ge_graph import DataType, EngineError, Graph, building
from ge_graph import ops as ge
from ge_graph.attrs import Int
from ge_graph.ir import Tensor, current_graph
from ge_runtime.api import boxed
from ge_runtime.cpu import CpuEngine, kernel, unregister
from ge_runtime.cpu.inductor import InductorProgram

F, I32, I64 = DataType.DT_FLOAT, DataType.DT_INT32, DataType.DT_INT64


def data(index: int, *shape: int | str, dtype: DataType = F) -> Tensor:
    return ge.Data(index=index, dtype=dtype, shape=shape)


def graph_of(build: Callable[[], Any]) -> Graph:
    graph = Graph("g")
    with building(graph):
        found = build()
        graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    return graph


def fused(build: Callable[[], Any], **options: str) -> Any:
    chosen = {"engine.program": "inductor", "engine.check": "never"} | {f"engine.{k}": v for k, v in options.items()}
    return CpuEngine().compile(graph_of(build), chosen)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each compilation."""
    made: list[int] = []
    compile_ = InductorProgram._compile

    def counted(self: InductorProgram, inputs: list[Any]) -> Any:
        made.append(len(inputs))
        return compile_(self, inputs)

    monkeypatch.setattr(InductorProgram, "_compile", counted)
    return made


@pytest.fixture
def user_kernels() -> Iterator[None]:
    yield
    unregister("Softsign")


def block() -> Iterator[Tensor]:
    """An operator of every sort that the planner treats in its own way: views, numbers, in place, constants."""
    x, w = data(0, "s0", 8), data(1, 8, 6)
    y = ge.MatMulV2(ge.Relu(x), w)
    rows = ge.GatherV2(ge.Shape(x, dtype=I32), [0], [0])
    steps = ge.Cast(ge.Range(0, ge.Squeeze(rows, axis=[0]), 1), dst_type=F)
    scaled = ge.Mul(ge.Add(y, ge.Const([1.5] * 6)), ge.Unsqueeze(steps, axes=[1]))
    yield ge.SoftmaxV2(scaled, axes=[-1])
    yield ge.Transpose(x, [1, 0])
    yield ge.ReduceSum(scaled, [0], keep_dims=True)


def test_equals_the_kernels_with_one_compilation_for_all_sizes(compilations: list[int]) -> None:
    plain = CpuEngine().compile(graph_of(block), {})
    program = fused(block)
    for size in (5, 9, 2, 31):
        inputs = [torch.randn(size, 8), torch.randn(8, 6)]
        for got, expected in zip(program.run(inputs), plain.run(inputs), strict=True):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert len(compilations) == 1
    one = [torch.randn(1, 8), torch.randn(8, 6)]  # torch treats a size of one as a case of its own
    torch.testing.assert_close(program.run(one), plain.run(one), rtol=1e-5, atol=1e-6)
    assert len(compilations) == 2


def test_other_strides_are_compiled_anew_and_a_start_in_memory_is_not(compilations: list[int]) -> None:
    program = fused(lambda: ge.AsStrided(data(0, 4, 6), [3, 2], [2, 3], [5]))
    memory = torch.arange(60.0)
    for x in (memory[:24].view(4, 6), memory[7:31].view(4, 6), memory[:24].view(6, 4).t()):
        expected = x.contiguous().as_strided((3, 2), (2, 3), x.contiguous().storage_offset() + 5)
        assert torch.equal(program.run([x])[0], expected)
    assert len(compilations) == 2


def test_results_are_memory_of_their_own() -> None:
    def build() -> Iterator[Tensor]:
        x = data(0, 3, 4)
        yield ge.Identity(x)
        yield ge.Reshape(x, [4, 3])
        yield ge.Const([1.0, 2.0])

    program, x = fused(build), torch.randn(3, 4)
    first = program.run([x])
    memory = {v.untyped_storage().data_ptr() for v in (x, *first)}
    assert len(memory) == 4
    first[2].zero_()
    assert program.run([x])[2].tolist() == [1, 2]


def test_numbers_stay_open(compilations: list[int]) -> None:
    """A caller's int is a size here, and computing with it does not make it a constant."""

    def build() -> Tensor:
        count = data(0, dtype=I64)
        shape = ge.Pack([count, ge.Const(3, dtype=I64)], axis=0)
        return ge.Add(ge.BroadcastTo(data(1, 1, 3), shape), ge.Cast(count, dst_type=F))

    program = fused(build)
    run = boxed(program, guarded=True)
    x = torch.randn(1, 3)
    for count in (4, 7, 12):
        assert torch.equal(run([count, x])[0], x.expand(count, 3) + count)
        assert torch.equal(program.run([count, x])[0], x.expand(count, 3) + count)
    assert len(compilations) == 1


def test_a_reference_is_written(compilations: list[int]) -> None:
    def build() -> Tensor:
        state = graph.add("RefData", [None], {"index": Int(0)}, [(F, (4, 2))]).outputs[0]
        return ge.ScatterUpdate(state, data(1, 1, dtype=I64), ge.Mul(data(2, 1, 2), 2.0))

    graph = Graph("g")
    with building(graph):
        graph.outputs = [build()]
    program = CpuEngine().compile(graph, {"engine.program": "inductor"})
    state, expected = torch.zeros(4, 2), torch.zeros(4, 2)
    for row in (1, 3):  # the first run is the kernels', with checks
        update, version = torch.randn(1, 2), state._version
        expected[row] = 2 * update
        result = program.run([state, torch.tensor([row]), update])[0]
        assert torch.equal(state, expected)
        assert torch.equal(result, expected)
        assert state._version > version
        assert result.untyped_storage().data_ptr() != state.untyped_storage().data_ptr()
    memory = torch.zeros(8)
    with pytest.raises(EngineError, match="shares memory"):
        program.run([memory.view(4, 2), torch.tensor([1]), memory[2:4].view(1, 2)])
    program.run([torch.zeros(16)[:8].view(4, 2), torch.tensor([1]), torch.zeros(16)[8:10].view(1, 2)])


def test_repeated_and_conjugate_inputs() -> None:
    program = fused(lambda: ge.Mul(data(0, 3, dtype=DataType.DT_COMPLEX64), data(1, 3, dtype=DataType.DT_COMPLEX64)))
    z = torch.randn(3, dtype=torch.complex64)
    for x, y in ((z, z), (z.conj(), z), (z, z)):
        torch.testing.assert_close(program.run([x, y])[0], x * y)


def test_what_others_see_is_refused_whole() -> None:
    def build() -> Tensor:
        x = data(0, 3)
        text = ge.StringFormat([x], template="{}", placeholder="{}")
        current_graph().output_control.append(ge.PrintV2(text))
        return ge.Relu(ge.HcomAllReduce(x, reduction="sum", group="world"))

    program = fused(build)
    with pytest.raises(EngineError) as caught:
        program.run([torch.ones(3)])
    assert caught.value.code == "GE4026"
    assert "2 node(s)" in caught.value.what
    assert "PrintV2:" in caught.value.what
    assert "HcomAllReduce:" in caught.value.what


def test_nodes_of_inner_graphs_are_refused_once_at_any_depth() -> None:
    graph = graph_of(lambda: ge.HcomAllReduce(data(0, 3), reduction="sum", group="world"))
    for _ in range(2):  # in a graph that is in a graph
        called = graph
        graph = graph_of(lambda called=called: ge.PartitionedCall([data(0, 3)], f=called, size_of_output=1)[0])
    program = CpuEngine().compile(graph, {"engine.program": "inductor"})
    with pytest.raises(EngineError, match=r"\[GE4026\] 1 node\(s\)") as caught:
        program.run([torch.ones(3)])
    assert caught.value.what.count("HcomAllReduce:") == 1


def test_elements_out_of_range_are_refused_when_the_program_runs() -> None:
    program = fused(lambda: ge.GatherNd(data(0, 4, 3), data(1, 2, 1, dtype=I64)))
    x = torch.randn(4, 3)
    assert torch.equal(program.run([x, torch.tensor([[1], [2]])])[0], x[1:3])
    for outside in (-1, 4):
        with pytest.raises(EngineError, match=r"coordinate 0 leaves \[0, 4\)"):
            program.run([x, torch.tensor([[1], [outside]])])


def test_a_kernel_that_needs_elements_is_refused_by_name() -> None:
    program = fused(lambda: ge.Split(data(0, dtype=I32), data(1, 4, 3), num_split=1))
    with pytest.raises(EngineError, match=r"\[GE4026\][\s\S]*Split[\s\S]*TAIR_CPU_PROGRAM"):
        program.run([torch.tensor(0, dtype=torch.int32), torch.ones(4, 3)])


def test_random_numbers_are_those_of_the_kernels(compilations: list[int]) -> None:
    """With seeds the same numbers as the kernels', without others in every run, which follow torch's seed."""

    def build() -> Iterator[Tensor]:
        x = data(0, "s0", 4)
        shape = ge.Shape(x, dtype=I64)
        yield ge.Add(x, ge.RandomUniform(shape, dtype=F, seed=3, seed2=4))
        yield ge.RandomStandardNormal(shape, dtype=F, seed=3, seed2=4)
        yield ge.RandomUniformInt(shape, ge.Const(0, dtype=I64), ge.Const(100, dtype=I64), seed=3, seed2=4)
        seed = (ge.Const([5], dtype=I64), ge.Const([1], dtype=I64))
        yield ge.StatelessRandperm(ge.GatherV2(shape, [0], [0]), *seed)
        yield ge.MultinomialWithReplacement(ge.Abs(x), *seed, numsamples=3)
        keep = ge.Const(0.5)
        mask = ge.StatelessDropOutGenMask(shape, keep, seed[0], seed[0], seed[1])
        yield ge.DropOutDoMask(x, mask, keep)
        yield ge.RandomUniform(shape, dtype=F)
        yield ge.RandomUniform(shape, dtype=F)

    plain, program = CpuEngine().compile(graph_of(build), {}), fused(build)
    for rows in (3, 6):
        x = torch.randn(rows, 4)
        *seeded, one, two = program.run([x])
        for got, want in zip(seeded, plain.run([x]), strict=False):
            torch.testing.assert_close(got, want)
        assert not torch.equal(one, two)
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(program.run([x])[-1])
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
    assert len(compilations) == 1


def test_a_kernel_of_the_user_is_fused(user_kernels: None) -> None:
    @kernel("Softsign", override=True)
    def softsign(x: torch.Tensor) -> torch.Tensor:
        return x / (1 + x.abs()) + 1

    program, x = fused(lambda: ge.Softsign(data(0, 5))), torch.randn(5)
    torch.testing.assert_close(program.run([x])[0], x / (1 + x.abs()) + 1)


@pytest.mark.parametrize("place", ["torch._inductor.compile", "ge_runtime.cpu.torch_compat.Sketch.trace"])
def test_what_fails_in_torch_is_named(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, lambda *_, **__: 1 / 0)
    program = fused(lambda: ge.Relu(data(0, 5)))
    with pytest.raises(EngineError, match=r"\[GE4026\][\s\S]*division by zero"):
        program.run([torch.ones(5)])


@pytest.mark.parametrize("options", [{"program": "tvm"}, {"program": "inductor", "check": "always"}])
def test_options_that_do_not_go_together_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(EngineError, match=r"\[GE4007\]"):
        CpuEngine().compile(graph_of(lambda: ge.Relu(data(0, 2))), {f"engine.{k}": v for k, v in options.items()})


def test_the_variable_counts_where_no_option_says_it(monkeypatch: pytest.MonkeyPatch, compilations: list[int]) -> None:
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "inductor")
    graph = graph_of(lambda: ge.Relu(data(0, 2)))
    CpuEngine().compile(graph, {"engine.program": "aten"}).run([torch.ones(2)])
    assert compilations == []
    program = CpuEngine().compile(graph, {})
    assert program.run([torch.ones(2)])[0].tolist() == [1, 1]
    assert compilations == [1]  # in the first run already
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "fast")
    with pytest.raises(EngineError, match=r"\[GE4007\] engine option engine.program='fast'"):
        CpuEngine().compile(graph, {})
