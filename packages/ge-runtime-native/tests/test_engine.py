"""The planner and the program: memory, numbers, order, errors, what a user registers."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_graph import DataType, EngineError, Graph, Provenance, building, schema
from ge_graph import ops as ge
from ge_graph.attrs import Int
from ge_graph.ir import Tensor
from ge_runtime.api import boxed
from ge_runtime.cpu import Call, CpuEngine, kernel, registered, unregister
from ge_runtime.cpu.planner import Planner

F, I64 = DataType.DT_FLOAT, DataType.DT_INT64


def compiled(build: Callable[[], Any], **options: str) -> Any:
    graph = Graph("g")
    with building(graph):
        found = build()
    graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    return CpuEngine().compile(graph, {f"engine.{k}": v for k, v in options.items()})


def data(index: int, *shape: int | str, dtype: DataType = F) -> Tensor:
    return ge.Data(index=index, dtype=dtype, shape=shape)


# Random programs against numpy: nothing may be overwritten while somebody can see it

_STEPS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Maximum": np.maximum,
    "Neg": np.negative,
    "Abs": np.abs,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Square": np.square,
    "Transpose": lambda x: x.T.copy(),
    "Identity": lambda x: x,
    "Round": np.rint,
}


def _random_program(rng: random.Random, size: int) -> tuple[Graph, Callable[[list[Any]], list[Any]]]:
    graph, recipe = Graph("random"), []
    with building(graph):
        edges = [data(0, 3, 3), data(1, 3, 3), ge.Const(np.eye(3, dtype=np.float32))]
        for _ in range(size):
            op = rng.choice(sorted(_STEPS))
            count = 2 if op in ("Add", "Sub", "Mul", "Maximum") else 1
            picked = [rng.randrange(max(0, len(edges) - 4), len(edges)) for _ in range(count)]
            args: list[Any] = [edges[k] for k in picked] + ([[1, 0]] if op == "Transpose" else [])
            made = getattr(ge, op)(*args)
            made.record_shape((3, 3))
            edges.append(made)
            recipe.append((op, picked))
        chosen = [rng.randrange(len(edges)) for _ in range(3)]
        graph.outputs = [edges[k] for k in chosen]

    def reference(inputs: list[Any]) -> list[Any]:
        values = [*inputs, np.eye(3, dtype=np.float32)]
        for op, picked in recipe:
            values.append(_STEPS[op](*(values[k] for k in picked)))
        return [values[k] for k in chosen]

    return graph, reference


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 25))
def test_random_programs_agree_with_numpy(seed: int, size: int) -> None:
    rng = random.Random(seed)
    graph, reference = _random_program(rng, size)
    inputs = [np.random.default_rng(seed + k).random((3, 3)).astype(np.float32) for k in range(2)]
    want = reference([x.copy() for x in inputs])
    for options in ({}, {"engine.shuffle_seed": str(seed)}, {"engine.check": "always"}):
        executable = CpuEngine().compile(graph, options)
        for _ in range(3):
            results = [np.asarray(r) for r in executable.run(inputs)]
            for got, expected in zip(results, want):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
            everything = [*inputs, *results]
            assert not any(np.shares_memory(a, b) for i, a in enumerate(everything) for b in everything[:i])


def test_dead_memory_is_overwritten() -> None:
    executable = compiled(lambda: _recorded(ge.Relu(_recorded(ge.Add(data(0, 4), data(1, 4))))))
    assert ".relu_(" in executable.source


def _recorded(t: Tensor) -> Tensor:
    t.record_shape((4,))
    return t


def test_a_graph_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[str] = []
    walk = Planner.walk
    monkeypatch.setattr(Planner, "walk", lambda self: (walks.append(self.graph.name), walk(self))[1])
    executable = compiled(lambda: ge.Relu(ge.Add(data(0, 3), 1.0)))
    x, seen = torch.tensor([-2.0, 0.0, 2.0]), []
    run = executable.boxed(guarded=True)
    for _ in range(3):  # the first run is checked, by a program that reports and overwrites nothing
        (y,) = run([x])
        torch.testing.assert_close(y, torch.relu(x + 1))
    executable.run_traced([x], lambda node, ins, outs: seen.append((node.op, [v.clone() for v in (*ins, *outs)])))
    assert walks == ["g"]
    assert "relu_" in executable.source
    (_, (a, _, total)), (_, (before, after)) = seen
    torch.testing.assert_close(a, x)
    torch.testing.assert_close(total, x + 1)
    torch.testing.assert_close(before, x + 1)  # not overwritten by Relu, as in a plain run
    torch.testing.assert_close(after, torch.relu(x + 1))


def test_values_are_freed_early() -> None:
    executable = compiled(lambda: ge.Tanh(ge.Exp(ge.Sin(data(0, "s0")))))
    freed: list[int] = []
    import weakref

    def on_node(node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        weakref.finalize(outputs[0], freed.append, node.name) if node.op != "Tanh" else None
        if node.op == "Tanh":
            assert "Sin" in freed

    executable.run_traced([torch.randn(3)], on_node)


# Numbers


def test_size_arithmetic_makes_no_tensors() -> None:
    def build() -> Tensor:
        x = data(0, "s0", "s1", 4)
        sizes = ge.Shape(x, dtype=I64)
        rows = ge.Mul(ge.Gather(sizes, 0), ge.Gather(sizes, 1))
        return ge.Reshape(x, ge.Pack([rows, ge.FloorDiv(ge.Sub(ge.Const(9), 1), 2)], N=2))

    executable = compiled(build)
    assert "tensor(" not in executable.source
    assert "tolist" not in executable.source
    for shape in ((2, 3, 4), (5, 1, 4)):
        x = torch.randn(shape)
        assert torch.equal(executable.run([x])[0], x.reshape(-1, 4))


def test_scalar_inputs_may_be_python_numbers() -> None:
    executable = compiled(lambda: ge.Fill(ge.Pack([data(0, dtype=I64), ge.Const(2)], N=2), ge.Const(1.5)))
    for given_ in (3, torch.tensor(3), np.array(3)):
        assert executable.run([given_])[0].tolist() == [[1.5, 1.5]] * 3


def test_int32_numbers_wrap_like_int32() -> None:
    def build() -> Tensor:
        n = ge.Gather(ge.Shape(data(0, "s0")), 0)  # int32 by default
        return ge.Mul(ge.Mul(n, ge.Const(65536, DataType.DT_INT32)), ge.Const(65536, DataType.DT_INT32))

    with np.errstate(over="ignore"):
        want = np.int32(3) * np.int32(65536) * np.int32(65536)
    result = compiled(build).run([torch.zeros(3)])[0]
    assert result.dtype is torch.int32
    assert int(result) == int(want)


def test_constants_are_not_copied() -> None:
    weights = np.ones((200, 200), np.float32)
    graph = Graph("g")
    with building(graph):
        graph.outputs = [ge.Add(data(0, 200, 200), ge.Const(weights))]
    executable = CpuEngine().compile(graph, {})
    x = torch.zeros(200, 200)
    assert float(executable.run([x]).pop()[0, 0]) == 1.0
    weights[0, 0] = 5.0  # the program reads the caller's bytes
    assert float(executable.run([x]).pop()[0, 0]) == 5.0


# Modes of the caller


def test_runs_outside_autograd_autocast_and_modes() -> None:
    executable = compiled(lambda: ge.MatMulV2(data(0, 4, 4), data(1, 4, 4)))
    x = torch.randn(4, 4, requires_grad=True)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            (y,) = executable.run([x, torch.nn.Parameter(x.detach())])
        assert y.dtype is torch.float32
        assert not y.requires_grad
        assert y.device.type == "cpu"
        torch.testing.assert_close(y, (x @ x).detach())


def test_reference_versions_move() -> None:
    graph = Graph("g")
    with building(graph):
        state = graph.add("RefData", [None], {"index": Int(0)}, [(F, (2,))]).outputs[0]
        graph.outputs = [ge.Assign(state, ge.Add(state, 1.0))]
    x = torch.zeros(2)
    version = x._version
    CpuEngine().compile(graph, {}).run([x])
    assert x.tolist() == [1.0, 1.0]
    assert x._version > version


def test_raw_memory_is_that_of_the_elements() -> None:
    """A vector with steps is its own elements one after the other, not the memory between them."""
    x = torch.arange(12.0)[::2]
    read = compiled(lambda: ge.AsStrided(data(0, 6), [3], [2], [0]))
    assert read.run([x])[0].tolist() == [0.0, 4.0, 8.0]
    copied = compiled(lambda: ge.ViewCopy(data(0, 6), [3], [2], [0], data(1, 6), [3], [1], [2]))
    assert copied.run([torch.zeros(12)[::2], x])[0].tolist() == [4.0, 0.0, 6.0, 0.0, 8.0, 0.0]


# Errors


def test_missing_kernels_name_the_users_line() -> None:
    schema.register_schema({"op": "TestNoKernel", "in": ["x f32"], "out": ["y f32"]})
    graph = Graph("g")
    with building(graph):
        graph.provenance = Provenance(fx_name="foo", fx_target="my.foo", source="model.py:7 in forward")
        graph.outputs = [ge.TestNoKernel(data(0, 2)), ge.TestNoKernel(data(1, 2))]
    with pytest.raises(EngineError, match=r"GE4003.*") as caught:
        CpuEngine().compile(graph, {})
    assert all(t in str(caught.value) for t in ("TestNoKernel", "model.py:7 in forward", "and 1 more", "@kernel"))


def test_failures_name_node_operands_and_line() -> None:
    graph = Graph("g")
    with building(graph):
        graph.provenance = Provenance(source="model.py:9 in forward")
        graph.outputs = [ge.Add(data(0, "s0"), data(1, "s1"))]
    executable = CpuEngine().compile(graph, {})
    for _ in range(2):
        with pytest.raises(EngineError, match="GE4005") as caught:
            executable.run([torch.zeros(2), torch.zeros(3)])
        assert all(t in str(caught.value) for t in ("f32[2], f32[3]", "model.py:9 in forward", "Add"))
        assert torch.equal(executable.run([torch.zeros(2), torch.ones(2)])[0], torch.ones(2))


def test_refusals_of_kernels_are_located() -> None:
    executable = compiled(lambda: ge.Squeeze(data(0, "s0", 2), axis=[0]))
    with pytest.raises(EngineError, match="GE4009") as caught:
        executable.run([torch.zeros(3, 2)])
    assert "Squeeze" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"engine.nonsense": "1"}, "GE4007"),
        ({"engine.shuffle_seed": "x"}, "GE4007"),
        ({"engine.check": "sometimes"}, "GE4007"),
        ({"engine.written": "0"}, "GE4007"),
        ({"engine.written": "0:1"}, "GE4007"),
        ({"engine.written": "-1:0"}, "GE4007"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, str], code: str) -> None:
    graph = Graph("g")
    with building(graph):
        graph.outputs = [ge.Relu(data(0, 2))]
    with pytest.raises(EngineError, match=code):
        CpuEngine().compile(graph, options)
    CpuEngine().compile(graph, {"ge.deterministic": "1"})  # other engines' options pass


# Kernels of users


@pytest.fixture
def own_op() -> Iterator[str]:
    schema.register_schema({"op": "TestOwn", "in": ["x f32"], "out": ["y f32"], "attr": [["factor", "Float", 1.0]]})
    yield "TestOwn"
    unregister("TestOwn")
    unregister("Relu")


def test_one_line_registers_a_kernel(own_op: str) -> None:
    @kernel(own_op)
    def own(x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        return x * factor

    assert compiled(lambda: ge.TestOwn(data(0, 2), factor=3.0)).run([torch.ones(2)])[0].tolist() == [3.0, 3.0]
    with pytest.raises(EngineError, match="GE4008"):
        kernel(own_op)(own)
    kernel(own_op, override=True)(lambda x, *, factor=1.0: x - factor)
    assert compiled(lambda: ge.TestOwn(data(0, 2), factor=3.0)).run([torch.ones(2)])[0].tolist() == [-2.0, -2.0]


def test_users_kernel_wins_over_ours(own_op: str) -> None:
    kernel("Relu")(lambda x: x * 0 + 7)
    assert compiled(lambda: ge.Relu(data(0, 2))).run([torch.ones(2)])[0].tolist() == [7.0, 7.0]
    unregister("Relu")
    assert compiled(lambda: ge.Relu(data(0, 2))).run([-torch.ones(2)])[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda x, *, factor=1.0: x.double(), "DT_FLOAT"),
        (lambda x, *, factor=1.0: x, "views=True"),
        (lambda x, *, factor=1.0: x.reshape(1, -1) + 0, "declares"),
        (lambda x, *, factor=1.0: None, "not a tensor"),
    ],
)
def test_first_run_checks_results(own_op: str, broken: Callable[..., Any], says: str) -> None:
    kernel(own_op, override=True)(broken)
    executable = compiled(lambda: _sized(ge.TestOwn(data(0, 2))))
    with pytest.raises(EngineError, match="GE4006") as caught:
        executable.run([torch.ones(2)])
    assert says in str(caught.value)


def _sized(t: Tensor) -> Tensor:
    t.record_shape((2,))
    return t


def test_attribute_that_a_kernel_ignores_is_refused(own_op: str) -> None:
    kernel(own_op)(lambda x: x + 0)
    compiled(lambda: ge.TestOwn(data(0, 2)))
    with pytest.raises(EngineError, match="GE4009"):
        compiled(lambda: ge.TestOwn(data(0, 2), factor=2.0))


def test_views_of_users_are_copied_where_they_leave(own_op: str) -> None:
    kernel(own_op, views=True)(lambda x, *, factor=1.0: x[:1].expand(3))
    x = torch.ones(2)
    executable = compiled(lambda: ge.Add(ge.TestOwn(data(0, 2)), 1.0), check="never")
    assert executable.run([x])[0].tolist() == [2.0, 2.0, 2.0]
    assert x.tolist() == [1.0, 1.0]
    (y,) = compiled(lambda: ge.TestOwn(data(0, 2))).run([x])
    y.add_(1)
    assert x.tolist() == [1.0, 1.0]


# The table


def test_every_family_loads_and_names_known_operators() -> None:
    kernels = registered()
    assert len(kernels) > 400
    unknown = [op for op in kernels if schema.get(op) is None and not op.startswith("Test")]
    assert unknown == []


def test_plan_hooks_may_nest_calls(own_op: str) -> None:
    from ge_runtime.cpu import registry

    kernel(own_op)(lambda x, *, factor=1.0: x)
    hook = lambda ctx: Call(torch.add, (Call(torch.neg, (ctx.tensor("x"),)), 1.0))  # noqa: E731
    registry._user[own_op] = registry.replace(registry._user[own_op], plan=hook)
    assert compiled(lambda: ge.TestOwn(data(0, 2))).run([torch.ones(2)])[0].tolist() == [0.0, 0.0]


# Random operators


def test_philox_matches_published_vectors() -> None:
    from ge_runtime.cpu.kernels.random import philox

    # Known answers of Philox4x32-10 from the Random123 distribution.
    assert [f"{w:08x}" for w in philox(0, 0, 4)] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    ones = 2**128 - 1
    assert [f"{w:08x}" for w in philox(2**64 - 1, ones, 4)] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]


@pytest.mark.parametrize("op", ["StatelessRandomUniformV2", "StatelessRandomNormalV2"])
def test_random_is_a_function_of_key_and_counter(op: str) -> None:
    def build() -> Tensor:
        key = ge.Data(index=0, dtype=DataType.DT_UINT64, shape=(1,))
        counter = ge.Data(index=1, dtype=DataType.DT_UINT64, shape=(2,))
        return getattr(ge, op)([2000], key, counter, ge.Const(1, DataType.DT_INT32))

    executable = compiled(build)
    seeds = [np.array([k], np.uint64) for k in (5, 5, 6)]
    a, b, c = (executable.run([s, np.array([0, 0], np.uint64)])[0] for s in seeds)
    later = executable.run([seeds[0], np.array([0, 1], np.uint64)])[0]
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, later)
    mean, std = (0.5, 12**-0.5) if "Uniform" in op else (0.0, 1.0)
    assert abs(float(a.mean()) - mean) < 0.06
    assert abs(float(a.std()) - std) < 0.06


def test_dropout_mask_keeps_the_given_share() -> None:
    def build() -> Tensor:
        seed = ge.Data(index=0, dtype=I64, shape=(1,))
        mask = ge.StatelessDropOutGenMask([4000], ge.Const(0.75), seed, ge.Const([0]))
        return ge.DropOutDoMask(data(1, 4000), mask, ge.Const(0.75))

    x = torch.ones(4000)
    y = compiled(build).run([torch.tensor([3]), x])[0]
    assert y.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert abs(float((y != 0).float().mean()) - 0.75) < 0.04


def test_randperm_is_a_permutation() -> None:
    def build() -> Tensor:
        return ge.StatelessRandperm(ge.Const([50]), data(0, 1, dtype=I64), ge.Const([0]))

    executable = compiled(build)
    a, b = (executable.run([torch.tensor([s])])[0] for s in (1, 2))
    assert sorted(a.tolist()) == list(range(50))
    assert not torch.equal(a, b)


# Order


@pytest.mark.parametrize("seed", range(12))
def test_control_edges_order_updates(seed: int) -> None:
    """A read before and a read after an update, tied by control edges only, under any permitted order."""
    graph = Graph("g")
    with building(graph):
        state = graph.add("RefData", [None], {"index": Int(0)}, [(F, (2,))]).outputs[0]
        before = ge.Add(state, 0.0)
        written = ge.Assign(state, ge.Mul(data(1, 2), 2.0), dependencies=[before])
        after = ge.Add(state, 0.0, node_name="after")
        after.node.control.append(written.node)
        other = ge.Relu(data(1 + 1, 2))
        graph.outputs = [before, after, other]
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])
    results = CpuEngine().compile(graph, {"engine.shuffle_seed": str(seed)}).run([x, y, -y])
    assert [r.tolist() for r in results] == [[1.0, 2.0], [10.0, 12.0], [0.0, 0.0]]
    assert x.tolist() == [10.0, 12.0]


def test_nodes_tied_to_the_output_by_control_run() -> None:
    graph = Graph("g")
    with building(graph):
        check = ge.Assert(ge.Greater(data(0, 2), 0.0), [ge.Const([1])])
        graph.outputs = [ge.Relu(data(1, 2))]
        graph.output_control.append(check)
    executable = CpuEngine().compile(graph, {})
    executable.run([torch.ones(2), torch.ones(2)])
    with pytest.raises(EngineError, match="Assert"):
        executable.run([torch.zeros(2), torch.ones(2)])


# What a kernel author gets wrong


def scale_kernel(x, k):
    return x * k


@pytest.fixture
def authored():
    schema.register_schema(
        {"op": "Authored", "in": ["x f32"], "out": ["y f32"], "attr": [["k", "Float", 1.0]], "source": "a test"}
    )
    yield
    unregister("Authored")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x: x, r"does not take attribute k=2\.0"),
        (lambda x, y, k: x, "cannot be called: missing a required argument: 'y'"),
        (lambda k: k, "cannot be called"),
    ],
)
def test_kernels_that_do_not_fit_are_refused_before_anything_runs(authored, run, words):
    kernel("Authored")(run)
    with pytest.raises(EngineError, match=words) as caught:
        compiled(lambda: ge.Authored(data(0, 2), k=2.0))
    assert caught.value.code == "GE4009"
    assert "test_engine.py:" in caught.value.next


def test_a_kernel_defined_again_replaces_itself(authored):
    for _ in range(2):
        kernel("Authored")(scale_kernel)
    assert compiled(lambda: ge.Authored(data(0, 2), k=2.0)).run([torch.ones(2)])[0].tolist() == [2.0, 2.0]
    with pytest.raises(EngineError, match="GE4008"):
        kernel("Authored")(lambda x, k: x)


def test_kernel_needs_an_operator_type():
    for call in (lambda: kernel(), lambda: kernel(scale_kernel)):
        with pytest.raises(EngineError, match="GE4012"):
            call()


# Lists that are given away


def test_a_list_that_is_given_away_frees_each_input_after_its_last_use(authored):
    alive: list[bool] = []
    first = torch.ones(2)
    gone = weakref.ref(first)

    def watching(x: torch.Tensor, k: float) -> torch.Tensor:
        alive.append(gone() is not None)
        return x * k

    kernel("Authored")(watching)
    executable = compiled(lambda: ge.Authored(ge.Add(ge.Neg(data(0, 2)), data(1, 2)), k=2.0), check="never")
    given_away = [first, torch.ones(2)]
    del first
    assert boxed(executable, guarded=True)(given_away)[0].tolist() == [0.0, 0.0]
    assert given_away == []
    assert alive == [False]


def test_the_caller_keeps_the_list_of_a_plain_run():
    executable = compiled(lambda: ge.Neg(data(0, 2)))
    given_inputs = [torch.ones(2)]
    for _ in range(3):
        executable.run(given_inputs)
    assert len(given_inputs) == 1


@pytest.mark.parametrize("check", ["first", "never"])
def test_inputs_that_nobody_guards_are_looked_at(check):
    run = boxed(compiled(lambda: ge.Neg(data(0, 2)), check=check), guarded=False)
    for bad in ([torch.ones(3)], [torch.ones(2, dtype=torch.int64)], [], [torch.ones(2), torch.ones(2)]):
        with pytest.raises(EngineError, match="GE4004"):
            run(bad)
    assert run([np.ones(2, np.float32)])[0].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("guarded", [True, False])
def test_numbers_stand_for_scalar_inputs_of_a_list(guarded):
    run = boxed(compiled(lambda: ge.Add(data(0, 2), data(1))), guarded=guarded)
    for step in range(3):
        assert run([torch.ones(2), float(step)])[0].tolist() == [1.0 + step] * 2


def test_an_engine_without_a_form_for_lists_is_run_and_the_list_emptied():
    class Plain:
        source = ""

        def run(self, inputs: Sequence[Any]) -> list[Any]:
            return [sum(inputs)]

    given_away = [1, 2]
    assert boxed(Plain(), guarded=False)(given_away) == [3]  # type: ignore[arg-type]
    assert given_away == []
