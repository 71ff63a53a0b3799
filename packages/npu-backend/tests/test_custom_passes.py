"""Custom passes: both places, both modes, what survives, what is refused."""

import pytest
import torch

import torchair

aten, air = torch.ops.aten, torch.ops.air
PLACES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")
MODES = ("max-autotune", "reduce-overhead")


def config(mode="max-autotune", **passes):
    made = torchair.CompilerConfig()
    made.mode = mode
    for name, fn in passes.items():
        setattr(made, name, fn)
    return made


def compiled(fn, made):
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=made))


class Model(torch.nn.Module):
    def forward(self, x):
        mm = torch.mm(x, x)
        a = torch.abs(mm)
        return torch.add(a, 1), torch.sub(x, mm)


def multi_stream(gm, example_inputs, config):
    assert isinstance(config, torchair.CompilerConfig)
    assert all(type(t).__name__ == "FakeTensor" for t in example_inputs)
    graph, mark = gm.graph, None
    for node in graph.nodes:
        if node.op == "call_function" and node.target == aten.mm.default:
            with graph.inserting_before(node):
                graph.call_function(air.scope_enter.default, args=(["_user_stream_label"], ["stream_1"]))
        if node.op == "call_function" and node.target == aten.abs.default:
            with graph.inserting_after(node):
                mark = graph.call_function(air.record.default, args=())
            with graph.inserting_after(mark):
                graph.call_function(air.scope_exit.default, args=())
        if node.op == "call_function" and node.target == aten.sub.Tensor:
            with graph.inserting_before(node):
                graph.call_function(air.wait.default, args=([mark],))
    return "ignored"


@pytest.mark.parametrize("place", [*PLACES, "both"])
@pytest.mark.parametrize("mode", MODES)
def test_the_documented_example(mode, place, recording):
    places = PLACES if place == "both" else (place,)
    made = config(mode, **dict.fromkeys(places, multi_stream))
    x, model = torch.randn(3, 3), Model()
    with recording() as seen:
        got = compiled(model, made)(x)
    torch.testing.assert_close(got, model(x))
    inserted = [t for t in seen.fx[-1][2] if t.startswith("air.")]
    assert [t.split(".")[1] for t in inserted if "exit" not in t][: 1 + len(places)] == ["scope_enter"] * len(
        places
    ) + ["record"]
    assert len(inserted) == 4 * len(places)
    if mode == "reduce-overhead":
        assert "torch.ops.air.wait" in seen.code[0][1]
        return
    labels = {n.op: n.attr("_user_stream_label") for n in seen.last_graph().nodes}
    assert labels["Abs"] == "stream_1"
    assert labels["Sub"] is None
    assert any(
        n.attr("_user_stream_label") == "stream_1" and n.op.startswith(("MatMul", "BatchMatMul"))
        for n in seen.last_graph().nodes
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.unverified
def test_order_and_fresh_module(mode):
    """Pre, built-in, post; each sees a module whose code is that of its graph."""
    seen = []

    def pre(gm, inputs, config):
        seen.append(("pre", [n.target for n in gm.graph.nodes if n.op == "call_function"]))
        node = next(n for n in gm.graph.nodes if n.target == aten.sin.default)
        node.target = aten.cos.default

    def post(gm, inputs, config):
        seen.append(("post", [n.target for n in gm.graph.nodes if n.op == "call_function"]))
        assert "cos" in gm.code
        node = next(n for n in gm.graph.nodes if n.target == aten.cos.default)
        node.target = aten.sin.default

    made = config(mode, post_grad_custom_pre_pass=pre, post_grad_custom_post_pass=post)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x.clone().sin().clone() + 1, made)(x), x.sin() + 1)
    assert seen[0] == ("pre", [aten.clone.default, aten.sin.default, aten.clone.default, aten.add.Tensor])
    assert seen[1] == ("post", [aten.cos.default, aten.add.Tensor])


def drop_output(gm, inputs, config):
    output = list(gm.graph.nodes)[-1]
    output.args = (tuple(output.args[0][:-1]),)


def erase_output(gm, inputs, config):
    gm.graph.erase_node(list(gm.graph.nodes)[-1])


def use_before_definition(gm, inputs, config):
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    nodes[0].prepend(nodes[1])


def other_type(gm, inputs, config):
    node = next(n for n in gm.graph.nodes if n.target == aten.add.Tensor)
    node.target = aten.lt.Tensor


def no_such_call(gm, inputs, config):
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with gm.graph.inserting_after(node):
        new = gm.graph.call_function(aten.mm.default, (node, node))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def fails(gm, inputs, config):
    raise KeyError("rotary")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (drop_output, r"GE1023.*returns 1 values, 2 before"),
        (erase_output, r"GE1022.*no output"),
        (use_before_definition, r"GE1022"),
        (other_type, r"GE1023.*output 0 is bool.*float32"),
        (no_such_call, r"GE1022.*mm.*cannot be computed"),
        (fails, r"GE1021.*raised KeyError: 'rotary'"),
    ],
)
def test_a_broken_pass_is_named(mode, place, fn, text):
    with pytest.raises(Exception, match=text) as caught:
        compiled(lambda x: ((x.sin() + x), x.cos()), config(mode, **{place: fn}))(torch.randn(2, 3))
    assert place in str(caught.value)
    assert fn.__name__ in str(caught.value)
    assert "test_custom_passes.py" in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_passes_see_backward_graphs(mode):
    phases = []
    made = config(mode, post_grad_custom_pre_pass=lambda gm, inputs, config: phases.append(len(inputs)))
    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: (x.sin() * 2).sum(), made)(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    assert len(phases) == 2
