"""torch.compile with this backend gives what eager gives: values, types, strides, identity, side effects, gradients."""

import copy
import functools
import pickle

import pytest
import torch

import npugraph_ex
import torchair
from ge_graph.errors import ConfigError
from tair_testing.compiling import compiled, same


def check(fn, *args, dynamic=False, config=None):
    """Run eagerly and compiled, twice, on equal inputs; compare results and what became of the inputs."""
    run = compiled(fn, config, dynamic=dynamic)
    for _ in range(2):
        ours = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        theirs = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        got, want = run(*ours), fn(*theirs)
        same(got, want)
        for a, b in zip(ours, theirs):
            same(a, b)
    return run


# -- values -----------------------------------------------------------------------------------------------------------


def test_a_module():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        x = torch.randn(3, 4)
        same(compiled(model)(x), model(x))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64]
)
def test_element_types(dtype):
    x = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    check(lambda x: (x + x, x * 2 - x, x.abs()), x)


def test_bool():
    x = torch.tensor([[True, False], [False, True]])
    check(lambda x, y: (x & y, x | y, ~x, x ^ y), x, x.t().contiguous())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1, 1)])
def test_zero_d_and_empty(shape):
    check(lambda x: (x + 1, (x * x).sum(), x.abs()), torch.randn(shape))


@pytest.mark.slow
def test_non_contiguous_inputs():
    base = torch.randn(4, 6)
    for x in (base.t(), base[:, ::2], base[1:3, 1:], base[:1].expand(4, 6)):
        got = compiled(lambda x: x * 2 + 1)(x)
        torch.testing.assert_close(got, x * 2 + 1)


def test_strides_of_results_are_those_of_eager():
    check(lambda x: (x.t() + 1, x.permute(1, 0) * 2, (x + 1).t().contiguous()), torch.randn(3, 5))


def test_channels_last_stays_channels_last():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    got = compiled(lambda x: x + 1)(x)
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, x + 1)


def test_python_scalars_as_arguments():
    run = compiled(lambda x, k, f: (x * k + f, k * 2), dynamic=True)
    for k in (3, 5, 8):
        x = torch.randn(4, 2)
        same(run(x, k, 0.5), (x * k + 0.5, k * 2))


# -- identity and side effects ----------------------------------------------------------------------------------------


def test_none_numbers_and_nested_results():
    check(lambda x: (x + 1, None, 3, "text", [x * 2, {"a": x - 1}["a"]]), torch.randn(2, 3))


def test_an_input_comes_back_as_itself():
    run = compiled(lambda x, y: (x, x + y, y))
    x, y = torch.randn(3), torch.randn(3)
    first, _, second = run(x, y)
    assert first is x
    assert second is y


def test_only_inputs_come_back():
    run = compiled(lambda x: x)
    x = torch.randn(3)
    assert run(x) is x


def test_one_tensor_returned_twice_is_one_tensor():
    def fn(x):
        y = x + 1
        return y, y

    first, second = compiled(fn)(torch.randn(3))
    eager_first, eager_second = fn(torch.randn(3))
    assert (first.data_ptr() == second.data_ptr()) == (eager_first.data_ptr() == eager_second.data_ptr())


def test_a_copy_of_a_result_is_another_tensor():
    def fn(x):
        y = x + 1
        return y, y.clone()

    first, second = compiled(fn)(torch.randn(3))
    first.zero_()
    assert second.abs().sum() > 0


def test_a_copy_of_an_input_is_another_tensor():
    x = torch.randn(3)
    (copy,) = compiled(lambda x: (x.clone(),))(x)
    copy.zero_()
    assert x.abs().sum() > 0


def test_views_of_inputs_and_of_results_share_memory():
    def fn(x):
        y = x * 2
        return x.view(-1), y, y.t(), y[0]

    x = torch.randn(3, 4)
    flat, y, turned, row = compiled(fn)(x)
    x.zero_()
    assert flat.abs().sum() == 0
    y.fill_(7)
    assert (turned == 7).all()
    assert (row == 7).all()


def test_results_survive_the_next_run():
    run = compiled(lambda x: x + 1)
    first = run(torch.zeros(3))
    run(torch.ones(3) * 5)
    assert first.tolist() == [1, 1, 1]


