"""Mode reduce-overhead and the backend npugraph_ex: programs, captures, buffers, a stand-in for torch.npu."""

import ast
import contextlib
import gc
import logging
import threading
import time
import types
import weakref

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from ge_graph.errors import ConfigError, EngineError
from torchair.runtime import reduce_overhead
from torchair.runtime.fx_program import write_program
from torchair.runtime.graph_capture import NpuGraph, ProgramReplay, find_capture
from torchair.runtime.host_tasks import StepNumbers
from torchair.runtime.host_work import refuse_host_work
from torchair.runtime.views import ViewPlan

aten = torch.ops.aten
HOSTILE = (
    "n\n    pass\nimport os; os._exit(7)\ndef call(*a):\n    #",
    '\'"""',
    "'''",
    "end\\",
    "a\rimport os",
    "a\x0cb",
    "a\u2028b",
    "a\x00b",
    "</script>",
    "=cmd",
    "../x",
    "x" * 10_000,
    "a\u202eb",
    "a\ud800b",
    "del",
    "hostile",
)


def config(**options):
    made = torchair.CompilerConfig()
    made.mode = "reduce-overhead"
    for name, value in options.items():
        setattr(made.aclgraph_config, name, value)
    return made


def compiled(fn, dynamic=None, **options):
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config(**options)), dynamic=dynamic)


def captures(caplog):
    return sum("captured by" in r.getMessage() for r in caplog.records)


@pytest.fixture
def log(caplog):
    handler, level = caplog.handler, torchair.logger.level
    torchair.logger.addHandler(handler)
    torchair.logger.setLevel(logging.INFO)
    yield caplog
    torchair.logger.setLevel(level)
    torchair.logger.removeHandler(handler)


def test_the_program_can_be_read_and_frees_early(recording):
    def fn(x):
        a = torch.mm(x, x)
        return torch.cat([a.sin(), a.cos()]) * float("inf")

    x = torch.randn(3, 3)
    with recording() as seen:
        got = compiled(fn)(x)
    torch.testing.assert_close(got, fn(x), equal_nan=True)
    ((_, text),) = seen.code
    assert "mode reduce-overhead" in text.splitlines()[0]
    assert "torch.ops.aten.sin.out(" in text
    assert "torch.ops.aten.mul_.Tensor(" in text
    assert "float('inf')" in text
    assert "test_reduce_overhead.py" in text
    assert text.index("del mm") < text.index("return")
    assert seen.ge == []
    exec(compile(text, "output_code.py", "exec"), names := {})
    torch.testing.assert_close(names["call"]([x])[0], fn(x), equal_nan=True)


@pytest.mark.parametrize("clone", [True, False])
def test_results_that_are_held_keep_their_numbers(clone):
    """Over many runs, through views, as the next run's input, and when some are dropped in between."""
    f = compiled(lambda x: (x + 1, x.sum(), x * 2), clone_output=clone)
    held, views = [], []
    for turn in range(6):
        whole, total, doubled = f(torch.full((3,), float(turn)))
        if turn != 3:
            held.append((turn, whole, total))
        views.append((turn, doubled[1:].view(2, 1)))
    for turn, whole, total in held:
        assert (whole.tolist(), total.item()) == ([turn + 1.0] * 3, turn * 3.0)
    assert [v.tolist() for _, v in views] == [[[t * 2.0]] * 2 for t, _ in views]
    step = compiled(lambda x: x + 1, clone_output=clone)
    x = torch.zeros(2)
    trace = [x := step(x) for _ in range(4)]
    assert [t.tolist() for t in trace] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]


def test_results_that_are_dropped_cost_no_copy():
    """The memory is the same in every run, until somebody holds a result; one copy a result and run from there on."""
    f = compiled(lambda x: x + 1)
    places = {f(torch.full((3,), float(n))).data_ptr() for n in range(4)}
    assert len(places) == 1
    held = f(torch.zeros(3))
    other = f(torch.ones(3))
    assert {held.data_ptr()} == places != {other.data_ptr()}
    assert (held.tolist(), other.tolist()) == ([1.0] * 3, [2.0] * 3)


