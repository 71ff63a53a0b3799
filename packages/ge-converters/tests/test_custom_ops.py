"""Custom torch ops: derived converters, in-place ones made functional, multi-output ones, the user's own."""

import pytest
import torch
from torch.library import Library

from ge_converters import LoweringError, register_fx_node_ge_converter
from ge_converters.lowering import lower
from ge_converters.registry import REGISTRY, Entry
from ge_converters.registry.derive import camel_case, derive
from ge_graph import ops as ge
from ge_graph.verify import verify

SCHEMAS = (
    "swi_glu(Tensor x, *, int dim=-1) -> Tensor",
    "assign(Tensor(a!) ref, Tensor value) -> ()",
    "add_n(Tensor[] x, int N) -> Tensor",
    "no_such_thing(Tensor x) -> Tensor",
    "relu(Tensor y) -> Tensor",
    "sign(Tensor x, Scalar k) -> Tensor",
    "abs(Tensor x, Tensor y) -> Tensor",
    "neg(Tensor x, *, int n=1) -> Tensor",
    "softmax_v2(Tensor x, *, float axes=1.0) -> Tensor",
    "accumulate(Tensor(a!) total, Tensor x, *, float k=1.0) -> Tensor",
    "cast(Tensor x, *, ScalarType dst_type) -> Tensor",
    "bitcast(Tensor x) -> Tensor",
    "relu6(Tensor x) -> Tensor",
    "selu(Tensor x) -> Tensor",
    "both(Tensor(a!) a, Tensor(b!) b, Tensor x) -> (Tensor, Tensor)",
)


@pytest.fixture(scope="module")
def ops():
    library = Library("proving", "DEF")
    for schema in SCHEMAS:
        library.define(schema)

    def swi_glu(x, *, dim=-1):
        a, b = x.chunk(2, dim)
        return torch.nn.functional.silu(a) * b

    def accumulate(total, x, *, k=1.0):
        total += x * k
        return x * 2

    def both(a, b, x):
        a += x
        b -= x
        return x + 1, x + 2

    kernels = {
        "swi_glu": swi_glu,
        "assign": _assign,
        "add_n": lambda x, N: torch.stack(x).sum(0),
        "accumulate": accumulate,
        "both": both,
        "cast": lambda x, *, dst_type: x.to(dst_type),
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CPU")
    library.impl("swi_glu", lambda x, *, dim=-1: x.chunk(2, dim)[0].clone(), "Meta")
    library.impl("cast", lambda x, *, dst_type: x.new_empty(x.shape, dtype=dst_type), "Meta")
    library.impl("relu6", lambda x: x.new_empty(x.shape, dtype=torch.int32), "Meta")
    library.impl("selu", torch.empty_like, "Meta")
    library.impl("assign", lambda ref, value: None, "Meta")
    library.impl("add_n", lambda x, N: torch.empty_like(x[0]), "Meta")
    library.impl("accumulate", lambda total, x, *, k=1.0: torch.empty_like(x), "Meta")
    library.impl("both", lambda a, b, x: (torch.empty_like(x), torch.empty_like(x)), "Meta")
    for name in ("no_such_thing", "relu"):
        library.impl(name, lambda x: torch.empty_like(x), "Meta")
    yield torch.ops.proving
    library._destroy()


def _assign(ref, value):
    ref.copy_(value)


@pytest.fixture
def accumulate(ops):
    @register_fx_node_ge_converter(ops.accumulate.default)
    def convert(total, x, *, k=1.0, meta_outputs=None):
        return ge.Mul(x, 2.0), ge.Add(total, ge.Mul(x, k))

    yield ops.accumulate
    REGISTRY.unregister(ops.accumulate.default)


@pytest.fixture
def both(ops):
    @register_fx_node_ge_converter(ops.both.default)
    def convert(a, b, x, *, meta_outputs=None):
        return ge.Add(x, 1.0), ge.Add(x, 2.0), ge.Add(a, x), ge.Sub(b, x)

    yield ops.both
    REGISTRY.unregister(ops.both.default)


def test_camel_case():
    assert camel_case("my_inplace") == "MyInplace"
    assert camel_case("softmax_v2") == "SoftmaxV2"


def test_a_matching_ge_op_gives_a_converter(ops, aot, run):
    entry = derive(ops.swi_glu.default)
    assert isinstance(entry, Entry)
    assert entry.layer == "automatic"
    x = torch.randn(3, 8)
    low = lower(aot(lambda x: ops.swi_glu(x) + 1, x))
    assert "SwiGlu" in [n.op for n in low.graph.nodes]
    verify(low.graph)


def test_a_list_of_tensors_is_a_dynamic_port(ops, aot, run):
    x = torch.randn(3)
    low = lower(aot(lambda x: ops.add_n([x, x + 1, x], 3), x))
    (node,) = (n for n in low.graph.nodes if n.op == "AddN")
    assert len(node.inputs[0]) == 3
    assert node.attr("N") == 3


def test_an_in_place_op_is_copied_first_and_its_ref_output_is_the_new_value(ops, aot, run):
    def fn(x, y):
        z = x + 1
        ops.assign(z, y)
        return z * 2, x

    x, y = torch.randn(3), torch.randn(3)
    low = lower(aot(fn, x, y))
    made = {n.op: n for n in low.graph.nodes}
    assert made["Assign"].inputs[0].node is made["TensorMove"]
    assert made["Mul" if "Mul" in made else "Muls"].inputs[0].node is made["Assign"]
    verify(low.graph)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_thing", "no GE op NoSuchThing"),
        ("relu", "tensor 'y' stands where it has input 'x'"),
        ("sign", "'k' is a Scalar"),
        ("abs", "it has 1 inputs and the torch op 2 tensors"),
        ("neg", "it has no attribute 'n'"),
        ("softmax_v2", "'axes' is float and its attribute is ListInt"),
    ],
)
def test_why_no_converter_can_be_derived(ops, name, words):
    assert words in derive(getattr(ops, name).default)


