"""Dim gears: one graph for several sizes, other sizes refused."""

import pytest
import torch

import torchair
from ge_graph.errors import ConfigError, EngineError
from ge_runtime.cpu.engine import CpuEngine
from torchair.inference import cache_compile, set_dim_gears


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x, y, n):
        return self.fc(x) + y.sum(0) + n, y * 2


class Doubled(torch.nn.Module):
    """Works on one size only: the dimension is fixed while tracing."""

    def forward(self, x):
        return x + torch.ones(int(x.shape[0]) // 1, 1) * (2 if x.shape[0] == 4 else 3)


@pytest.fixture
def options(monkeypatch):
    seen = []
    original = CpuEngine.compile

    def compile(self, graph, given):
        seen.append({k: v for k, v in given.items() if k in ("ge.inputShape", "ge.dynamicDims", "ge.dynamicNodeType")})
        return original(self, graph, given)

    monkeypatch.setattr(CpuEngine, "compile", compile)
    return seen


def compiled(model, policy, dynamic, folder=None):
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.inference_config.dynamic_gears_merge_policy = policy
    if folder is not None:
        return cache_compile(model.forward, config=config, cache_dir=str(folder), dynamic=dynamic)
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)


def inputs(a, b, mark=False):
    x, y = torch.randn(a, 4), torch.randn(b, 4)
    if mark:
        set_dim_gears(x, {0: [2, 4]})
        set_dim_gears(y, {0: [3, 5]})
    return x, y


POLICIES = {"zip": {(2, 3), (4, 5)}, "product": {(2, 3), (2, 5), (4, 3), (4, 5)}}


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cached", [False, True])
def test_one_graph_for_all_gears(policy, dynamic, cached, options, tmp_path):
    allowed = POLICIES[policy]
    model = Two().eval()
    for process in range(2 if cached else 1):
        run = compiled(model, policy, bool(dynamic) if cached else dynamic, tmp_path if cached else None)
        with torch.no_grad():
            first = inputs(2, 3, mark=not process)
            torch.testing.assert_close(run(*first, 7), model(*first, 7))
            for a, b in ((4, 5), (2, 5), (4, 3), (2, 3), (6, 5), (3, 3)):
                x, y = inputs(a, b)
                if (a, b) in allowed:
                    torch.testing.assert_close(run(x, y, 7), model(x, y, 7))
                else:
                    with pytest.raises(EngineError, match=f"GE4030.*dimension 0 of x is {a}"):
                        run(x, y, 7)
    assert len(options) == (2 if cached else 1)
    for given in options:
        assert given["ge.dynamicNodeType"] == "1"
        assert {tuple(map(int, g.split(","))) for g in given["ge.dynamicDims"].split(";")} == allowed
        shapes = [d.split(":")[1] for d in given["ge.inputShape"].split(";")]
        assert sorted(filter(None, shapes)) == ["-1,4", "-1,4", "4", "4,4"]


def test_only_marked_dimensions_are_symbolic(options):
    def f(x, y):
        return x @ y

    run = torch.compile(f, backend="npu", dynamic=True, fullgraph=True)
    x, y = torch.randn(4, 6), torch.randn(6, 8)
    set_dim_gears(x, {0: (4, 8)})
    torch.testing.assert_close(run(x, y), x @ y)
    x = torch.randn(8, 6)
    torch.testing.assert_close(run(x, y), x @ y)
    assert [g["ge.dynamicDims"] for g in options] == ["4;8"]
    shapes = dict(part.split(":") for part in options[0]["ge.inputShape"].split(";"))
    assert sorted(shapes.values()) == ["-1,6", "6,8"]


def test_sizes_that_follow_from_a_gear(options):
    """A size of one input that the model ties to the gear of another."""

    def f(x, y):
        return x + y

    run = torch.compile(f, backend="npu", dynamic=True, fullgraph=True)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    set_dim_gears(x, {0: [4, 6]})
    run(x, y)
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    torch.testing.assert_close(run(x, y), x + y)
    assert options[0]["ge.dynamicDims"] == "4,4;6,6"


def test_a_dimension_that_the_model_fixes(options):
    model = Doubled()
    run = torch.compile(model, backend="npu", fullgraph=True)
    x = torch.randn(4, 3)
    set_dim_gears(x, {0: [4, 6]})
    torch.testing.assert_close(run(x), model(x))
    x = torch.randn(6, 3)
    torch.testing.assert_close(run(x), model(x))
    with pytest.raises(Exception, match="GE4030"):
        run(torch.randn(5, 3))


