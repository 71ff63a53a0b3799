"""Gradients of activations and elementwise functions. Port order follows each operator, not one rule for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import sum_to, wide
from ge_runtime.cpu.registry import Call, PlanContext, kernel, plan

_ATEN = torch.ops.aten
_HEADER = "operator header: nonlinear_fuc_ops, elewise_calculation_ops"


def _rounded(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A formula on widened operands, its result in the type of the first."""

    def run(*operands: Tensor) -> Tensor:
        return formula(*(wide(x) for x in operands)).to(operands[0].dtype)

    return run


def _asin_grad(y: Tensor, dy: Tensor) -> Tensor:
    return dy * torch.rsqrt(1 - y * y)


def _zero(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=x.dtype)


def _gated(gradients: Tensor, open_: Tensor) -> Tensor:
    """The gradient where a condition holds, else zero: a selection, so that an infinite gradient stays out."""
    return torch.where(open_, gradients, _zero(gradients))


# Operators that are one formula of their operands in port order, attributes aside.
_FORMULAS: Final[dict[str, Callable[..., Tensor]]] = {
    # y (forward output), dy
    "SqrtGrad": lambda y, dy: dy * 0.5 / y,
    "RsqrtGrad": lambda y, dy: dy * -0.5 * y * y * y,
    "ReciprocalGrad": lambda y, dy: -dy * y * y,
    "InvGrad": lambda y, dy: -dy * y * y,
    # forward input, gradient
    "AbsGrad": lambda x, dy: dy * torch.sign(x),
    "AsinGrad": _asin_grad,
    "AcosGrad": lambda x, dy: -_asin_grad(x, dy),
    "AtanGrad": lambda x, dy: dy / (1 + x * x),
    "AsinhGrad": lambda y, dy: dy / torch.cosh(y),  # the forward output
    "AcoshGrad": lambda y, dy: dy / torch.sinh(y),  # the forward output
    # gradient, forward input
    "LogSigmoidGrad": lambda g, x: g * torch.sigmoid(-x),
    "FastGeluGrad": lambda dy, x: dy * torch.sigmoid(1.702 * x) * (1 + 1.702 * x * torch.sigmoid(-1.702 * x)),
    "SiluGrad": lambda dy, x: dy * torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
    "SoftplusGrad": lambda g, x: g * torch.sigmoid(x),
    "SoftsignGrad": lambda g, x: g / (1 + x.abs()).square(),
    "Relu6Grad": lambda g, x: _gated(g, (x > 0) & (x < 6)),
    # gradient, forward output
    "EluGrad": lambda g, y: torch.where(y < 0, g * (y + 1), g),
    "SeluGrad": lambda g, y: torch.where(y < 0, g * (y + _SELU_SCALE_ALPHA), g * _SELU_SCALE),
}  # fmt: skip
_SELU_SCALE: Final = 1.0507009873554805
_SELU_SCALE_ALPHA: Final = 1.7580993408473768

for _op, _formula in _FORMULAS.items():
    kernel(_op, source=_HEADER)(_rounded(_formula))


@kernel("ReluGrad", source=_HEADER)
def relu_grad(gradients: Tensor, features: Tensor) -> Tensor:
    """The gradient where features > 0; a NaN feature stops it, unlike in PyTorch.

    A selection element by element costs ten times what ATen's own function does, which lets NaN pass: a sum that is not
    NaN rules it out.
    """
    same = gradients.dtype is features.dtype and gradients.shape == features.shape
    if same and features.is_floating_point() and not math.isnan(features.sum()):
        return _ATEN.threshold_backward.default(gradients, features, 0)  # type: ignore[no-any-return]
    return _gated(gradients, features > 0)


@kernel("SigmoidGrad", source=_HEADER)
def sigmoid_grad(y: Tensor, dy: Tensor, *, complex_conj: bool = False) -> Tensor:
    """``dy * y * (1 - y)``; the forward output comes first."""
    if y.is_complex():
        factor = y * (1 - y)
        return dy * (factor.conj() if complex_conj else factor)
    return _ATEN.sigmoid_backward.default(dy, y)  # type: ignore[no-any-return]


