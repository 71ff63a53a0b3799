"""Modules after ``.double()``: as exact as eager where GE's norms and pools take no float64, or refused with a cast."""

import copy

import pytest
import torch
from torch import nn

import torchair
from ge_converters.base.errors import LoweringError

IMAGE, VOLUME = (2, 4, 7, 6), (2, 4, 5, 6, 3)
MODULES = {
    "layer norm": (nn.LayerNorm((7, 6)), IMAGE),
    "layer norm without weights": (nn.LayerNorm(6, elementwise_affine=False), IMAGE),
    "group norm": (nn.GroupNorm(2, 4), IMAGE),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), IMAGE),
    "root mean square": (nn.RMSNorm(6), IMAGE),
    "batch norm": (nn.BatchNorm2d(4, momentum=0.3), IMAGE),
    "batch norm of the batch alone": (nn.BatchNorm3d(4, track_running_stats=False), VOLUME),
    "batch norm in use": (nn.BatchNorm1d(4).eval(), (5, 4, 3)),
    "maximum": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "maximum of a volume": (nn.MaxPool3d(2, 1, dilation=(2, 1, 1)), VOLUME),
    "mean": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "adaptive mean": (nn.AdaptiveAvgPool2d((3, 4)), IMAGE),
    "adaptive mean of a volume": (nn.AdaptiveAvgPool3d((2, 4, 1)), VOLUME),
    "adaptive maximum": (nn.AdaptiveMaxPool2d((3, 4)), IMAGE),
}


def outcome(module, x, backend, dynamic):
    torch._dynamo.reset()
    x = x.clone().requires_grad_()
    call = module if backend is None else torch.compile(module, backend=backend, dynamic=dynamic, fullgraph=True)
    y = call(x)
    (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters()), *module.buffers()]


@pytest.mark.night(rows=9)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_as_exact_as_eager(name, dynamic):
    module, sizes = copy.deepcopy(MODULES[name])
    torch.manual_seed(0)
    x = torch.randn(sizes, dtype=torch.float64) + 1e6 * ("norm" in name)  # float32 would lose every digit
    want = outcome(copy.deepcopy(module).double(), x, None, dynamic)
    got = outcome(copy.deepcopy(module).double(), x, torchair.get_npu_backend(), dynamic)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_the_largest_of_values_that_are_not_numbers(value):
    x = torch.full((1, 1, 4, 4), float("-inf"), dtype=torch.float64)
    x[0, 0, 1, 1] = value
    x[0, 0, 3, 3] = 2.0
    pool = nn.MaxPool2d(2, return_indices=True)
    got = torch.compile(pool, backend=torchair.get_npu_backend(), fullgraph=True)(x)
    torch.testing.assert_close(got, pool(x), equal_nan=True)


@pytest.mark.parametrize("module", [nn.Conv2d(4, 2, 3), nn.ConvTranspose2d(4, 2, 3)])
def test_what_has_no_other_form_says_what_to_cast(module):
    module, x = module.double(), torch.randn(IMAGE, dtype=torch.float64)
    with pytest.raises(Exception, match=r"DT_DOUBLE.*DT_FLOAT.*cast the input") as caught:
        torch.compile(module, backend=torchair.get_npu_backend())(x)
    assert isinstance(caught.value.inner_exception, LoweringError)