def test_the_same_tensor_twice():
    x = torch.randn(3)
    run = compiled(lambda a, b: a * 2 + b)
    same(run(x, x), x * 3)
    y = torch.randn(3)
    same(run(x, y), x * 2 + y)


def test_input_mutation():
    def fn(x, y):
        x.add_(1)
        y.mul_(x)
        return x + y

    check(fn, torch.randn(3, 4), torch.randn(3, 4))


def test_an_update_is_computed_in_the_tensor_that_it_updates():
    def fn(x, y):
        x.mul_(0.5).add_(y)

    run = check(fn, torch.randn(64, 64), torch.randn(64, 64))
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    run(x, y)
    before = x._version
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        run(x, y)
    assert not [e.name for e in seen.events() if e.cpu_memory_usage >= x.nbytes]
    assert x._version > before


def test_mutation_through_a_view():
    def fn(x):
        x[0].zero_()
        x[:, 1] += 2
        return x.sum()

    check(fn, torch.randn(3, 4))


def test_mutation_of_the_same_tensor_given_twice():
    def fn(a, b):
        a.add_(1)
        return a + b

    x, y = torch.randn(3), torch.randn(3)
    run = compiled(fn)
    z = x.clone()
    got = run(x, x)
    want = fn(z, z)
    same((got, x), (want, z))
    w, v = x.clone(), y.clone()
    same((run(x, y), x), (fn(w, v), w))


def test_swapped_inputs():
    def fn(x, y):
        t = x.clone()
        x.copy_(y)
        y.copy_(t)
        return x - y

    check(fn, torch.randn(4), torch.randn(4))


def test_written_non_contiguous_input_keeps_its_strides():
    base = torch.randn(4, 6)
    x = base.t()
    y = x.clone()

    def fn(x):
        x.mul_(2)
        return x.sum()

    same(compiled(fn)(x), fn(y))
    torch.testing.assert_close(x, y)
    assert x.stride() == (1, 6)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("ref_data", [True, False])
def test_mutation_options_change_the_graph_and_not_the_result(keep, ref_data, recording):
    config = torchair.CompilerConfig()
    config.experimental_config.keep_inference_input_mutation = keep
    config.experimental_config.enable_ref_data = ref_data

    def fn(cache, new):
        cache.add_(new)
        return cache * 2

    with recording() as seen:
        check(fn, torch.randn(3, 4), torch.randn(3, 4), config=config)
    ops = {n.op for n in seen.last_graph().nodes}
    assert ("RefData" in ops) == (keep and ref_data)
    assert ("Assign" in ops) == (keep and ref_data)