def test_the_reason_stands_in_the_refusal(ops, aot):
    with pytest.raises(LoweringError, match="GE op Relu exists, but tensor 'y' stands where it has input 'x'"):
        lower(aot(lambda x: ops.relu(x + 1), torch.ones(2)))


def test_torch_s_own_ops_are_never_derived():
    assert derive(torch.ops.aten.relu.default) == ""


def check(fn, aot, run, *inputs, **options):
    low = lower(aot(fn, *[i.clone() for i in inputs], **options))
    verify(low.graph)
    eager = [i.clone() for i in inputs]
    want = fn(*eager)
    ours = [i.clone() for i in inputs]
    got = run(low, ours)
    for g, e in zip(got, want if isinstance(want, tuple) else (want,)):
        torch.testing.assert_close(g, e)
    for o, e in zip(ours, eager):
        torch.testing.assert_close(o, e)
    return low


def test_a_converter_may_return_the_new_values_behind_the_results(accumulate, aot, run):
    def fn(x):
        total = torch.zeros(3)
        y = accumulate(total, x, k=3.0)
        return total, y, x * 1

    check(fn, aot, run, torch.randn(3))


def test_a_written_slice_is_scattered_back(accumulate, aot, run):
    def fn(x):
        total = x * 2
        y = accumulate(total[1:], x[1:])
        return total, y

    check(fn, aot, run, torch.randn(4, 3))


def test_a_written_input_is_mutated(accumulate, aot, run):
    def fn(total, x):
        return (accumulate(total, x) + total,)

    check(fn, aot, run, torch.randn(3), torch.randn(3), keep_mutations=True)


def test_two_written_arguments_and_two_results(both, aot, run):
    def fn(x):
        a, b = x + 1, x + 2
        y, z = both(a, b, x)
        return a, b, y, z

    check(fn, aot, run, torch.randn(3))


