"""Layer, group, instance and root-mean-square normalisation with their gradients; p-norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ge_runtime.cpu import torch_compat
from ge_runtime.cpu.kernels.numerics import HALVES, axis_list, rounded, saturate, sum_to, wide
from ge_runtime.cpu.limits import ensure_elements, ensure_sizes
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import listed, torch_dtype
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_HEADER = "operator header: nn_norm_ops"


def _trailing(x: Tensor, count: int) -> list[int]:
    return list(x.shape[x.dim() - count :])


def layer_norm(
    x: Tensor, shape: list[int], gamma: Tensor | None, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd) over the trailing ``shape``; statistics float32 (float64 for float64), ones for those axes."""
    if x.dtype in HALVES:  # float32 weights select ATen's mixed form, whose statistics stay float32
        gamma = torch.ones(shape) if gamma is None else gamma.float()
        beta = None if beta is None else beta.float()
    elif gamma is not None and gamma.dtype != x.dtype:
        gamma, beta = gamma.to(x.dtype), None if beta is None else beta.to(x.dtype)
    return torch.native_layer_norm(x, shape, gamma, beta, epsilon)  # type: ignore[no-any-return]


rows(
    {  # over as many trailing axes as ``normalized_shape`` has entries; third output is 1/sqrt(var + eps)
        "LayerNormV4": lambda x, normalized_shape, gamma=None, beta=None, *, epsilon=1e-5: layer_norm(
            x, _trailing(x, len(listed(normalized_shape))), gamma, beta, epsilon
        ),
    },
    host=("normalized_shape",),
    source="ops-nn: norm/layer_norm_v4, documentation",
)


