"""config.debug.verify_rewrites: wrong rules are named with a counter-example, right ones pass."""

import math
import re

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from torchair.passes import npu_patterns, patterns
from torchair.passes.custom import PassError
from torchair.passes.proofs import RewriteWatch, fx, samples
from torchair.passes.proofs.tolerances import EXACT

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_rules(monkeypatch):
    """Rules are global; each test starts without."""
    monkeypatch.setattr(patterns, "RULES", patterns._Rules())
    monkeypatch.setattr(npu_patterns, "_done", set())


def verifying(**passes):
    config = torchair.CompilerConfig()
    config.debug.verify_rewrites = True
    for name, fn in passes.items():
        setattr(config, name, fn)
    return config


def compiled(fn, config, *args, dynamic=None):
    torch._dynamo.reset()
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)(*args)


def instead(old, new, *more):
    """A custom pass that puts one operator in the place of another, with further arguments."""

    def edit(gm, example_inputs, config):
        for node in gm.graph.nodes:
            if node.target is old:
                node.target, node.args = new, (*node.args, *more)

    return edit


x = torch.randn(3, 4)


two = [x, torch.randn(3, 4)]


@pytest.mark.parametrize(
    ("program", "edit", "text"),
    [
        (lambda x, y: x.sin() + y, instead(aten.sin.default, aten.cos.default), "cos.default in the place of aten.sin"),
        (
            lambda x, y: torch.maximum(x, y).sin(),
            instead(aten.maximum.default, aten.fmax.default),
            "(special|dense) values",
        ),
        (lambda x, y: (x + y).relu(), instead(aten.relu.default, aten.clamp_min.default, 1e-6), "values of"),
        (lambda x, y: (x > y) + 1, instead(aten.gt.Tensor, aten.ge.Tensor), "repeated values"),
        (
            lambda x, y: x.sum(1) + y[0, 0],
            instead(aten.sum.dim_IntList, aten.sum.dim_IntList, [0]),
            "GE1022|GE1023|sum",
        ),
    ],
)
@pytest.mark.parametrize("place", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_a_pass_that_changes_numbers(program, edit, text, place):
    with pytest.raises(Exception, match=f"(?s)config.{place} 'instead.*({text})") as caught:
        compiled(program, verifying(**{place: edit}), *two)
    assert "test_proofs.py" in str(caught.value)


def counts(x, n):
    """Rounds by a number that is read: for the smallest and the largest integer no test lives to see the end."""
    _, total = torch._higher_order_ops.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a + x), (n * 0, x.clone()))
    return (total + x).sin()


def test_a_loop_that_does_not_end_for_drawn_values():
    """It says nothing for these; by the others the same loop is equal, and another one is not."""
    while_loop = torch.ops.higher_order.while_loop

    def one_more(cond, body, carried, more):
        i, total = while_loop(cond, body, carried, more)
        return i, total + 1

    for other, wrong in ((lambda *args: while_loop(*args), False), (one_more, True)):
        gm = make_fx(counts, tracing_mode="fake")(x, torch.tensor(3))
        before = fx.version(gm)
        next(n for n in gm.graph.nodes if n.target is while_loop).target = other
        found = fx.compare(before, fx.version(gm), EXACT, set())
        assert found.tested
        assert (found.different is not None) == wrong


def wrong(x, y):
    return torch.clamp_min(torch.add(x, y), 0.5)


def search(x, y):
    return torch.relu(torch.add(x, y))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_wrong_pattern_is_named_with_its_place_and_the_users_line(dynamic):
    torchair.register_replacement(search, wrong, [torch.empty(2, 2), torch.empty(2, 2)])
    with pytest.raises(
        Exception, match=r"(?s)GE1025.*FusePatterns, rule 'search'.*clamp_min.*before, for .*from .*test_proofs"
    ):
        compiled(lambda x, y: search(x, y).sin(), verifying(), *two, dynamic=dynamic)


def test_nothing_is_compared_without_the_option(monkeypatch):
    monkeypatch.delenv("TAIR_VERIFY_REWRITES", raising=False)
    torchair.register_replacement(search, wrong, [torch.empty(2, 2), torch.empty(2, 2)])
    compiled(search, None, *two)


def test_the_variable_switches_it_on(monkeypatch):
    monkeypatch.setenv("TAIR_VERIFY_REWRITES", "1")
    assert torchair.CompilerConfig().debug.verify_rewrites.value is True
    monkeypatch.setenv("TAIR_VERIFY_REWRITES", "0")
    assert torchair.CompilerConfig().debug.verify_rewrites.value is False