def test_buffers_are_updated():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen += x.sum(0)
            return x * self.seen

    ours, theirs = Counter(), Counter()
    run = compiled(ours)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 2)
            same(run(x), theirs(x))
    same(ours.seen, theirs.seen)


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_forward_and_backward(recording):
    ours = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    theirs.load_state_dict(ours.state_dict())
    run = compiled(ours)
    with recording() as seen:
        for _ in range(2):
            x = torch.randn(5, 4, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            run(x).pow(2).sum().backward()
            theirs(y).pow(2).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
    assert [(s.phase, s.model_id) for s, label, _ in seen.ge if label == "optimized"] == [
        ("forward", seen.models[0]),
        ("backward", seen.models[0]),
    ]


def test_training_with_mutation_and_frozen_parts():
    weight = torch.randn(3, 3, requires_grad=True)
    other = weight.detach().clone().requires_grad_()

    def fn(x, w, seen):
        seen.add_(x.sum())
        return (x @ w).relu(), seen * 2

    x, ours, theirs = torch.randn(2, 3), torch.zeros(()), torch.zeros(())
    got, count = compiled(fn)(x, weight, ours)
    want, wanted_count = fn(x, other, theirs)
    same((got.detach(), count, ours), (want.detach(), wanted_count, theirs))
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(weight.grad, other.grad)


# -- dynamic ----------------------------------------------------------------------------------------------------------


def test_one_compile_for_many_sizes(recording):
    model = torch.nn.Linear(4, 2)
    run = compiled(model, dynamic=True)
    with recording() as seen, torch.no_grad():
        for n in (2, 3, 7, 64):
            x = torch.randn(n, 4)
            same(run(x), model(x))
    assert len(seen.models) == 1


def test_sizes_as_values(recording):
    def fn(x):
        n, m = x.shape
        return x.reshape(m, n) * n, n * 2 + m, x.new_zeros(n)

    run = compiled(fn, dynamic=True)
    with recording() as seen:
        for shape in ((3, 4), (5, 2), (7, 7)):
            x = torch.randn(shape)
            same(run(x), fn(x))
    assert len(seen.models) <= 2  # 7 x 7 may get a graph of its own


def test_growing_mutation_under_dynamic_sizes():
    def fn(cache, row, at):
        cache[at] = row
        return cache[: at + 1].sum(0)

    run = compiled(fn, dynamic=True)
    ours, theirs = torch.zeros(8, 4), torch.zeros(8, 4)
    for at in range(2, 6):
        row = torch.randn(4)
        same(run(ours, row, at), fn(theirs, row, at))
        same(ours, theirs)


# -- the doors --------------------------------------------------------------------------------------------------------


def test_backend_by_name():
    x = torch.randn(3)
    same(torch.compile(lambda x: x + 1, backend="npu")(x), x + 1)


def test_backend_by_name_refuses_unknown_options():
    with pytest.raises(Exception, match="GE1001"):
        torch.compile(lambda x: x + 1, backend="npu", options={"a": 1})(torch.randn(3))


def test_backend_is_a_partial_with_the_documented_keywords():
    backend = torchair.get_npu_backend()
    assert isinstance(backend, functools.partial)
    assert set(backend.keywords) == {"compiler_config", "aot_config", "custom_decompositions"}
    with pytest.raises(TypeError):
        torchair.get_npu_backend(torchair.CompilerConfig())


def _doubled(x):
    return x * 2


def a_backend(mode="max-autotune", **decompositions):
    config = torchair.CompilerConfig()
    config.mode = mode
    return torchair.get_npu_backend(
        compiler_config=config,
        custom_decompositions={getattr(torch.ops.aten, name).default: fn for name, fn in decompositions.items()},
    )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
@pytest.mark.parametrize("given", [{}, {"mode": "reduce-overhead"}, {"abs": _doubled}])
def test_backends_of_one_configuration_are_equal(given, copied):
    backend = a_backend(**given)
    for other in (a_backend(**given), copied(backend)):
        assert other == backend
        assert hash(other) == hash(backend)
    others = [a_backend(), a_backend(mode="reduce-overhead"), a_backend(abs=_doubled), a_backend(abs=torch.sin)]
    assert sum(other == backend for other in others) == 1
    assert len(repr(backend)) < 100


@pytest.mark.unverified
def test_a_backend_without_options_has_the_default_ones():
    assert torchair.get_npu_backend() == a_backend()
    assert torchair.get_npu_backend() != npugraph_ex.get_npu_backend()


def test_options_changed_after_a_compilation_count_in_equality():
    backend = a_backend()
    torch.compile(lambda x: x + 1, backend=backend)(torch.randn(3))
    assert backend == a_backend()
    backend.keywords["compiler_config"].mode = "reduce-overhead"
    assert backend != a_backend()
    assert backend != a_backend(mode="reduce-overhead")  # whose graphs are not those of the first call
    backend.keywords["compiler_config"].mode = "max-autotune"
    assert backend == a_backend()


class _Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x).relu()


def test_equal_blocks_compiled_one_by_one_are_one_graph():
    blocks = torch.nn.Sequential(*(_Block() for _ in range(12)))
    x = torch.randn(3, 4)
    with torch.no_grad():
        want = blocks(x)
    for block in blocks:
        block.compile(backend=torchair.get_npu_backend(), fullgraph=True)
    with torch.no_grad(), torchair.record_compilation() as reports:
        same(blocks(x), want)
    assert len(reports) == 1


def test_a_copy_of_a_compiled_module_compiles_nothing():
    module = torch.compile(_Block(), backend=torchair.get_npu_backend())
    x = torch.randn(3, 4)
    with torch.no_grad(), torchair.record_compilation() as reports:
        want = module(x)
        same(copy.deepcopy(module)(x), want)
    assert len(reports) == 1


@pytest.mark.parametrize("bad", [{"mode": "max-autotune"}, "max-autotune", 3])
def test_wrong_config_objects(bad):
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.get_npu_backend(compiler_config=bad)
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.get_compiler(bad)


@pytest.mark.parametrize("bad", [None, [], {"aten.add": 3}, {torch.ops.aten.add.Tensor: 3}])
def test_wrong_decompositions(bad):
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.get_npu_backend(custom_decompositions=bad)


