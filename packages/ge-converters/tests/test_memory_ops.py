"""as_strided and its scatter address memory: operands whose strides are not row-major, views, overlaps, other sizes."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.base.errors import LoweringError
from ge_converters.lowering import lower
from ge_converters.lowering.memory_ops import memory_order
from ge_converters.report import smoke

aten = torch.ops.aten


@pytest.fixture(scope="module")
def engine():
    return smoke.find_engine("cpu")


def base(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape)


OPERANDS = {
    "contiguous": lambda: base(4, 6),
    "transposed": lambda: base(6, 4).t(),
    "permuted": lambda: base(2, 3, 4).permute(2, 0, 1),
    "channels_last": lambda: base(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "later_rows": lambda: base(6, 6)[2:],
    "expanded": lambda: base(12, 1).expand(12, 4),
    "overlapping": lambda: base(24).as_strided((10, 4), (2, 1)),
    "one_column": lambda: base(24, 1).t(),
}


def run(fn, args, engine, mode="fake"):
    lowered = lower(make_fx(fn, tracing_mode=mode)(*args))
    results = engine.compile(lowered.graph, {}).run([args[b.fx_index] for b in lowered.inputs])
    return [results[b.ge_index] for b in lowered.outputs]


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_read_of_a_graph_input(name, dtype, engine):
    x = OPERANDS[name]()
    if name not in ("expanded", "overlapping", "later_rows"):
        x = torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x * 8)

    def fn(x):
        return (aten.as_strided(x, [3, 2], [2, 1], x.storage_offset() + 1),)

    (got,) = run(fn, [x], engine)
    assert torch.equal(got, fn(x)[0])


@pytest.mark.parametrize("name", ["expanded", "transposed", "empty"])
def test_what_is_read_or_written_is_summed(name, engine):
    """Converters that ask for the rank of their operand take what was read by a gather, or written and turned back."""
    x = base(1, 6, 0, 2) if name == "empty" else OPERANDS[name]()
    size = [0] if name == "empty" else [2]

    def fn(x):
        read = aten.as_strided(x, size, [2])
        if name == "expanded":  # what overlaps is not written
            return (aten.prod.dim_int(read, 0),)
        return (aten.prod.dim_int(read, 0), aten.cumsum(aten.as_strided_scatter(x, read * 2, size, [2]), 0))

    for got, want in zip(run(fn, [x], engine), fn(x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["contiguous", "transposed", "permuted", "channels_last", "later_rows", "one_column"])
def test_scatter_into_a_graph_input(name, engine):
    x = OPERANDS[name]()
    new = torch.full((2, 3), 7.0)

    def fn(x, new):
        return (aten.as_strided_scatter(x, new, [2, 3], [5, 1], x.storage_offset() + 2),)

    (got,) = run(fn, [x, new], engine)
    assert torch.equal(got, fn(x, new)[0])


@pytest.mark.parametrize("name", ["contiguous", "transposed", "permuted", "channels_last"])
def test_what_was_written_is_read_by_memory_again(name, engine):
    x = OPERANDS[name]()
    new = torch.full((2, 3), 7.0)

    def fn(x, new):
        written = aten.as_strided_scatter(x, new, [2, 3], [5, 1], 2)
        again = aten.as_strided_scatter(written, new * 2, [2, 3], [5, 1], 1)
        return aten.as_strided(written, [3, 4], [1, 2], 1), aten.as_strided(again, [3, 4], [1, 2], 1)

    for got, want in zip(run(fn, [x, new], engine), fn(x, new), strict=True):
        assert torch.equal(got, want)


VIEWS = {
    "of a transpose": lambda x: aten.as_strided(aten.t(x), [2, 3], [1, 4]),
    "of a slice, outside it": lambda x: aten.as_strided(aten.slice(x, 0, 2, 3), [4], [1], 0),
    "of a slice, relative to it": lambda x: aten.as_strided(aten.slice(x, 0, 1, 3), [2, 2], [4, 1]),
    "of a column": lambda x: aten.as_strided(aten.select(x, 1, 1), [3], [4]),
    "of a sum": lambda x: aten.as_strided(aten.add(aten.t(x), 1.0), [3, 2], [1, 3]),
    "of a sum laid out anew": lambda x: aten.as_strided(aten.clone(aten.t(x)), [4, 3], [1, 2], 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_read_of_a_view(name, engine):
    x = base(5, 4)

    def fn(x):
        return (VIEWS[name](x),)

    (got,) = run(fn, [x], engine)
    assert torch.equal(got, fn(x)[0])


def test_one_graph_reads_transposed_inputs_of_every_size(engine):
    def fn(x):
        return (aten.as_strided(x, [x.shape[1], 2], [x.shape[0], 1]),)

    lowered = lower(make_fx(fn, tracing_mode="symbolic")(base(7, 5).t()))
    executable = engine.compile(lowered.graph, {})
    for shape in ((7, 5), (3, 9)):
        x = base(*shape).t()
        results = executable.run([x])
        assert torch.equal(results[lowered.outputs[0].ge_index], fn(x)[0])


@pytest.mark.parametrize("name", ["contiguous", "transposed", "permuted", "channels_last", "one_column"])
def test_resize_reads_memory_too(name, engine):
    x = OPERANDS[name]()
    (got,) = run(lambda x: (aten.resize(x, [3, 5]),), [x], engine)
    assert torch.equal(got, aten.resize(x, [3, 5]))


REFUSED = {
    "after a view": lambda: base(6, 4)[:2],
    "between the elements": lambda: base(6, 8)[:, ::2],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_value_holds_is_refused(name):
    x = REFUSED[name]()

    def fn(x):
        return (aten.as_strided(x, [4, 4], [4, 1]),)

    gm = make_fx(fn, tracing_mode="fake")(x)
    said = {
        "after a view": "8 of them, the first at position 8",
        "between the elements": "8 of them, the first at position 1",
    }
    with pytest.raises(LoweringError, match=rf"in its storage but not in its value: {said[name]}\. .* Pass the whole"):
        lower(gm)


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (lambda: base(2, 3), [0, 1]),
        (lambda: base(2, 3).t(), [1, 0]),
        (lambda: base(2, 1, 3).permute(2, 1, 0), [1, 2, 0]),
        (lambda: base(2, 1).expand(2, 3), None),
        (lambda: base(4, 6)[:, :3], None),
        (lambda: base(()), []),
        (lambda: base(2, 0, 3), [0, 1, 2]),
    ],
)
def test_memory_order(make, order):
    assert memory_order(make()) == order
