"""Windows as gathers and strided slices equal eager's pooling, positions and gradients included."""

import itertools

import pytest
import torch

from ge_converters.decompose.formulas.windows import BESIDE_CONVERTERS, FORMULAS

aten = torch.ops.aten


def equal_to_eager(name, *args, table=FORMULAS):
    wanted = getattr(aten, name)(*args)
    found = table[f"{name}.default"](*args)
    wanted, found = (x if isinstance(x, tuple) else (x,) for x in (wanted, found))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)
    return wanted


def drawn(*shape, dtype=torch.float32):
    torch.manual_seed(3)
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "size"), [((2, 3, 7, 8, 9), [3, 4, 5]), ((3, 6, 8, 4), [3, 4, 4])])
def test_adaptive_max_pool3d(shape, size, dtype):
    x = drawn(*shape, dtype=dtype)
    values, indices = equal_to_eager("adaptive_max_pool3d", x, size)
    equal_to_eager("adaptive_max_pool3d_backward", drawn(*values.shape, dtype=dtype), x, indices)


def test_adaptive_max_pool3d_to_more_places_than_there_are():
    equal_to_eager("adaptive_max_pool3d", drawn(2, 3, 5, 5, 5), [7, 1, 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fractional_max_pool(dtype):
    torch.manual_seed(4)
    for _ in range(10):  # each draws other places for the windows
        x, samples = torch.randn(2, 3, 17, 23).to(dtype), torch.rand(2, 3, 2).to(dtype)
        values, indices = equal_to_eager("fractional_max_pool2d", x, [3, 2], [7, 9], samples)
        equal_to_eager("fractional_max_pool2d_backward", torch.randn_like(values), x, [3, 2], [7, 9], indices)
        x, samples = torch.randn(3, 11, 17, 13).to(dtype), torch.rand(1, 3, 3).to(dtype)
        values, indices = equal_to_eager("fractional_max_pool3d", x, [3, 2, 2], [4, 1, 5], samples)
        equal_to_eager("fractional_max_pool3d_backward", torch.randn_like(values), x, [3, 2, 2], [4, 1, 5], indices)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("size", "to"), [((17, 23), [5, 9]), ((5, 6), [11, 13]), ((8, 8), [1, 8])])
def test_filters_as_wide_as_the_reduction(kind, align, size, to):
    name = f"_upsample_{kind}2d_aa"
    for scales in ((None, None), (to[0] / size[0] * 1.01, to[1] / size[1])):
        equal_to_eager(name, drawn(2, 3, *size), to, align, *scales)
        if kind != "lanczos":
            equal_to_eager(f"{name}_backward", drawn(2, 3, *to), to, [2, 3, *size], align, *scales)


_WINDOWS = [
    ([3, 2], [2, 1], [1, 1], [1, 1]),
    ([3], [], [0], [1]),
    ([2, 3], [3, 2], [1, 1], [2, 1]),
    ([2], [3], [1], [1]),
]


def integers(*shape, dtype):
    """Numbers that float32 does not tell apart; one slice holds the smallest there is."""
    torch.manual_seed(5)
    made = torch.randint(0, 50, shape).to(dtype)
    made = made + 2**40 if dtype is torch.int64 else made
    made[0] = torch.iinfo(dtype).min
    return made


def of_axes(values, count):
    return [*values, *values[-1:]] if len(values) == 2 and count == 3 else values


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("ceil", [False, True])
def test_integer_max_pool(dtype, ceil):
    for window in _WINDOWS:
        for count, shape in ((2, (2, 3, 9, 10)), (3, (2, 6, 7, 8))):
            args = [of_axes(v, count) for v in window]
            equal_to_eager(
                f"max_pool{count}d_with_indices", integers(*shape, dtype=dtype), *args, ceil, table=BESIDE_CONVERTERS
            )


@pytest.mark.parametrize("ceil", [False, True])
def test_integer_avg_pool(ceil):
    torch.manual_seed(6)
    for window, padded, divisor in itertools.product(_WINDOWS, (False, True), (None, 3)):
        for count, shape in ((2, (2, 3, 9, 10)), (3, (2, 6, 7, 8))):
            args = [of_axes(v, count) for v in window[:3]]
            x = torch.randint(-(2**40), 2**40, shape)
            equal_to_eager(f"avg_pool{count}d", x, *args, ceil, padded, divisor, table=BESIDE_CONVERTERS)


def test_floats_are_left_to_the_converters():
    assert BESIDE_CONVERTERS["max_pool2d_with_indices.default"](drawn(1, 1, 4, 4), [2, 2]) is NotImplemented
    assert BESIDE_CONVERTERS["avg_pool3d.default"](drawn(1, 4, 4, 4), [2]) is NotImplemented
