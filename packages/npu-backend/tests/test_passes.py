"""FX passes: the user's, in both places, and the built-in ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from tair_testing.compiling import compiled
from torchair.passes import BUILT_IN, PassError
from torchair.passes.noops import RULES, RemoveNoops

aten = torch.ops.aten
PLACES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


def with_pass(fn, place="post_grad_custom_pre_pass", **options):
    config = torchair.CompilerConfig()
    setattr(config, place, fn)
    return config


def refused(fn, config, *args):
    """The error that reaches the user, without dynamo's wrapping."""
    with pytest.raises(Exception) as caught:
        compiled(fn, config)(*args)
    inner = getattr(caught.value, "inner_exception", None) or caught.value
    assert str(getattr(inner, "code", "")) in str(caught.value)
    return inner


# -- the user's passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_signature_and_return_value(place):
    seen = []

    def my_pass(gm, example_inputs, config):
        seen.append((type(gm), [type(i).__name__ for i in example_inputs], config))
        return "ignored"

    config = with_pass(my_pass, place)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x.abs() + 1, config)(x), x.abs() + 1)
    ((kind, inputs, given_config),) = seen
    assert issubclass(kind, torch.fx.GraphModule)
    assert inputs == ["FakeTensor"]
    assert given_config is config


def test_order_is_pre_built_in_post(recording):
    order = []

    def note(name):
        def custom(gm, inputs, config):
            order.append((name, sum(n.target is aten.clone.default for n in gm.graph.nodes)))

        return custom

    config = torchair.CompilerConfig()
    config.post_grad_custom_pre_pass = note("pre")
    config.post_grad_custom_post_pass = note("post")
    with recording() as seen:
        compiled(lambda x: x.abs().clone().sin(), config)(torch.randn(3))
    assert order == [("pre", 1), ("post", 0)]
    labels = seen.fx_labels()
    assert [i for i, label in enumerate(labels) if "note" in label] == [1, 3]
    assert labels[2] == "RemoveNoops"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.unverified
def test_edits_in_place_are_what_runs(place, mode):
    def abs_becomes_relu(gm, inputs, config):
        for node in gm.graph.nodes:
            if node.target is aten.abs.default:
                node.target = aten.relu.default

    config = with_pass(abs_becomes_relu, place)
    config.mode = mode
    x = torch.randn(8)
    torch.testing.assert_close(compiled(lambda x: x.abs() * 2, config)(x), x.relu() * 2)


@pytest.mark.unverified
def test_new_nodes_get_their_values(recording):
    def insert(gm, inputs, config):
        for node in list(gm.graph.nodes):
            if node.target is aten.abs.default:
                with gm.graph.inserting_after(node):
                    wide = gm.graph.call_function(aten.sin.default, (node,))
                with gm.graph.inserting_after(wide):
                    back = gm.graph.call_function(aten.mul.Tensor, (wide, 3))
                node.replace_all_uses_with(back)
                wide.args = (node,)
                assert "val" not in back.meta

    config = with_pass(insert)
    run = torch.compile(
        lambda x: x.abs() + 1, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True, fullgraph=True
    )
    for n in (2, 5):
        x = torch.randn(n, 3)
        torch.testing.assert_close(run(x), x.abs().sin() * 3 + 1)


def test_passes_run_on_backward_graphs_too():
    phases = []

    def count(gm, inputs, config):
        phases.append(len(inputs))

    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: x.sin().sum(), with_pass(count))(x).backward()
    assert len(phases) == 2


def test_an_exception_reaches_the_user_with_the_name_of_the_pass():
    def picky_pass(gm, inputs, config):
        raise KeyError("cannot handle this")

    error = refused(lambda x: x + 1, with_pass(picky_pass), torch.randn(3))
    assert isinstance(error, PassError)
    assert error.code == "GE1021"
    assert "picky_pass" in str(error)
    assert "cannot handle this" in str(error)
    assert "post_grad_custom_pre_pass" in str(error)
    assert "test_passes.py" in str(error)
    assert isinstance(error.__cause__, KeyError)


def _drop_output(gm, inputs, config):
    output = next(n for n in gm.graph.nodes if n.op == "output")
    output.args = ((output.args[0][0],),)


def _erase_output(gm, inputs, config):
    gm.graph.erase_node(next(n for n in gm.graph.nodes if n.op == "output"))


def _use_before_definition(gm, inputs, config):
    first, second = [n for n in gm.graph.nodes if n.op == "call_function"][:2]
    first.args = (second,)


def _change_dtype(gm, inputs, config):
    for node in gm.graph.nodes:
        if node.target is aten.sin.default:
            node.target = aten.isnan.default


def _change_size(gm, inputs, config):
    for node in gm.graph.nodes:
        if node.target is aten.sin.default:
            node.target = aten.sum.default


def _impossible_call(gm, inputs, config):
    for node in gm.graph.nodes:
        if node.target is aten.sin.default:
            node.target = aten.mm.default
            node.args = (node.args[0], node.args[0])


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (_drop_output, "GE1023"),
        (_erase_output, "GE1022"),
        (_use_before_definition, "GE1022"),
        (_change_dtype, "GE1023"),
        (_change_size, "GE1023"),
        (_impossible_call, "GE1022"),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_broken_graphs_are_refused_with_the_name_of_the_pass(broken, code, place):
    error = refused(lambda x: (x.abs().sin(), x + 1), with_pass(broken, place), torch.randn(3))
    assert error.code == code
    assert broken.__name__ in str(error)
    assert place in str(error)


