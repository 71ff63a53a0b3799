"""Inputs written, inputs returned, results returned twice, results that are not contiguous: as in eager."""

import pytest
import torch

from ge_converters import LoweringError
from ge_converters.lowering import lower
from ge_converters.lowering.aliasing import InputAlias, Mutation, Nothing, Result, memory_order


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3), None),
        (torch.empty(3, 2).t(), (1, 0)),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (torch.empty(2, 3, 4).permute(2, 0, 1), (1, 2, 0)),
        (torch.empty(1, 3).t(), None),
        (torch.empty(4, 6)[:, ::2], None),
        (torch.empty(3).expand(2, 3), None),
        (torch.empty(()), None),
    ],
)
def test_the_memory_order_of_a_result(tensor, order):
    assert memory_order(tensor) == order


def test_a_permuted_result_carries_its_order(lowered):
    low = lowered(lambda x: (x + 1).t(), torch.randn(2, 3))
    (result,) = low.outputs
    assert result.order == (1, 0)
    assert result.spec.stride == (1, 3)


def test_a_written_input_is_written_back_and_read_anew(aot, run):
    def fn(x, y):
        x.add_(y)
        return x * 2

    low = lower(aot(fn, torch.ones(3), torch.ones(3), keep_mutations=True))
    (mutation,) = low.mutations
    assert isinstance(mutation, Mutation)
    x, y = torch.randn(3), torch.randn(3)
    expected = x.clone()
    want = fn(expected, y)
    inputs = [x, y]
    (got,) = run(low, inputs)
    assert torch.equal(got, want)
    assert torch.equal(x, expected)


def test_a_read_after_the_write_sees_the_new_value(run):
    from torch.fx.experimental.proxy_tensor import make_fx

    def fn(x, y):
        torch.ops.aten.copy_.default(x, y)
        return x + 1, x

    low = lower(make_fx(fn, tracing_mode="fake")(torch.ones(2), torch.zeros(2)))
    assert low.outputs[1] == InputAlias(0)
    x = torch.ones(2)
    got = run(low, [x, torch.full((2,), 5.0)])
    assert got[0].tolist() == [6, 6]
    assert x.tolist() == [5, 5]
    assert got[1] is x


def test_a_write_converts_type_and_shape(run):
    from torch.fx.experimental.proxy_tensor import make_fx

    def fn(x, y):
        torch.ops.aten.copy_.default(x, y)
        return ()

    low = lower(make_fx(fn, tracing_mode="fake")(torch.ones(2, 3), torch.ones(3, dtype=torch.int64)))
    x = torch.zeros(2, 3)
    run(low, [x, torch.tensor([1, 2, 3])])
    assert x.tolist() == [[1, 2, 3], [1, 2, 3]]


def test_writing_an_intermediate_is_refused():
    from torch.fx.experimental.proxy_tensor import make_fx

    def fn(x):
        y = x + 1
        torch.ops.aten.copy_.default(y, x)
        return y

    with pytest.raises(LoweringError, match="only graph inputs can be written in place"):
        lower(make_fx(fn, tracing_mode="fake")(torch.ones(2)))


def test_none_and_repeated_outputs(run):
    from torch.fx.experimental.proxy_tensor import make_fx

    def fn(x):
        y = x + 1
        return y, None, y

    low = lower(make_fx(fn, tracing_mode="fake")(torch.ones(2)))
    first, nothing, again = low.outputs
    assert nothing == Nothing()
    assert isinstance(first, Result)
    assert first.ge_index == again.ge_index
    got = run(low, [torch.ones(2)])
    assert got[0].tolist() == got[2].tolist() == [2, 2]
    assert got[1] is None


def test_an_input_given_twice_is_one_or_two_inputs(aot, run):
    x = torch.randn(3)
    low = lower(aot(lambda a, b: a + b, x, x))
    (got,) = run(low, [x] * low.placeholders)
    assert torch.equal(got, x + x)


@pytest.mark.parametrize("make", [lambda: torch.randn(4, 3).t(), lambda: torch.randn(6, 8)[::2, ::2]])
def test_inputs_need_not_be_contiguous(aot, run, make):
    x = make()
    low = lower(aot(lambda x: x.reshape(-1) + x.sum(), x))
    (got,) = run(low, [x])
    torch.testing.assert_close(got, x.reshape(-1) + x.sum())


def test_outputs_do_not_share_memory_with_inputs(aot, run):
    x = torch.randn(4, 3)
    low = lower(aot(lambda x: x.view(-1), x))
    (got,) = run(low, [x])
    before = got.clone()
    x.zero_()
    assert torch.equal(got, before)
