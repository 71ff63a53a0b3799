"""Numbers that a GE attribute holds, where dynamic=True makes them symbolic: torch compiles anew for other values."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import torchair


def _compiled(call):
    counter = CompileCounterWithBackend("eager")
    backend = torchair.get_npu_backend()

    def counting(gm, inputs):
        counter.frame_count += 1
        return backend(gm, inputs)

    return torch.compile(call, backend=counting, dynamic=True, fullgraph=True), counter


@pytest.mark.slow
def test_a_stride_given_as_argument():
    compiled, counter = _compiled(lambda x, w, s: F.conv2d(x, w, stride=s))
    x, w = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3)
    for stride in (2, 3, 2, 3):
        torch.testing.assert_close(compiled(x, w, stride), F.conv2d(x, w, stride=stride))
    assert counter.frame_count == 2


def test_a_window_computed_from_sizes_keeps_other_sizes_dynamic():
    compiled, counter = _compiled(lambda x: F.avg_pool2d(x, x.shape[2:]) + x.shape[0])
    for size in (5, 7, 5):
        for batch in (2, 3, 4):
            x = torch.randn(batch, 3, size, size)
            torch.testing.assert_close(compiled(x), F.avg_pool2d(x, (size, size)) + batch)
    assert counter.frame_count == 2


def test_the_length_of_a_transform_is_fixed_its_batch_is_not():
    compiled, counter = _compiled(lambda x: torch.fft.rfft(x).real)
    for length in (8, 12, 8):
        for batch in (2, 3, 4):
            x = torch.randn(batch, length)
            torch.testing.assert_close(compiled(x), torch.fft.rfft(x).real)
    assert counter.frame_count == 2


def test_an_index_from_the_end():
    compiled, _ = _compiled(lambda x, y, i: torch.select_scatter(x, y, 1, i))
    x, y = torch.randn(3, 4), torch.randn(3)
    for index in (-1, -2, 2):
        torch.testing.assert_close(compiled(x, y, index), torch.select_scatter(x, y, 1, index))


@pytest.mark.slow
def test_gradients_through_a_window_computed_from_sizes():
    compiled, _ = _compiled(lambda x: F.max_pool2d(x, x.shape[2] // 2))
    for size in (6, 8):
        x = torch.randn(2, 3, size, size, requires_grad=True)
        expected = torch.autograd.grad(F.max_pool2d(x, size // 2).square().sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), x), expected)


def test_a_dimension_marked_dynamic_is_not_fixed_silently():
    x = torch.randn(2, 3, 6, 6)
    torch._dynamo.mark_dynamic(x, 2)
    compiled = torch.compile(lambda x: F.avg_pool2d(x, x.shape[2:]), backend=torchair.get_npu_backend())
    with pytest.raises(torch.fx.experimental.symbolic_shapes.ConstraintViolationError, match="marked"):
        compiled(x)


def test_a_number_from_data_stays_refused():
    compiled, _ = _compiled(lambda x, w, n: F.conv1d(x, w, stride=n.item()))
    with torch._dynamo.config.patch(capture_scalar_outputs=True), pytest.raises(Exception, match="stride"):
        compiled(torch.randn(1, 2, 6), torch.randn(3, 2, 2), torch.tensor(2))


def test_shifts_and_diagonals_are_no_reason_to_compile_anew():
    compiled, counter = _compiled(lambda x, n: (x.roll(n, 0), x.roll((n, 1), (1, 0)), x.roll(n), x.tril(n), x.triu(n)))
    x = torch.randn(5, 6)
    for n in (2, -3, 7, -2):
        for got, want in zip(compiled(x, n), (x.roll(n, 0), x.roll((n, 1), (1, 0)), x.roll(n), x.tril(n), x.triu(n))):
            torch.testing.assert_close(got, want)
    assert counter.frame_count == 1
