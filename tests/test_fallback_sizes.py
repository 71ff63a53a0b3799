"""``config.fallback = "split"``: sizes that a user's operator makes, read by what stands in other graphs than it.

Each operator below has no converter. It gives a tensor whose sizes are an expression of its operand's, are decided by
data, or a number that data decide; each reader makes something of them. Eager is the truth, in three calls with other
sizes each.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import torchair
from ge_graph.errors import LoweringError

new_size = lambda: torch.library.get_ctx().new_dynamic_size()  # noqa: E731


def own(name: str, function: Any, fake: Any) -> Any:
    op = torch.library.custom_op(f"test_fallback_sizes::{name}", function, mutates_args=())
    op.register_fake(fake)
    return op


def _same(x: Tensor) -> Tensor:
    return x.clone()


def _twice(x: Tensor) -> Tensor:
    return torch.cat([x, x])


def _half(x: Tensor) -> Tensor:
    return x.flatten()[: x.numel() // 2].clone()


def _positive(x: Tensor) -> Tensor:
    return x[x > 0]


def _given(x: Tensor, n: int) -> Tensor:
    return x.new_ones(n) * x.sum()


def _count(x: Tensor) -> int:
    return int((x > 0).sum())


def _pair(x: Tensor) -> tuple[Tensor, int]:
    return x.clone(), int(x.shape[0] * 2)


def _parts(x: Tensor) -> list[Tensor]:
    return [x[:1].clone(), x[1:].clone()]


def _strides(x: Tensor) -> Tensor:
    return torch.tensor([*x.stride(), x.storage_offset()])


same = own("same", _same, torch.empty_like)
twice = own("twice", _twice, lambda x: x.new_empty(2 * x.shape[0], *x.shape[1:]))
half = own("half", _half, lambda x: x.new_empty(x.numel() // 2))
positive = own("positive", _positive, lambda x: x.new_empty(new_size()))
given = own("given", _given, lambda x, n: x.new_empty(n))
count = own("count", _count, lambda x: new_size())
pair = own("pair", _pair, lambda x: (torch.empty_like(x), new_size()))
parts = own("parts", _parts, lambda x: [x.new_empty(1, *x.shape[1:]), x.new_empty(x.shape[0] - 1, *x.shape[1:])])
strides = own("strides", _strides, lambda x: torch.empty(x.dim() + 1, dtype=torch.int64))


def counted(x, n):
    torch._check(n >= 0)
    torch._check(n < 1000)
    return x, n


# What gives a tensor and a size.
MAKERS = {
    "same": lambda x: (same(x), x.shape[0]),
    "twice": lambda x: (y := twice(x.sin()), y.shape[0]),
    "half": lambda x: (y := half(x), y.shape[0]),
    "positive": lambda x: (y := positive(x.cos()), y.shape[0]),
    "given": lambda x: (y := given(x, 3 * x.shape[0] + 1), y.shape[0]),
    "count": lambda x: counted(x, count(x)),
    "pair": lambda x: counted(*pair(x)),
    "parts": lambda x: (y := parts(x.cos())[1], y.shape[0]),
    "item": lambda x: counted(x, same((x > 0).sum()).item()),
}

# What is made of them, in GE graphs and between them.
READERS = {
    "number": lambda y, n: (y.sin(), n + 1),
    "new": lambda y, n: (torch.ones(n).sin(), torch.arange(2 * n).sin().view(2, -1)),
    "own": lambda y, n: (same(torch.ones(n + 1)).cos(), same(y.flatten()).sin()),
    "reshaped": lambda y, n: (y.flatten()[None].expand(2, -1).cos(), torch.zeros(2 * n, 3).sum(0)),
    "joined": lambda y, n: (torch.cat([y, y.sin()]).cos(), torch.ones(n // 2 + 1, 2 * n).sin()),
    "memory": lambda y, n: (strides(y.sin().unsqueeze(0).expand(2, *y.shape).transpose(0, 1)), torch.ones(n, 2).sin()),
}


def values(fn: Any) -> list[Any]:
    found: list[Any] = []
    for rows, columns in ((3, 4), (5, 6), (6, 3)):
        x = torch.sin(torch.arange(rows * columns) * 1.7).reshape(rows, columns)
        found += fn(x)
    return found


@pytest.mark.night(rows=5)
@pytest.mark.parametrize("dynamic", [None, True], ids=["auto", "dynamic"])
@pytest.mark.parametrize(("maker", "reader"), [*itertools.product(MAKERS, READERS)])
def test_as_eager(maker, reader, dynamic):
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.fallback = "split"
    program = lambda x: READERS[reader](*MAKERS[maker](x))  # noqa: E731
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(
            program, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic, fullgraph=True
        )
        for want, got in zip(values(program), values(compiled), strict=True):
            assert type(want) is type(got)
            torch.testing.assert_close(got, want)


def test_a_number_of_a_users_operator_has_no_converter():
    """It is refused as the operator that it is, not as a size that nobody knows."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.ones(count(x)), backend=torchair.get_npu_backend(), fullgraph=True)
    with pytest.raises(Exception) as error:
        compiled(torch.ones(3))
    found: Any = error.value
    while not isinstance(found, LoweringError):
        found = found.__cause__ or found.inner_exception
    assert found.code == "GE2001"
    assert "count" in str(found)
