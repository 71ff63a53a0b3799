"""Options that change graph, order or engine options: what each one does, seen from outside."""

import json

import pytest
import torch

import torchair
from ge_runtime.cpu import CpuEngine


def config(**options):
    made = torchair.CompilerConfig()
    for name, value in options.items():
        setattr(made.experimental_config, name, value)
    return made


def compiled(fn, made, **more):
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=made, **more))


@pytest.fixture
def engine_options(monkeypatch):
    """What the engine is handed."""
    seen, real = [], CpuEngine.compile

    def compile(self, graph, options):
        seen.append(dict(options))
        return real(self, graph, options)

    monkeypatch.setattr(CpuEngine, "compile", compile)
    return seen


def loss_of(model, x):
    return torch.nn.functional.mse_loss(model(x).relu(), x)


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_joint_graph(index, mode, scale, recording):
    made = config(aot_config_enable_joint_graph=True, aot_config_output_loss_index=index)
    made.mode = mode
    torch.manual_seed(1)
    model, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
    with recording() as seen:
        loss = compiled(loss_of, made)(model, x)
        (loss * scale).backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    want = loss_of(model, x)
    (want * scale).backward()
    torch.testing.assert_close(loss, want)
    for g, p in zip(got, model.parameters()):
        torch.testing.assert_close(g, p.grad)
    forward, backward = (
        next(t for stage, label, t in seen.fx if stage.phase == phase and label == "")
        for phase in ("forward", "backward")
    )
    products = [sum("mm" in t for t in half) for half in (forward, backward)]
    assert products == (
        [2, 0] if index == 0 else [1, 2]
    )  # with a loss: all in forward; else: forward again in backward


def test_joint_graph_refusals():
    both = compiled(
        lambda x: (x.sum(), x * 2), config(aot_config_enable_joint_graph=True, aot_config_output_loss_index=0)
    )
    with pytest.raises(Exception, match="GE1057.*one result with a gradient"):
        both(torch.randn(3, requires_grad=True))
    torch._dynamo.reset()
    noisy = compiled(lambda x: torch.nn.functional.dropout(x, 0.5).sum(), config(aot_config_enable_joint_graph=True))
    with pytest.raises(Exception, match="GE1057.*random"):
        noisy(torch.randn(3, requires_grad=True))
    alone = config(aot_config_output_loss_index=0)
    with pytest.raises(Exception, match=r"GE1008.*output_loss_index = 0 and .*enable_joint_graph = False"):
        compiled(lambda x: x + 1, alone)(torch.randn(3))


@pytest.mark.unverified
def test_frozen_parameter_marks_parameters_and_static_tensors(engine_options):
    model, x, static = torch.nn.Linear(3, 3), torch.randn(2, 3), torch.randn(2, 3)
    torch._dynamo.mark_static_address(static)
    with torch.no_grad():
        compiled(lambda m, x, s: m(x) + s, config(frozen_parameter=True))(model, x, static)
        compiled(lambda m, x, s: m(x) - s, config())(model, x, static)
    frozen, plain = engine_options
    assert frozen["frozen_parameter"] == "1"
    assert sorted(frozen["frozenInput"].split(",")) == ["0", "1", "1", "1"]
    assert "frozenInput" not in plain


@pytest.mark.unverified
def test_frozen_parameter_marks_nothing_of_a_backward_graph(engine_options):
    """Activations move from step to step; torch says of no input of a backward graph that it stays."""
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3)), torch.randn(2, 3)
    compiled(model, config(frozen_parameter=True))(x).square().sum().backward()
    forward, backward = engine_options
    assert sorted(forward["frozenInput"].split(",")) == ["0", "1", "1", "1", "1"]
    assert set(backward["frozenInput"].split(",")) == {"0"}