# -- no-ops -----------------------------------------------------------------------------------------------------------


def noops_removed(fn, *args):
    gm = make_fx(fn, tracing_mode="fake")(*args)
    edits = RemoveNoops().run(gm)
    gm.graph.lint()
    gm.recompile()
    return gm, edits


NOOPS = {
    "slice": lambda x: x[:] + x[0:4],
    "slice_scatter": lambda x: aten.slice_scatter(x, x * 2, 0, 0, 4) + 1,
    "repeat": lambda x: x.repeat(1, 1) + 1,
    "expand": lambda x: x.expand(4, 6) + 1,
    "pad": lambda x: aten.constant_pad_nd(x, [0, 0], 0.0) + 1,
    "convert": lambda x: torch.ops.prims.convert_element_type(x, torch.float32) + 1,
    "to_copy": lambda x: aten._to_copy(x, dtype=torch.float32) + 1,
    "pow": lambda x: x.pow(1) + 1,
    "cat": lambda x: torch.cat([x]) + 1,
    "view": lambda x: x.view(4, 6) + 1,
    "view_dtype": lambda x: x.view(torch.float32) + 1,
    "permute": lambda x: x.permute(0, 1) + 1,
    "copy": lambda x: aten.copy(x * 0, x) + 1,
    "alias": lambda x: aten.alias(x) + 1,
    "detach": lambda x: x.detach() + 1,
    "clone": lambda x: x.clone() + 1,
    "round": lambda x: x.to(torch.int32).round() + 1,
}


@pytest.mark.parametrize("name", NOOPS)
def test_noops_go_and_results_stay(name):
    x = torch.randn(4, 6)
    gm, edits = noops_removed(NOOPS[name], x)
    assert edits >= 1
    torch.testing.assert_close(gm(x), NOOPS[name](x))
    left = [n.target for n in gm.graph.nodes if n.target in RULES and n.target is not aten._to_copy.default]
    assert not left


KEPT = {
    "part": lambda x: x[1:] + 1,
    "step": lambda x: x[::1] + x[::2].sum(),
    "pad": lambda x: aten.constant_pad_nd(x, [0, 1], 0.0) + 1,
    "turn": lambda x: x.permute(1, 0) + 1,
    "cast": lambda x: x.to(torch.float64) + 1,
    "square": lambda x: x.pow(2) + 1,
    "returned copy": lambda x: x.clone(),
    "copy returned through a view": lambda x: x.clone().view(-1),
    "copy beside the original": lambda x: (y := x + 1, y.clone()),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_needed_stays(name):
    x = torch.randn(4, 6)
    gm, _ = noops_removed(KEPT[name], x)
    assert any(n.target in RULES for n in gm.graph.nodes)
    torch.testing.assert_close(gm(x), KEPT[name](x))


def test_copies_of_inputs_that_are_written_stay():
    def fn(x):
        old = x.clone()
        x.add_(1)
        return old * 2

    x, y = torch.randn(3), None
    y = x.clone()
    config = torchair.CompilerConfig()
    config.debug.run_eagerly = True
    torch.testing.assert_close(compiled(fn, config)(x), fn(y))
    torch.testing.assert_close(x, y)


def test_noop_removal_can_be_switched_off(recording):
    config = torchair.CompilerConfig()
    config.experimental_config.remove_noop_ops = False
    with recording() as seen:
        compiled(lambda x: x.abs().clone().sin(), config)(torch.randn(3))
    assert seen.fx_labels() == [""]


_STEPS = st.lists(
    st.sampled_from(
        [
            lambda x: x.clone(),
            lambda x: x + 1,
            lambda x: x[:],
            lambda x: x.view(4, 6),
            lambda x: x.t().t(),
            lambda x: x.view(6, 4).view(4, 6),
            lambda x: x * x,
            lambda x: x.pow(1),
            lambda x: x[1:].repeat(2, 1)[:4],
            lambda x: torch.cat([x]),
            lambda x: x.detach(),
            lambda x: x.permute(0, 1),
            lambda x: x.to(torch.float32),
        ]
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(steps=_STEPS, also=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_random_chains_keep_values_and_memory(steps, also):
    """Values, and which results share memory with the input or each other, are those of the graph before the pass."""

    def fn(x):
        values = [x + 0]
        for step in steps:
            values.append(step(values[-1]))
        return values[-1], values[min(also, len(values) - 1)], step(x)

    x = torch.randn(4, 6)
    before = make_fx(fn, tracing_mode="fake")(x)
    after = make_fx(fn, tracing_mode="fake")(x)
    for each in BUILT_IN:
        each.run(after)
    after.graph.lint()
    after.recompile()
    want, got = before(x), after(x)
    for w, g in zip(want, got):
        torch.testing.assert_close(g, w)
    storages = [[t.untyped_storage().data_ptr() for t in (x, *values)] for values in (want, got)]
    groups = [[s.index(p) for p in s] for s in storages]
    assert groups[0] == groups[1]


def test_every_built_in_pass_says_why():
    for each in BUILT_IN:
        assert each.name == type(each).__name__
        assert len(type(each).__doc__.split("\n\n")[-1]) > 20
