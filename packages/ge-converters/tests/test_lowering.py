"""The walk: inputs, outputs, provenance, refusals, faulty converters."""

import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters import LoweringError, Refusal
from ge_converters.lowering import lower
from ge_converters.lowering.aliasing import Constant, InputAlias, Nothing, Result
from ge_converters.registry import Registry
from ge_graph import DataType, Graph, building
from ge_graph import ops as ge
from ge_graph.verify import verify

aten = torch.ops.aten


def fx(fn, *args, mode="fake"):
    return make_fx(fn, tracing_mode=mode, _allow_non_fake_inputs=True)(*args)


def add(self, other, *, alpha=1, meta_outputs=None):
    return ge.Add(self, other)


@pytest.fixture
def registry():
    made = Registry()
    made.register(aten.add.Tensor)(add)
    return made


def ops_of(lowered):
    return [n.op for n in lowered.graph.nodes]


def test_inputs_stand_first_in_the_order_of_the_placeholders(registry):
    low = lower(fx(lambda x, y, z: z + x, torch.ones(2), torch.ones(3), torch.ones(2)), registry=registry)
    assert [(b.fx_index, b.kind) for b in low.inputs] == [(0, "tensor"), (2, "tensor")]
    assert [n.attr("index") for n in low.graph.inputs] == [0, 1]
    assert low.placeholders == 3
    verify(low.graph)


def test_outputs_are_results_aliases_nothing_and_constants(registry):
    def fn(x, y):
        s = x + y
        return s, x, None, s, 5

    gm = fx(fn, torch.ones(2), torch.ones(2))
    low = lower(gm, registry=registry)
    first, alias, nothing, again, five = low.outputs
    assert isinstance(first, Result)
    assert first.ge_index == again.ge_index == 0
    assert alias == InputAlias(0)
    assert nothing == Nothing()
    assert five == Constant(5)
    assert len(low.graph.outputs) == 1


@pytest.mark.parametrize(("returned", "nested"), [((1,), tuple), ([1], list)])
def test_the_container_of_the_outputs_is_kept(registry, returned, nested):
    low = lower(fx(lambda x: type(returned)([x + x]), torch.ones(2)), registry=registry)
    assert low.nested is nested


def test_constants_of_the_module_share_a_node(registry):
    c = torch.ones(2, dtype=torch.bfloat16)
    gm = fx(lambda x: x + c + c, torch.zeros(2, dtype=torch.bfloat16))
    low = lower(gm, registry=registry)
    assert ops_of(low).count("Const") == 1
    verify(low.graph)


def test_the_walk_leaves_module_and_metas_alone(registry):
    gm = fx(lambda x: x + x, torch.ones(2))
    before = (gm.code, [dict(n.meta) for n in gm.graph.nodes])
    lower(gm, registry=registry)
    assert (gm.code, [dict(n.meta) for n in gm.graph.nodes]) == before


def test_every_node_tells_where_it_comes_from(aot):
    class Inner(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x + 1)

    low = lower(aot(Outer(), torch.ones(2)))
    made = {n.op: n.provenance for n in low.graph.nodes}
    relu = made["Relu"]
    assert relu.fx_target == "aten.relu.default"
    assert relu.module == "inner"
    assert relu.source.endswith("in forward")
    assert "test_lowering.py:" in relu.source
    assert relu.code == "return torch.relu(x)"
    assert "aten.relu.default" in relu.fx_text


def test_all_refusals_come_at_once(registry):
    @registry.register(aten.sum.default)
    def total(self, *, dtype=None, meta_outputs=None):
        raise Refusal("dtype=None: give a dtype")

    def fn(x):
        return (x.sum() + 1).cos() + x.cummax(0).values

    with pytest.raises(LoweringError) as error:
        lower(fx(fn, torch.ones(3)), registry=registry)
    text = str(error.value)
    assert error.value.code == "GE2001"
    assert "3 of 7 nodes cannot be lowered" in text
    assert "aten.sum.default" in text
    assert "refused: dtype=None: give a dtype" in text
    assert "aten.cos.default" in text
    assert "(f32[3], i64[3])" in text
    assert "register a converter" in error.value.next


def test_a_refusal_names_the_user_s_line(aot):
    def fn(x):
        return torch.linalg.eigvals(x)

    with pytest.raises(LoweringError) as error:
        lower(aot(fn, torch.eye(3)))
    assert "test_lowering.py" in str(error.value)


def test_other_overloads_are_named(registry):
    with pytest.raises(LoweringError, match="near: aten.add.Tensor"):
        lower(fx(lambda x: aten.add.Scalar(x, 2), torch.ones(2)), registry=registry)


def test_more_than_a_screen_shows_every_distinct_reason(registry):
    def fn(x):
        for _ in range(60):
            x = x.cos()
        return x.sin()

    with pytest.raises(LoweringError) as error:
        lower(fx(fn, torch.ones(2)), registry=registry)
    assert "aten.sin.default" in error.value.what
    assert "%cos and 59 more" in error.value.what
    assert len(error.value.what.splitlines()) == 3

    def many(*xs):
        return [x.cos() for x in xs], xs[0].sin()

    with pytest.raises(LoweringError) as error:
        lower(fx(many, *[torch.ones(i) for i in range(1, 61)]), registry=registry)
    assert "aten.sin.default" in error.value.what
    assert "… and 21 more" in error.value.what