@pytest.mark.parametrize("on", [False, True])
def test_ref_data(on, recording):
    def step(cache, x):
        cache.add_(x)
        return cache * 2

    cache, x = torch.ones(3), torch.ones(3)
    with recording() as seen:
        got = compiled(step, config(enable_ref_data=on))(cache, x)
    assert (cache.tolist(), got.tolist()) == ([2, 2, 2], [4, 4, 4])
    ops = [n.op for n in seen.last_graph().nodes]
    assert ("RefData" in ops, "Assign" in ops) == (on, on)
    assert ("copy_" in seen.code[0][1]) != on


@pytest.mark.parametrize("on", [False, True])
def test_keep_inference_input_mutation(on, recording):
    cache = torch.ones(3)
    with recording() as seen:
        compiled(lambda c: c.add_(1).sum(), config(keep_inference_input_mutation=on))(cache)
    assert cache.tolist() == [2, 2, 2]
    assert ("aten.copy_.default" in seen.fx[0][2]) == on


@pytest.mark.slow
def test_the_sorting_strategy_is_visible_in_the_order(recording):
    def fn(x):
        return x.sin().cos() + x.exp().tanh()

    orders = {}
    for strategy in ("DFS", "BFS", "RDFS", "StableRDFS"):
        torch._dynamo.reset()
        with recording() as seen:
            compiled(fn, config(topology_sorting_strategy=strategy))(torch.ones(2))
        orders[strategy] = [n.op for n in seen.last_graph().nodes if n.op in ("Sin", "Cos", "Exp", "Tanh")]
    assert orders["BFS"] == ["Sin", "Exp", "Cos", "Tanh"]
    assert orders["DFS"] in (["Sin", "Cos", "Exp", "Tanh"], ["Exp", "Tanh", "Sin", "Cos"])
    assert orders["StableRDFS"] == ["Sin", "Cos", "Exp", "Tanh"]
    assert all(sorted(o) == ["Cos", "Exp", "Sin", "Tanh"] for o in orders.values())


def test_custom_decompositions(recording):
    def silu(x):
        return x * torch.sigmoid(x)

    more = {"custom_decompositions": {torch.ops.aten.silu.default: silu}}
    x = torch.randn(3)
    with recording() as seen:
        got = compiled(torch.nn.functional.silu, config(), **more)(x)
    torch.testing.assert_close(got, torch.nn.functional.silu(x))
    assert [n.op for n in seen.last_graph().nodes if n.op not in ("Data", "Const")] == ["Sigmoid", "Mul"]


