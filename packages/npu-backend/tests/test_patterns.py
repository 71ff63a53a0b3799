"""torchair.register_replacement: every parameter, what is refused, and the rules for operators of torch_npu."""

import types

import pytest
import torch

import torchair
from ge_graph.errors import ConfigError
from torchair.passes import npu_patterns, patterns

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_rules(monkeypatch):
    """Rules are global; each test starts without."""
    monkeypatch.setattr(patterns, "RULES", patterns._Rules())
    monkeypatch.setattr(npu_patterns, "_done", set())


def search(x, y):
    return torch.relu(torch.add(x, y))


def replace(x, y):
    return torch.clamp_min(torch.add(x, y), 0)


def two(*size):
    return [torch.randn(*size or (2, 3)), torch.randn(*size or (2, 3))]


def targets(recording, fn, *args, config=None, dynamic=None):
    with recording() as seen:
        backend = torchair.get_npu_backend(compiler_config=config)
        got = torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    torch.testing.assert_close(got, fn(*args))
    return seen.fx[-1][2]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_a_rule_in_both_modes(recording, dynamic, mode):
    torchair.register_replacement(search, replace, two())
    config = torchair.CompilerConfig()
    config.mode = mode
    found = targets(recording, lambda x, y: search(x, y).sin(), *two(5, 7), config=config, dynamic=dynamic)
    assert not any("relu" in t for t in found)
    assert any("clamp_min" in t for t in found)


def test_the_switch(recording):
    torchair.register_replacement(search, replace, two())
    config = torchair.CompilerConfig()
    config.experimental_config.pattern_fusion_pass = False
    assert "aten.relu.default" in targets(recording, search, *two(), config=config)
    config = torchair.CompilerConfig()
    config.experimental_config.pattern_fusion_pass = False
    config.experimental_config.npu_fx_pass = True
    with pytest.raises(Exception, match=r"GE1008.*npu_fx_pass = True and .*pattern_fusion_pass = False"):
        torch.compile(search, backend=torchair.get_npu_backend(compiler_config=config))(*two())


def test_no_fusion_if_somebody_reads_the_middle(recording):
    torchair.register_replacement(search, replace, two())
    found = targets(recording, lambda x, y: (torch.relu(a := x + y), a * 2), *two())
    assert "aten.relu.default" in found


def test_no_fusion_across_the_edge_of_a_scope(recording):
    torchair.register_replacement(search, replace, two())

    def fn(x, y):
        with torchair.scope.npu_stream_switch("side"):
            a = x + y
        return torch.relu(a)

    def inside(x, y):
        with torchair.scope.npu_stream_switch("side"):
            return torch.relu(x + y) + 1

    assert "aten.relu.default" in targets(recording, fn, *two())
    torch._dynamo.reset()
    assert "aten.relu.default" not in targets(recording, inside, *two())


def test_extra_check_sees_parameters_and_shapes(recording):
    seen = []

    def wide(match):
        seen.append(sorted(match.kwargs))
        return match.kwargs["x"].meta["val"].shape[-1] > 4

    torchair.register_replacement(search, replace, two(), extra_check=wide)
    assert "aten.relu.default" in targets(recording, search, *two(3, 3))
    torch._dynamo.reset()
    assert "aten.relu.default" not in targets(recording, search, *two(3, 8))
    assert seen == [["x", "y"]] * 2


def test_scalars(recording):
    def scaled(x, factor):
        return torch.relu(x * factor)

    def other(x, factor):
        return torch.clamp_min(x * factor, 0)

    torchair.register_replacement(scaled, other, [torch.empty(2)], scalar_workaround={"factor": 1.2345})
    found = targets(recording, lambda x: torch.relu(x * 7.5), torch.randn(3))
    assert "aten.relu.default" not in found


def test_a_pattern_object(recording):
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg

    pattern = CallFunction(aten.relu.default, CallFunction(aten.add.Tensor, KeywordArg("x"), KeywordArg("y")))
    torchair.register_replacement(search, replace, two(), search_fn_pattern=pattern)
    assert "aten.relu.default" not in targets(recording, search, *two())


