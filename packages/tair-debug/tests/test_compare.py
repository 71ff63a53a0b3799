"""Comparison finds a fault that was put in, in the right place, and nothing where there is none."""

import json

import numpy as np
import pytest
import torch

from ge_converters.registry import REGISTRY, register_fx_node_ge_converter
from ge_graph import ops as ge
from ge_graph.errors import ConfigError
from tair_debug import compare as work
from tair_debug.compare import compare_model, compare_whole
from tair_debug.dumps import compare_dumps
from tair_debug.measure import Tolerance
from tair_debug.models import Subject


def net(x):
    y = x @ x
    z = torch.sigmoid(y)
    return z.softmax(0), y.sum(1)


SIGMOID_LINE = f"test_compare.py:{net.__code__.co_firstlineno + 2} in net"


@pytest.fixture
def subject():
    return Subject(net, (torch.randn(4, 4),))


@pytest.fixture
def broken():
    """A converter that makes something else of sigmoid."""
    target = torch.ops.aten.sigmoid.default

    @register_fx_node_ge_converter(target)
    def sigmoid(self, *, meta_outputs):
        return ge.Tanh(self)

    yield
    REGISTRY.unregister(target)


def test_no_fault(subject):
    found = compare_model(subject, engine=work.engine())
    assert found.ok
    assert {r.target for r in found.rows} >= {"aten.mm.default", "aten.sigmoid.default", "aten.sum.dim_IntList"}


def test_the_first_fault_is_named(tmp_path, subject, broken):
    seen = []
    found = compare_model(subject, engine=work.engine(), output=tmp_path, on_row=seen.append)
    row = found.first
    assert (row.op, row.fx, row.target) == ("Tanh", "sigmoid", "aten.sigmoid.default")
    assert row.source.endswith(SIGMOID_LINE)
    assert row.code == "z = torch.sigmoid(y)"
    y = subject.args[0] @ subject.args[0]
    assert row.measure.max_abs == pytest.approx(float((y.tanh() - y.sigmoid()).abs().max()), rel=1e-5)
    assert -1 <= row.measure.cosine < 0.999
    expected, got = (np.load(p) for p in found.saved)
    assert np.allclose(expected, y.sigmoid())
    assert np.allclose(got, y.tanh())
    wrong = {r.target for r in found.rows if r.wrong}
    assert "aten.mm.default" not in wrong
    assert "aten.sum.dim_IntList" not in wrong  # beside the fault, not after it
    assert seen == found.rows
    report = json.loads(work.write_report(tmp_path, found).read_text())
    assert report["first"]["fx"] == "sigmoid"
    assert len(report["rows"]) == len(found.rows)


def test_origin_and_inheritance(subject, broken):
    """With eager's inputs only the operator itself is wrong; without them what depends on it is too."""
    found = compare_model(subject, engine=work.engine())
    assert {r.target for r in found.rows if r.wrong} == {"aten.sigmoid.default"}
    assert [r.wrong for r in found.totals] == [True, False]
    found = compare_model(subject, engine=work.engine(), isolate=False)
    assert found.first.target == "aten.sigmoid.default"
    assert len([r for r in found.rows if r.wrong]) > 1


class Changed:
    """The embedded engine, with something else as results of some operators.

    Args:
        change: Gets a node and its results, which it changes by ``data``.
    """

    def __init__(self, change):
        self.change, self.engine = change, work.engine()

    def compile(self, graph, options):
        self.inner = self.engine.compile(graph, options)
        return self

    def run_traced(self, inputs, on_node):
        def changed(node, ins, outs):
            self.change(node, outs)
            on_node(node, ins, outs)

        return self.inner.run_traced(inputs, changed)

    def run(self, inputs):
        return self.run_traced(inputs, lambda *event: None)


@pytest.mark.parametrize("isolate", [True, False])
def test_equal_keys_and_undefined_elements_are_settled_by_eager(isolate):
    """An engine that has equal keys the other way round, and other bytes where nobody wrote."""
    seen = set()

    def change(node, outs):
        seen.add(node.op)
        if node.op == "Sort":
            outs[1].data = torch.tensor([3, 1, 2, 0], dtype=outs[1].dtype)
        elif node.op == "Fill":
            outs[0].data = torch.full_like(outs[0], float("nan"))

    def model(x):
        room = torch.index_put(x.new_empty(6), (torch.arange(4),), x)
        keys, order = x.sort()
        return room, room * 2, room[:4] * 2, torch.arange(10.0, 14)[order].cumsum(0), keys

    x = torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = compare_model(Subject(model, (x,)), engine=Changed(change), isolate=isolate)
    assert seen >= {"Sort", "Fill"}
    assert found.ok, (found.first, found.totals)
    assert found.random is None
    assert len(found.totals) == 5
    why = [s.partition(": ")[2] for s in found.settled]
    assert why == ["its elements are undefined", "equal keys may be in any order"]


