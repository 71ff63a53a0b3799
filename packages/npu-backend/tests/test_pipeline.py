"""What the pipeline hands to an engine, and what it makes of the engine's answers."""

import pytest
import torch

import torchair
from ge_graph.errors import EngineError
from ge_runtime.api import Capability
from ge_runtime.cpu import CpuEngine
from tair_testing.compiling import compiled
from torchair import scope
from torchair.compiler import pipeline
from torchair.runtime.executable import dense, in_order


class Spy:
    """The embedded engine, with a look at what goes in."""

    name = "spy"

    def __init__(self, change=None, fail=None):
        self.options = []
        self.inputs = []
        self.change = change
        self.fail = fail
        self.devices = ("cpu",)

    def probe(self):
        return Capability(True, "for tests", self.devices)

    def compile(self, graph, options):
        self.options.append(dict(options))
        inner = CpuEngine().compile(graph, {})
        spy = self

        class Running:
            source = inner.source

            def run(self, inputs):
                spy.inputs.append([type(i) for i in inputs])
                if spy.fail:
                    raise spy.fail
                results = inner.run(inputs)
                return spy.change(results) if spy.change else results

            def run_traced(self, inputs, on_node):
                return inner.run_traced(inputs, on_node)

        return Running()


@pytest.fixture
def spy(monkeypatch):
    made = Spy()
    monkeypatch.setattr(pipeline, "choose_engine", lambda device: made)
    return made


def test_ge_options_reach_the_engine(spy):
    config = torchair.CompilerConfig()
    config.ge_config.optimization_switch = "AutomaticUbFusion:off"
    config.experimental_config.topology_sorting_strategy = "BFS"
    compiled(lambda x: x + 1, config)(torch.randn(3))
    (options,) = spy.options
    assert options["ge.optimizationSwitch"] == "AutomaticUbFusion:off"
    assert options["ge.topoSortingMode"] == "0"
    assert options["ge.deterministic"] == "0"
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in options.items())


def test_deterministic_mode_reaches_the_engine(spy):
    torch.use_deterministic_algorithms(True)
    try:
        compiled(lambda x: x + 1)(torch.randn(3))
    finally:
        torch.use_deterministic_algorithms(False)
    assert spy.options[0]["ge.deterministic"] == "1"


def test_data_dump_scope_adds_its_nodes_to_the_dumped_layers(spy, tmp_path):
    config = torchair.CompilerConfig()
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)
    config.dump_config.dump_layer = "Exp"

    def fn(x):
        with scope.data_dump():
            y = x.sin()
        return y.cos().exp()

    compiled(fn, config)(torch.randn(3))
    assert spy.options[0]["ge.exec.dumpLayer"] == "Exp Sin"


def test_numbers_are_inputs_only_where_no_tensor_tells_them(spy):
    run = compiled(lambda x, k: x.reshape(x.shape[1], x.shape[0]) * k, dynamic=True)
    for k, shape in ((3, (2, 5)), (4, (3, 7))):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x, k), x.reshape(x.shape[1], x.shape[0]) * k)
    assert len(spy.options) == 1
    assert sorted(t.__name__ for t in spy.inputs[0]) == ["Tensor", "int"]


def test_device_options_are_not_reported_where_they_work(spy, caplog):
    spy.devices = ("npu",)
    config = torchair.CompilerConfig()
    config.ge_config.oo_level = "O1"
    said = []
    handler = pytest.MonkeyPatch()
    handler.setattr(torchair.logger, "warning_once", lambda *args: said.append(args))
    try:
        compiled(lambda x: x + 1, config)(torch.randn(3))
    finally:
        handler.undo()
    assert not said


def test_results_in_another_memory_order_are_put_right(spy):
    """An engine promises values, not strides."""
    spy.change = lambda results: [r.t().contiguous().t() if r.dim() == 2 else r for r in results]

    def fn(x):
        return x + 1, x.t() * 2

    x = torch.randn(3, 5)
    for got, want in zip(compiled(fn)(x), fn(x)):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_engine_errors_get_a_place(spy):
    spy.fail = EngineError("GE4005", "it broke", next="repair it")
    with pytest.raises(EngineError) as caught:
        compiled(lambda x: x + 1)(torch.randn(3))
    assert caught.value.code == "GE4005"
    assert "it broke" in str(caught.value)
    assert "graph_" in str(caught.value)
    assert "'spy'" in str(caught.value)


def test_other_exceptions_of_an_engine_are_not_swallowed(spy):
    spy.fail = ZeroDivisionError("deep inside")
    with pytest.raises(ZeroDivisionError, match="deep inside"):
        compiled(lambda x: x + 1)(torch.randn(3))


def test_arguments_are_let_go_before_the_engine_runs():
    compiler = torchair.get_compiler()
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(lambda x, y: (x + y,), tracing_mode="fake")(torch.randn(3), torch.randn(3))
    call = compiler(gm, [])
    args = [torch.ones(3), torch.ones(3)]
    (got,) = call(args)
    assert args == []
    assert got.tolist() == [2, 2, 2]


def test_graphs_without_tensor_inputs_or_results():
    torch.testing.assert_close(compiled(lambda: torch.ones(3) + 1)(), torch.full((3,), 2.0))
    x = torch.zeros(3)

    def write(x):
        x.add_(1)

    assert compiled(write)(x) is None
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)])
def test_memory_orders(order):
    x = torch.arange(24).reshape(2, 3, 4)
    got = in_order(x, order)
    assert torch.equal(got, x)
    assert got.permute(order).is_contiguous()
    assert in_order(got, order) is got
    assert dense(x) is x
    assert dense(x.permute(order)).is_contiguous()


def test_observers_see_every_stage(recording):
    with recording() as seen:
        compiled(lambda x: x.clone().abs() + 1)(torch.randn(3))
    assert [label for _, label, _ in seen.fx] == ["", "RemoveNoops"]
    labels = [label for _, label, _ in seen.ge]
    assert labels[0] == "original"
    assert labels[-1] == "optimized"
    assert "def call(args)" in seen.code[0][1]
    (stage,) = {s for s, *_ in (*seen.fx, *seen.ge, *seen.code)}
    assert (stage.model_id, stage.phase) == (seen.models[0], "forward")
