"""Options without effect: what is said of them, once, in every mode; and the table of all options."""

import warnings

import pytest
import torch

import torchair
from ge_graph.errors import ConfigError
from tair_testing import warm
from torchair.config import explain
from torchair.config.options import GRAPH_EX, OPTIONS


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(explain, "_warned", set())


def said(run):
    """What the warnings of a call say of options."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in seen if "without effect" in str(w.message)]


def compiled(config):
    torch._dynamo.reset()
    return torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)


def config_of(mode="max-autotune", **options):
    made = torchair.CompilerConfig()
    made.mode = mode
    for path, value in options.items():
        group, name = path.split("__")
        setattr(getattr(made, group), name, value)
    return made


@pytest.mark.parametrize(
    ("made", "idle"),
    [
        (config_of(ge_config__oo_level="O1"), "ge_config.oo_level = 'O1' (acts on a device only)"),
        (
            config_of(aclgraph_config__clone_output=True),
            "aclgraph_config.clone_output = True (mode max-autotune captures",
        ),
        (config_of("reduce-overhead", ge_config__oo_level="O1"), "oo_level = 'O1' (mode reduce-overhead makes no"),
        (
            config_of("reduce-overhead", aclgraph_config__use_graph_pool=(1, 2)),
            "use_graph_pool = (1, 2) (acts on a device",
        ),
        (
            config_of(debug__run_eagerly=True, experimental_config__enable_ref_data=True),
            "enable_ref_data = True (the ATen",
        ),
        (config_of(export__export_name="x"), "export.export_name = 'x' (only dynamo_export looks at it)"),
    ],
)
def test_an_idle_option_is_named_once_and_by_default(made, idle):
    run = compiled(made)
    (text,) = said(lambda: (run(torch.ones(2)), run(torch.ones(3))))
    assert idle in text
    assert "config.explain()" in text
    assert not said(lambda: compiled(made)(torch.ones(2)))


def test_the_graph_dump_of_a_mode_without_ge_graph_says_why_not(tmp_path):
    made = config_of("reduce-overhead")
    made.debug.graph_dump.type, made.debug.graph_dump.path = "txt", str(tmp_path)
    (text,) = said(lambda: compiled(made)(torch.ones(2)))
    assert "debug.graph_dump.type = 'txt' (mode reduce-overhead makes no GE graph)" in text
    assert not [*tmp_path.iterdir()]


@pytest.mark.unverified
@pytest.mark.parametrize(
    "options",
    [
        {"static_kernel_compile": True},
        {"_aclnn_static_shape_kernel_build_dir": "kernels"},
        {"super_kernel_optimize": True},
        {"disable_static_kernel_compile_cache": True, "static_kernel_compile": True},
        {"super_kernel_optimize_options": {"split_mode": 1}},
        {"super_kernel_debug_options": {"debug_sync_all": 1}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_kernels_act_on_a_device_only(options, tmp_path, monkeypatch):
    """By their flat names; each is said once, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    run = torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options)
    (text,) = said(lambda: (run(torch.ones(2)), run(torch.ones(3))))
    name, value = next(iter(options.items()))
    assert f" {name} = {value!r} (acts on a device only)" in text
    assert not [*tmp_path.iterdir()]