def test_a_converter_that_hides_the_new_value_is_refused(ops, aot):
    @register_fx_node_ge_converter(ops.accumulate.default)
    def convert(total, x, *, k=1.0, meta_outputs=None):
        return ge.Mul(x, 2.0)

    def fn(x):
        total = torch.zeros(3)
        ops.accumulate(total, x)
        return total

    try:
        with pytest.raises(LoweringError, match="writes an argument"):
            lower(aot(fn, torch.ones(3)))
    finally:
        REGISTRY.unregister(ops.accumulate.default)


def test_the_old_form_of_functionalization(accumulate, aot, run):
    with torch._inductor.config.patch(enable_auto_functionalized_v2=False):

        def fn(x):
            total = torch.zeros(3)
            y = accumulate(total, x)
            return total, y

        gm = aot(fn, torch.randn(3))
        assert any(str(n.target) == "auto_functionalized" for n in gm.graph.nodes)
        check(fn, aot, run, torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bool])
def test_a_torch_type_becomes_the_number_of_the_ge_type(ops, aot, run, dtype):
    check(lambda x: ops.cast(x, dst_type=dtype), aot, run, torch.tensor([0.0, 1.0, 2.5]))


def test_a_required_attribute_that_the_torch_op_lacks_is_a_reason(ops):
    assert "its required attribute 'type' is not a parameter" in derive(ops.bitcast.default)


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [
        ("selu", torch.ones(2, dtype=torch.bool), "input 'x' of Selu is DT_BOOL"),
        ("relu6", torch.ones(2), "gives DT_FLOAT and the Meta function of the torch op DT_INT32"),
    ],
)
def test_a_derived_converter_that_does_not_fit_says_what_helps(ops, aot, name, x, words):
    with pytest.raises(LoweringError, match=words) as error:
        lower(aot(getattr(ops, name), x))
    assert "register a converter of your own" in str(error.value)
    assert "add ge.Cast" not in str(error.value)


# -- ops with effects ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def effectful():
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    library = Library("effectful", "DEF")
    library.define("note(str text, Tensor x) -> ()")
    library.define("tick(Tensor x) -> Tensor")
    library.impl("note", lambda text, x: None, "CompositeExplicitAutograd")
    library.impl("tick", lambda x: x * 2, "CompositeExplicitAutograd")
    for name in ("note", "tick"):
        _register_effectful_op(getattr(torch.ops.effectful, name).default, _EffectType.ORDERED)

    def fn(x):
        torch.ops.effectful.note("one", x)
        y = torch.ops.effectful.tick(x)
        torch.ops.effectful.note("two", y)
        return y + 1

    yield fn  # noqa: PT022 -- the library lives as long as its variable


@pytest.mark.slow
def test_ops_with_effects_run_in_their_order(effectful, aot, run):
    def note(text, x):
        line = ge.StringFormat([x], template=text + " {}", placeholder="{}", summarize=3)
        ge.PrintV2(line, output_stream="stdout")

    targets = (torch.ops.effectful.note.default, torch.ops.effectful.tick.default)
    register_fx_node_ge_converter(targets[0])(note)
    register_fx_node_ge_converter(targets[1])(lambda x: ge.Muls(x, value=2.0))
    try:
        low = lower(aot(effectful, torch.ones(3)))
    finally:
        for target in targets:
            REGISTRY.unregister(target)
    verify(low.graph)
    tokens = [None] * (low.placeholders - 1)
    torch.testing.assert_close(run(low, [*tokens, torch.ones(3)])[-1], torch.full((3,), 3.0))
    prints = [n for n in low.graph.nodes if n.op == "PrintV2"]
    tick = next(n for n in low.graph.nodes if n.op == "Muls")
    assert prints[0] in tick.control
    assert tick in prints[1].control
    assert low.graph.output_control == [prints[1]]


def test_a_missing_converter_is_named_by_the_op_that_the_user_called(effectful, ops, aot):
    with pytest.raises(LoweringError, match="effectful.tick.default ") as error:
        lower(aot(effectful, torch.ones(3)))
    assert "with_effects runs a subgraph" not in str(error.value)

    def write(x):
        ops.accumulate(x, x)
        return x

    with pytest.raises(LoweringError, match="proving.accumulate.default "):
        lower(aot(write, torch.ones(3)))
