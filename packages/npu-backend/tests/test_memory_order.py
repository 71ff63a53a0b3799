"""Reading the memory of a result gives what eager gives, whatever order the kernel's result has."""

import pytest
import torch

import torchair

ORDERS = {
    "row-major": (0, 1, 2, 3),
    "channels-last": (0, 2, 3, 1),
    "reversed": (3, 2, 1, 0),
    "pairs": (1, 0, 3, 2),
}


def laid_out(order, offset=0.0):
    x = (torch.arange(120.0).reshape(2, 4, 3, 5) - 40) / 10 + offset
    back = sorted(range(4), key=ORDERS[order].__getitem__)
    return x.permute(ORDERS[order]).contiguous().permute(back)


ONE = {
    "roll": lambda x: x.roll(2, 1),
    "channel_shuffle": lambda x: torch.channel_shuffle(x, 2),
    "put": lambda x: x.put(torch.tensor([3, 50]), torch.tensor([7.0, 8.0])),
    "index_fill": lambda x: x.index_fill(2, torch.tensor([1]), 3.0),
    "batch_norm in use": lambda x: torch.nn.functional.batch_norm(x, torch.zeros(x.size(1)), torch.ones(x.size(1))),
    "group_norm": lambda x: torch.nn.functional.group_norm(x, 1),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: torch.nn.functional.instance_norm(x),
}
TWO = {
    "ldexp of one number": lambda x, y: torch.ldexp(x[0, 0, 0, 0], y),
    "ldexp of a slice": lambda x, y: torch.ldexp(x[:1], y),
    "ldexp of a slice by integers": lambda x, y: torch.ldexp(x[:1], y.int()),
    "power of one": lambda x, y: torch.pow(1.0, y) + x[:1] * 0,
    "power of two": lambda x, y: torch.pow(2.0, y),
    "ldexp": lambda x, y: torch.ldexp(x, y.int()),
    "logaddexp": torch.logaddexp,
    "floor division": lambda x, y: torch.div(x, y.abs() + 0.7, rounding_mode="floor"),
    "copysign": torch.copysign,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 1),
    "addr": lambda x, y: torch.addr(x[0, 0], y[0, 0, :, 0], y[0, 0, 0]),
    "hypot": torch.hypot,
}


def memory(fn):
    return lambda *args: (y := fn(*args), y.as_strided((y.numel(),), (1,)))


def assert_as_aot_eager(fn, *args):
    want = torch.compile(memory(fn), backend="aot_eager", fullgraph=True)(*args)
    torch._dynamo.reset()
    got = torch.compile(memory(fn), backend=torchair.get_npu_backend(), fullgraph=True)(*args)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
        assert g.stride() == w.stride()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ONE)
def test_of_one(name, order):
    assert_as_aot_eager(ONE[name], laid_out(order))


@pytest.mark.parametrize("orders", [("row-major", "channels-last"), ("reversed", "row-major"), ("pairs", "reversed")])
@pytest.mark.parametrize("name", TWO)
def test_of_two(name, orders):
    assert_as_aot_eager(TWO[name], laid_out(orders[0]), laid_out(orders[1], 0.3))


@pytest.mark.parametrize("name", ["logical_and", "logical_xor", "copysign", "xlogy"])
@pytest.mark.parametrize("sizes", [(1, 2, 2), (1, 3, 3), (2, 2, 2), (2, 3, 4)], ids=str)
def test_of_a_diagonal_with_open_sizes(name, sizes):
    """The diagonal of few rows is dense by its numbers only: its symbolic strides do not say so."""

    def fn(x):
        diagonal = x.diagonal(1, 0, 1)
        return memory(getattr(torch, name))(x.isfinite().float()[..., :2, :2], diagonal[:2, :1])

    x = torch.arange(1, 1 + float(torch.Size(sizes).numel())).reshape(sizes)
    torch._dynamo.reset()
    got = torch.compile(fn, backend="npu", dynamic=True)(x)
    for a, b in zip(got, fn(x), strict=True):
        assert torch.equal(a, b)