def test_keywords_that_the_backend_has_not():
    """Documentation of the bundled torchair names one of them ``custom_decomposition``."""
    with pytest.raises(ConfigError, match="GE1011.*no custom_decomposition\n.*custom_decompositions="):
        torchair.get_npu_backend(custom_decomposition={})


def test_custom_decompositions_are_used(recording):
    used = []

    def abs_as_max(x):
        used.append(1)
        return torch.maximum(x, -x)

    backend = torchair.get_npu_backend(custom_decompositions={torch.ops.aten.abs.default: abs_as_max})
    x = torch.randn(5)
    with recording() as seen:
        got = torch.compile(lambda x: x.abs(), backend=backend)(x)
    torch.testing.assert_close(got, x.abs())
    assert used
    assert "aten.abs.default" not in seen.fx[0][2]


def test_get_compiler_in_a_backend_of_ones_own():
    from functorch.compile import aot_module_simplified

    def backend(gm, inputs):
        return aot_module_simplified(gm, inputs, fw_compiler=torchair.get_compiler())

    x = torch.randn(3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    torch.compile(lambda x: (x * x).sum(), backend=backend)(x).backward()
    (y * y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("option", ["run_eagerly", "mode"])
def test_the_aten_program_as_it_stands(option, recording):
    config = torchair.CompilerConfig()
    if option == "mode":
        config.mode = "reduce-overhead"
    else:
        config.debug.run_eagerly = True

    def fn(x, y):
        x.add_(1)
        return (x * y).clone(), x, None

    with recording() as seen:
        check(fn, torch.randn(3), torch.randn(3), config=config)
    assert not seen.ge
    assert "torch.ops.aten.mul.Tensor" in seen.code[0][1]


def test_node_order_follows_the_sorting_strategy(recording):
    def fn(x):
        a, b = x.abs(), x.exp()
        return a.sin() + b.cos()

    orders = {}
    for strategy in ("DFS", "BFS"):
        config = torchair.CompilerConfig()
        config.experimental_config.topology_sorting_strategy = strategy
        torch._dynamo.reset()
        with recording() as seen:
            check(fn, torch.randn(3), config=config)
        orders[strategy] = [n.op for n in seen.last_graph().nodes]
    assert sorted(orders["DFS"]) == sorted(orders["BFS"])


# -- errors -----------------------------------------------------------------------------------------------------------


def test_options_reach_the_compile_and_stop_it():
    config = torchair.CompilerConfig()
    config.check_soc = "ascend1x"
    with pytest.raises(Exception, match=r"GE3068.*ascend1x"):
        compiled(lambda x: x + 1, config)(torch.randn(3))


@torch.library.custom_op("torchair_test::no_such_operator", mutates_args=())
def no_such_operator(x: torch.Tensor) -> torch.Tensor:
    """An op that runs eagerly and that nobody converts."""
    return x.clone()


no_such_operator.register_fake(torch.empty_like)


def test_an_op_without_converter_is_named_with_the_users_line():
    def fn(x):
        return torch.ops.torchair_test.no_such_operator(x)  # the line that the error must name

    with pytest.raises(Exception) as caught:
        compiled(fn)(torch.randn(3, 3))
    assert "GE2001" in str(caught.value)
    assert "torchair_test.no_such_operator" in str(caught.value)
    assert "test_backend.py" in str(caught.value)


def test_graph_breaks_stay_torchs_error():
    def fn(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(fn)(torch.randn(3))


def test_a_forced_engine_that_is_absent_says_so(monkeypatch):
    monkeypatch.setenv("TAIR_ENGINE", "nowhere")
    with pytest.raises(Exception, match=r"GE4\d\d\d"):
        compiled(lambda x: x + 1)(torch.randn(3))


def test_index_errors_at_run_time_carry_code_and_graph():
    def fn(x, i):
        return x[i]

    run = compiled(fn)
    run(torch.randn(3), torch.tensor([1, 2]))
    with pytest.raises(Exception, match=r"GE4\d\d\d"):
        run(torch.randn(3), torch.tensor([1, 7]))


def test_what_aot_cannot_trace_is_an_error_and_no_silent_eager_run():
    from torch._subclasses.fake_tensor import DataDependentOutputException

    def depends_on_data(x):
        raise DataDependentOutputException(torch.ops.aten.abs.default)

    backend = torchair.get_npu_backend(custom_decompositions={torch.ops.aten.abs.default: depends_on_data})
    with pytest.raises(Exception, match=r"GE1031.*DataDependentOutputException"):
        torch.compile(lambda x: x.abs(), backend=backend)(torch.randn(3))


def test_aot_keywords_are_passed_on():
    used = []

    def partition(joint, inputs, **kwargs):
        from functorch.compile import default_partition

        used.append(len(inputs))
        return default_partition(joint, inputs, **kwargs)

    backend = functools.partial(torchair.get_npu_backend(), aot_config={"partition_fn": partition})
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: x.sin().sum(), backend=backend)(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert used


def test_random_numbers_follow_the_generator():
    run = compiled(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(4096)
    torch.manual_seed(3)
    first = run(x)
    second = run(x)
    torch.manual_seed(3)
    again = run(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert 0.4 < float((first == 0).float().mean()) < 0.6
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_inference_mode_and_autocast():
    model = torch.nn.Linear(4, 2)
    run = compiled(model)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        torch.testing.assert_close(run(x), model(x))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = run(x), model(x)
        assert got.dtype == want.dtype == torch.bfloat16
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("mode", "captures"), [("reduce-overhead", 1), ("max-autotune", 0), ("max-autotune-no-cudagraphs", 0)]
)
@pytest.mark.parametrize("backend", ["npu", "callable"])
def test_modes_of_torch_compile(mode, captures, backend, monkeypatch):
    from torchair.compiler import pipeline

    seen = []
    original = pipeline.Pipeline._captured
    monkeypatch.setattr(pipeline.Pipeline, "_captured", lambda self, gm: seen.append(1) or original(self, gm))
    torch._dynamo.reset()
    chosen = backend if backend == "npu" else torchair.get_npu_backend()
    run = torch.compile(lambda x: x + 1, backend=chosen, mode=mode)
    torch.testing.assert_close(run(torch.ones(2)), torch.ones(2) + 1)
    assert len(seen) == captures


def test_a_mode_against_the_options():
    from torchair.compiler.backend import npu

    with pytest.raises(ConfigError, match="GE1012.*reduce-overhead.*max-autotune"):
        npu(None, [], mode="reduce-overhead", options={"mode": "max-autotune"})


@pytest.fixture
def prefetch():
    if hasattr(torch.ops.npu, "npu_prefetch"):
        yield torch.ops.npu.npu_prefetch
        return
    library = torch.library.Library("npu", "FRAGMENT")
    library.define("npu_prefetch(Tensor input, Tensor? dependency, int max_size, int offset=0) -> ()")
    library._register_fake("npu_prefetch", lambda *args, **more: None)
    yield torch.ops.npu.npu_prefetch
    library._destroy()


def test_an_op_without_result_is_not_lost(prefetch, recording):
    def fn(x, weight):
        y = x * 2
        prefetch(weight, y, 64)
        return y @ weight

    x, weight = torch.randn(2, 3), torch.randn(3, 4)
    torch._dynamo.reset()
    with recording() as seen:
        run = torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True)
        torch.testing.assert_close(run(x, weight), (x * 2) @ weight)
    assert "Cmo" in [n.op for n in seen.ge[-1][2].nodes]


@pytest.mark.parametrize("name", ["unique", "unique_consecutive"])
@pytest.mark.parametrize("asked", [{}, {"return_inverse": True}, {"return_counts": True}], ids=str)
def test_distinct_values_of_floats(name, asked):
    def fn(x):
        return getattr(torch, name)(x, **asked)

    x = torch.tensor([3.0, 1.0, 1.0, 3.0, 2.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = torch.compile(fn, backend="npu", fullgraph=True)(x)
    torch.testing.assert_close(got, fn(x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_quotients_of_integers_are_floats(dtype, dynamic):
    def fn(a, b):
        quotient = a / b
        return quotient, quotient + b, (quotient * 2).sum(), a / 2, a / b.to(torch.int16)

    run = compiled(fn, dynamic=dynamic)
    for rows in (2, 3):
        a = (torch.arange(rows * 3).reshape(rows, 3) % 5).to(dtype)
        for b in (torch.tensor(2).to(dtype), (a + 1).to(dtype)):
            for got, want in zip(run(a, b), fn(a, b)):
                torch.testing.assert_close(got, want)
