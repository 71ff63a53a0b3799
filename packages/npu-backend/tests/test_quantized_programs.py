"""Programs with fake quantisation, forward and backward, and quantised ones as tools leave them: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tair_testing.compiling import compiled

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators
ops = torch.ops.quantized_decomposed
SCALES = torch.linspace(0.01, 0.1, 8)
SHIFTS = torch.arange(-4, 4)


def leaf(x):
    return x.clone().requires_grad_()


def x():
    return leaf(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)) * 5)


FAKED = {  # function and arguments; those that need gradients get them
    "tensor": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -128, 127), lambda: [x()]),
    "tensor by tensors": (
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, -128, 127),
        lambda: [x(), torch.tensor(0.05), torch.tensor(3, dtype=torch.int32)],
    ),
    "channels": (
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127),
        lambda: [x(), SCALES, SHIFTS.int()],
    ),
    "a learned scale": (
        lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -128, 127, 0.5),
        lambda: [x(), leaf(torch.tensor([0.05])), leaf(torch.tensor([2.4]))],
    ),
    "learned channels": (
        lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(x, s, z, 1, -128, 127, 0.5),
        lambda: [x(), leaf(SCALES), leaf(SHIFTS / 3)],
    ),
    "channels, shifts of floats": (
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, 0, 255),
        lambda: [x(), SCALES, SHIFTS.float() / 2],
    ),
}


@pytest.mark.parametrize("case", FAKED)
def test_fake_quantisation_and_its_gradients(case):
    """Of fixed sizes: dynamo knows none of these operators with symbolic ones."""
    fn, make = FAKED[case]
    found = []
    for call in (fn, compiled(fn, dynamic=False)):
        args = make()
        out = call(*args)
        (out * torch.arange(32.0).reshape(4, 8)).sum().backward()
        found.append([out, *(a.grad for a in args if a.requires_grad)])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-4 if case.startswith("learned") else 0)


def observed(x, on, low, high, scale, shift):
    return torch.fused_moving_avg_obs_fake_quant(x, on, on, low, high, scale, shift, 0.01, 0, 255, 0, False, False)


def test_an_observer_writes_its_ranges():
    found = []
    for call in (observed, compiled(observed)):
        state = [torch.tensor([v]) for v in (torch.inf, -torch.inf, 1.0)] + [torch.tensor([0], dtype=torch.int32)]
        for factor in (1, 3):
            given = leaf(x().detach() * factor)
            out = call(given, torch.ones(1, dtype=torch.long), *state)
            out.square().sum().backward()
            found.append([out.detach(), given.grad, *(t.clone() for t in state)])
    for got, want in zip(found[2:], found[:2], strict=True):
        torch.testing.assert_close(got, want)


class Trained(nn.Module):
    """A layer as quantisation-aware training has it: weights by channel, activations by tensor."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 6)
        self.register_buffer("scale", torch.tensor(0.04))
        self.register_buffer("shift", torch.tensor(2, dtype=torch.int32))

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, self.scale, self.shift, -128, 127)
        steps = self.inner.weight.detach().abs().amax(1) / 127
        w = torch.fake_quantize_per_channel_affine(
            self.inner.weight, steps, torch.zeros(6, dtype=torch.int32), 0, -127, 127
        )
        return F.linear(x, w, self.inner.bias).relu()


def test_a_step_of_quantisation_aware_training():
    torch.manual_seed(0)
    model, found = Trained(), []
    for call in (model, compiled(model)):
        model.zero_grad()
        call(x().detach()).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0])


def quantised_layer(x, weight, bias):
    """As ``convert_pt2e`` leaves a linear layer: both operands between quantise and dequantise."""
    x = ops.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
    x = ops.dequantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
    w = ops.dequantize_per_channel(weight, SCALES[:6], SHIFTS[:6] * 0, 0, -127, 127, torch.int8)
    y = F.relu(F.linear(x, w, bias))
    y = ops.quantize_per_tensor(y, 0.5, -128, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(y, 0.5, -128, -128, 127, torch.int8)


def dynamic_layer(x, weight, bias):
    """The same with parameters that are chosen in the program."""
    scale, shift = ops.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    x = ops.quantize_per_tensor.tensor(x, scale, shift, -128, 127, torch.int8)
    x = ops.dequantize_per_tensor.tensor(x, scale, shift, -128, 127, torch.int8)
    w = ops.dequantize_per_channel(weight, SCALES[:6], SHIFTS[:6] * 0, 0, -127, 127, torch.int8)
    return F.linear(x, w, bias)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [quantised_layer, dynamic_layer])
def test_a_quantised_layer(fn, dynamic):
    torch.manual_seed(0)
    weight = torch.randint(-127, 127, (6, 8), dtype=torch.int8)
    call = compiled(fn, dynamic=dynamic)
    for rows in (4, 7):
        args = (torch.randn(rows, 8) * 3, weight, torch.randn(6))
        torch.testing.assert_close(call(*args), fn(*args))


def test_tensors_of_quantised_types_are_refused():
    def fn(x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1

    with pytest.raises(Exception, match=r"(?s)GE2001.*quantize_per_tensor.*refused: .*convert_pt2e"):
        compiled(fn)(x().detach())
