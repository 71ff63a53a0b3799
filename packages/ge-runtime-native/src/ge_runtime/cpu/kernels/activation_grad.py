"""Gradients of activations and elementwise functions. Port order follows each operator, not one rule for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import rounded, sum_to, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import traced

_ATEN = torch.ops.aten
_HEADER = "operator header: nonlinear_fuc_ops, elewise_calculation_ops"
_OPS_NN = "ops-nn: activation, documentation and kernel"
_SELU_SCALE: Final = 1.0507009873554805
_SELU_SCALE_ALPHA: Final = 1.7580993408473768


def _gated(gradients: Tensor, passes: Tensor) -> Tensor:
    """The gradient where a condition holds, else zero: a selection, so that an infinite gradient stays out."""
    return torch.where(passes, gradients, torch.zeros((), dtype=gradients.dtype))


def _asin_grad(y: Tensor, dy: Tensor) -> Tensor:
    return dy * torch.rsqrt(1 - y * y)


def _swish_grad(g: Tensor, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
    """Of ``x * sigmoid(scale * x)``; ``y`` is the forward output, which x determines."""
    s = torch.sigmoid(scale * x)
    return g * (s + scale * x * s * (1 - s))


def _softplus_v2_grad(g: Tensor, x: Tensor, *, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return torch.where(x * beta > threshold, g, g * torch.sigmoid(x * beta))


def _elu_grad_v2(
    g: Tensor, x: Tensor, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, is_result: bool = False
) -> Tensor:
    """From the input of elu, or from its output with ``is_result``; what is not above zero, NaN too, is negative."""
    if is_result:
        negative = g * input_scale * (x + scale * alpha)
    else:
        negative = g * (scale * alpha * input_scale) * torch.exp(x * input_scale)
    return torch.where(x > 0, g * scale, negative)


def _mish_grad(g: Tensor, x: Tensor, tanhx: Tensor | None = None) -> Tensor:
    """``g * (t + x * sigmoid(x) * (1 - t * t))`` with t = tanh(softplus(x)), which may be fed."""
    t = torch.tanh(torch.nn.functional.softplus(x)) if tanhx is None else tanhx
    return g * (t + x * torch.sigmoid(x) * (1 - t * t))


# Formulas of the operands in port order, rounded once.
_FORMULAS: Final[dict[str, Callable[..., Tensor]]] = {
    # y (forward output), dy
    "SqrtGrad": lambda y, dy: dy * 0.5 / y,
    "RsqrtGrad": lambda y, dy: dy * -0.5 * y * y * y,
    "ReciprocalGrad InvGrad": lambda y, dy: -dy * y * y,
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
    "SwishGrad": _swish_grad,
    "MishGrad": _mish_grad,
    "SoftplusV2Grad": _softplus_v2_grad,
    "EluGradV2": _elu_grad_v2,
    # gradient, forward output
    "EluGrad": lambda g, y: torch.where(y < 0, g * (y + 1), g),
    "SeluGrad": lambda g, y: torch.where(y < 0, g * (y + _SELU_SCALE_ALPHA), g * _SELU_SCALE),
}
rows({op: rounded(formula) for op, formula in _FORMULAS.items()}, source=f"{_HEADER}; {_OPS_NN}")

# The gradient where the activation passes it on, and what ATen has.
rows(
    {
        "ReluGradV2": lambda gradients, mask: _gated(gradients, mask != 0),  # one byte an element
        "ThresholdGradV2D": lambda gradients, features, *, threshold: _gated(gradients, features > threshold),
        # the forward input comes first; its NaN lets the gradient through, here and in the next two
        "HardtanhGrad": lambda result, grad, *, min_val=-1.0, max_val=1.0: _gated(
            grad, ~((result <= min_val) | (result >= max_val))
        ),
        "HardShrinkGrad": lambda gradients, features, *, lambd=0.5: _gated(
            gradients, ~((features >= -lambd) & (features <= lambd))
        ),
        "SoftShrinkGrad": lambda input_grad, input_x, *, lambd=0.5: _gated(
            input_grad, ~((input_x >= -lambd) & (input_x <= lambd))
        ),
        "GeluGrad": lambda dy, x, y: _ATEN.gelu_backward.default(dy, x, approximate="tanh"),
        "GeluGradV2": lambda dy, x, *, approximate="none": _ATEN.gelu_backward.default(dy, x, approximate=approximate),
    },
    source=_OPS_NN,
)
# The documentation puts both borders into the middle piece; here they belong to the outer ones as in PyTorch.
rows(
    {"HardSwishGrad": lambda grad, x: _ATEN.hardswish_backward.default(grad, x)},
    source="torch.nn.functional.hardswish: its border values, where the documentation differs",
)


@kernel("ReluGrad", source=_HEADER)
def relu_grad(gradients: Tensor, features: Tensor) -> Tensor:
    """The gradient where features > 0; a NaN feature stops it, unlike in PyTorch.

    A selection element by element costs ten times what ATen's own function does, which lets NaN pass: a sum that is not
    NaN rules it out.
    """
    same = gradients.dtype is features.dtype and gradients.shape == features.shape and not traced(features)
    if same and features.is_floating_point() and not math.isnan(features.sum()):
        return _ATEN.threshold_backward.default(gradients, features, 0)  # type: ignore[no-any-return]
    return _gated(gradients, features > 0)


# The forward output comes first. Operator: ATen's function, the derivative that it has for complex numbers.
_OF_OUTPUT: Final[dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]]] = {
    "SigmoidGrad": (_ATEN.sigmoid_backward.default, lambda y: y * (1 - y)),
    "TanhGrad": (_ATEN.tanh_backward.default, lambda y: 1 - y * y),
}


def _of_output(backward: Callable[..., Tensor], derivative: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(y: Tensor, dy: Tensor, *, complex_conj: bool = False) -> Tensor:
        if not y.is_complex():
            return backward(dy, y)
        return dy * (derivative(y).conj() if complex_conj else derivative(y))

    return run


rows({op: _of_output(*row) for op, row in _OF_OUTPUT.items()}, source=_HEADER)


@plan(*_OF_OUTPUT)
def _plan_output_grad(ctx: PlanContext) -> Call | None:
    dtype = ctx.dtype("y")
    if dtype is None or not dtype.is_float:
        return None
    ctx.attr("complex_conj")  # says nothing about real numbers
    return Call(_OF_OUTPUT[ctx.node.op][0], (ctx.tensor("dy"), ctx.tensor("y")))


@kernel("HardSigmoidGrad", source="ops-nn: activation/hard_sigmoid_grad, documentation")
def hard_sigmoid_grad(grads: Tensor, input_x: Tensor, *, alpha: float = 0.16666666, beta: float = 0.5) -> Tensor:
    """``grads * alpha`` where ``0 < alpha * x + beta < 1``; borders give 0."""
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:  # the rounded default must not move the borders off -3 and 3
        return _ATEN.hardsigmoid_backward.default(grads, input_x)  # type: ignore[no-any-return]
    line = wide(input_x) * alpha + beta
    return _gated(wide(grads) * alpha, (line > 0) & (line < 1)).to(grads.dtype)


@kernel("LeakyReluGrad", source="ops-nn: activation/leaky_relu_grad, documentation")
def leaky_relu_grad(gradients: Tensor, features: Tensor, *, negative_slope: float = 0.0) -> Tensor:
    """The gradient where features > 0, else times the slope."""
    if gradients.dtype is features.dtype and features.is_floating_point():
        return _ATEN.leaky_relu_backward.default(gradients, features, negative_slope, False)  # type: ignore[no-any-return]
    return torch.where(features > 0, gradients, (wide(gradients) * negative_slope).to(gradients.dtype))


@kernel("PReluGrad", source="ops-nn: activation/p_relu_grad, kernel")
def prelu_grad(grads: Tensor, features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(dx, da): da is summed down to the shape of the weights, whose entries belong to axis 1."""
    g, x = wide(grads), wide(features)
    shape = [1] * x.dim()
    if weights.numel() > 1 and x.dim() > 1:
        shape[1] = weights.numel()
    dx = torch.where(x > 0, g, g * wide(weights).reshape(shape))
    da = sum_to(_gated(g * x, ~(x > 0)), shape)
    return dx.to(features.dtype), da.reshape(weights.shape).to(weights.dtype)


def _extremum_grad(takes: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The gradient goes to x1 where it is the extremum, or equal, else to x2."""

    def run(grads: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        first = takes(x1, x2)
        return sum_to(_gated(grads, first), x1.shape), sum_to(_gated(grads, ~first), x2.shape)

    return run


rows(
    {"MaximumGrad": _extremum_grad(torch.ge), "MinimumGrad": _extremum_grad(torch.le)},
    ignores=("grad_x", "grad_y"),
    source=_HEADER,
)
