"""Activation functions. 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ge_runtime.cpu.kernels.elementwise import wide
from ge_runtime.cpu.registry import Call, PlanContext, kernel, plan, rows

rows({"Mish": F.mish, "LogSigmoid": F.logsigmoid, "Softsign": F.softsign, "Selu": torch.selu})


@kernel("Relu6")
def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return torch.clamp(x, 0, 6)


@kernel("Gelu", source="0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x³)))")
def gelu(x: Tensor) -> Tensor:
    """Gelu in its tanh form."""
    return F.gelu(x, approximate="tanh")


@kernel("GeluV2")
def gelu_v2(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gelu, exact ("none") or in its tanh form ("tanh")."""
    return F.gelu(x, approximate=approximate)


@plan("GeluV2")
def _gelu_v2_plan(ctx: PlanContext) -> Call:
    return Call(torch._C._nn.gelu, (ctx.tensor("x"),), {"approximate": ctx.attr("approximate", "none")})


@kernel("FastGelu", "FastGeluV2", source="x / (1 + exp(-1.702x))")
def fast_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)."""
    v = wide(x)
    return (v * torch.sigmoid(1.702 * v)).to(x.dtype)


@kernel("Swish")
def swish(x: Tensor, *, scale: float = 1.0) -> Tensor:
    """x * sigmoid(scale * x)."""
    if scale == 1.0:
        return F.silu(x)
    v = wide(x)
    return (v * torch.sigmoid(scale * v)).to(x.dtype)


@plan("Swish")
def _swish_plan(ctx: PlanContext) -> Call | None:
    return Call(torch._C._nn.silu, (ctx.tensor("x"),)) if ctx.attr("scale", 1.0) == 1.0 else None


@kernel("Elu")
def elu(x: Tensor, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """scale * x for x > 0, else scale * alpha * (exp(input_scale * x) - 1)."""
    return torch.ops.aten.elu(x, alpha, scale, input_scale)


@kernel("Celu", source="max(0, a3·x) + min(0, a1·(exp(x/a2) - 1))")
def celu(x: Tensor, *, alpha1: float = 1.0, alpha2: float = 1.0, alpha3: float = 1.0) -> Tensor:
    """alpha3 * x for x > 0, else alpha1 * (exp(x / alpha2) - 1)."""
    v = wide(x)
    return torch.where(v > 0, v * alpha3, torch.expm1(v / alpha2) * alpha1).to(x.dtype)


@kernel("CeluV2")
def celu_v2(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x for x > 0, else alpha * (exp(x / alpha) - 1)."""
    return torch.celu(x, alpha)


rows({"HardSwish": F.hardswish})


@kernel("HardSigmoid", source="int32 is computed in float and truncated")
def hard_sigmoid(input_x: Tensor, *, alpha: float = 0.16666666, beta: float = 0.5) -> Tensor:
    """min(max(alpha * x + beta, 0), 1)."""
    v = wide(input_x) if input_x.is_floating_point() else input_x.float()
    return torch.clamp(v * alpha + beta, 0, 1).to(input_x.dtype)


@kernel("Softplus")
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow."""
    v = wide(x)
    return torch.logaddexp(v, torch.zeros((), dtype=v.dtype)).to(x.dtype)


@kernel("SoftplusV2")
def softplus_v2(x: Tensor, *, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x where beta * x > threshold."""
    return F.softplus(x, beta, threshold)


@kernel("LeakyRelu")
def leaky_relu(x: Tensor, *, negative_slope: float = 0.0) -> Tensor:
    """x for x > 0, else negative_slope * x."""
    return F.leaky_relu(x, negative_slope)


@kernel("PRelu", source="channel is dim 1; a weight of x's rank broadcasts")
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x for x > 0, else weight * x, with one weight or one a channel."""
    if weight.dim() != x.dim() or x.dim() == 1:
        weight = (
            weight.reshape([1, -1] + [1] * (x.dim() - 2)) if weight.numel() > 1 and x.dim() > 1 else weight.reshape(-1)
        )
    return torch.where(x > 0, x, (wide(x) * wide(weight)).to(x.dtype))


@kernel("ThresholdV2")
def threshold_v2(x: Tensor, threshold: Tensor, value: Tensor | None = None) -> Tensor:
    """x where x > threshold, else value (0 if not fed)."""
    other = torch.zeros((), dtype=x.dtype) if value is None else value.reshape(()).to(x.dtype)
    return torch.where(x > threshold.reshape(()), x, other)


@kernel("Threshold", source="1 where x > threshold else 0")
def threshold(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """1 where x > threshold, else 0."""
    return (x > threshold).to(x.dtype)


@kernel("HardShrink")
def hard_shrink(input_x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """x outside [-lambd, lambd], else 0."""
    return F.hardshrink(input_x, lambd)


@kernel("SoftShrink")
def soft_shrink(input_x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd."""
    return F.softshrink(input_x, lambd)


@kernel("Softshrink")
def softshrink(x: Tensor, *, lambd: float = 0.5) -> Tensor:
    """SoftShrink under its newer name."""
    return F.softshrink(x, lambd)


@kernel("Heaviside", source="0 below zero, 1 above, the second operand at zero")
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """Step function."""
    return torch.heaviside(input, values)
