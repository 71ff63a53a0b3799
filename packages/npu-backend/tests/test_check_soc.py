"""``config.check_soc``: the chip's verdict while compiling; ``config.cann_version``: whose definitions hold."""

import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from ge_graph import GraphError, schema
from tair_debug.observer import Silent, observing
from torchair.compiler.pipeline import Job, Pipeline


def double_relu(x):
    return torch.relu(x.double())


def compiled(fn, **options):
    config = torchair.CompilerConfig()
    for name, value in options.items():
        setattr(config, name, value)
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    torch._dynamo.reset()


@pytest.fixture
def said(monkeypatch):
    texts = []
    from torchair.compiler import pipeline

    monkeypatch.setattr(pipeline.logger, "tell", lambda text, *args: texts.append(text % args))
    return texts


def test_a_warning_names_the_line_and_the_graph_still_runs(said):
    x = torch.randn(3)
    torch.testing.assert_close(compiled(double_relu, check_soc="ascend950")(x), double_relu(x))
    (text,) = said
    assert "1 without a kernel" in text
    assert "test_check_soc.py" in text
    assert "instead: cast x to DT_FLOAT" in text


def test_an_error_on_request():
    with pytest.raises(Exception, match="GE3069") as caught:
        compiled(double_relu, check_soc="ascend950", check_soc_error=True)(torch.randn(3))
    assert "torch.relu" in str(caught.value)


def test_silence_if_all_is_well(said):
    compiled(torch.relu, check_soc="Ascend950", check_soc_error=True)(torch.randn(3))
    assert not said


def test_an_unknown_chip_is_refused():
    with pytest.raises(Exception, match=r"GE3068[\s\S]*ascend910b"):
        compiled(torch.relu, check_soc="gpu")(torch.randn(3))


@pytest.mark.parametrize(
    ("version", "port"), [(None, "rstd"), ("9.1", "rstd"), ("8.5.0", "variance"), ("9.0", "variance")]
)
def test_definitions_of_a_release(version, port):
    torch._dynamo.reset()
    seen = []

    class Look(Silent):
        def ge_graph(self, stage, label, graph):
            seen.append((graph.release, schema.get("GroupNormSilu").outputs[2].name))

    with observing(Look()):
        compiled(torch.relu, cann_version=version)(torch.randn(3))
    assert {name for _, name in seen} == {port}
    assert schema.release() is None  # nothing of it is left


def test_two_threads_compile_for_two_releases_at_once():
    met, found = threading.Barrier(2), {}

    class Meet(Silent):
        def ge_graph(self, stage, label, graph):
            if label == "original":
                met.wait(30)  # both are between the choice of their release and what follows it
            found.setdefault(graph.release, set()).add(schema.get("GroupNormSilu").outputs[2].name)

    def run(version, gm):
        config = torchair.CompilerConfig()
        config.cann_version = version
        Pipeline(Job(config, model_id=0)).compile(gm, [torch.randn(3)])  # dynamo itself compiles one graph at a time

    graphs = [make_fx(lambda x: (torch.relu(x),), tracing_mode="fake")(torch.randn(3)) for _ in range(2)]
    with observing(Meet()):
        threads = [threading.Thread(target=run, args=each) for each in zip(("8.5.0", "9.1.0"), graphs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {(8, 5): {"variance"}, (9, 1): {"rstd"}}


def test_a_version_without_numbers_is_refused():
    with pytest.raises(GraphError, match="GE3071"):
        schema.use_cann("latest")


def test_the_form_that_was_taken_is_said(monkeypatch):
    from torchair.compiler import pipeline

    texts = []
    monkeypatch.setattr(pipeline.logger, "info", lambda text, *args: texts.append(text % args))

    def fn(x):
        return torch.div(x.clamp(-5, 5), -4, rounding_mode="trunc")

    x = torch.arange(-9, 9)
    torch.testing.assert_close(compiled(fn, check_soc="ascend910b")(x), fn(x))
    (form,) = [t for t in texts if "form:" in t]
    assert "1 x RealDiv as TruncateDiv (about " in form
    assert "rather than as Cast, RealDiv (about " in form


def test_the_plan_of_a_compiled_module_has_the_options_of_its_backend():
    config = torchair.CompilerConfig()
    config.ge_config.aicore_num = "12|24"
    model = torch.nn.Linear(512, 512).half()
    x = torch.zeros(512, 512).half()
    half = torchair.plan(torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config)), x)
    whole = torchair.plan(torch.compile(model, backend=torchair.get_npu_backend()), x)

    def product(plans):
        (node,) = [n for n in plans.plans[0].graphs[0].nodes if n.node.op == "MatMulV2"]
        return node.time.bound

    assert product(half) == pytest.approx(2 * product(whole))  # 12 of 24 cube cores
    # a compiled function does not show its backend, so that the config is given
    given = torchair.plan(torch.compile(lambda x: x @ x, backend="aot_eager"), x, config=config)
    assert product(given) == pytest.approx(product(half))
