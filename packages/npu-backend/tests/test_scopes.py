"""Scopes and stream marks: no graph break, attributes and order on the right GE nodes, the same numbers."""

import itertools
import re

import pytest
import torch

import torchair
from ge_converters.base.provenance import user_frame
from ge_graph.errors import ConfigError
from tair_debug.observer import Silent, observing
from torchair import ops, scope

STREAM = "_user_stream_label"


def run(fn, recording, *args, config=None):
    backend = torchair.get_npu_backend(compiler_config=config)
    with recording() as seen:
        got = torch.compile(fn, backend=backend, fullgraph=True)(*args)
    torch.testing.assert_close(got, fn(*args))
    return seen.last_graph()


def one(graph, op):
    (found,) = [n for n in graph.nodes if n.op == op]
    return found


def waits_for(node, other):
    """Whether ``other`` runs before ``node`` by data or control edges."""
    seen, todo = set(), [node]
    while todo:
        current = todo.pop()
        for before in itertools.chain((t.node for t in current.operands()), current.control):
            if before is other:
                return True
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return False


def test_stream_switch(recording):
    def fn(x):
        with scope.npu_stream_switch("side"):
            a = x.sin()
        return a + x.cos()

    graph = run(fn, recording, torch.randn(3))
    assert one(graph, "Sin").attr(STREAM) == "side"
    assert one(graph, "Cos").attr(STREAM) is None
    assert one(graph, "Add").attr(STREAM) is None


def test_inner_values_win_and_outer_ones_come_back(recording):
    def fn(x):
        with scope.op_never_timeout(True):
            a = x.sin()
            with scope.op_never_timeout(False), scope.limit_core_num(4, 8):
                b = a.cos()
            return b.exp()

    graph = run(fn, recording, torch.randn(3))
    timeout = "_op_exec_never_timeout"
    assert one(graph, "Sin").attr(timeout) is True
    assert one(graph, "Cos").attr(timeout) is False
    assert one(graph, "Exp").attr(timeout) is True
    assert (one(graph, "Cos").attr("_op_aicore_num"), one(graph, "Cos").attr("_op_vectorcore_num")) == ("4", "8")
    assert one(graph, "Exp").attr("_op_aicore_num") is None


def test_super_kernel(recording):
    def fn(x):
        with scope.super_kernel("sk", "stream-fusion=1:feed-sync-all=1"):
            return x.sin()

    node = one(run(fn, recording, torch.randn(3)), "Sin")
    assert node.attr("_super_kernel_scope") == "sk"
    assert node.attr("_super_kernel_options") == "stream-fusion=1:feed-sync-all=1"


def test_super_kernel_without_options(recording):
    def fn(x):
        with scope.super_kernel("sk", None):
            return x.sin()

    node = one(run(fn, recording, torch.randn(3)), "Sin")
    assert node.attr("_super_kernel_scope") == "sk"
    assert not node.attr("_super_kernel_options")


def test_out_of_any_super_kernel_writes_no_attribute(recording):
    def fn(x):
        with scope.super_kernel("sk", "strict-scope-check=abort"):
            a = x.sin()
            with scope.super_kernel(None):
                return a.cos()

    graph = run(fn, recording, torch.randn(3))
    assert one(graph, "Sin").attr("_super_kernel_scope") == "sk"
    assert not {"_super_kernel_scope", "_super_kernel_options"} & set(one(graph, "Cos").attrs)


@pytest.mark.parametrize("inner", [True, False])
def test_inner_parallel_is_a_truth_value(recording, inner):
    def fn(x):
        with scope.npu_stream_switch("side", 0, inner):
            return x.sin()

    node = one(run(fn, recording, torch.randn(3)), "Sin")
    assert node.attr("_enable_inner_parallel") is inner


def test_record_and_wait(recording):
    def fn(x):
        with scope.npu_stream_switch("side"):
            a = x.sin()
            mark = ops.record()
        ops.wait([mark])
        return a, x.cos()

    graph = run(fn, recording, torch.randn(3))
    assert waits_for(one(graph, "Cos"), one(graph, "Sin"))


def test_wait_for_a_tensor(recording):
    def fn(x):
        a = x.sin()
        with scope.npu_stream_switch("side"):
            ops.wait([a])
            b = x.cos()
        return a, b

    graph = run(fn, recording, torch.randn(3))
    assert waits_for(one(graph, "Cos"), one(graph, "Sin"))
    assert not waits_for(one(graph, "Sin"), one(graph, "Cos"))