@pytest.mark.unverified
@pytest.mark.parametrize(
    "options",
    [
        {"_vllm_aclnn_static_kernel_sym_index": 1},
        {"_vllm_aclnn_static_kernel_sym_range": [1, 2]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_a_compiler_that_is_not_called(options):
    torch._dynamo.reset()
    run = torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options)
    (text,) = said(lambda: run(torch.ones(2)))
    name, value = next(iter(options.items()))
    assert f"{name} = {value!r} (kernels are compiled by CANN's op_compiler, which is not called)" in text


@pytest.mark.slow
def test_an_export_says_it_too(tmp_path):
    made = config_of(ge_config__oo_level="O1", aclgraph_config__clone_output=True)
    (text,) = said(
        lambda: torchair.dynamo_export(
            torch.ones(2), model=torch.nn.ReLU(), export_path=str(tmp_path / "e"), config=made
        )
    )
    assert "oo_level = 'O1' (an exported graph carries no engine options)" in text
    assert "clone_output = True (an export captures nothing)" in text


@pytest.mark.parametrize(
    "made",
    [
        config_of(),
        config_of("reduce-overhead", aclgraph_config__clone_output=True),
        config_of(experimental_config__enable_ref_data=True, debug__run_eagerly=False),
    ],
)
def test_options_that_act_are_not_named(made):
    assert not said(lambda: compiled(made)(torch.ones(2)))


@pytest.mark.slow
def test_the_default_filter_shows_it():
    code = (
        "import torch, torchair; c = torchair.CompilerConfig(); c.ge_config.oo_level = 'O1'\n"
        "torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=c))(torch.ones(2))"
    )
    assert warm.run("-c", code).stderr.count("without effect here: ge_config.oo_level = 'O1'") == 1


@pytest.mark.parametrize("use", ["max-autotune", "reduce-overhead", "eager", "export"])
def test_every_option_is_explained(use):
    table = explain.explain(torchair.CompilerConfig(), use, on_device=False, everything=True)
    flat = [o.path for o in GRAPH_EX if not o.path.startswith(("mode", "post_grad"))]
    assert {e.option for e in table} == {o.path for o in OPTIONS} | {f"aclgraph_config.{name}" for name in flat}
    assert len(str(table).splitlines()) == len(table) + 1
    assert {e.why.partition(":")[0] for e in table} <= {
        "acts",
        "acts on a device only",
        "acts on a device, or here under config.numerics",
        "ignored",
        "refused",
    }
    assert all(e.acts == (e.why == "acts") for e in table)


@pytest.mark.unverified
def test_a_device_makes_the_difference():
    made = config_of(ge_config__oo_level="O1")
    (here,), (there,) = (explain.explain(made, "max-autotune", on_device=on) for on in (False, True))
    assert (here.acts, there.acts) == (False, True)


@pytest.mark.unverified
def test_the_table():
    assert str(torchair.CompilerConfig().explain()) == "every option has its default"
    made = config_of(ge_config__oo_level="O1", aclgraph_config__clone_output=True)
    assert repr(made.explain()).splitlines() == [
        "option                        value  effect here",
        "ge_config.oo_level            'O1'   acts on a device only",
        "aclgraph_config.clone_output  True   ignored: mode max-autotune captures nothing",
    ]
    made.debug.run_eagerly = True
    assert {e.why for e in made.explain() if not e.acts} == {
        "ignored: the ATen graph runs as it stands, no GE graph is made",
        "ignored: the ATen graph runs as it stands, nothing is captured",
    }


@pytest.mark.parametrize("name", ["In-placeAddRmsNormFusionPass", "clip_by_norm_nodivsquaresum", "A-b_9"])
def test_documented_names_of_fusion_passes(name):
    made = config_of()
    made.ge_config.optimization_switch = f"{name}:off;AutomaticUbFusion:on"
    assert made.ge_options()["ge.optimizationSwitch"] == f"{name}:off;AutomaticUbFusion:on"
    for wrong in ("a b:on", "-a:on", "a:maybe", "a;b"):
        with pytest.raises(ConfigError, match="GE1006"):
            made.ge_config.optimization_switch = wrong


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"options": {"a": 1}}, "GE1001.*no option 'a'"),
        ({"mode": "fastest"}, "GE1012.*knows 'default'"),
    ],
)
def test_wrong_options_of_torch_compile_are_refused_by_our_error(more, text):
    run = torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(), **more)
    with pytest.raises(Exception, match=text) as caught:
        run(torch.ones(2))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), ConfigError)