def test_values_without_partner_have_a_reason():
    def model(x):
        return (x.view(2, 8).t().contiguous() @ x.view(2, 8)).relu()

    found = compare_model(Subject(model, (torch.randn(4, 4),)), engine=work.engine())
    assert found.unmatched == found.why.total()
    assert found.as_dict()["why_unmatched"] == dict(found.why)


def test_a_wrong_kernel_is_named(subject):
    from ge_runtime.cpu import kernel
    from ge_runtime.cpu.registry import unregister

    kernel("Sigmoid")(lambda x: x.sigmoid() + 0.1)
    try:
        found = compare_model(subject, engine=work.engine())
    finally:
        unregister("Sigmoid")
    assert found.first.node == "Sigmoid"
    assert found.first.measure.max_abs == pytest.approx(0.1, rel=1e-4)


def test_tolerance_decides(subject, broken):
    assert compare_model(subject, engine=work.engine(), tolerance=Tolerance(atol=10.0)).ok


def test_backward(model, inputs):
    x, y = (t.requires_grad_() for t in inputs)
    found = compare_model(Subject(model, (x, y)), engine=work.engine(), backward=True)
    assert found.ok, found.first
    assert {r.graph for r in found.rows} == {"forward 1", "backward 1"}
    assert "aten.native_layer_norm_backward.default" in {r.target for r in found.rows}
    eager = torch.autograd.grad(sum(t.sum() for t in model(x, y)), (x, y))
    for t, expected in zip((x, y), eager):
        assert torch.allclose(t.grad, expected, atol=1e-5)


def test_symbolic_sizes(subject):
    assert compare_model(subject, engine=work.engine(), dynamic=True).ok


def test_eager_results_are_returned_and_inputs_written(subject):
    def write(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    assert compare_model(Subject(write, (x,)), engine=work.engine()).ok
    assert x.tolist() == [1, 1, 1]


def test_random_numbers_are_no_fault():
    found = compare_model(Subject(lambda x: torch.rand_like(x), (torch.ones(4),)), engine=work.engine())
    assert found.ok
    assert found.random is not None


def test_the_model_as_a_whole(subject):
    assert all(r.measure.ok for r in compare_whole(subject, net))
    rows = compare_whole(subject, lambda x: (net(x)[0], net(x)[1] + 1))
    assert [r.wrong for r in rows] == [False, True]


def test_graphs_have_been_through_the_passes_of_a_compilation(config):
    """A pass of the user's configuration acts, and a pass that changes the result shows in the whole model."""

    def to_tanh(gm, example_inputs, phase_config):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sigmoid.default):
            node.target = torch.ops.aten.tanh.default

    config.post_grad_custom_post_pass = to_tanh
    subject = Subject(net, (torch.randn(4, 4),), config=config)
    found = compare_model(subject, engine=work.engine())
    assert found.ok
    assert "aten.tanh.default" in {r.target for r in found.rows}
    assert "aten.sigmoid.default" not in {r.target for r in found.rows}


