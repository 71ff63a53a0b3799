"""Which results share memory, with each other and with inputs, is what the ATen program says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from torchair.runtime.views import take_views

STEPS = {
    "turn": lambda x: x.transpose(0, 1),
    "flat": lambda x: x.reshape(-1).view(1, -1),
    "row": lambda x: x[:1].expand(2, x.shape[1]),
    "cut": lambda x: x[:, 1:] if x.shape[1] > 2 else x[:],
    "part": lambda x: x.split(1)[0],
    "deeper": lambda x: x.unsqueeze(0).squeeze(0),
    "add": lambda x: x + 1,
    "abs": lambda x: x.abs(),
    "copy": lambda x: x.clone(),
}


def groups(tensors):
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [memory.index(m) for m in memory]


def compile_graph(gm):
    call = torchair.get_compiler()(gm, [])
    return lambda *args: call(list(args))


@pytest.mark.slow
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    picks=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
@settings(max_examples=30, deadline=None)
def test_random_programs(names, picks):
    def fn(x):
        values = [x]
        for name in names:
            values.append(STEPS[name](values[-1]))
        return tuple(values[min(p, len(values) - 1)] for p in picks)

    x = torch.arange(12.0).reshape(3, 4)
    reference = make_fx(fn, tracing_mode="fake")(x)
    want = reference(x)
    got = compile_graph(make_fx(fn, tracing_mode="fake")(x))(x)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
    assert groups([x, *got]) == groups([x, *want])


def test_views_of_symbolic_sizes():
    def fn(x):
        y = x * 2
        n, m = y.shape
        return y, y.view(m, n), y[: n // 2], y.as_strided((m,), (1,), n)

    run = torch.compile(fn, backend=torchair.get_npu_backend(), dynamic=True, fullgraph=True)
    for shape in ((4, 6), (8, 10)):
        x = torch.randn(shape)
        got, want = run(x), fn(x)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
        got[0].zero_()
        assert all((g == 0).all() for g in got)


def test_a_weight_saved_for_backward_is_not_copied():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    gm = make_fx(lambda w, x: (x @ w.t(), w.t()), tracing_mode="fake")(weight.detach(), torch.randn(2, 4))
    _, turned = compile_graph(gm)(weight.detach(), torch.randn(2, 4))
    assert turned.data_ptr() == weight.data_ptr()


LONE = {
    "transpose": (lambda x: (x + 1).t(), 1),
    "columns": (lambda x: (x + 1)[:, 1:], 1),
    "expanded": (lambda x: x.sum(0).expand(2, x.shape[1]), 1),
    "heads": (lambda x: (x + 1).view(1, 2, -1).transpose(1, 2), 1),
    "row-major": (lambda x: (x + 1).view(-1)[1:], 0),
    "there and back": (lambda x: (x + 1).t().contiguous().view(-1), 0),
}


@pytest.mark.parametrize("name", LONE)
def test_lone_views_leave_the_graph_if_ge_would_have_to_copy(name):
    fn, outside = LONE[name]
    gm = make_fx(lambda x: (fn(x),), tracing_mode="fake")(torch.randn(2, 3))
    assert len(take_views(gm).views) == outside


STRIDES = {
    **{name: fn for name, (fn, _) in LONE.items()},
    "channels-last of one channel": lambda x: (x + 1).view(1, 1, 2, -1).contiguous(memory_format=torch.channels_last),
    "of a transpose": lambda x: x.t() * 2,
    "of an expanded row": lambda x: x.sum(0).expand(2, x.shape[1]) * 2,
    "diagonal": lambda x: (x @ x.t()).diagonal(),
    "steps": lambda x: (x + 1)[:, ::2],
    "gaps": lambda x: torch.empty_strided((2, 3), (5, 1)).copy_(x.sum()),
    "part": lambda x: (x + 1).split(1, 1)[0],
    "windows": lambda x: (x + 1).unfold(1, 2, 1),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x).t()),
    "column-major": lambda x: torch.linalg.qr(x @ x.t() + torch.eye(2))[0],
}


@pytest.mark.night(rows=11)
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_those_of_aot_eager(name, dynamic, mode):
    config = torchair.CompilerConfig()
    config.mode = mode

    def outcome(backend):
        torch._dynamo.reset()
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        found = torch.compile(STRIDES[name], backend=backend, dynamic=dynamic, fullgraph=True)(x)
        weight = torch.ones(()).expand_as(found)
        grads = torch.autograd.grad(found, x, weight) if found.requires_grad and name != "column-major" else ()
        return found, *grads

    for want, got in zip(outcome("aot_eager"), outcome(torchair.get_npu_backend(compiler_config=config)), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


NOTHING_TO_COMPUTE = {
    "view": lambda x: x.view(-1)[2:],
    "input and number": lambda x: (x, x.size(0), None),
    "nothing": lambda x: (None, 3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NOTHING_TO_COMPUTE)
def test_a_graph_that_computes_nothing(name, dynamic):
    """GE refuses a graph without nodes, so it is not given one."""
    fn = NOTHING_TO_COMPUTE[name]
    gm = make_fx(lambda x: fn(x), tracing_mode="symbolic" if dynamic else "fake")(torch.arange(6.0).view(2, 3))
    x = torch.arange(6.0).view(2, 3)
    got, want = compile_graph(gm)(x), fn(x)
    torch.testing.assert_close(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want))


def test_a_gradient_that_is_a_view_of_the_one_given():
    x = torch.arange(6.0).requires_grad_()
    run = torch.compile(lambda x: x.view(2, 3).t(), backend=torchair.get_npu_backend(), fullgraph=True)
    run(x).backward(torch.arange(6.0).view(3, 2))
    torch.testing.assert_close(x.grad, torch.arange(6.0).view(3, 2).t().reshape(-1))


def test_views_nobody_else_reads_leave_the_graph():
    gm = make_fx(lambda x: (y := x + 1, y.t(), y.t().abs()), tracing_mode="fake")(torch.randn(2, 3))
    plan = take_views(gm)
    gm.graph.lint()
    assert len(plan.views) == 1
    assert sum(n.target is torch.ops.aten.t.default for n in gm.graph.nodes) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_a_view_of_a_written_input_sees_the_new_value(keep):
    config = torchair.CompilerConfig()
    config.experimental_config.keep_inference_input_mutation = keep

    def fn(x):
        v = x.t()
        x.mul_(2)
        return v, v + 1

    ours, theirs = torch.ones(2, 3), torch.ones(2, 3)
    got = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)(ours)
    want = fn(theirs)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
    ours.zero_()
    assert (got[0] == 0).all()