@pytest.mark.parametrize("rebind", [True, False])
def test_npu_wait_tensor_with_and_without_rebinding(recording, rebind):
    def fn(x, y):
        before = x.exp()
        a = y.sin()
        waited = scope.npu_wait_tensor(x, a)
        return before, a, (waited if rebind else x).cos()

    graph = run(fn, recording, torch.randn(3), torch.randn(3))
    assert waits_for(one(graph, "Cos"), one(graph, "Sin"))
    assert not waits_for(one(graph, "Exp"), one(graph, "Sin"))


def test_marks_do_nothing_in_eager():
    x = torch.randn(3)
    with scope.npu_stream_switch("side"), scope.data_dump():
        mark = ops.record()
    ops.wait([mark])
    assert scope.npu_wait_tensor(x, mark) is x
    assert mark.numel() == 0


def test_scopes_in_a_training_graph(recording):
    def fn(x):
        with scope.npu_stream_switch("side"):
            a = x.sin()
        return (a * x).sum()

    x = torch.randn(3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    with recording() as seen:
        torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True)(x).backward()
    fn(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
    forward, backward = [g for _, label, g in seen.ge if label == "optimized"]
    assert one(forward, "Sin").attr(STREAM) == "side"
    assert all(n.attr(STREAM) is None for n in backward.nodes)


def test_a_pass_that_inserts_marks(recording):
    """The documented example of a custom pass, without a device."""

    def multi_stream(gm, example_inputs, config):
        graph, mark = gm.graph, None
        for node in graph.nodes:
            if node.target is torch.ops.aten.mm.default:
                with graph.inserting_before(node):
                    graph.call_function(torch.ops.air.scope_enter.default, args=([STREAM], ["stream_1"]))
            if node.target is torch.ops.aten.abs.default:
                with graph.inserting_after(node):
                    mark = graph.call_function(torch.ops.air.record.default, args=())
                with graph.inserting_after(mark):
                    graph.call_function(torch.ops.air.scope_exit.default, args=())
            if node.target is torch.ops.aten.sub.Tensor:
                with graph.inserting_before(node):
                    graph.call_function(torch.ops.air.wait.default, args=([mark],))

    def fn(x):
        mm = torch.mm(x, x)
        a = torch.abs(mm)
        return torch.add(a, 1), torch.sub(x, mm)

    config = torchair.CompilerConfig()
    config.post_grad_custom_pre_pass = multi_stream
    graph = run(fn, recording, torch.randn(3, 3), config=config)
    labelled = {n.op for n in graph.nodes if n.attr(STREAM) == "stream_1"}
    assert "Abs" in labelled
    assert "Sub" not in labelled
    assert waits_for(one(graph, "Sub"), one(graph, "Abs"))


def test_an_open_scope_is_refused():
    def leave_open(gm, inputs, config):
        first = next(n for n in gm.graph.nodes if n.op == "call_function")
        with gm.graph.inserting_before(first):
            gm.graph.call_function(torch.ops.air.scope_enter.default, args=([STREAM], ["s"]))

    config = torchair.CompilerConfig()
    config.post_grad_custom_post_pass = leave_open
    with pytest.raises(Exception, match=r"GE1024.*post_grad_custom_post_pass.*leave_open.*never closed"):
        torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config))(torch.randn(3))


def test_one_stream_and_a_switch_exclude_each_other():
    config = torchair.CompilerConfig()
    config.ge_config.enable_single_stream = True

    def fn(x):
        with scope.npu_stream_switch("side"):
            return x + 1

    with pytest.raises(Exception, match=r"GE1008.*enable_single_stream"):
        torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config))(torch.randn(3))


FORMS = {
    "number as a tag, priority": (
        lambda: scope.npu_stream_switch(3, 1),
        {"_user_stream_label": "3", "_user_stream_priority": "1"},
    ),
    "no AI cores": (lambda: scope.limit_core_num(0, 8), {"_op_aicore_num": "0", "_op_vectorcore_num": "8"}),
    "cores as text": (lambda: scope.limit_core_num("04", "5"), {"_op_aicore_num": "4", "_op_vectorcore_num": "5"}),
    "any text for the device": (
        lambda: scope.super_kernel("k", "stream-fusion"),
        {"_super_kernel_scope": "k", "_super_kernel_options": "stream-fusion"},
    ),
    "older name": (lambda: ops.NpuStreamSwitch("t", -1), {"_user_stream_label": "t", "_user_stream_priority": "-1"}),
}