def _layer_norm_as(
    x: Tensor, axes: int, gamma: Tensor | None, beta: Tensor | None, epsilon: float, statistics: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = layer_norm(x, _trailing(x, axes), gamma, beta, epsilon)
    return y, mean.to(statistics), rstd.to(statistics)


def _layer_norm_alone(
    x: Tensor, shape: list[int], gamma: Tensor | None, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, None, None]:
    """LayerNorm whose statistics nobody reads."""
    return torch.layer_norm(x, shape, gamma, beta, epsilon), None, None


@plan("LayerNormV4")
def _plan_layer_norm(ctx: PlanContext) -> Call | None:
    """One type throughout and a known shape: one ATen call; else the statistics follow the graph.

    The header lists every float type for mean and rstd, newer toolkits infer float32: what the edge says is taken.
    """
    shape, known, edge = ctx.host("normalized_shape"), ctx.shape("x"), ctx.node.outputs[1].dtype
    if shape is None:
        return None
    axes = len(shape) if isinstance(shape, list) else 1
    operands, epsilon = [ctx.tensor(p) for p in ("x", "gamma", "beta")], ctx.attr("epsilon", 1e-5)
    kinds = {ctx.dtype(p) for p in ("x", "gamma", "beta") if ctx.fed(p)}
    trailing = [] if known is None else list(known[len(known) - axes :])
    if len(kinds) == 1 and trailing and all(isinstance(n, int) for n in trailing):
        if kinds == {edge}:
            return Call(torch.native_layer_norm, (operands[0], trailing, *operands[1:], epsilon))
        if not (ctx.is_read(1) or ctx.is_read(2)):
            return Call(_layer_norm_alone, (operands[0], trailing, *operands[1:], epsilon))
    return Call(_layer_norm_as, (operands[0], axes, *operands[1:], epsilon, torch_dtype(edge)))


def _layer_norm_from(
    x: Tensor, gamma: Tensor, beta: Tensor, begin_norm_axis: int, begin_params_axis: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm from ``begin_norm_axis`` on; gamma and beta cover the axes from ``begin_params_axis`` on."""
    begin = begin_norm_axis % max(x.dim(), 1)
    shape = list(x.shape[begin:])
    if begin == begin_params_axis % max(x.dim(), 1):
        return layer_norm(x, shape, gamma.reshape(shape), beta.reshape(shape), epsilon)
    y, mean, rstd = layer_norm(x, shape, None, None, epsilon)
    params = x.shape[begin_params_axis % x.dim() :]
    y = (wide(x) - mean) * rstd * wide(gamma).reshape(params) + wide(beta).reshape(params)
    return y.to(x.dtype), mean, rstd


@kernel("LayerNormV3", source=_HEADER)
def layer_norm_v3(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    begin_norm_axis: int = 0,
    begin_params_axis: int = 0,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd); statistics in the type of ``x``."""
    y, mean, rstd = _layer_norm_from(x, gamma, beta, begin_norm_axis, begin_params_axis, epsilon)
    return y, mean.to(x.dtype), rstd.to(x.dtype)


@kernel("LayerNorm", source=_HEADER)
def layer_norm_v1(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    begin_norm_axis: int = 0,
    begin_params_axis: int = 0,
    epsilon: float = 1e-7,
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNormV3 with the biased variance as third output; statistics in the type of ``x``."""
    y, mean, _ = _layer_norm_from(x, gamma, beta, begin_norm_axis, begin_params_axis, epsilon)
    axes = list(range(begin_norm_axis % max(x.dim(), 1), x.dim()))
    return y, mean.to(x.dtype), torch.var(wide(x), axes, correction=0, keepdim=True).to(x.dtype)


def _of_variance(variance: Tensor) -> Tensor:
    """1 / deviation, for the gradients that take a variance; the epsilon keeps a constant row from dividing by zero."""
    return torch.rsqrt(wide(variance) + 1e-12)


def _ones(x: Tensor, gamma: Tensor) -> list[int]:
    """The shape of the statistics of ``x``: ones for gamma's axes."""
    return [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]


def _layer_norm_grad(
    dy: Tensor, x: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, params: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of LayerNorm for x, gamma and beta, in their arithmetic types; the normalised axes are gamma's."""
    shape, ones = list(gamma.shape), _ones(x, gamma)
    ensure_sizes("LayerNormGrad", "gamma", gamma, x.shape[x.dim() - gamma.dim() :])
    ensure_sizes("LayerNormGrad", "dy", dy, x.shape)
    dy, x, gamma = wide(dy), wide(x), wide(gamma)
    mean, rstd = mean.to(x.dtype).reshape(ones), rstd.to(x.dtype).reshape(ones)
    return _ATEN.native_layer_norm_backward.default(  # type: ignore[no-any-return]
        dy.contiguous(), x.contiguous(), shape, mean, rstd, gamma, gamma, [True, params, params]
    )


@kernel("LayerNormGradV3", source="ops-nn: norm/layer_norm_grad_v3, documentation")
def layer_norm_grad_v3(
    dy: Tensor, x: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of LayerNorm for x, gamma and beta."""
    dx, dgamma, dbeta = _layer_norm_grad(dy, x, rstd, mean, gamma)
    return dx.to(x.dtype), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


@kernel("LayerNormXBackpropV3", source=_HEADER)
def layer_norm_x_backprop_v3(dy: Tensor, x: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient for x, and the normalised x that LayerNormBetaGammaBackpropV2 wants."""
    ones = _ones(x, gamma)
    normalised = (x.float() - mean.float().reshape(ones)) * rstd.float().reshape(ones)
    return _layer_norm_grad(dy, x, rstd, mean, gamma, False)[0].to(x.dtype), normalised


@kernel("LayerNormBetaGammaBackpropV2", source=_HEADER)
def layer_norm_beta_gamma_backprop_v2(
    dy: Tensor, res_for_gamma: Tensor, *, shape_gamma: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Sums of ``dy * res_for_gamma`` and ``dy`` down to ``shape_gamma``."""
    dy32, shape = wide(dy), tuple(shape_gamma)
    return sum_to(dy32 * res_for_gamma, shape).to(dy.dtype), sum_to(dy32, shape).clone().to(dy.dtype)


# The same from the variance.
rows(
    {
        "LayerNormGrad": lambda dy, x, variance, mean, gamma: layer_norm_grad_v3(
            dy, x, _of_variance(variance), mean, gamma
        ),
        "LayerNormXBackprop": lambda dy, x, variance, mean, gamma: _layer_norm_grad(
            dy, x, _of_variance(variance), mean, gamma, False
        )[0].to(x.dtype),
        "LayerNormXBackpropV2": lambda dy, x, variance, mean, gamma: layer_norm_x_backprop_v3(
            dy, x, _of_variance(variance), mean, gamma
        ),
        "LayerNormBetaGammaBackprop": lambda dy, x, variance, mean, *, shape_gamma: layer_norm_beta_gamma_backprop_v2(
            dy, (wide(x) - wide(mean)) * _of_variance(variance), shape_gamma=shape_gamma
        ),
    },
    source=_HEADER,
)


def _group_norm(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    n, c = x.shape[:2]
    if x.dtype in HALVES:
        gamma = torch.ones(c) if gamma is None else gamma.float()
        beta = torch.zeros(c) if beta is None else beta.float()
    inner = math.prod(x.shape[2:])
    return torch.native_group_norm(x.contiguous(), gamma, beta, n, c, inner, groups, eps)  # type: ignore[no-any-return]


@kernel("GroupNormV2", source="ops-nn: norm/group_norm_v2, documentation")
def group_norm_v2(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    num_groups: int,
    data_format: str = "NHWC",
    eps: float = 1e-5,
    is_training: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd) per sample and group of channels; channels are axis 1 whatever ``data_format`` says."""
    y, mean, rstd = _group_norm(x, gamma, beta, num_groups, eps)
    return y, mean.to(x.dtype), rstd.to(x.dtype)


@kernel("GroupNorm", source="ops-nn: norm/group_norm, reference; third output is the variance")
def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    num_groups: int,
    data_format: str = "NHWC",
    eps: float = 1e-4,
    is_training: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """GroupNormV2 with the biased variance as third output."""
    y, mean, _ = _group_norm(x, gamma, beta, num_groups, eps)
    variance = torch.var(wide(x).reshape(x.shape[0], num_groups, -1), -1, correction=0)
    return y, mean.to(x.dtype), variance.to(x.dtype)


@kernel("GroupNormSilu", source="ops-nn: norm/group_norm_silu, documentation")
def group_norm_silu(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    num_groups: int,
    eps: float = 1e-4,
    activate_silu: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """GroupNorm and silu with one rounding; third output is rstd, whatever its port is called."""
    y, mean, rstd = _group_norm(
        wide(x), gamma if gamma is None else wide(gamma), beta if beta is None else wide(beta), num_groups, eps
    )
    y = torch.nn.functional.silu(y, inplace=True) if activate_silu else y
    return y.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


rows(
    {
        "GroupNormRelu": lambda x, gamma, beta, *, num_groups, eps=1e-5: _group_norm(x, gamma, beta, num_groups, eps)[
            0
        ].relu_(),
    },
    source=_HEADER,
)


@kernel("GroupNormGrad", source="ops-nn: norm/group_norm_grad, documentation")
def group_norm_grad(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    dx_is_require: bool = True,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of group normalisation for x, gamma and beta; an output that is not required is zero."""
    op = "GroupNormGrad"
    if x.dim() < 2 or num_groups <= 0 or x.shape[1] % num_groups:
        raise refused(op, f"{num_groups} groups of {list(x.shape)}")
    n, c, inner = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    ensure_sizes(op, "dy", dy, x.shape)
    ensure_elements(op, "gamma", gamma, c)
    dx, dgamma, dbeta = _ATEN.native_group_norm_backward.default(
        wide(dy).contiguous(),
        wide(x).contiguous(),
        wide(mean).reshape(n, num_groups),
        wide(rstd).reshape(n, num_groups),
        wide(gamma),
        n,
        c,
        inner,
        num_groups,
        [dx_is_require, dgamma_is_require, dbeta_is_require],
    )
    return (
        torch.zeros_like(x) if dx is None else dx.to(dy.dtype),
        torch.zeros_like(gamma, dtype=dy.dtype) if dgamma is None else dgamma.to(dy.dtype),
        torch.zeros_like(gamma, dtype=dy.dtype) if dbeta is None else dbeta.to(dy.dtype),
    )


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(y, rstd): float32 arithmetic and one rounding; rstd float32 with ones for gamma's axes."""
    if torch_compat.fused_rms_norm is None:
        return _rms_norm_of_parts(x, gamma, epsilon)
    y, rstd = torch_compat.fused_rms_norm(x, list(gamma.shape), gamma, epsilon)
    return y if y.dtype == x.dtype else y.to(x.dtype), rstd


def _rms_norm_of_parts(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    x32 = wide(x)
    axes = list(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(x32.square().mean(axes, keepdim=True) + epsilon)
    return (x32 * rstd * wide(gamma)).to(x.dtype), rstd


def rms_norm_of_rows(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(y, rstd (.., 1)) over the last axis, neither of them rounded."""
    x32 = wide(x)
    rstd = torch.rsqrt(x32.square().mean(-1, keepdim=True) + epsilon)
    return x32 * rstd * wide(gamma), rstd


rows(
    {"RmsNorm": lambda x, gamma, *, epsilon=1e-6: rms_norm(x, gamma, epsilon)},
    source="ops-nn: norm/rms_norm, documentation and kernel",
)


@plan("RmsNorm")
def _plan_rms_norm(ctx: PlanContext) -> Call | None:
    """One type and a known gamma: one ATen call, which widens 16-bit floats and rounds once."""
    x, gamma, shape = ctx.dtype("x"), ctx.dtype("gamma"), ctx.shape("gamma")
    fused = torch_compat.fused_rms_norm
    if (
        fused is None
        or x is None
        or not x.is_float
        or gamma != x
        or shape is None
        or not all(isinstance(n, int) for n in shape)
    ):
        return None
    args = (ctx.tensor("x"), list(shape), ctx.tensor("gamma"), ctx.attr("epsilon", 1e-6))
    return Call(fused, args)


@kernel("RmsNormGrad", source="ops-nn: norm/rms_norm_grad, documentation")
def rms_norm_grad(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients for x and gamma; the second is float32 always."""
    axes = list(range(x.dim() - gamma.dim(), x.dim()))
    lead = list(range(x.dim() - gamma.dim()))
    r = rstd.float().reshape(_ones(x, gamma))
    dy32, xhat = dy.float(), x.float() * r
    g = dy32 * gamma.float()
    dx = r * (g - xhat * (g * xhat).mean(axes, keepdim=True))
    dgamma = dy32 * xhat
    return dx.to(x.dtype), dgamma.sum(lead) if lead else dgamma


@kernel("AddRmsNorm", "InplaceAddRmsNorm", source="ops-nn: norm/add_rms_norm, documentation and kernel")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, *, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, x) with x = x1 + x2, rounded to its own type first, as the older parts do."""
    x = x1 + x2
    return *rms_norm(x, gamma, epsilon), x


@kernel("AddRmsNormCast", source="ops-nn: norm/add_rms_norm_cast, documentation")
def add_rms_norm_cast(
    x1: Tensor, x2: Tensor, gamma: Tensor, *, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """AddRmsNorm that hands out y in float32 too: the rounded value widened, as the older parts do."""
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon=epsilon)
    return y.float() if y.dtype != torch.float32 else y.clone(), y, rstd, x


@kernel("AddRmsNormQuant", source="operator header: nn_norm_ops; ops-nn: norm/add_rms_norm_quant")
def add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    scales2: Tensor | None = None,
    zero_points1: Tensor | None = None,
    zero_points2: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """AddRmsNorm and two int8 results: ``round(y / scale + zero_point)``, with ``div_mode`` false times the scale.

    Without scales2 the second is zero.
    """
    y, _, x = add_rms_norm(x1.float(), x2.float(), gamma.float(), epsilon=epsilon)

    def branch(scale: Tensor | None, zero: Tensor | None) -> Tensor:
        if scale is None:
            return torch.zeros(y.shape, dtype=torch.int8)
        q = y / scale.float() if div_mode else y * scale.float()
        return saturate(q if zero is None else q + zero.float(), torch.int8)

    return branch(scales1, zero_points1), branch(scales2, zero_points2), x.to(x1.dtype)


@kernel("AddRmsNormDynamicQuant", source="ops-nn: norm/add_rms_norm_dynamic_quant, documentation")
def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] = (),
    dst_type: int = 2,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """AddRmsNorm, then symmetric quantisation of each row, twice; a result that is not valid is zero."""
    dtype = torch_dtype(dst_type)
    top = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    x = x1 + x2
    r = rms_norm(x.float(), gamma.float(), epsilon)[0]
    r = r if beta is None else r + beta.float()

    def branch(smooth: Tensor | None, valid: bool) -> tuple[Tensor, Tensor]:
        if not valid:
            return torch.zeros(x.shape, dtype=dtype), torch.zeros(x.shape[:-1])
        q = r if smooth is None else r * smooth.float()
        scale = q.abs().amax(-1, keepdim=True) / top
        return saturate(q / scale, dtype), scale.squeeze(-1)

    mask = list(output_mask) or [True, smooth_scale1 is not None and smooth_scale2 is not None]
    y1, scale1 = branch(smooth_scale1, mask[0])
    y2, scale2 = branch(smooth_scale2, mask[1])
    return y1, y2, x, scale1, scale2


@kernel("AddLayerNorm", "InplaceAddLayerNorm", source="operator header: nn_norm_ops; ops-nn: norm/add_layer_norm")
def add_layer_norm(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, mean, rstd, x) of LayerNorm over gamma's axes of x = x1 + x2 + bias."""
    x = wide(x1) + wide(x2) if bias is None else wide(x1) + wide(x2) + wide(bias)
    y, mean, rstd = layer_norm(x, list(gamma.shape), wide(gamma), wide(beta), epsilon)
    return y.to(x1.dtype), mean, rstd, x.to(x1.dtype)


@kernel("AddLayerNormGrad", source="operator header: nn_norm_ops; ops-nn: norm/add_layer_norm_grad")
def add_layer_norm_grad(
    dy: Tensor, x1: Tensor, x2: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, dsum: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of AddLayerNorm; ``dsum`` is the gradient that reaches the sum on another way. float32 parameters."""
    x = wide(x1) + wide(x2)
    dx, dgamma, dbeta = _layer_norm_grad(wide(dy), x, rstd, mean, gamma)
    return (dx if dsum is None else dx + wide(dsum)).to(dy.dtype), dgamma.float(), dbeta.float()


@kernel("DeepNorm", source="operator header: nn_norm_ops; ops-nn: norm/deep_norm")
def deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, *, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, rstd, y) of LayerNorm of ``alpha * x + gx``."""
    y, mean, rstd = layer_norm(wide(x) * alpha + wide(gx), list(gamma.shape), wide(gamma), wide(beta), epsilon)
    return mean, rstd, y.to(x.dtype)


# TorchAir writes infinite orders as the nearest int32 to them; newer toolkits take real infinities.
_INFINITE = {2147483647.0: math.inf, 2147483648.0: math.inf, -2147483648.0: -math.inf}


@kernel("LpNormV2", "LpNorm", source="ops-nn: norm/lp_norm_v2, documentation and reference")
def lp_norm(
    x: Tensor, *, p: float = 2.0, axes: Sequence[int] = (), keepdim: bool = False, epsilon: float = 1e-12
) -> Tensor:
    """``max((sum |x|**p)**(1/p), epsilon)`` over ``axes`` (empty: all); 0 counts non-zeros."""
    order = _INFINITE.get(float(p), float(p))
    y = torch.linalg.vector_norm(wide(x), order, axis_list(axes, x.dim()) if x.dim() else None, keepdim)
    return (y.clamp_min(epsilon) if epsilon > 0 else y).to(x.dtype)


rows(
    {  # ``x / max(sqrt(sum x**2), eps)`` over ``axis``
        "L2Normalize": rounded(
            lambda x, *, axis=(), eps=1e-4: (
                x / torch.linalg.vector_norm(x, 2, axis_list(axis, x.dim()), True).clamp_min(eps)
            )
        ),
    },
    source=_HEADER,
)


@kernel("InstanceNorm", source="operator header: nn_norm_ops; ops-nn: norm/instance_norm")
def instance_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, *, data_format: str = "NDHWC", epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, variance) over the spatial axes of each sample and channel; statistics keep the axes as ones."""
    channel = x.dim() - 1 if data_format.endswith("C") else 1
    axes = [i for i in range(1, x.dim()) if i != channel]
    variance, mean = torch.var_mean(wide(x), axes, correction=0, keepdim=True)
    view = [1] * x.dim()
    view[channel] = -1
    y = (wide(x) - mean) * torch.rsqrt(variance + epsilon) * wide(gamma).reshape(view) + wide(beta).reshape(view)
    return y.to(x.dtype), mean.to(x.dtype), variance.to(x.dtype)


@kernel("InstanceNormV2", source=_HEADER)
def instance_norm_v2(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
    *,
    is_training: bool = True,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """InstanceNorm of channels-first data; out of training with the statistics fed."""
    if not is_training and (mean is None or variance is None):
        raise refused("InstanceNormV2", "is_training is false and mean or variance is not fed", "feed both")
    axes = list(range(2, x.dim()))
    batch_var, batch_mean = torch.var_mean(wide(x), axes, correction=0, keepdim=True)
    use_mean, use_var = (batch_mean, batch_var) if is_training else (mean.float(), variance.float())  # type: ignore[union-attr]
    y = (wide(x) - use_mean) * torch.rsqrt(use_var + epsilon)
    view = (1, -1, *[1] * (x.dim() - 2))
    y = y if gamma is None else y * gamma.float().reshape(view)
    y = y if beta is None else y + beta.float().reshape(view)
    if is_training and mean is not None and variance is not None:
        n = math.prod(x.shape[2:])
        batch_mean = batch_mean * momentum + mean.float() * (1 - momentum)
        batch_var = batch_var * (n / max(n - 1, 1)) * momentum + variance.float() * (1 - momentum)
    return y.to(x.dtype), batch_mean, batch_var