def test_a_result_in_a_written_input_is_the_callers_memory():
    """What a graph writes into an input is no memory of the capture: nothing is put back there."""

    def step(cache, x):
        cache.add_(x)
        return cache, cache * 2

    f = compiled(step)
    cache, seen = torch.zeros(2), []
    for turn in range(3):
        same, doubled = f(cache, torch.ones(2))
        seen.append(doubled)
        assert same.tolist() == cache.tolist() == [turn + 1.0] * 2
    assert [d.tolist() for d in seen] == [[2.0] * 2, [4.0] * 2, [6.0] * 2]


@pytest.mark.parametrize("clone", [True, False])
def test_results_that_are_inputs_are_the_callers_tensors(clone):
    f = compiled(lambda x, y: (x, x.view(4), y + x.sum()), clone_output=clone)
    for _ in range(2):
        x, y = torch.randn(2, 2), torch.randn(1)
        same, view, _ = f(x, y)
        assert same is x
        assert view.data_ptr() == x.data_ptr()
        assert view.shape == (4,)


def test_inputs_are_copied_into_buffers_once_captured(log):
    seen = []
    f = compiled(lambda x: x * 2)
    for value in (1.0, 2.0, 3.0):
        x = torch.full((3,), value)
        seen.append(f(x).tolist())
        assert x.tolist() == [value] * 3
    assert seen == [[2.0] * 3, [4.0] * 3, [6.0] * 3]
    assert captures(log) == 1


def test_without_clone_input_the_first_tensor_is_the_buffer():
    f = compiled(lambda x: x * 2, clone_input=False)
    first, second = torch.ones(3), torch.full((3,), 7.0)
    f(first)
    assert f(second).tolist() == [14.0] * 3
    assert first.tolist() == [7.0] * 3  # documented: later values are copied into the first run's memory


def test_parameters_are_not_copied_and_follow_updates():
    model = torch.nn.Linear(3, 3).eval()
    f = compiled(model)
    with torch.no_grad():
        x = torch.randn(2, 3)
        torch.testing.assert_close(f(x), model(x))
        model.weight.add_(1)
        torch.testing.assert_close(f(x), model(x))


def test_a_frozen_parameter_that_moves_is_captured_anew(log):
    """Somebody who breaks the promise of ``frozen_parameter`` pays time, and gets no old numbers."""
    model = torch.nn.Linear(3, 3).eval()
    f, x = compiled(model, frozen_parameter=True), torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(f(x), model(x))
        model.weight.add_(1)
        torch.testing.assert_close(f(x), model(x))
        assert captures(log) == 1
        model.weight.data = torch.randn(3, 3)
        torch.testing.assert_close(f(x), model(x))
    assert captures(log) == 2


def test_written_inputs_are_written_where_they_lie(log):
    def step(cache, x, i):
        cache.index_copy_(0, i, x)
        return cache.sum(0)

    f, expected = compiled(step), torch.zeros(4, 3)
    cache = torch.zeros(4, 3)
    for n in range(3):
        x, i = torch.randn(1, 3), torch.tensor([n])
        torch.testing.assert_close(f(cache, x, i), step(expected, x, i))
        assert torch.equal(cache, expected)
    assert captures(log) == 1
    other = torch.zeros(4, 3)  # another address: another capture, the first cache stays as it is
    f(other, torch.ones(1, 3), torch.tensor([0]))
    assert captures(log) == 2
    assert torch.equal(cache, expected)
    assert other[0].tolist() == [1, 1, 1]


def test_at_the_limit_the_least_used_capture_goes(log):
    """2 is replayed most and stays; 3, then each new shape, makes room. Results that are held keep their numbers."""
    f = compiled(lambda x: x.sin() + 1, dynamic=True, capture_limit=2)
    kept = []
    for n in (2, 3, 2, 2, 4, 2, 5, 2):
        x = torch.randn(n, 7)
        kept.append((got := f(x), want := x.sin() + 1))
        assert torch.equal(got, want)
    assert captures(log) == 4
    assert sum("capture_limit = 2" in r.getMessage() for r in log.records) == 1
    assert all(torch.equal(got, want) for got, want in kept)


def _same(a, b):
    assert torch.equal(a, b), (a, b)


def _by_slice(cache, x, pos):
    cache.narrow(1, pos, 2).copy_(x)
    return cache.select(1, pos + 1) + pos


def _by_number(cache, x, pos):
    cache.select(1, pos).copy_(x[:, 0])
    return torch.where((torch.arange(cache.shape[1]) <= pos)[:, None], cache, 0.0).sum(1)


