"""``config.fallback = "split"``: programs with operators that GE lacks, as ``backend="aot_eager"`` runs them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import torchair
from ge_graph.errors import ConfigError, LoweringError


@torch.library.custom_op("test_fallback::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: twice(grad))


@torch.library.custom_op("test_fallback::add_to", mutates_args={"x"})
def add_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x.sum()


@add_to.register_fake
def _(x, y):
    return x.new_empty(())


@torch.library.custom_op("test_fallback::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def backend(fallback: str = "split") -> Any:
    config = torchair.CompilerConfig()
    config.fallback = fallback
    return torchair.get_npu_backend(compiler_config=config)


def one(x, w):
    return (twice(x @ w) + 1).relu()


def in_a_row(x, w):
    y = twice(twice(x @ w))
    return y.sin(), y.t()


def apart(x, w):
    """Neither node waits for the other: what surrounds them fits into one graph."""
    a = twice(x).sin()
    b = twice(x.cos())
    return a + 1, b


def alternating(x, w):
    y = twice(x @ w).sin()
    return twice(y @ w).cos()


def first(x, w):
    return twice(x) @ w


def writes(x, w):
    buffer = x.clone()
    total = add_to(buffer[1:], w[:2, :3] if buffer.shape[1] == 3 else w[: buffer.shape[0] - 1])
    return buffer * total


def writes_input(x, w):
    seen = twice(x)
    x.mul_(2)
    return twice(x) + seen


def unbacked(x, w):
    found = positive(x.sin())
    return found * 2, found.shape[0] + 1


def in_a_branch(x, w):
    return torch.cond(x.sum() > 0, lambda a: twice(a) + 1, lambda a: a - 1, (x,)).sin()


def with_sizes(x, w):
    return twice(x * x.shape[0]) + x.shape[1]


# Program, GE graphs that it needs (forward), whether it is differentiated.
PROGRAMS = [
    (one, 2, True),
    (in_a_row, 2, True),
    (apart, 1, True),
    (alternating, 3, True),
    (first, 1, True),
    (writes, None, False),
    (writes_input, None, False),
    (unbacked, 2, False),
    (in_a_branch, None, False),
    (with_sizes, 2, True),
]


def run(fn: Any, how: Any, dynamic: bool, grad: bool) -> list[Any]:
    torch._dynamo.reset()
    values = torch.sin(torch.arange(12) * 1.7).reshape(3, 4), torch.cos(torch.arange(16) * 1.3).reshape(4, 4)
    args = [v.clone().requires_grad_(grad) for v in values]
    compiled = torch.compile(fn, backend=how, dynamic=dynamic, fullgraph=True)
    found = []
    for _ in range(3):
        for a in args:
            a.grad = None
        results = torch.utils._pytree.tree_leaves(compiled(*args))
        if grad:
            sum(r.square().sum() for r in results).backward()
            results += [a.grad for a in args]
        found += [r.clone() if isinstance(r, torch.Tensor) else r for r in [*results, *(a.detach() for a in args)]]
    return found


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("fn", "graphs", "grad"), PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_as_aot_eager(fn, graphs, grad, dynamic, caplog):
    expected = run(fn, "aot_eager", dynamic, grad)
    with caplog.at_level(logging.WARNING), torchair.record_compilation() as reports:
        got = run(fn, backend(), dynamic, grad)
    for a, b in zip(expected, got, strict=True):
        assert type(a) is type(b)
        torch.testing.assert_close(b, a)
    forward = next(r for r in reports if r.phase == "forward")
    assert any(p.startswith("eager: ") for p in forward.parts)
    if graphs is not None:
        assert sum(p.startswith("GE: ") for p in forward.parts) == graphs


def test_what_runs_eagerly_is_shown_at_the_default_level():
    with pytest.warns(UserWarning, match=r'(?s)fallback = "split".*GE graphs.*eagerly') as seen:
        run(one, backend(), False, False)
    assert len([w for w in seen if "split" in str(w.message)]) == 1


def test_without_it_nothing_runs_eagerly():
    with pytest.raises(Exception) as error:
        run(one, backend("error"), False, False)
    found: Any = error.value
    while not isinstance(found, LoweringError):
        found = found.__cause__ or found.inner_exception
    assert found.code == "GE2001"
    assert 'fallback = "split"' in str(found)


def test_a_graph_that_ge_takes_stays_whole():
    with torchair.record_compilation() as reports:
        run(lambda x, w: (x @ w).sin(), backend(), False, False)
    assert reports[0].parts == []


def test_values_of_the_option():
    with pytest.raises(ConfigError):
        torchair.CompilerConfig().fallback = "eager"