def faulty(registry, returned):
    @registry.register(aten.sort.default)
    def sort(self, dim=-1, descending=False, *, meta_outputs=None):
        return returned(self)

    with pytest.raises(LoweringError) as error:
        lower(fx(lambda x: x.sort(), torch.ones(3)), registry=registry)
    return error.value


def foreign(x):
    with building(Graph("other")):
        return [ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(3,))] * 2


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: [x], "returned 1 outputs, the node has 2"),
        (lambda x: [x, x], "returned DT_FLOAT, meta_outputs says DT_INT64"),
        (lambda x: 3, "returned int, expected 2 tensors"),
        (lambda x: [x, 3], "returned int as output 1"),
        (foreign, "a tensor of another graph"),
    ],
)
def test_a_wrong_result_is_named_with_the_converter_s_place(registry, returned, words):
    error = faulty(registry, returned)
    assert error.code == "GE2007"
    assert words in error.what
    assert "test_lowering.py:" in error.what


def test_a_converter_that_raises_is_named_and_its_exception_kept(registry):
    def broken(x):
        raise KeyError("oops")

    error = faulty(registry, broken)
    assert error.code == "GE2006"
    assert isinstance(error.__cause__, KeyError)
    assert "test_lowering.py:" in error.what
    assert "%sort" in error.what


def test_reading_a_shape_is_a_refusal_that_says_what_to_do(registry):
    error = faulty(registry, lambda x: x.shape)
    assert "a converter serves every shape" in error.what


@pytest.mark.parametrize("wrong", [lambda x: ge.Add(x), lambda x: x.no_such_thing])
def test_an_error_inside_a_converter_has_its_line_not_the_first_one(registry, wrong):
    error = faulty(registry, wrong)
    line = wrong.__code__.co_firstlineno
    assert f"test_lowering.py:{line}" in error.what


def test_not_implemented_is_a_refusal(registry):
    def shy(x):
        raise NotImplementedError("stable sort only")

    assert "refused: stable sort only" in faulty(registry, shy).what


def test_an_output_nobody_produces_may_stay_unused(registry):
    @registry.register(aten.sort.default)
    def sort(self, dim=-1, descending=False, *, meta_outputs=None):
        return [self, None]

    low = lower(fx(lambda x: x.sort()[0], torch.ones(3)), registry=registry)
    assert isinstance(low.outputs[0], InputAlias | Result)
    with pytest.raises(LoweringError, match="output 1 of aten.sort.default"):
        lower(fx(lambda x: x.sort()[1] + 1, torch.ones(3)), registry=registry)


def test_a_user_converter_of_a_python_function_is_asked(registry):
    @registry.register(operator.mul)
    def mul(a, b, meta_outputs=None):
        return ge.Mul(ge.Add(a, 0), b)

    gm = fx(lambda x: x + x.shape[0] * 3, torch.ones(4, dtype=torch.int64), mode="symbolic")
    assert "Mul" in ops_of(lower(gm, registry=registry))


def test_a_graph_without_metas_says_so(registry):
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(LoweringError) as error:
        lower(gm, registry=registry)
    assert error.value.code == "GE2012"


def test_branches_become_graphs_in_a_node(aot):
    def fn(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    graph = lower(aot(fn, torch.ones(3))).graph
    (made,) = [n for n in graph.nodes if n.op == "If"]
    assert {
        slot: [n.op for n in inner.nodes if n.outputs and n.op not in ("Data", "Const")]
        for slot, inner in made.subgraphs.items()
    } == {"then_branch": ["Add"], "else_branch": ["Sub"]}


def test_a_refusal_inside_a_branch_names_the_node_around(aot):
    def fn(x, p):
        return torch.cond(p, lambda x: x.sin(), lambda x: x - 1, (x,))

    with pytest.raises(LoweringError, match="2 of 4 nodes") as error:
        lower(aot(fn, torch.ones(3), torch.tensor(True)), registry=Registry())
    assert list(error.value.refused) == ["cond"]


@pytest.mark.slow
def test_the_cost_grows_with_the_graph_not_faster(registry):
    import time

    def graph(n):
        def fn(x):
            for _ in range(n):
                x = x + x
            return x

        return fx(fn, torch.ones(2))

    def seconds(gm):
        best = float("inf")
        for _ in range(5):
            start = time.thread_time()
            lower(gm, registry=registry)
            best = min(best, time.thread_time() - start)
        return best

    small, large = graph(200), graph(2000)
    seconds(small)
    assert seconds(large) < 30 * seconds(small)  # 10 if linear, 100 if quadratic


def test_numbers_of_sizes_that_are_fixed_are_numbers():
    """torch 2.8 leaves such nodes, which nobody reads, of conditions that it has decided."""
    gm = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.ones(2, 3))
    x, output = next(n for n in gm.graph.nodes if n.op == "placeholder"), gm.graph.output_node()
    with gm.graph.inserting_before(output):
        size = gm.graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
        size.meta["val"] = 2
        same = gm.graph.call_function(operator.eq, (size, 2))
        same.meta["val"] = True
    assert [n.op for n in lower(gm).graph.nodes] == [n.op for n in lower(_without(gm, size, same)).graph.nodes]


def _without(gm, *nodes):
    for node in reversed(nodes):
        gm.graph.erase_node(node)
    return gm