def _by_tensor(cache, x, pos):
    at = torch.tensor([pos, pos + 1], device=x.device)
    cache.index_copy_(1, at, x)
    return torch.arange(pos, pos + 3), torch.full((2,), pos), cache.narrow(1, pos, 2) * 2, torch.tensor(pos) * 2 - pos


@pytest.mark.parametrize("step", [_by_slice, _by_number, _by_tensor])
def test_a_position_needs_one_capture(log, step):
    f = compiled(step, dynamic=True)
    cache = torch.zeros(2, 80, 4)
    mirror = cache.clone()
    for pos in range(64):
        x = torch.randn(2, 2, 4)
        pos += 5
        torch.testing.assert_close(f(cache, x, pos), step(mirror, x, pos), rtol=0, atol=0)
        _same(cache, mirror)
    assert captures(log) == 1


def test_numbers_in_memory_that_are_returned_are_the_callers(log):
    f = compiled(lambda x, n: (x + n, torch.full((2,), n), torch.tensor(n)), dynamic=True)
    kept = [(n, f(torch.ones(2), n)) for n in (3, 5, 7)]
    for n, (total, full, one) in kept:
        assert (total.tolist(), full.tolist(), full.stride(), one.item()) == ([n + 1] * 2, [n] * 2, (1,), n)
    assert captures(log) == 1


def test_a_number_that_decides_a_size_needs_a_capture_each(log):
    f = compiled(lambda x, n: x[:n] * n, dynamic=True)
    for n in (3, 5, 3):
        x = torch.randn(8, 2)
        _same(f(x, n), x[:n] * n)
    assert captures(log) == 2


def test_a_number_that_is_returned_is_the_callers(log):
    f = compiled(lambda x, n: (x + 1, n * 2), dynamic=True)
    for n in (3, 5, 3):
        got, number = f(torch.ones(2), n)
        assert (got.tolist(), number) == ([2, 2], 2 * n)


def test_force_eager_captures_nothing(log):
    f = compiled(lambda x: x.sin() + 1, force_eager=True)
    first, second = f(torch.ones(2)), f(torch.zeros(2))
    assert captures(log) == 0
    assert first.tolist() != second.tolist()


def test_force_recapture(log):
    f = compiled(lambda x: x + 1, force_recapture=True)
    for _ in range(3):
        f(torch.ones(2))
    assert captures(log) == 3


def test_training_keeps_what_backward_needs(log):
    f = compiled(lambda x: (x.sin() * x).sum())
    xs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    losses = [f(x) for x in xs]  # two forward runs before the first backward
    for x, loss in zip(xs, losses):
        loss.backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())
    assert captures(log) == 0


def test_expanded_inputs_and_sizes_that_depend_on_data():
    f = compiled(lambda x: x + 1)
    torch.testing.assert_close(f(torch.ones(1, 3).expand(2, 3)), torch.full((2, 3), 2.0))
    torch._dynamo.config.capture_dynamic_output_shape_ops, old = (
        True,
        torch._dynamo.config.capture_dynamic_output_shape_ops,
    )
    try:
        g = compiled(lambda x: x.nonzero())
        for x in (torch.tensor([0, 1, 1]), torch.tensor([1, 0, 0])):
            assert torch.equal(g(x), x.nonzero())
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = old


def test_llama_decoding_with_a_cache():
    """Layers with a cache, several steps; against the same layers in eager."""

    def layer(x, w, k, i):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        k.index_copy_(0, i, (h @ w).view(1, -1))
        return torch.cat([torch.softmax(h @ k.t(), -1) @ k, h.relu() * 2])

    f = compiled(layer, clone_output=True)
    w, k, k2 = torch.randn(4, 4), torch.zeros(5, 4), torch.zeros(5, 4)
    for n in range(5):
        x, i = torch.randn(1, 4), torch.tensor([n])
        assert torch.equal(f(x, w, k, i), layer(x, w, k2, i))
        assert torch.equal(k, k2)


# -- npugraph_ex ------------------------------------------------------------------------------------------------------


def test_npugraph_ex_by_name():
    seen = []

    def look(gm, inputs, config):
        seen.append((type(config).__name__, config.clone_output.value))

    options = {"clone_output": True, "post_grad_custom_pre_pass": look, "post_grad_custom_post_pass": look}
    f = torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options)
    first, second = f(torch.ones(2)), f(torch.zeros(2))
    assert (first.tolist(), second.tolist()) == ([2, 2], [1, 1])
    assert seen == [("GraphExConfig", True)] * 2