@kernel("TanhGrad", source=_HEADER)
def tanh_grad(y: Tensor, dy: Tensor, *, complex_conj: bool = False) -> Tensor:
    """``dy * (1 - y * y)``; the forward output comes first."""
    if y.is_complex():
        factor = 1 - y * y
        return dy * (factor.conj() if complex_conj else factor)
    return _ATEN.tanh_backward.default(dy, y)  # type: ignore[no-any-return]


@plan("SigmoidGrad", "TanhGrad")
def _plan_output_grad(ctx: PlanContext) -> Call | None:
    dtype = ctx.dtype("y")
    if dtype is None or not dtype.is_float:
        return None
    ctx.attr("complex_conj")  # says nothing about real numbers
    fn = _ATEN.sigmoid_backward.default if ctx.node.op == "SigmoidGrad" else _ATEN.tanh_backward.default
    return Call(fn, (ctx.tensor("dy"), ctx.tensor("y")))


@kernel("ReluGradV2", source=_HEADER)
def relu_grad_v2(gradients: Tensor, mask: Tensor) -> Tensor:
    """The gradient where the mask is not zero; one byte per element."""
    return _gated(gradients, mask != 0)


@kernel("GeluGrad", source="ops-nn: activation/gelu_grad, kernel")
def gelu_grad(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``dy`` times the derivative of the tanh form; ``y`` has no effect."""
    return _ATEN.gelu_backward.default(dy, x, approximate="tanh")  # type: ignore[no-any-return]


@kernel("GeluGradV2", source="ops-nn: activation/gelu_grad_v2, documentation")
def gelu_grad_v2(dy: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """``dy`` times the derivative of gelu."""
    return _ATEN.gelu_backward.default(dy, x, approximate=approximate)  # type: ignore[no-any-return]


@kernel("EluGradV2", source="ops-nn: activation/elu_grad_v2, documentation and kernel")
def elu_grad_v2(
    grads: Tensor, activations: Tensor, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0,
    is_result: bool = False,
) -> Tensor:  # fmt: skip
    """Gradient of elu from its input, or from its output with ``is_result``."""
    g, x = wide(grads), wide(activations)
    if is_result:
        negative = g * input_scale * (x + scale * alpha)
    else:
        negative = g * (scale * alpha * input_scale) * torch.exp(x * input_scale)
    return torch.where(x <= 0, negative, g * scale).to(grads.dtype)


@kernel("SwishGrad", source=_HEADER)
def swish_grad(grad: Tensor, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
    """Gradient of ``x * sigmoid(scale * x)``; ``y`` is the forward output, which x determines."""
    g, v = wide(grad), wide(x)
    s = torch.sigmoid(scale * v)
    return (g * (s + scale * v * s * (1 - s))).to(grad.dtype)


@kernel("HardSwishGrad", source="torch.nn.functional.hardswish: its border values, where the documentation differs")
def hard_swish_grad(grad: Tensor, x: Tensor) -> Tensor:
    """0 below -3, ``x / 3 + 0.5`` up to 3, 1 above.

    The documentation puts both borders into the middle piece; here they belong to the outer ones as in PyTorch.
    """
    return _ATEN.hardswish_backward.default(grad, x)  # type: ignore[no-any-return]


@kernel("HardSigmoidGrad", source="ops-nn: activation/hard_sigmoid_grad, documentation")
def hard_sigmoid_grad(grads: Tensor, input_x: Tensor, *, alpha: float = 0.16666666, beta: float = 0.5) -> Tensor:
    """``grads * alpha`` where ``0 < alpha * x + beta < 1``; borders give 0."""
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:  # the rounded default must not move the borders off -3 and 3
        return _ATEN.hardsigmoid_backward.default(grads, input_x)  # type: ignore[no-any-return]
    line = wide(input_x) * alpha + beta
    return _gated(wide(grads) * alpha, (line > 0) & (line < 1)).to(grads.dtype)


@kernel("HardtanhGrad", source="ops-nn: activation/hardtanh_grad, kernel")
def hardtanh_grad(result: Tensor, grad: Tensor, *, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """``grad`` where ``min_val < result < max_val``; ``result`` is the forward input, NaN lets the gradient through."""
    return torch.where((result <= min_val) | (result >= max_val), _zero(grad), grad)


@kernel("LeakyReluGrad", source="ops-nn: activation/leaky_relu_grad, documentation")
def leaky_relu_grad(gradients: Tensor, features: Tensor, *, negative_slope: float = 0.0) -> Tensor:
    """The gradient where features > 0, else times the slope."""
    if gradients.dtype is features.dtype and features.is_floating_point():
        return _ATEN.leaky_relu_backward.default(gradients, features, negative_slope, False)  # type: ignore[no-any-return]
    return torch.where(features > 0, gradients, (wide(gradients) * negative_slope).to(gradients.dtype))


@kernel("SoftplusV2Grad", source="ops-nn: activation/softplus_v2_grad, documentation")
def softplus_v2_grad(
    input_gradients: Tensor, input_features: Tensor, *, beta: float = 1.0, threshold: float = 20.0
) -> Tensor:
    """``g * sigmoid(beta * x)``, or g where ``beta * x`` exceeds the threshold."""
    g, x = wide(input_gradients), wide(input_features) * beta
    return torch.where(x > threshold, g, g * torch.sigmoid(x)).to(input_gradients.dtype)


@kernel("ThresholdGradV2D", source="operator documentation: threshold_grad_v2_d")
def threshold_grad_v2_d(gradients: Tensor, features: Tensor, *, threshold: float) -> Tensor:
    """The gradient where features > threshold, else 0."""
    return _gated(gradients, features > threshold)


@kernel("MishGrad", source="operator header: nonlinear_fuc_ops")
def mish_grad(grad: Tensor, x: Tensor, tanhx: Tensor | None = None) -> Tensor:
    """``grad * (t + x * sigmoid(x) * (1 - t * t))`` with t = tanh(softplus(x)), which may be fed."""
    v = wide(x)
    t = torch.tanh(torch.nn.functional.softplus(v)) if tanhx is None else wide(tanhx)
    return (wide(grad) * (t + v * torch.sigmoid(v) * (1 - t * t))).to(grad.dtype)


@kernel("PReluGrad", source="ops-nn: activation/p_relu_grad, kernel")
def prelu_grad(grads: Tensor, features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(dx, da): da is summed down to the shape of the weights, whose entries belong to axis 1."""
    g, x = wide(grads), wide(features)
    shape = [1] * x.dim()
    if weights.numel() > 1 and x.dim() > 1:
        shape[1] = weights.numel()
    w = wide(weights).reshape(shape)
    dx = torch.where(x > 0, g, g * w)
    da = sum_to(torch.where(x > 0, torch.zeros((), dtype=g.dtype), g * x), shape)
    return dx.to(features.dtype), da.reshape(weights.shape).to(weights.dtype)


@kernel("HardShrinkGrad", source="ops-nn: activation/hard_shrink_grad, documentation")
def hard_shrink_grad(gradients: Tensor, features: Tensor, *, lambd: float = 0.5) -> Tensor:
    """0 where ``-lambd <= x <= lambd``, else the gradient."""
    return torch.where((features >= -lambd) & (features <= lambd), _zero(gradients), gradients)


@kernel("SoftShrinkGrad", source="ops-nn: activation/softshrink_grad, documentation")
def soft_shrink_grad(input_grad: Tensor, input_x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """0 where ``-lambd <= x <= lambd``, else the gradient."""
    return torch.where((input_x >= -lambd) & (input_x <= lambd), _zero(input_grad), input_grad)


def _extremum_grad(grads: Tensor, takes: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    first, second = _gated(grads, takes), _gated(grads, ~takes)
    return sum_to(first, x1.shape), sum_to(second, x2.shape)


@kernel("MaximumGrad", ignores=("grad_x", "grad_y"), source=_HEADER)
def maximum_grad(grads: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient goes to x1 where ``x1 >= x2``, else to x2."""
    return _extremum_grad(grads, x1 >= x2, x1, x2)


@kernel("MinimumGrad", ignores=("grad_x", "grad_y"), source=_HEADER)
def minimum_grad(grads: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient goes to x1 where ``x1 <= x2``, else to x2."""
    return _extremum_grad(grads, x1 <= x2, x1, x2)
