"""Segments and distinct slices equal eager."""

import math

import pytest
import torch

from ge_converters.decompose.formulas.segments import FORMULAS

aten = torch.ops.aten


def equal_to_eager(name, *args, **kwargs):
    wanted = getattr(aten, name)(*args, **kwargs)
    found = FORMULAS[f"{name}.default"](*args, **kwargs)
    wanted, found = (x if isinstance(x, tuple) else (x,) for x in (wanted, found))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
    return wanted[0]


def drawn(*shape):
    torch.manual_seed(2)
    return torch.randn(shape)


# Empty segments, equal elements, zeros, what is not a number, segments of later axes.
DATA = {
    "vector": (drawn(10), torch.tensor([3, 0, 2, 5])),
    "rows": (drawn(7, 3), torch.tensor([0, 7, 0])),
    "batch": (drawn(2, 6, 3), torch.tensor([[1, 5], [6, 0]])),
    "edges": (torch.tensor([1.0, 0, 3, 0, math.nan, 2, 0, 5, 5, 1]), torch.tensor([3, 1, 2, 4])),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("initial", [None, 0, 2.5])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("by", ["lengths", "offsets"])
def test_segments(data, reduce, initial, by):
    x, lengths = DATA[data]
    axis = lengths.dim() - 1
    if by == "offsets":
        lengths = torch.cat([torch.zeros_like(lengths.narrow(-1, 0, 1)), lengths.cumsum(-1)], -1)
    given = {by: lengths, "axis": axis, "initial": initial}
    found = equal_to_eager("segment_reduce", x, reduce, **given)
    equal_to_eager("_segment_reduce_backward", drawn(*found.shape), found, x, reduce, **given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((6, 5), 0), ((6, 5), 1), ((7, 3, 2), 0), ((2, 9, 3), 1), ((2, 2, 20), -1), ((4,), 0), ((0, 3), 0)],
)
def test_distinct_slices(shape, dim, dtype):
    torch.manual_seed(1)
    equal_to_eager("unique_dim", torch.randint(0, 2, shape).to(dtype), dim, True, True, True)
