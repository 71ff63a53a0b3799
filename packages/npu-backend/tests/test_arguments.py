"""Arguments by schema: a default written out is none, and no pattern takes a call that says more than it."""

import operator

import pytest
import torch

import torchair
from torchair.passes import npu_patterns, patterns
from torchair.passes.arguments import canonical, spelled

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_rules(monkeypatch):
    """Rules are global; each test starts without."""
    monkeypatch.setattr(patterns, "RULES", patterns._Rules())
    monkeypatch.setattr(npu_patterns, "_done", set())


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "wanted"),
    [
        (aten.gelu.default, (1,), {"approximate": "none"}, ((1,), {})),
        (aten.gelu.default, (1,), {"approximate": "tanh"}, ((1,), {"approximate": "tanh"})),
        (aten.add.Tensor, (1, 2), {"alpha": 1}, ((1, 2), {})),
        (aten.sum.dim_IntList, (1, [0], False), {}, ((1, [0]), {})),
        (aten.sum.dim_IntList, (1,), {"dim": [0], "keepdim": True}, ((1, [0], True), {})),
        (aten.sum.dim_IntList, (1, [0]), {"dtype": None}, ((1, [0]), {})),
        (aten.slice.Tensor, (1,), {"step": 2}, ((1, 0, None, None, 2), {})),
        (aten.avg_pool2d.default, (1, [2, 2]), {"padding": [0, 0]}, ((1, [2, 2]), {})),
        (aten.sum.dim_IntList, (), {"keepdim": True}, ((), {"keepdim": True})),  # does not fit: left alone
        (operator.getitem, (1, 0), {}, ((1, 0), {})),
    ],
)
def test_calls_as_tracing_writes_them(target, args, kwargs, wanted):
    assert canonical(target, args, kwargs) == wanted


def _other(argument):
    """A value of an argument's type that is not its default; None where the type has no plain values."""
    kind, default = str(argument.type).removeprefix("Optional[").removesuffix("]"), argument.default_value
    if kind == "bool":
        return not default
    numbers = {"int": 77, "float": 0.77, "number": 77, "str": "other", "List[int": [77], "SymInt": 77}
    return numbers.get(kind)


def test_no_overload_of_aten_loses_an_argument():
    """Each argument with a default, of every overload: written with its default it is none, with another it is one."""
    seen = 0
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in getattr(packet, "overloads", list)():
            target = getattr(packet, overload)
            for argument in target._schema.arguments:
                if not argument.has_default_value():
                    continue
                assert spelled(target, (), {argument.name: argument.default_value}) == {}, (target, argument)
                other = _other(argument)
                if other is not None and other != argument.default_value:
                    assert spelled(target, (), {argument.name: other}) == {argument.name: other}, (target, argument)
                    seen += 1
    assert seen > 1000


F = torch.nn.functional
x, y, w = torch.randn(4, 4), torch.randn(4, 4), torch.rand(4)
# what a rule looks for, a program that says more, and inputs: the numbers of the rule's replacement would be wrong
PAIRS = {
    "gelu": (lambda x: F.gelu(x) + 5, lambda x: F.gelu(x, approximate="tanh") + 5, [x]),
    "add": (lambda x, y: (x + y).sin(), lambda x, y: torch.add(x, y, alpha=3).sin(), [x, y]),
    "sub": (lambda x, y: (x - y).sin(), lambda x, y: torch.sub(x, y, alpha=3).sin(), [x, y]),
    "add_number": (lambda x: (x + 2).sin(), lambda x: torch.add(x, 2, alpha=3).sin(), [x]),
    "addmm": (
        lambda x, y: torch.addmm(x, x, y).sin(),
        lambda x, y: torch.addmm(x, x, y, beta=2, alpha=3).sin(),
        [x, y],
    ),
    "baddbmm": (
        lambda x: torch.baddbmm(x, x, x).sin(),
        lambda x: torch.baddbmm(x, x, x, beta=2).sin(),
        [torch.randn(2, 3, 3)],
    ),
    "div": (lambda x, y: (x / y).sin(), lambda x, y: torch.div(x, y, rounding_mode="floor").sin(), [x, y]),
    "clamp": (lambda x: torch.clamp(x, -1).sin(), lambda x: torch.clamp(x, -1, 1).sin(), [x]),
    "sum": (lambda x: x.sum(1).sin(), lambda x: x.sum(1, dtype=torch.float64).sin().float(), [x]),
    "cumsum": (lambda x: x.cumsum(1).sin(), lambda x: x.cumsum(1, dtype=torch.float64).sin(), [x]),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x).sin(),
        lambda x: F.scaled_dot_product_attention(x, x, x, scale=3.0).sin(),
        [torch.randn(1, 2, 4, 8)],
    ),
    "leaky_relu": (lambda x: F.leaky_relu(x).sin(), lambda x: F.leaky_relu(x, 0.5).sin(), [x]),
    "round": (lambda x: x.round().sin(), lambda x: x.round(decimals=1).sin(), [x]),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.unverified
def test_a_call_that_says_more_is_no_match(name):
    """The replacement gives numbers that cannot be mistaken: whoever gets them was taken for the pattern."""
    search, program, inputs = PAIRS[name]
    sevens = {1: lambda x: search(x) * 0 + 7, 2: lambda x, y: search(x, y) * 0 + 7}[len(inputs)]
    sevens.__signature__ = __import__("inspect").signature(search)
    torchair.register_replacement(search, sevens, [torch.randn_like(i) for i in inputs])
    backend = torchair.get_npu_backend()
    assert torch.compile(search, backend=backend)(*inputs).flatten()[0] == 7
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(program, backend=backend)(*inputs), program(*inputs))


def _by_hand(target, *more, **kwargs):
    """A custom pass that writes the first sum of a graph with these arguments."""

    def write(gm, example_inputs, config):
        node = next(n for n in gm.graph.nodes if n.target is target)
        node.args, node.kwargs = (*node.args, *more), {**node.kwargs, **kwargs}

    return write


@pytest.mark.parametrize("write", [_by_hand(aten.sum.dim_IntList, False), _by_hand(aten.sum.dim_IntList, dtype=None)])
@pytest.mark.unverified
def test_a_default_that_a_pass_writes_out_is_none(write):
    def search(x):
        return x.sum(1).sin()

    torchair.register_replacement(search, lambda x: x.sum(1) * 0 + 7, [torch.randn(4, 4)])
    config = torchair.CompilerConfig()
    config.post_grad_custom_pre_pass = write
    got = torch.compile(search, backend=torchair.get_npu_backend(compiler_config=config))(x)
    assert (got == 7).all()


@pytest.mark.unverified
def test_a_pattern_object_with_its_defaults_written_out():
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg

    def search(x):
        return x.sum(1).sin()

    inner = CallFunction(aten.sum.dim_IntList, KeywordArg("x"), [1], False, dtype=None)
    torchair.register_replacement(
        search,
        lambda x: x.sum(1) * 0 + 7,
        [torch.randn(4, 4)],
        search_fn_pattern=CallFunction(aten.sin.default, inner),
    )
    backend = torchair.get_npu_backend()
    assert (torch.compile(search, backend=backend)(x) == 7).all()
    torch._dynamo.reset()
    wide = lambda x: x.sum(1, dtype=torch.float64).sin()  # noqa: E731
    torch.testing.assert_close(torch.compile(wide, backend=backend)(x), wide(x))