def test_a_tracer_of_ones_own(recording):
    calls = []

    def trace(fn, args, **more):
        calls.append(fn.__name__)
        return patterns.fwd_only(fn, args)

    torchair.register_replacement(search, replace, two(), trace_fn=trace)
    assert "aten.relu.default" not in targets(recording, search, *two())
    assert {"search", "replace"} <= set(calls)


def test_operators_that_stay_whole_here_can_be_matched(recording):
    """silu is one operator in these graphs, though torch's own tracer would take it apart."""
    torchair.register_replacement(
        lambda x: torch.nn.functional.silu(x).neg(), lambda x: -(x * torch.sigmoid(x)), [torch.empty(2)]
    )
    found = targets(recording, lambda x: torch.nn.functional.silu(x).neg(), torch.randn(3))
    assert "aten.silu.default" not in found


def test_duplicates():
    torchair.register_replacement(search, replace, two())
    with pytest.raises(ConfigError, match="GE1053.*'search'"):
        torchair.register_replacement(search, replace, two())
    torchair.register_replacement(search, replace, two(), skip_duplicates=True)
    assert len(patterns.RULES.registered) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((search, lambda x, y: replace(x, y).double(), two()), r"GE1052.*float32 of rank 2.*float64 of rank 2"),
        ((search, lambda x, y: (x, y), two()), "GE1052"),
        ((search, lambda x: x, two()), r"GE1050.*\['x', 'y'\]"),
        ((search, 3, two()), "GE1050.*replace_fn is not a function"),
        ((search, replace, 3), "GE1050.*not iterable"),
        ((search, replace, [torch.empty(2), torch.empty(3)]), "GE1051.*search_fn cannot be traced"),
    ],
)
def test_wrong_rules_are_refused_when_registered(arguments, text):
    with pytest.raises(ConfigError, match=text):
        torchair.register_replacement(*arguments)
    assert patterns.RULES.registered == []


# -- rules for torch_npu, with operators of the same schemas ----------------------------------------------------------


def _norm(x1, x2, gamma, epsilon=1e-6):
    x = x1 + x2
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return (x.float() * rstd).to(x.dtype) * gamma, rstd, x


def _quant(y, scales=None, mode="pertoken"):
    y = y.float() if scales is None else y.float() * scales
    scale = y.abs().amax(-1) / 127
    if mode == "pertensor":
        scale = scale.amax().expand_as(scale).clone()
    return torch.round(y / scale.unsqueeze(-1)).to(torch.int8), scale


def _fused_quant(x1, x2, gamma, smooth_scale1=None, smooth_scale2=None, beta=None, epsilon=1e-6, output_mask=None):
    y, _, x = _norm(x1, x2, gamma, epsilon)
    q, scale = _quant(y, smooth_scale1)
    return q, q.new_empty(0), x, scale, scale.new_empty(0)


def _fused_cast(x1, x2, gamma, epsilon=1e-6):
    y, rstd, x = _norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, x


_OPS = {
    "npu_add_rms_norm": ("(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-6) -> (Tensor, Tensor, Tensor)", _norm),
    "npu_dynamic_quant": (
        '(Tensor input, *, Tensor? smooth_scales=None, str? quant_mode="pertoken") -> (Tensor, Tensor)',
        lambda y, smooth_scales=None, quant_mode="pertoken": _quant(y, smooth_scales, quant_mode),
    ),
    "npu_add_rms_norm_dynamic_quant": (
        "(Tensor x1, Tensor x2, Tensor gamma, *, Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, "
        "Tensor? beta=None, float epsilon=1e-6, bool[]? output_mask=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _fused_quant,
    ),
    "npu_add_rms_norm_cast": (
        "(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-6) -> (Tensor, Tensor, Tensor, Tensor)",
        _fused_cast,
    ),
}