def test_options_reach_the_engine_under_their_ge_names(engine_options, tmp_path):
    switches = tmp_path / "fusion.cfg"
    switches.write_text(json.dumps({"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"SomePass": "on"}}}))
    made = config(static_model_ops_lower_limit=-1, topology_sorting_strategy="StableRDFS", memory_efficiency=True)
    made.fusion_config.fusion_switch_file = str(switches)
    made.ge_config.oo_level = "O1"
    made.ge_config.oo_constant_folding = False
    made.ge_config.oo_dead_code_elimination = True
    made.ge_config.optimization_switch = "AutomaticUbFusion:off;CastRemoveFusionPass:on"
    made.ge_config.aicore_num = "24|48"
    made.aoe_config.aoe_mode = "2"
    made.aoe_config.work_path = str(tmp_path)
    compiled(lambda x: x + 1, made)(torch.ones(2))
    expected = {
        "ge.exec.static_model_ops_lower_limit": "-1",
        "ge.topoSortingMode": "3",
        "ge.featureBaseRefreshable": "1",
        "ge.fusionSwitchFile": str(switches),
        "ge.oo.level": "O1",
        "ge.oo.constantFolding": "false",
        "ge.oo.deadCodeElimination": "true",
        "ge.optimizationSwitch": "AutomaticUbFusion:off;CastRemoveFusionPass:on",
        "ge.aicoreNum": "24|48",
        "ge.jobType": "2",
        "ge.tuningPath": str(tmp_path),
    }
    assert engine_options[0].items() >= expected.items()


@pytest.mark.parametrize(
    "content",
    ["no json", "[]", "{}", '{"Switch": {"Graph": {}}}', '{"Switch": {"UBFusion": {"A": "maybe"}}}', '{"Switch": 3}'],
)
def test_fusion_switch_files_are_read_and_checked(content, tmp_path):
    file = tmp_path / "fusion.cfg"
    file.write_text(content)
    with pytest.raises(Exception, match=r"GE1007.*fusion_switch_file"):
        torchair.CompilerConfig().fusion_config.fusion_switch_file = str(file)


def test_no_option_is_left_that_does_nothing_yet():
    from torchair.config.options import GRAPH_EX, OPTIONS

    later = [row.path for row in (*OPTIONS, *GRAPH_EX) if row.effective == "later"]
    elsewhere = {"inference_config.dynamic_gears_merge_policy", "export.experimental.enable_lite_export"}
    assert set(later) <= elsewhere


@pytest.mark.parametrize("stage", ["original", "optimized"])
def test_tensor_dump_of_captured_graphs(stage, tmp_path):
    options = {"dump_tensor_data": True, "data_dump_stage": stage, "data_dump_dir": str(tmp_path)}
    f = torch.compile(lambda x: x.clone().sin().split(1)[0] + 1, backend="npugraph_ex", options=options)
    x = torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(f(x), x[:1].sin() + 1)
    files = {p.name for p in (tmp_path / "worldsize1_global_rank0").iterdir()}
    names = ["arg0_1", "sin", "getitem", "add", *(["clone"] if stage == "original" else [])]
    assert files >= {f"{n}_device_0_{run}.pt" for n in names for run in (0, 1)}
    assert any(f.startswith("clone") for f in files) == (stage == "original")
    loaded = torch.load(tmp_path / "worldsize1_global_rank0" / "sin_device_0_0.pt", weights_only=True)
    assert torch.equal(loaded, x.sin())


def rounding(**options):
    made = torchair.CompilerConfig()
    made.numerics = options.pop("numerics", None)
    for name, value in options.items():
        setattr(made.ge_config, name, value)
    return made


def test_options_of_precision_act_under_numerics(tmp_path):
    torch.manual_seed(0)
    a, b = torch.randn(8, 64), torch.randn(64, 8)
    half = a.half().double() @ b.half().double()
    precise = a.double() @ b.double()

    def result(**options):
        torch._dynamo.reset()
        return compiled(torch.mm, rounding(**options))(a, b).double()

    def off(got, wanted):
        return float((got - wanted).abs().max())

    assert off(result(numerics="ascend910b"), precise) < 1e-5
    assert off(result(numerics="ascend910b", precision_mode="cube_fp16in_fp32out"), half) < 1e-5
    assert 1e-4 < off(result(numerics="ascend910b", allow_hf32="01"), precise) < 1e-1
    types = tmp_path / "types.cfg"
    types.write_text("OpType::MatMulV2:InputDtype:float16,float16\n")
    with pytest.warns(UserWarning, match="customize_dtypes.*or here under config.numerics"):
        assert off(result(customize_dtypes=str(types)), precise) < 1e-5
    assert off(result(numerics="ascend910b", customize_dtypes=str(types)), half) < 1e-5


def test_explain_says_what_numerics_honours(engine_options):
    without, under = rounding(allow_hf32="11"), rounding(allow_hf32="11", numerics="ascend950")
    why = {e.option: e.why for e in without.explain()}
    assert why["ge_config.allow_hf32"] == "acts on a device, or here under config.numerics"
    assert {e.why for e in under.explain()} == {"acts"}
    assert without.only_on_a_device() == ["ge_config.allow_hf32 = '11'"]
    assert under.only_on_a_device() == []
    compiled(torch.relu, under)(torch.randn(3))
    assert engine_options[-1]["engine.numerics"] == "ascend950"
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="allow_hf32"):
        compiled(torch.relu, without)(torch.randn(3))
    assert "engine.numerics" not in engine_options[-1]


def test_backward_rounds_too():
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, bias=False)
    x = torch.randn(4, 16)
    compiled(lambda t: model(t).sum(), rounding(numerics="ascend910b", allow_hf32="11"))(x).backward()
    got = model.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert 0 < float((got - model.weight.grad).abs().max()) < 1e-2
