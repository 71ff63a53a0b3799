"""Activation functions. 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ge_runtime.cpu import torch_compat
from ge_runtime.cpu.kernels.numerics import rounded, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows

# One ATen function each, which widens by itself.
rows(
    {
        "Mish": F.mish,
        "LogSigmoid": F.logsigmoid,
        "Softsign": F.softsign,
        "Selu": torch.selu,
        "HardSwish": F.hardswish,
        "Heaviside": torch.heaviside,
        "Relu6": lambda x: torch.clamp(x, 0, 6),
        "Gelu": lambda x: F.gelu(x, approximate="tanh"),
        "GeluV2": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
        "Elu": lambda x, *, alpha=1.0, scale=1.0, input_scale=1.0: torch.ops.aten.elu(x, alpha, scale, input_scale),
        "CeluV2": lambda x, *, alpha=1.0: torch.celu(x, alpha),
        "SoftplusV2": lambda x, *, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold),
        "LeakyRelu": lambda x, *, negative_slope=0.0: F.leaky_relu(x, negative_slope),
        "HardShrink": lambda input_x, *, lambd=0.5: F.hardshrink(input_x, lambd),
        "SoftShrink": lambda input_x, *, lambd=0.5: F.softshrink(input_x, lambd),
        "Softshrink": lambda x, *, lambd=0.5: F.softshrink(x, lambd),  # the newer name of SoftShrink
        "Threshold": lambda x, *, threshold=0.0: (x > threshold).to(x.dtype),  # 1 above, else 0
    }
)

# Formulas, rounded once.
_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "FastGelu": lambda x: x * torch.sigmoid(1.702 * x),
    # x * (sign(x) * (a piece of a parabola) + 1/2), by its header
    "FastGeluV2": lambda x: (
        x * (torch.sign(x) * (0.5 - 0.1444 * ((0.7071 * x).abs().clamp(max=1.769) - 1.769).square()) + 0.5)
    ),
    "Swish": lambda x, *, scale=1.0: F.silu(x) if scale == 1.0 else x * torch.sigmoid(scale * x),
    "Celu": lambda x, *, alpha1=1.0, alpha2=1.0, alpha3=1.0: torch.where(
        x > 0, x * alpha3, torch.expm1(x / alpha2) * alpha1
    ),
    "Softplus": lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype)),
    # integers are computed in float32 and truncated
    "HardSigmoid": lambda input_x, *, alpha=0.16666666, beta=0.5: torch.clamp(
        (input_x if input_x.is_floating_point() else input_x.float()) * alpha + beta, 0, 1
    ),
}
rows({ops: rounded(formula) for ops, formula in _FORMULAS.items()})


@plan("GeluV2")
def _gelu_v2_plan(ctx: PlanContext) -> Call:
    return Call(torch_compat.gelu, (ctx.tensor("x"),), {"approximate": ctx.attr("approximate", "none")})


@plan("Swish")
def _swish_plan(ctx: PlanContext) -> Call | None:
    return Call(torch_compat.silu, (ctx.tensor("x"),)) if ctx.attr("scale", 1.0) == 1.0 else None


@kernel("PRelu", source="channel is dim 1; a weight of x's rank broadcasts")
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x for x > 0, else weight * x, with one weight or one a channel."""
    if weight.dim() != x.dim() or x.dim() == 1:
        weight = weight.reshape([1, -1] + [1] * (x.dim() - 2) if weight.numel() > 1 and x.dim() > 1 else [-1])
    return torch.where(x > 0, x, (wide(x) * wide(weight)).to(x.dtype))


@kernel("ThresholdV2")
def threshold_v2(x: Tensor, threshold: Tensor, value: Tensor | None = None) -> Tensor:
    """x where x > threshold, else value (0 if not fed)."""
    other = torch.zeros((), dtype=x.dtype) if value is None else value.reshape(()).to(x.dtype)
    return torch.where(x > threshold.reshape(()), x, other)