@pytest.mark.parametrize("what", FORMS)
def test_forms_that_programs_use(what, recording):
    enter, attributes = FORMS[what]

    def fn(x):
        y = x * 2
        with enter():
            z = y + 1
        return z.relu()

    x = torch.randn(3)
    with recording() as seen:
        torch.testing.assert_close(torch.compile(fn, backend="npu", fullgraph=True)(x), fn(x))
    nodes = {n.op: n for n in seen.last_graph().nodes}
    assert {k: nodes["Add"].attr(k) for k in attributes} == attributes
    assert not any(k in nodes["Relu"].attrs for k in attributes)


def test_scope_enter_with_a_third_argument(recording):
    def fn(x):
        torch.ops.air.scope_enter(["_user_stream_label"], ["s"], True)
        y = x + 1
        torch.ops.air.scope_exit()
        return y

    with recording() as seen:
        torch.compile(fn, backend="npu", fullgraph=True)(torch.randn(3))
    assert next(n for n in seen.last_graph().nodes if n.op == "Add").attr("_user_stream_label") == "s"


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_tagged_events(mode, recording):
    events = [ops.npu_create_tagged_event(tag=f"tag_{i}") for i in range(2)]

    def fn(x):
        y = x + 1
        ops.npu_tagged_event_record(events[0])
        with scope.npu_stream_switch("side", 1):
            ops.npu_tagged_event_wait(events[0])
            z = x * 2
            ops.npu_record_tagged_stream(z, "side")
            ops.npu_tagged_event_record(events[1])
        ops.npu_tagged_event_wait(events[1])
        return y - z

    config = torchair.CompilerConfig()
    config.mode = mode
    x = torch.randn(3)
    with recording() as seen:
        run = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
        torch.testing.assert_close(run(x), fn(x))
    if mode == "max-autotune":
        nodes = seen.last_graph().nodes
        add, mul, sub = (next(n for n in nodes if n.op == op) for op in ("Add", "Mul", "Sub"))

        def before(node):
            inputs = [*(t.node for t in node.operands()), *node.control]
            return {n for i in inputs for n in (i, *before(i))}

        assert add in before(mul)
        assert mul in before(sub)


def test_a_tagged_event_that_is_not_recorded():
    def fn(x):
        ops.npu_tagged_event_wait("never")
        return x + 1

    with pytest.raises(Exception, match=r"GE1065.*'never'"):
        torch.compile(fn, backend="npu", fullgraph=True)(torch.randn(3))


@pytest.mark.parametrize("version", ["", "_v2"])
def test_attention_with_lengths_as_tensors(version):
    names = ("num_heads", "scale", "actual_seq_lengths_kv", "softmax_lse_flag")
    if version:
        names = ("num_query_heads", "softmax_scale", "actual_seq_kvlen", "return_softmax_lse")

    def fn(q, k, v, lengths, lse=False):
        op = getattr(ops, f"npu_fused_infer_attention_score{version}")
        more = dict(zip(names, (4, 0.5, lengths, lse)))
        return op(q, k, v, input_layout="BSND", num_key_value_heads=2, **more)

    q, k, v = (torch.randn(2, s, n, 8, dtype=torch.float16) for s, n in ((1, 4), (6, 2), (6, 2)))
    run = torch.compile(fn, backend="npu", fullgraph=True)
    for lengths in ([3, 6], [1, 2]):
        got, stats = run(q, k, v, torch.tensor(lengths), True)
        assert stats.shape == (2, 4, 1, 1)
        for b, n in enumerate(lengths):
            parts = [t[b].transpose(0, 1).float() for t in (q, k[:, :n], v[:, :n])]
            want = torch.nn.functional.scaled_dot_product_attention(*parts, scale=0.5, enable_gqa=True)
            torch.testing.assert_close(got[b].float(), want.transpose(0, 1), rtol=2e-3, atol=2e-3)
    with pytest.raises(Exception, match="GE4032"):
        fn(q, k, v, torch.tensor([1, 1]))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: scope.npu_stream_switch(2.5),
        lambda: scope.npu_stream_switch(""),
        lambda: scope.npu_stream_switch("a", "high"),
        lambda: scope.npu_stream_switch("a", 0, 1),
        lambda: scope.limit_core_num(0, 0),
        lambda: scope.limit_core_num("4 cores", 1),
        lambda: scope.limit_core_num(1, -1),
        lambda: scope.limit_core_num(True, 1),
        lambda: scope.super_kernel(3),
        lambda: scope.super_kernel("a", 1),
        lambda: scope.super_kernel("a", "strict-scope-check=yes"),
        lambda: scope.op_never_timeout("yes"),
        lambda: ops.wait([]),
        lambda: ops.wait([3]),
        lambda: ops.npu_print("no tensor"),
        lambda: ops.npu_print(torch.ones(1), summarize_size=0),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ConfigError, match="GE1030"):
        wrong()


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((torch.arange(10),), {}, "[0 1 2 ... 7 8 9]"),
        ((torch.arange(10),), {"summarize_size": -1}, "[0 1 2 3 4 5 6 7 8 9]"),
        ((torch.arange(10),), {"summarize_size": 5}, "[0 1 2 3 4 5 6 7 8 9]"),
        (("x", torch.arange(10), 2.5), {"summarize_size": 1}, "x [0 ... 9] 2.5"),
        ((torch.arange(10),), {"tensor_detail": True}, "tensor([0 1 2 ... 7 8 9], shape=[10], dtype=torch.int64)"),
        ((torch.ones(2, dtype=torch.bfloat16),), {}, "[1 1]"),
        ((torch.tensor([True, False]),), {}, "[True False]"),
    ],
)
def test_print(args, options, text, capsys):
    ops.npu_print(*args, **options)
    assert capsys.readouterr().out == text + "\n"