@pytest.fixture
def npu_ops(monkeypatch):
    library = torch.library.Library("npu", "FRAGMENT")
    for name, (schema, fn) in _OPS.items():
        if not hasattr(torch.ops.npu, name):
            library.define(name + schema)
            library.impl(name, fn, "CompositeExplicitAutograd")
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(), raising=False)
    yield
    for name in _OPS:
        torch.ops.npu.__dict__.pop(name, None)
    library._destroy()


def _npu_quant(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    return (*torch.ops.npu.npu_dynamic_quant(y, smooth_scales=scales), x)


def _npu_flat(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    q, scale = torch.ops.npu.npu_dynamic_quant(y.flatten(0, 1))
    return q, scale.view(-1, 1), x


def _npu_cast(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    flat = y.view(-1, y.shape[-1])
    return flat, flat.to(torch.float32), x


@pytest.mark.parametrize(
    ("fn", "fused"),
    [
        (_npu_quant, "npu.npu_add_rms_norm_dynamic_quant.default"),
        (_npu_flat, "npu.npu_add_rms_norm_dynamic_quant.default"),
        (_npu_cast, "npu.npu_add_rms_norm_cast.default"),
    ],
)
def test_rules_for_torch_npu(npu_ops, recording, fn, fused):
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    args = [torch.randn(2, 3, 32).half(), torch.randn(2, 3, 32).half(), torch.randn(32).half(), torch.rand(32).half()]
    found = targets(recording, fn, *args, config=config)
    assert fused in found
    assert "npu.npu_add_rms_norm.default" not in found


def _flat_and_smooth(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    q, scale = torch.ops.npu.npu_dynamic_quant(y.flatten(0, 1), smooth_scales=scales)
    return q, scale.view(-1, 1), x


def _flat_and_whole(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    q, scale = torch.ops.npu.npu_dynamic_quant(y.flatten(0, 1), quant_mode="pertensor")
    return q, scale.view(-1, 1), x


def _smooth_and_whole(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    return (*torch.ops.npu.npu_dynamic_quant(y, smooth_scales=scales, quant_mode="pertensor"), x)


def _another_epsilon(x1, x2, gamma, scales):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, epsilon=0.5)
    return (*torch.ops.npu.npu_dynamic_quant(y, smooth_scales=scales), x)


@pytest.mark.parametrize("fn", [_flat_and_smooth, _flat_and_whole, _smooth_and_whole, _another_epsilon])
def test_what_the_fused_operator_is_not_told_is_not_fused(npu_ops, recording, fn):
    """Smooth scales, the mode and epsilon were lost: the compiled program gave other numbers than eager."""
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    args = [torch.randn(2, 3, 32).half(), torch.randn(2, 3, 32).half(), torch.randn(32).half(), torch.rand(32).half()]
    assert "npu.npu_add_rms_norm.default" in targets(recording, fn, *args, config=config)


def test_without_torch_npu_there_are_no_such_rules(recording):
    targets(recording, lambda x: x + 1, torch.ones(2))
    assert patterns.RULES.matcher is None


def test_nothing_is_computed_when_a_rule_is_registered(recording):
    """An operator that a host cannot run may stand in a rule: it needs its fake kernel alone."""

    @torch.library.custom_op("patterns::elsewhere", mutates_args=(), device_types="cuda")
    def elsewhere(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise AssertionError("called")

    elsewhere.register_fake(lambda x, y: torch.empty_like(x))
    ops = torch.ops.patterns
    torchair.register_replacement(search, lambda x, y: ops.elsewhere(x, y), two(), extra_check=lambda match: False)
    found = targets(recording, search, *two(4, 4))
    assert any("relu" in t for t in found)
    torchair.register_replacement(lambda x, y: ops.elsewhere(x, y).sin(), lambda x, y: search(x, y).sin(), two())
    with torch._subclasses.FakeTensorMode():  # examples without data already, as torch_npu's own tests give them
        torchair.register_replacement(lambda x, y: (x - y).relu(), lambda x, y: (y - x).neg().relu(), two())
    assert len(patterns.RULES.registered) == 3