def test_norms_are_compared_as_they_are_compiled():
    """What a built-in FX pass joins is one row."""

    def norm(x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    found = compare_model(Subject(norm, (torch.randn(4, 8), torch.randn(8))), engine=work.engine())
    assert found.ok
    assert {r.op for r in found.rows} == {"RmsNorm"}


def test_unknown_engine():
    with pytest.raises(ConfigError, match="GE1044.*no engine 'gpu'; installed: .*cpu"):
        work.engine("gpu")


@pytest.mark.slow
def test_memory_of_a_long_model():
    """A chain of 5,000 operators what is kept at once is a few tensors, not thousands."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    value = torch.empty(64, 64, device="meta")
    x.meta["val"] = value
    node = x
    for i in range(5000):
        node = graph.call_function((torch.ops.aten.sin, torch.ops.aten.cos)[i % 2].default, (node,))
        node.meta["val"] = value
    graph.output((node,))
    rows, alive = [], []
    pair = work.SideBySide(
        torch.fx.GraphModule({}, graph), "forward 1", work.engine(), Tolerance(), lambda *row: rows.append(row[0])
    )
    original = pair._compare

    def watched(eager, *event):
        original(eager, *event)
        alive.append(len(eager.env) + len(eager._kept))

    pair._compare = watched
    pair(torch.randn(64, 64))
    assert len(rows) == 5000
    assert max(alive) <= 3


# --- recorded dumps --------------------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path, compiled, config):
    """``record(name, kind, run)``: dump a run of ``net`` into a folder."""

    def make(name, kind, fn=net, x=None):
        import torchair

        made = torchair.CompilerConfig()
        place = tmp_path / name
        place.mkdir()
        group = made.debug.data_dump if kind == "fx" else made.dump_config
        if kind == "fx":
            group.type, group.path = "npy", str(place)
        else:
            group.enable_dump, group.dump_path = True, str(place)
        torch._dynamo.reset()
        run = compiled(made, fn)
        for step in range(2):
            run(torch.full((4, 4), 0.25 + step) if x is None else x)
        return place

    return make


def test_two_eager_dumps(record):
    good, same = record("good", "fx"), record("same", "fx")
    found = compare_dumps(good, same)
    assert found.ok
    assert found.unmatched == 0
    assert {r.graph for r in found.rows} == {"graph 1 step 0", "graph 1 step 1"}


def test_eager_against_graph(record, broken, tmp_path):
    eager, graph = record("eager", "fx"), record("graph", "ge")
    found = compare_dumps(eager, graph, output=tmp_path)
    row = found.first
    assert (row.fx, row.op, row.graph) == ("sigmoid", "Tanh", "graph 1 step 0")
    assert row.source.endswith(SIGMOID_LINE)
    assert len(found.saved) == 2
    assert any(r.target == "aten.mm.default" and r.measure.ok for r in found.rows)


def test_a_device_dump_with_a_graph(record, tmp_path, compiled, config):
    eager, graph = record("eager", "fx"), record("graph", "ge")
    for path in graph.rglob("provenance.json"):
        path.unlink()
    assert not compare_dumps(eager, graph).rows  # nobody knows where the operators come from
    config.debug.graph_dump.type = "txt"
    torch._dynamo.reset()
    compiled(config, net)(torch.randn(4, 4))
    (dump,) = tmp_path.glob("dynamo_optimized*.txt")
    found = compare_dumps(eager, graph, graph=dump)
    assert found.ok
    assert {r.fx for r in found.rows} >= {"mm", "sigmoid"}


def grown(x):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda y: y.sum() < 40, lambda y: (y.sigmoid() + y * 2,), (x,))[0].sigmoid()


def test_rounds_of_a_loop_are_matched_in_order(record, broken):
    good, again = record("good", "ge", grown), record("again", "ge", grown)
    found = compare_dumps(good, again)
    assert found.ok, found.first
    assert not found.unmatched
    assert not found.notes
    rows = [r for r in found.rows if r.inside == "While/body" and r.fx == "sigmoid"]
    assert len(rows) > 2  # rounds
    REGISTRY.unregister(torch.ops.aten.sigmoid.default)
    right = record("right", "ge", grown)
    register_fx_node_ge_converter(torch.ops.aten.sigmoid.default)(lambda self, *, meta_outputs: ge.Tanh(self))
    found = compare_dumps(right, again)
    assert (found.first.inside, found.first.op) == ("While/body", "Add")  # Sigmoid and Tanh have no common name


def test_a_loop_that_one_side_has_whole_is_said_by_name(record, broken):
    """An operator of the body comes from a node that is called as one outside is."""
    eager, graph = record("eager", "fx", grown), record("graph", "ge", grown)
    found = compare_dumps(eager, graph)
    assert {n.split(":")[0] for n in found.notes} == {"While/cond", "While/body"}
    assert {r.inside for r in found.rows} == {""}
    assert {r.node for r in found.rows if r.fx == "sigmoid"} == {"Tanh"}


def test_narrower_floats_from_a_device(record):
    good, device = record("good", "ge"), record("device", "ge")
    for path in device.rglob("*.npy"):
        array = np.load(path)
        if array.dtype == np.float32:
            np.save(path, array.astype(np.float16))
    assert compare_dumps(good, device).ok


def test_bad_folders(tmp_path, record):
    with pytest.raises(ConfigError, match="GE1045.*is not a folder"):
        compare_dumps(tmp_path, tmp_path / "no")
    with pytest.raises(ConfigError, match="GE1045.*no recorded outputs"):
        compare_dumps(tmp_path, tmp_path)
    good = record("good", "fx")
    broken = next(good.rglob("*.OUTPUT.0.*.npy"))
    broken.write_bytes(broken.read_bytes()[:-4])
    with pytest.raises(ConfigError, match="GE1045.*no readable npy"):
        compare_dumps(good, good)