def test_a_right_claim_does_not_stand_for_a_wrong_one_of_the_same_form():
    """The second operand of the product becomes another value that is made in the same way, of another input."""
    gm = make_fx(lambda x, y: (x.sin().exp(), x.sin() * y.sin()), tracing_mode="fake")(*two)
    first, product = (next(n for n in gm.graph.nodes if n.target is op) for op in (aten.sin.default, aten.mul.Tensor))
    watch = RewriteWatch()
    with watch.fx_pass("right", gm):
        product.args = (first, product.args[1])
    wrong = pytest.raises(PassError, match="GE1025.*sin.default in the place of aten.sin.default")
    with wrong, watch.fx_pass("wrong", gm):
        product.args = (first, first)


def test_a_memo_lives_as_long_as_the_compilation():
    gm = make_fx(lambda x, y: x.sin() * y.sin(), tracing_mode="fake")(*two)
    product = next(n for n in gm.graph.nodes if n.target is aten.mul.Tensor)
    first, second = RewriteWatch(), RewriteWatch()
    with first.fx_pass("turned", gm):
        product.args = product.args[::-1]
    assert first._known
    assert not second._known


@pytest.mark.unverified
def test_what_was_not_evaluated_is_in_the_report():
    def large(gm, example_inputs, config):
        for node in gm.graph.nodes:
            if node.target is aten.sin.default:
                node.target = aten.cos.default

    with torchair.record_compilation() as reports:
        compiled(lambda x: x.sin(), verifying(post_grad_custom_pre_pass=large), torch.zeros(1 << 24).expand(2, -1))
    head, *rest = reports[0].rewrites
    assert re.match(r"\d+ rewrites evaluated, 1 could not be$", head)
    assert len(rest) == 1
    assert re.match(r"config.post_grad_custom_pre_pass .*large.* 1 not evaluated: \d+ elements are too many", rest[0])
    with torchair.record_compilation() as reports:
        compiled(lambda x: x.sin(), None, x)
    assert reports[0].rewrites == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_right_rewrites_pass(dynamic):
    torchair.register_replacement(
        search, lambda x, y: torch.clamp_min(torch.add(x, y), 0), [torch.empty(2, 2), torch.empty(2, 2)]
    )

    def program(x, y):
        a = search(x.clone(), y).transpose(0, 1).contiguous().view(-1)
        return a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6), torch.cat([x, y]), x[:, :1] + y

    got = compiled(program, verifying(), x, x + 1, dynamic=dynamic)
    torch.testing.assert_close(got, program(x, x + 1))


@pytest.mark.parametrize(
    ("old", "new", "kind", "tolerance", "same"),
    [
        ([1.0, math.inf], [1.0, math.nan], "extreme", 1e-5, True),  # an inner result left the type in one order only
        ([1.0, math.inf], [1.0, 3e38], "extreme", 1e-5, True),
        ([1.0, math.inf], [1.0, math.nan], "extreme", 0.0, False),  # a rule that keeps every bit keeps its overflow
        ([1.0, math.inf], [1.0, math.nan], "special", 1e-5, False),
        ([1.0, math.nan], [1.0, 0.0], "special", 1e-5, False),
        ([1.0, 2.0], [1.5, 2.0], "extreme", 1e-5, False),
        ([math.nan, 0.0], [math.nan, -4e-39], "dense", 1e-5, True),  # nothing finite is large: 0 and denormal
        ([math.nan, 0.0], [math.nan, -4e-39], "dense", 0.0, False),
    ],
)
def test_when_two_results_are_the_same(old, new, kind, tolerance, same):
    text = samples.difference(torch.tensor(old), torch.tensor(new), tolerance, kind)
    assert (text == "") == same, text


def test_values_without_infinities():
    filled = samples.fill(torch.empty(200), "undefined", 1)
    assert filled.isnan().any()
    assert not filled.isinf().any()


@pytest.mark.parametrize("namespace", ["_c10d_functional", "_c10d_functional_autograd"])
def test_collectives_are_not_evaluated(namespace):
    """Other processes do not evaluate at that moment, or not the same part: both would wait for each other."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    op = getattr(torch.ops, namespace).all_to_all_single.default
    moved = graph.call_function(op, (x, [2], [2], "0"))
    moved.meta["val"] = torch.ones(2)
    plain = graph.call_function(torch.ops.aten.neg.default, (moved,))
    plain.meta["val"] = torch.ones(2)
    graph.output((plain,))
    steps = fx.version(torch.fx.GraphModule({}, graph)).steps
    assert [s.opaque for s in steps] == [True, True, False]