def _by_config(name):
    made = torchair.CompilerConfig()
    made.mode = name
    return {"backend": torchair.get_npu_backend(compiler_config=made)}


@pytest.mark.parametrize(
    "how",
    [
        lambda: {"backend": "npugraph_ex"},
        lambda: {"backend": "npu", "mode": "npugraph_ex"},
        lambda: {"backend": "npu", "mode": "reduce-overhead"},
        lambda: {"backend": "npu", "options": {"mode": "npugraph_ex", "capture_limit": 8}},
        lambda: {"backend": torchair.get_npu_backend(), "options": {"mode": "npugraph_ex"}},
        lambda: _by_config("npugraph_ex"),
        lambda: _by_config("reduce-overhead"),
    ],
)
def test_every_name_of_captured_graphs_means_them(log, how):
    f = torch.compile(lambda x: x + 1, **how())
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert captures(log) == 1


def test_a_wrong_mode_names_all_of_them():
    with pytest.raises(ConfigError, match=r"GE1002.*'npugraph_ex' \(means 'reduce-overhead'\)(.|\n)*'npugraph_ex'\?"):
        torchair.CompilerConfig().mode = "npugraph-ex"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"clone_outputs": True}, r"GE1001.*clone_outputs(.|\n)*did you mean config\.clone_output"),
        ({"capture_limit": 0}, r"GE1004.*capture_limit: got 0"),
        ({"clone_input": 2}, r"GE1002.*clone_input: got 2 \(int\)"),
        ({"force_eager": True, "force_recapture": True}, r"GE1008.*force_eager = True and .*force_recapture = True"),
        ({"disable_static_kernel_compile_cache": True}, r"GE1008.*static_kernel_compile = False"),
        ({"capture_error_mode": "globl"}, r"GE1002.*(.|\n)*did you mean 'global'"),
    ],
)
def test_wrong_options_of_npugraph_ex(options, text):
    with pytest.raises(Exception, match=text):
        torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options)(torch.ones(2))


def test_npugraph_ex_takes_no_mode():
    from torchair.compiler.backend import npugraph_ex

    with pytest.raises(Exception, match="GE1012"):
        npugraph_ex(None, [], mode="default")


# -- what a device cannot capture


def _on_a_device(fn):
    """The graph of a function of two tensors on a device, which ``meta`` stands for, and one of the host."""
    args = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.bool), torch.ones(3, 3)
    gm = make_fx(fn)(*args)
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    host = {inputs[2]}
    for node in gm.graph.nodes:
        moved = node.kwargs.get("device")
        made_of = node.op == "call_function" and set(node.all_input_nodes)
        if (made_of and moved is None and made_of <= host) or (moved is not None and torch.device(moved).type == "cpu"):
            host.add(node)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            where = "cpu" if node in host else "meta"
            node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=where)
    return gm


def _masked(x, mask, h):
    x = x * 2
    aten.index_put_(x, [mask], x.new_zeros(()))  # what newer torch makes of ``x[mask] = 0.0`` needs no host
    return x


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (_masked, r"aten.index_put_.default: how much.*torch.where\(mask, value, y\)"),
        (lambda x, mask, h: x[mask] + 1, r"aten.index.Tensor: how much it does depends on data"),
        (lambda x, mask, h: (x + 1, h.add_(1)), r"aten.add_.Tensor: it writes a tensor of the host; keep it on device"),
        (lambda x, mask, h: x[h > 0], r"aten.index.Tensor: how much it does depends on data"),
        (lambda x, mask, h: aten._to_copy(x, device="cpu"), r"aten._to_copy.default: its result goes to the host"),
        (lambda x, mask, h: x + aten._to_copy(x, device="cpu").sum(), r"aten.add.Tensor: 'sum_1' lies on the host"),
    ],
)
def test_what_needs_the_host_is_refused_with_its_line(fn, text):
    with pytest.raises(EngineError, match=f"GE1058(.|\\n)*{text}"):
        refuse_host_work(_on_a_device(fn), "meta")