# -- the order is real: any order that data and control edges allow gives the same result -----------------------------


def _two_streams(x, y):
    with scope.npu_stream_switch("left"):
        a = x.sin()
        with scope.npu_stream_switch("right"):
            b = (y @ y).relu()
            mark = ops.record()
        ops.wait([mark])
        a = a + b.sum()
    ops.wait([a])
    c = scope.npu_wait_tensor(x, b).cos()
    return a, b * c, (x + y).tanh()


def _cache(x, y):
    with scope.npu_stream_switch("side"):
        x.mul_(2)
        z = x.sum()
        mark = ops.record()
    ops.wait([mark])
    y.add_(x)
    x.add_(1)
    return z, x * y


@pytest.mark.parametrize("fn", [_two_streams, _cache])
@pytest.mark.parametrize("ref_data", [False, True])
def test_any_order_that_the_edges_allow_gives_the_same(fn, ref_data, recording):
    from ge_runtime.cpu import CpuEngine

    config = torchair.CompilerConfig()
    config.experimental_config.enable_ref_data = ref_data
    args = [torch.randn(4, 4), torch.randn(4, 4)]
    with recording() as seen:
        torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config))(*[a.clone() for a in args])
    graph, results = seen.last_graph(), []
    for seed in [None, *range(25)]:
        options = {} if seed is None else {"engine.shuffle_seed": str(seed)}
        given = [a.clone() for a in args][: len(graph.inputs)]
        results.append([*CpuEngine().compile(graph, options).run(given), *given])
    assert len({str(CpuEngine().compile(graph, {"engine.shuffle_seed": str(s)}).source) for s in range(25)}) > 1
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_in_every_order_the_waits_hold(recording):
    from ge_runtime.cpu.planner import schedule

    graph = run(_two_streams, recording, torch.randn(4, 4), torch.randn(4, 4))
    product = next(n for n in graph.nodes if n.op.startswith(("MatMul", "BatchMatMul")))
    for seed in range(25):
        order = schedule(graph, seed)
        position = {n.name: i for i, n in enumerate(order)}
        assert position[one(graph, "Cos").name] > position[product.name]


def _inserting(*steps):
    """A pass that puts the given operators in front of the first computing node."""

    def insert(gm, inputs, config):
        first = next(n for n in gm.graph.nodes if n.op == "call_function")
        with gm.graph.inserting_before(first):
            made = {}
            for name, op, args in steps:
                made[name] = gm.graph.call_function(op, args(made) if callable(args) else args)

    return insert


