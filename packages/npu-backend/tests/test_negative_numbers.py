"""Negative paddings that may be symbols, and dims counted from the end, where the sizes of results depend on them."""

import pytest
import torch
import torch.nn.functional as F

import torchair

PADS = [(1, -2, -1, 2), (2, 1, 1, 2)]


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend=torchair.get_npu_backend(), dynamic=True, fullgraph=True)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_paddings(mode):
    """One function sees paddings of every sign, each for two sizes; gradients, too."""

    def pad(x, pads):
        return F.pad(x, pads, mode=mode)

    run = compiled(pad)
    for pads in PADS:
        for size in (5, 7):
            torch.manual_seed(size)
            want, got = (torch.randn(2, 3, size, 6).requires_grad_() for _ in range(2))
            got.data.copy_(want.data)
            for x, call in ((want, pad), (got, run)):
                y = call(x, pads)
                (y * torch.arange(y.numel()).view(y.shape)).sum().backward()
            torch.testing.assert_close(run(got, pads), pad(want, pads))
            torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.parametrize("dim", [-1, -2, 1, None])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_unique_consecutive(dim):
    def unique(x):
        return torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=dim)

    x = torch.tensor([[1, 1, 2], [1, 1, 2], [3, 3, 2]])
    for got, want in zip(compiled(unique)(x), unique(x), strict=True):
        torch.testing.assert_close(got, want)