def test_what_a_device_captures_is_not_refused():
    def fn(x, mask, h):
        at = x.argmax(0)
        x.index_put_((at,), x[at] * 2)
        return torch.where(mask, x, 0.5).sum(), x.t() @ x, h + 1, x + h.sum(), aten._to_copy(h, device="meta")

    refuse_host_work(_on_a_device(fn), "meta")


# -- the device's capture ---------------------------------------------------------------------------------------------


class StandIn:
    """``torch.npu`` as far as capture needs it: launches inside ``graph`` are recorded, a replay runs them."""

    def __init__(self):
        self.log = []
        npu = self

        class NPUGraph:
            def replay(self):
                npu.log.append("replay")
                for target, source in zip(self.results, self.program(list(self.inputs))):
                    target.copy_(source)

        @contextlib.contextmanager
        def graph(captured, pool=None, capture_error_mode="global"):
            npu.log.append(("capture", pool, capture_error_mode))
            yield

        self.NPUGraph, self.graph, self.synchronize = NPUGraph, graph, lambda: None


def test_the_devices_capture_is_found_at_run_time(monkeypatch):
    npu = StandIn()
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    found = find_capture("npu", pool=(1, 2), error_mode="relaxed")
    assert isinstance(found, NpuGraph)
    program, inputs = lambda args: [args[0] + 1], [torch.ones(2)]
    recording = found.capture(program, inputs, StepNumbers())
    recording._graph.results, recording._graph.program, recording._graph.inputs = recording._results, program, inputs
    inputs[0].fill_(4)
    assert recording.replay(inputs)[0].tolist() == [5, 5]
    assert npu.log == [("capture", (1, 2), "relaxed"), "replay"]


@pytest.mark.parametrize("module", [None, types.SimpleNamespace(graph=1)])
def test_a_device_without_capture_is_an_error(monkeypatch, module):
    if module is not None:
        monkeypatch.setattr(torch, "npu", module, raising=False)
    elif hasattr(torch, "npu"):
        monkeypatch.delattr(torch, "npu")
    with pytest.raises(EngineError, match="GE1056.*reduce-overhead on device 'npu'"):
        find_capture("npu", pool=None, error_mode="global")


@pytest.mark.slow
def test_threads_do_not_overwrite_each_others_results():
    f = compiled(lambda x: (x * 2 + 1, x.sum(0)))
    f(torch.ones(64, 8))  # compiled before the threads begin
    wrong, start = [], threading.Barrier(4)

    def work(number):
        start.wait()
        for n in range(500):
            x = torch.full((64, 8), float(1000 * number + n))
            doubled, total = f(x)
            time.sleep(0)  # another thread runs between the call and the reading of its results
            if not torch.equal(doubled, x * 2 + 1) or not torch.equal(total, x.sum(0)):
                wrong.append((number, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.slow
def test_the_captures_of_a_thread_go_with_it():
    plan = reduce_overhead.CapturePlan(
        lambda args: [args[0] + 1], "", ["user"], [], [-1], ViewPlan(["x"], [], ["x"]), False
    )
    graph = reduce_overhead.CapturedGraph(plan, ProgramReplay, reduce_overhead.Switches(), "g")
    kept = []

    def work():
        graph([torch.ones(2)])
        kept.append(weakref.ref(graph._mine()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert kept[0]() is None
    assert graph.captures == 1


@pytest.mark.parametrize("hostile_text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_of_a_graph_is_never_part_of_the_program(hostile_text):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.add.Tensor, (x, 1.5))
    y.name = hostile_text
    z = graph.call_function(torch.ops.aten.div.Tensor_mode, (y, 2), {"rounding_mode": "floor"})
    graph.output((z,))
    run, text = write_program(torch.fx.GraphModule({}, graph), hostile_text)
    assert run([torch.ones(2)])[0].tolist() == [1.0, 1.0]
    tree = ast.parse(text)
    assert [type(s).__name__ for s in tree.body] == ["Import", "Import", "FunctionDef"]
    assert {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} <= {
        "torch",
        "args",
        "x",
        "t1",
        "div_tensor_mode",
        "hostile",
    }


def test_an_input_of_which_only_the_sizes_are_read():
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    run = torch.compile(
        lambda x: torch.linalg.inv(x[0, :2, :2]), backend=torchair.get_npu_backend(compiler_config=config), dynamic=True
    )
    for shape in ((2, 3, 4), (3, 4, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), torch.linalg.inv(x[0, :2, :2]))