@pytest.mark.parametrize(
    "gears",
    [
        {},
        {0: []},
        {0: [0, 2]},
        {0: [0]},
        {3: [2]},
        {-1: [2]},
        {"0": [2]},
        {0: [2, 2]},
        {0: 4},
        {0: [2.0]},
        3,
        {0: list(range(2, 103))},
    ],
)
def test_wrong_gears(gears):
    with pytest.raises(ConfigError, match="GE1062"):
        set_dim_gears(torch.randn(4, 4), gears)


def test_two_settings_for_one_tensor():
    x = torch.randn(4, 4)
    set_dim_gears(x, {0: [2, 4]})
    set_dim_gears(x, {0: [2, 4]})
    with pytest.raises(ConfigError, match="GE1062"):
        set_dim_gears(x, {0: [2, 8]})
    with pytest.raises(ConfigError, match="GE1062"):
        set_dim_gears([1], {0: [2]})


def geared(policy, **lists):
    def f(x, y):
        return x * 2, y * 3

    run = compiled(f, policy, True)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    set_dim_gears(x, {int(k[1:]): v for k, v in lists.items() if k[0] == "x"})
    set_dim_gears(y, {int(k[1:]): v for k, v in lists.items() if k[0] == "y"})
    return run(x, y)


@pytest.mark.parametrize(
    ("policy", "lists", "code"),
    [
        ("zip", {"x0": [2, 4], "y0": [4, 5, 6]}, "GE1063"),
        ("product", {"x0": list(range(2, 13)), "y0": list(range(2, 13))}, "GE1063"),
        ("zip", {"x0": [2, 3], "y0": [4, 5]}, "GE4030"),
    ],
)
def test_gears_that_do_not_combine(policy, lists, code):
    with pytest.raises(Exception, match=code):
        geared(policy, **lists)


def test_captured_graphs_and_ref_data_have_no_gears():
    for change in ("mode", "enable_ref_data"):
        torch._dynamo.reset()
        config = torchair.CompilerConfig()
        if change == "mode":
            config.mode = "reduce-overhead"
        else:
            config.experimental_config.enable_ref_data = True
        run = torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
        x = torch.randn(4, 4)
        set_dim_gears(x, {0: [2, 4]})
        with pytest.raises(Exception, match="GE1064"):
            run(x)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["argument", "inside a list", "keyword"])
def test_an_export_has_no_gears(place, tmp_path):
    class Sum(torch.nn.Module):
        def forward(self, x, more=None):
            return x + 1

    x, marked = torch.ones(4, 2), torch.ones(4, 2)
    set_dim_gears(marked, {0: [2, 4]})
    given = {"argument": ((marked,), {}), "inside a list": ((x, [marked]), {}), "keyword": ((x,), {"more": marked})}
    args, keywords = given[place]
    with pytest.raises(ConfigError, match="GE1064.*dimension 0: 2, 4"):
        torchair.dynamo_export(*args, model=Sum(), export_path=str(tmp_path / "out"), **keywords)
    assert not (tmp_path / "out").exists()
    torchair.dynamo_export(x, model=Sum(), export_path=str(tmp_path / "out"), dynamic=True)


def doubling():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


@pytest.mark.parametrize("closed_over", [False, True])
def test_gears_of_one_module_are_not_those_of_another_of_its_class(closed_over):
    def prepared(module):
        fn = (lambda x: module(x) + 1) if closed_over else module
        return torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True), fn

    torch._dynamo.reset()
    (first, _), (second, eager) = prepared(doubling()), prepared(doubling())
    x = torch.randn(2, 4)
    set_dim_gears(x, {0: [2, 4]})
    with torch.no_grad():
        first(x)
        first(torch.randn(4, 4))
        for size in (3, 5, 2):
            y = torch.randn(size, 4)
            torch.testing.assert_close(second(y), eager(y))
        with pytest.raises(EngineError, match="GE4030"):
            first(torch.randn(3, 4))


@pytest.mark.parametrize("order", [(4, 2, 1), (1, 4, 2), (2, 1, 4)])
def test_a_gear_of_one_has_a_graph_of_its_own(order, options):
    """torch never traces a size of 1 with a symbol; the other gears share one graph."""
    torch._dynamo.reset()
    run = torch.compile(lambda x: x * 2 + x.sum(0), backend=torchair.get_npu_backend(), dynamic=True, fullgraph=True)
    for size in order:
        x = torch.randn(size, 3)
        set_dim_gears(x, {0: [1, 2, 4]})
        torch.testing.assert_close(run(x), x * 2 + x.sum(0))
    assert len(options) == 2
    assert [o["ge.dynamicDims"] for o in options if o] == ["2;4"]
    with pytest.raises(EngineError, match="GE4030"):
        run(torch.randn(3, 3))