air = torch.ops.air
BROKEN = {
    "a scope without end": (_inserting(("a", air.scope_enter.default, ([STREAM], ["s"]))), "never closed"),
    "an end without scope": (_inserting(("a", air.scope_exit.default, ())), "none is open"),
    "more keys than values": (
        _inserting(("a", air.scope_enter.default, ([STREAM, "k"], ["s"])), ("b", air.scope_exit.default, ())),
        "1 values for 2 keys",
    ),
    "a wait for nothing": (_inserting(("a", air.wait.default, ([],))), "waits for nothing"),
    "a wait for what is never recorded": (
        _inserting(("a", air.wait.default, ([None],))),
        "never recorded: a dead-lock",
    ),
}


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("place", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
@pytest.mark.parametrize("case", BROKEN)
def test_scopes_that_cannot_be_are_refused_with_the_pass(case, place, mode):
    insert, text = BROKEN[case]
    config = torchair.CompilerConfig()
    config.mode = mode
    setattr(config, place, insert)
    with pytest.raises(Exception, match=rf"GE1024.*{place} '.*insert' left a broken graph.*{text}"):
        torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config))(torch.randn(3))


def test_streams_that_wait_for_each_other_are_a_dead_lock():
    """Stream a waits for b's mark, b for a's: one of the waits stands in front of its mark in any order."""

    def cross(gm, inputs, config):
        graph = gm.graph
        first, second = [n for n in graph.nodes if n.op == "call_function"][:2]
        with graph.inserting_after(second):
            late = graph.call_function(air.record.default, ())
        with graph.inserting_before(first):
            graph.call_function(air.wait.default, ([late],))

    config = torchair.CompilerConfig()
    config.post_grad_custom_pre_pass = cross
    with pytest.raises(Exception, match=r"GE1024.*cross.*stands in front of record_default.*a dead-lock"):
        torch.compile(lambda x: x.sin() + 1, backend=torchair.get_npu_backend(compiler_config=config))(torch.randn(3))


def test_a_cycle_of_control_edges_is_refused_by_the_engine():
    from ge_graph import Graph, building
    from ge_graph import ops as ge
    from ge_graph.dtypes import DataType
    from ge_graph.errors import GraphError
    from ge_runtime.cpu import CpuEngine

    graph = Graph("cycle")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=[3])
        a, b = ge.Sin(x), ge.Cos(x)
        a.node.control.append(b.node)
        b.node.control.append(a.node)
        graph.outputs.extend([a, b])
    with pytest.raises(GraphError):
        CpuEngine().compile(graph, {})


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_a_scope_that_the_model_leaves_open_is_an_error(mode):
    def fn(x):
        torch.ops.air.scope_enter([STREAM], ["side"])
        return x.sin()

    config = torchair.CompilerConfig()
    config.mode = mode
    with pytest.raises(Exception, match=r"GE1055.*never closed"):
        torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)(torch.randn(3))


REFUSED = {
    "npu_stream_switch: stream_tag": lambda x: scope.npu_stream_switch(""),
    "limit_core_num: op_aicore_num": lambda x: scope.limit_core_num(-1, 3),
    "super_kernel: options": lambda x: scope.super_kernel("a", 3),
    "op_never_timeout: enable must be a bool, got a tensor": lambda x: scope.op_never_timeout(x),
    "wait takes a list": lambda x: ops.wait([3]),
    "npu_print got no tensor": lambda x: ops.npu_print("hello"),
    "npu_print: summarize_size": lambda x: ops.npu_print(x, summarize_size=0),
}


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("whole", [True, False])
def test_a_refusal_while_tracing_shows_its_text_and_the_users_line(text, whole):
    wrong = REFUSED[text]

    def model(x):
        wrong(x)
        return x + 1

    with pytest.raises(Exception, match=re.escape(f"[GE1030] {text}")) as caught:
        torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=whole)(torch.ones(2))
    if whole:
        assert re.search(rf'File "{re.escape(__file__)}", line \d+, in model\s+wrong\(x\)', str(caught.value))
    else:
        assert isinstance(caught.value, ConfigError)


def test_the_place_of_marks_and_prints_is_the_users_line():
    def model(x):
        with scope.npu_stream_switch("s"):
            y = x + 1
            mark = ops.record()
        ops.npu_print(y)
        ops.wait([mark])
        return y * 2

    seen = []

    class Look(Silent):
        def fx_graph(self, stage, label, gm):
            seen.extend((n.name, *user_frame(n)) for n in gm.graph.nodes if n.op == "call_function")

    with observing(Look()):
        torch.compile(model, backend=torchair.get_npu_backend())(torch.ones(2))
    assert seen
    assert {place.partition(":")[0] for _, place, _ in seen} == {__file__}
    lines = {name: code for name, _, code in seen}
    assert lines["record"] == "mark = ops.record()"
    assert next(code for name, code in lines.items() if name.startswith("print")) == "ops.npu_print(y)"
    assert lines["scope_enter"] == 'with scope.npu_stream_switch("s"):'
