"""Formulas in other ATen ops equal the op that they stand for, at the edges too."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.decompose import formulas, memory_order
from ge_converters.decompose.formulas import beside_native, foreach, general
from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering import lower
from ge_converters.registry import REGISTRY
from ge_graph.errors import EngineError

aten = torch.ops.aten
INF, NAN = math.inf, math.nan
EDGES = [0.0, -0.0, 1.0, -1.5, 3e38, 1e-40, INF, -INF, NAN, 0.3, 1e-30, 7.25]


def numbers(dtype=torch.float32):
    return torch.tensor(EDGES, dtype=dtype)


def positions(*shape):
    torch.manual_seed(1)
    return torch.randint(0, 6, shape)


def drawn(*shape, dtype=torch.float32):
    torch.manual_seed(2)
    return torch.randn(shape).to(dtype)


def half(*shape):
    return drawn(*shape, dtype=torch.float16)


CASES = {
    "hypot": (aten.hypot.default, lambda: (numbers()[:, None], numbers()[None])),
    "hypot f16": (aten.hypot.default, lambda: (half(50), half(50).flip(0))),
    "hypot f64": (aten.hypot.default, lambda: (numbers(torch.float64)[:, None], numbers(torch.float64)[None])),
    "lcm": (aten.lcm.default, lambda: (torch.arange(-6, 7)[:, None], torch.arange(-4, 9)[None])),
    "i0": (aten.i0.default, lambda: (drawn(40) * 10,)),
    "i1": (aten.special_i1.default, lambda: (drawn(40) * 10,)),
    "i1 of integers": (aten.special_i1.default, lambda: (torch.arange(-4, 5),)),
    "polygamma 0": (aten.polygamma.default, lambda: (0, drawn(30).abs() + 0.1)),
    "polygamma 1": (aten.polygamma.default, lambda: (1, drawn(30) * 3 + 0.01)),
    "polygamma 3": (aten.polygamma.default, lambda: (3, drawn(30).abs() + 0.1)),
    "frexp": (aten.frexp.Tensor, lambda: (numbers(),)),
    "frexp f64": (aten.frexp.Tensor, lambda: (numbers(torch.float64),)),
    "frexp f16": (aten.frexp.Tensor, lambda: (torch.tensor([0.0, 1.0, -6e-8, 65504.0, 0.1], dtype=torch.float16),)),
    "polar": (aten.polar.default, lambda: (drawn(8).abs(), drawn(8))),
    "take": (aten.take.default, lambda: (drawn(2, 3), positions(2, 2) - 6)),
    "put": (aten.put.default, lambda: (drawn(2, 3), torch.tensor([0, -1]), drawn(2))),
    "put adding": (aten.put.default, lambda: (drawn(2, 3), torch.tensor([1, 1]), drawn(2), True)),
    "index_copy": (aten.index_copy.default, lambda: (drawn(6, 3), -1, torch.tensor([2, 0]), drawn(6, 2))),
    "index_copy 0-d index": (aten.index_copy.default, lambda: (drawn(6, 3), 0, torch.tensor(4), drawn(1, 3))),
    "index_copy 0-d": (aten.index_copy.default, lambda: (drawn(), 0, torch.tensor([0]), drawn() + 1)),
    "index_copy of none": (aten.index_copy.default, lambda: (drawn(6, 3), 0, positions(0), drawn(0, 3))),
    "index_reduce": (aten.index_reduce.default, lambda: (drawn(6, 3), 0, positions(4), drawn(4, 3), "amax")),
    "index_reduce 0-d": (aten.index_reduce.default, lambda: (drawn(), 0, torch.tensor(0), drawn() + 1, "prod")),
    "searchsorted": (aten.searchsorted.Scalar, lambda: (torch.tensor([1, 3, 5]), 2.5)),
    "masked_scatter_backward": (
        aten.masked_scatter_backward.default,
        lambda: (drawn(3, 4), drawn(3, 4) > 0, [2, 9]),
    ),
    "addr f16": (aten.addr.default, lambda: (half(40, 30), half(40), half(30))),
    "addr bool": (aten.addr.default, lambda: (drawn(4, 3) > 0, drawn(4) > 0, drawn(3) > 0)),
    "cross f16": (aten.linalg_cross.default, lambda: (half(40, 3), half(1, 3))),
    "embedding_renorm": (
        aten.embedding_renorm.default,
        lambda: (drawn(9, 4) * 3, torch.tensor([[3, 0], [3, 8]]), 1.0, 2.0),
    ),
    "embedding_renorm bf16": (
        aten.embedding_renorm.default,
        lambda: (drawn(9, 4, dtype=torch.bfloat16), torch.tensor([1, 2, 1]), 0.5, 1.0),
    ),
    "rrelu": (aten.rrelu_with_noise_functional.default, lambda: (drawn(20), drawn(20), 0.1, 0.3, False)),
    "pinv": (aten.linalg_pinv.atol_rtol_tensor, lambda: (drawn(4, 3),)),
}


def result_of(op, args):
    function = formulas.decompositions()[op]
    found = function(*args)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_op(name):
    op, make = CASES[name]
    args = make()
    expected = op(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(result_of(op, args), expected, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("place", [-1, -6, 6])
def test_index_copy_counts_nothing_from_the_end(place):
    args = drawn(6, 3), 0, torch.tensor([0, place]), drawn(2, 3)
    for call in (aten.index_copy.default, general.index_copy):
        with pytest.raises(IndexError, match="out of bounds"):
            call(*args)


@pytest.mark.parametrize(("place", "says"), [(-1, "index -1 "), (-6, "index -6 "), (6, "index 6 ")])
@pytest.mark.parametrize("dim", [0, 1])
def test_index_copy_names_the_index_that_was_given(place, says, dim, engine):
    args = drawn(6, 6), torch.tensor([0, place]), drawn(*((2, 6) if dim == 0 else (6, 2)))
    fn = lambda x, at, rows: aten.index_copy(x, dim, at, rows)  # noqa: E731
    lowered = lower(make_fx(fn, decomposition_table(), tracing_mode="fake")(args[0], torch.tensor([0, 1]), args[2]))
    with pytest.raises(EngineError, match=f"GE4005.*{says}"):
        engine.compile(lowered.graph, {}).run(list(args))


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("classes", [[[3, 0, -1, 1], [0, 1, 2, 3], [-1, 0, 0, 0]], [2, -1, 0], [-1, 0]])
def test_multilabel_margin_loss(classes, reduction):
    """A row may begin with a negative number, and one row alone has a loss without sizes."""
    target = torch.tensor(classes)
    x = drawn(*target.shape, dtype=torch.float64)
    want = aten.multilabel_margin_loss_forward(x, target, reduction)
    torch.testing.assert_close(general.multilabel_margin_loss(x, target, reduction), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounds_as_eager_does_step_by_step(dtype):
    vectors = drawn(60, 3, dtype=dtype), drawn(60, 3, dtype=dtype).flip(0)
    assert torch.equal(general.cross(*vectors), torch.linalg.cross(*vectors))
    matrix, first, second = drawn(40, 30, dtype=dtype), drawn(40, dtype=dtype), drawn(30, dtype=dtype)
    got = general.addr(matrix, first, second, beta=0.2, alpha=0.6)
    assert torch.equal(got, torch.addr(matrix, first, second, beta=0.2, alpha=0.6))


def test_all_are_in_the_table():
    table, of_lists = decomposition_table(), foreach.decompositions()
    own = {op: function for op, function in formulas.decompositions().items() if op not in of_lists}
    assert own
    # beside a converter a formula serves the calls that the converter does not take, inside a function that decides;
    # so does one of an op whose result keeps an order of memory
    beside = {*formulas.beside_converters(), *beside_native.decompositions(REGISTRY), *memory_order.ordered({})}
    assert {op: table[op] for op in own if op not in beside} == {op: f for op, f in own.items() if op not in beside}
    assert {op for op in own if op in beside} <= set(table)
    assert set(of_lists) <= set(table)


def test_rrelu_draws_a_slope_for_each_negative_number():
    x = drawn(2000)
    found, noise = result_of(aten.rrelu_with_noise_functional.default, (x, torch.zeros_like(x), 0.1, 0.3, True))
    slope = (found / x)[x < 0]
    assert 0.1 <= slope.min() < 0.12
    assert 0.28 < slope.max() <= 0.3 + 1e-6
    torch.testing.assert_close(found, x * noise)
    assert (noise[x > 0] == 1).all()
