"""Regions, branches and loops that write what they are given: values and written arguments are eager's."""

from __future__ import annotations

import pytest
import torch

import torchair
from tair_testing.compiling import compiled

if not hasattr(torch.compiler, "nested_compile_region"):
    pytest.skip("this torch has no regions", allow_module_level=True)
nested_compile_region = torch.compiler.nested_compile_region


@nested_compile_region
def adds(x):
    x.add_(1)
    return x * 2


@nested_compile_region
def multiplies(x, y):
    x.mul_(y)
    return x + y


@nested_compile_region
def copies(x, y):
    x.copy_(y)
    return y.sin()


@nested_compile_region
def sets(x, y):
    x[1:3] = y[1:3]
    return x.sum()


@nested_compile_region
def fills_a_view(x):
    x.view(-1)[3:5].fill_(9.0)
    return x.cos()


@nested_compile_region
def writes_its_cache(cache, new, at):
    cache.index_copy_(1, at, new)
    return cache.mean(1)


@nested_compile_region
def writes_two(x, y):
    x.add_(y)
    y.mul_(2)
    return x - y


@nested_compile_region
def holds_another(x):
    # of its own operand torch's trace loses the write (2.13, aot_eager too)
    y = x.clone()
    return adds(y) + y


def between(x):
    y = x * 2
    return adds(y) + adds(y), y


def branch(x, y):
    def then(x, y):
        x.add_(1)
        return x * y

    return torch.cond(x.sum() > 0, then, lambda x, y: x - y, (x, y)) + x


def loop(x, y):
    def body(i, a):
        return i + 1, a + y.add_(1)

    return torch._higher_order_ops.while_loop(lambda i, a: i < 3, body, (torch.tensor(0), x))[1] + y


def two():
    return torch.randn(4, 5).abs(), torch.randn(4, 5)


CASES = {
    "once": (lambda x, y: adds(x), two),
    "twice": (lambda x, y: adds(x) + adds(x), two),
    "two tensors": (lambda x, y: adds(x) + adds(y), two),
    "an intermediate": (lambda x, y: between(x), two),
    "mul_": (lambda x, y: multiplies(x, y) - multiplies(x, y), two),
    "copy_": (lambda x, y: copies(x, y) + copies(x, y * 2), two),
    "setitem": (lambda x, y: sets(x, y) + sets(x, y + 1), two),
    "inside a view": (lambda x, y: fills_a_view(x) + fills_a_view(y), two),
    "rows as arguments": (lambda x, y: adds(x[0]) + adds(x[1]), two),
    "columns as arguments": (lambda x, y: adds(x[:, 1:3]) + adds(x[:, 2:4]), two),
    "transposed": (lambda x, y: adds(x.T) + adds(x.T), two),
    "a cache": (
        lambda c, k, i: writes_its_cache(c, k, i) * writes_its_cache(c, k * 2, i + 1),
        lambda: (torch.zeros(2, 6, 3), torch.randn(2, 1, 3), torch.tensor([2])),
    ),
    "two written": (lambda x, y: writes_two(x, y) + writes_two(x, y), two),
    "one in another": (lambda x, y: holds_another(x) + holds_another(x), two),
    "a branch": (branch, two),
    "the other branch": (lambda x, y: branch(-x, y), two),
    "a loop": (loop, two),
}


def check(case, **more):
    fn, make = CASES[case]
    torch.manual_seed(0)
    theirs = make()
    call = compiled(fn, **more)
    ours = [t.clone() for t in theirs]
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(call(*ours), fn(*theirs))
        torch.testing.assert_close(ours, list(theirs))


@pytest.mark.night(rows=7)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_written_arguments(case, dynamic):
    check(case, dynamic=dynamic)


@pytest.mark.parametrize("case", ["twice", "rows as arguments", "a branch"])
def test_with_fallback(case):
    config = torchair.CompilerConfig()
    config.fallback = "split"
    check(case, config=config)


@pytest.mark.parametrize("case", ["twice", "rows as arguments"])
def test_in_captured_graphs(case):
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    check(case, config=config)


def test_a_region_stays_one_graph_that_is_called(recording):
    with recording() as seen, torch.no_grad():
        compiled(CASES["twice"][0])(*two())
    assert [n.op for n in seen.last_graph().nodes].count("PartitionedCall") == 2
