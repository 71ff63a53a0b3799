"""A part of an input that is written and a part that is returned: eager's memory, whatever the input is a view of."""

import random
import zlib

import pytest
import torch

import torchair


def _numbers(count):
    return torch.arange(float(count))


# Name -> an input of n rows and six columns, out of memory of its own.
BASES = {
    "dense": lambda n: _numbers(n * 6).view(n, 6),
    "rows apart": lambda n: _numbers(n * 12).view(2 * n, 6)[::2],
    "columns apart": lambda n: _numbers(n * 12).view(n, 12)[:, ::2],
    "offset": lambda n: _numbers(n * 6 + 7)[7:].view(n, 6),
    "both": lambda n: _numbers(n * 12 + 5)[5:].view(2 * n, 6)[1::2],
    "transposed": lambda n: _numbers(n * 6).view(6, n).t(),
    "a part of a transpose": lambda n: _numbers(n * 8).view(8, n).t()[:, 1:7],
    "middle of three": lambda n: _numbers(n * 18).view(n, 3, 6)[:, 1],
}
# Name -> a view of a matrix of n rows and six columns; n is even and at least four.
VIEWS = {
    "itself": lambda x: x,
    "row": lambda x: x[1],
    "column": lambda x: x.select(1, 4),
    "rows": lambda x: x[1:3],
    "last rows": lambda x: x[x.shape[0] // 2 :],
    "columns": lambda x: x[:, 2:5],
    "every second": lambda x: x[::2],
    "unbind": lambda x: x.unbind(1)[4],
    "chunk": lambda x: x.chunk(2, 0)[1],
    "split": lambda x: x.split(2, 1)[1],
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "flat": lambda x: x.unflatten(1, (2, 3)),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.unsqueeze(0).permute(2, 0, 1),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 3, -1),
    "second half of a column": lambda x: x.unbind(1)[4].chunk(2, 0)[1],
    "first half of a column": lambda x: x.unbind(1)[4].chunk(2, 0)[0],
    "row of a transpose": lambda x: x.t()[2],
    "columns of rows": lambda x: x[2:][:, 1:4],
    "diagonal of a part": lambda x: x[:4, 1:5].diagonal(1),
    "number": lambda x: x[2, 3],
}
WRITES = {
    "fill": lambda v: v.fill_(3),
    "add": lambda v: v.add_(1),
    "mul": lambda v: v.mul_(-1),
    "copy": lambda v: v.copy_(v + 2),
    "items": lambda v: v.__setitem__(slice(0, 1), 9.0) if v.dim() else v.zero_(),
}
OVERLAPPING = ("expand",)  # torch refuses to write where one place is several elements


def program(read, written, write, returns):
    def fn(x):
        kept = VIEWS[read](x)
        WRITES[write](VIEWS[written](x))
        return [(kept if which == "before" else VIEWS[which](x)) for which in returns]

    return fn


def programs(count, seed):
    rng = random.Random(seed)
    views = sorted(VIEWS)
    for _ in range(count):
        written = rng.choice([v for v in views if v not in OVERLAPPING])
        returns = rng.choice([["before"], ["before", rng.choice(views)], [rng.choice(views)]])
        yield rng.choice(sorted(BASES)), rng.choice(views), written, rng.choice(sorted(WRITES)), returns


def described(results, x, memory):
    """What a caller can find out: the results, the input, and what a write through each result does."""
    found = []
    for r in results:
        found.append((tuple(r.shape), r.stride(), r.storage_offset(), r.tolist()))
        found.append(r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr())
    for r in results:
        if not any(s == 0 and n > 1 for s, n in zip(r.stride(), r.shape)):
            r.sub_(100)
    return [*found, x.tolist(), memory.tolist()]


def outcome(call, base, rows):
    x = BASES[base](rows)
    memory = torch.empty(0).set_(x.untyped_storage())
    return described(call(x), x, memory)


def assert_as_eager(case, dynamic, mode="max-autotune"):
    base, *rest = case
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    run = torch.compile(program(*rest), backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)
    for rows in (4, 8):
        assert outcome(run, base, rows) == outcome(program(*rest), base, rows), (case, dynamic, rows)


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("base", BASES)
def test_half_a_column_is_written_and_the_other_returned(base):
    assert_as_eager((base, "second half of a column", "first half of a column", "fill", ["before"]), dynamic=True)


@pytest.mark.night(rows=7)
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_written_and_returned(base, dynamic):
    for case in [c for c in programs(200, zlib.crc32(base.encode())) if c[0] == base][:3]:
        assert_as_eager(case, dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("base", ["rows apart", "transposed"])
def test_with_gradients(base, dynamic):
    def fn(x):
        column = x.select(1, 4)
        half = column.shape[0] // 2
        column[:half].mul_(3)
        return column[half:], x * 2

    def outcome(call, rows):
        leaf = BASES[base](rows).requires_grad_()
        x = BASES[base](2 * rows)[:rows].mul_(0) + leaf
        x = torch.stack([x, x], 1)[:, 1]  # a view that is no leaf
        part, double = call(x)
        found = [part.stride(), part.storage_offset(), part.tolist(), double.tolist(), x.tolist()]
        ((part * torch.arange(1.0, rows // 2 + 1)).sum() + double.square().sum()).backward()
        return [*found, leaf.grad.tolist()]

    torch._dynamo.reset()
    run = torch.compile(fn, backend=torchair.get_npu_backend(), dynamic=dynamic)
    for rows in (4, 8):
        assert outcome(run, rows) == outcome(fn, rows)
