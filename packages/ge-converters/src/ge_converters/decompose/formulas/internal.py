"""Operators that torch's own Python code calls: fast paths of its layers, fused optimizer steps, loss scaling.

Users never write them; ``nn.TransformerEncoder`` in eval mode, ``Adam(fused=True)`` or a ``GradScaler`` does. Each is
what its kernel for the CPU computes, in other ATen operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from ge_converters.base.operators import aten

# -- attention ---------------------------------------------------------------------------------------------------------

_OF_QUERIES, _OF_KEYS = 0, 1  # kinds of masks: (queries, keys), (batch, keys); another one has a value for each score


def masked_softmax(self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
    """Softmax over elements whose mask is not set; NaN where all are masked."""
    hidden = mask.to(torch.bool)
    if mask_type == _OF_KEYS and hidden.dim() == 2 and self.dim() == 4:
        hidden = hidden.view(hidden.size(0), 1, 1, hidden.size(1))
    shown = torch.where(hidden, torch.full((), -torch.inf, dtype=self.dtype), self)
    return torch.softmax(shown, self.dim() - 1 if dim is None else dim)


def masked_softmax_backward(grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """The gradient of a softmax, zero where it was masked."""
    axis, hidden = output.dim() - 1 if dim is None else dim, mask.to(torch.bool)
    shown = torch.where(hidden, torch.zeros_like(grad_output), grad_output)
    gradient = aten._softmax_backward_data(shown, output, axis, output.dtype)
    return torch.where(hidden, torch.zeros_like(gradient), gradient)


def transform_bias_rescale_qkv(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """A projection (batch, length, 3 * width) as queries, keys and values (batch, heads, length, width / heads)."""
    batch, length, triple = qkv.shape
    width = triple // 3
    split = (qkv + qkv_bias).view(batch, length, 3, num_heads, width // num_heads).permute(2, 0, 3, 1, 4)
    query, key, value = split.unbind(0)
    return query * (width // num_heads) ** -0.5, key, value


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention, or attention to one sequence of keys and values, with its projections; and the weights."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    queries, keys, values = (
        F.linear(x, weight, bias).view(x.size(0), x.size(1), num_head, embed_dim // num_head).transpose(1, 2)
        for x, weight, bias in parts
    )
    scores = (queries * (embed_dim // num_head) ** -0.5) @ keys.mT
    weights = torch.softmax(scores, -1) if mask is None else masked_softmax(scores, mask, -1, mask_type)
    mixed = (weights @ values).transpose(1, 2).reshape(query.size(0), query.size(1), embed_dim)
    result = F.linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """A layer of ``nn.TransformerEncoder``: attention, two linear layers, two additions, two normalisations."""

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    x = first_norm(src) if norm_first else src
    x = (
        src
        + native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]
    )
    x = x if norm_first else first_norm(x)
    inner = F.linear(second_norm(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    x = x + F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)
    return x if norm_first else second_norm(x)


# -- weights -----------------------------------------------------------------------------------------------------------


def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of direction and length of a weight, whose norm runs over all dimensions but one."""
    axis = dim % saved_v.dim()
    others = [d for d in range(saved_v.dim()) if d != axis]
    shape = [saved_v.size(d) if d == axis else 1 for d in range(saved_v.dim())]
    wide = saved_norms.dtype
    v, grad, norms = saved_v.to(wide), grad_w.to(wide), saved_norms.view(shape)
    along = (grad * v).sum(others, keepdim=True)
    grad_v = saved_g.to(wide).view(shape) / norms * (grad - v * (along / (norms * norms)))
    return grad_v.to(saved_v.dtype), (along / norms).view(saved_g.shape).to(saved_g.dtype)


def weight_int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """x @ Wᵀ with the rows of W in int8, each with a factor."""
    inner = torch.float32
    product = aten.mm(self.to(inner), mat2.to(inner).t())
    return (product * scales.to(inner)).to(self.dtype)


def linear_combination(input: Tensor, coefficients: Tensor) -> Tensor:
    """Sums of the slices of ``input``, one for each row of coefficients."""
    flat = coefficients.to(input.dtype) @ input.reshape(input.size(0), -1)
    return flat.view(coefficients.size(0), *input.shape[1:])


def cholesky_solve(self: Tensor, A: Tensor, upper: bool) -> Tensor:
    """The solution of a system whose matrix is given by its triangular factor."""
    lower = A.mH if upper else A
    half = aten.linalg_solve_triangular(lower, self, upper=False)
    return aten.linalg_solve_triangular(lower.mH, half, upper=True)


# -- optimizers --------------------------------------------------------------------------------------------------------

Lists = list[list[Tensor]]


def _gradient(grad: Tensor, grad_scale: Tensor | None) -> Tensor:
    return grad if grad_scale is None else grad / grad_scale.to(grad.dtype)


def _kept(skip: Tensor | None, before: Tensor, after: Tensor) -> Tensor:
    """``before`` if a gradient was not finite, which makes the step void."""
    return after if skip is None else torch.where(skip, before, after)


def _steps(step: Callable[..., tuple[Tensor, ...]], lists: Sequence[Sequence[Tensor]], found_inf: Tensor | None) -> Any:
    """A step for each parameter; the results, list by list."""
    skip = None if found_inf is None else found_inf.reshape(()) == 1
    made = [step(*row) for row in zip(*lists, strict=True)]
    return [[_kept(skip, b, a) for b, a in zip(before, after)] for before, after in zip(lists, zip(*made))]


def _adam(decoupled: bool) -> Callable[..., Any]:
    def fused(
        self: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        def step(x: Tensor, g: Tensor, m: Tensor, v: Tensor, count: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
            scaled = _gradient(g, grad_scale)
            g = -scaled if maximize else scaled
            if weight_decay:
                x, g = (x * (1 - lr * weight_decay), g) if decoupled else (x, g + x * weight_decay)
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            largest = torch.maximum(before[0], v) if before else v
            rest = torch.sqrt(largest) / torch.sqrt(1 - beta2**count) + eps
            return (x - lr / (1 - beta1**count) * m / rest, scaled, m, v, count, *([largest] if before else []))

        lists = [self, grads, exp_avgs, exp_avg_sqs, state_steps, *([max_exp_avg_sqs] if amsgrad else [])]
        x, g, m, v, _, *largest = _steps(step, lists, found_inf)
        return [x, g, m, v, largest[0] if amsgrad else []]

    return fused


def sgd(
    self: list[Tensor],
    grads: list[Tensor],
    momentum_buffer_list: list[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    """A step of SGD for each parameter."""

    def step(x: Tensor, g: Tensor, *buffer: Tensor) -> tuple[Tensor, ...]:
        scaled = _gradient(g, grad_scale)
        g = -scaled if maximize else scaled
        g = g + x * weight_decay if weight_decay else g
        if buffer:
            moved = g if is_first_step else buffer[0] * momentum + g * (1 - dampening)
            g, buffer = (g + moved * momentum if nesterov else moved), (moved,)
        return (x - g * lr, scaled, *buffer)

    with_buffers = bool(momentum) and bool(momentum_buffer_list)
    updated = _steps(step, [self, grads, *([momentum_buffer_list] if with_buffers else [])], found_inf)
    return updated if with_buffers else [*updated, []]


def adagrad(
    self: list[Tensor],
    grads: list[Tensor],
    state_sums: list[Tensor],
    state_steps: list[Tensor],
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    """A step of Adagrad for each parameter."""

    def step(x: Tensor, g: Tensor, total: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        scaled = _gradient(g, grad_scale)
        g = -scaled if maximize else scaled
        g = g + x * weight_decay if weight_decay else g
        total = total + g * g
        return x - lr / (1 + (count - 1) * lr_decay) * g / (torch.sqrt(total) + eps), scaled, total, count

    updated: Lists = _steps(step, [self, grads, state_sums, state_steps], found_inf)
    return updated


def adagrad_of_tensor_lr(*args: Any, **kwargs: Any) -> Lists:
    """Likewise; the schema of this overload has no steps among the results."""
    return adagrad(*args, **kwargs)[:3]


def check_and_unscale(self: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients times a factor, and 1 if one of them was not finite."""
    overflow = found_inf
    for grad in self:
        overflow = torch.where(torch.isfinite(grad).all(), overflow, torch.ones_like(overflow))
    return [(g * inv_scale).to(g.dtype) for g in self], overflow


def update_scale(
    self: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[Tensor, Tensor]:
    """The scale of a loss smaller after an overflow, larger after so many steps without one."""
    void = found_inf.reshape(()) != 0
    count = growth_tracker + 1
    grown = self * scale_growth_factor
    due = count == growth_interval
    after = torch.where(due & torch.isfinite(grown), grown, self)
    scale = torch.where(void, self * scale_backoff_factor, after)
    return scale, torch.where(void | due, torch.zeros_like(count), count)


# -- other names of other operators ------------------------------------------------------------------------------------


def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """``aten.convolution`` with switches of kernels after its arguments."""
    return aten.convolution(input, weight, bias, *rest[:6])


def add_relu(self: Tensor, other: Any, *more: Any, alpha: Any = 1) -> Tensor:
    """relu(self + alpha * other)."""
    return torch.relu(torch.add(self, other, alpha=more[0] if more else alpha))


def grid_sampler_backward(
    grad_output: Tensor, input: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool
) -> Any:
    """Both gradients."""
    return aten.grid_sampler_2d_backward(grad_output, input, grid, interpolation, padding, align_corners, [True, True])


def zeros_of_feature(self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Zeros of one tangent: the batch of ``self`` with the sizes of ``other``."""
    return other.new_zeros([*self.shape[:self_num_batch_dims], *other.shape])


FORMULAS: Final[dict[str, Callable[..., Any]]] = {
    "_masked_softmax.default": masked_softmax,
    "_masked_softmax_backward.default": masked_softmax_backward,
    "_transform_bias_rescale_qkv.default": transform_bias_rescale_qkv,
    "_native_multi_head_attention.default": native_multi_head_attention,
    "_transformer_encoder_layer_fwd.default": transformer_encoder_layer,
    "_weight_norm_interface_backward.default": weight_norm_backward,
    "_weight_int8pack_mm.default": weight_int8pack_mm,
    "_compute_linear_combination.default": linear_combination,
    "_cholesky_solve_helper.default": cholesky_solve,
    "_fused_adam.default": _adam(False),
    "_fused_adam.tensor_lr": _adam(False),
    "_fused_adamw.default": _adam(True),
    "_fused_adamw.tensor_lr": _adam(True),
    "_fused_sgd.default": sgd,
    "_fused_sgd.tensor_lr": sgd,
    "_fused_adagrad.default": adagrad,
    "_fused_adagrad.tensor_lr": adagrad_of_tensor_lr,
    "_amp_foreach_non_finite_check_and_unscale.default": check_and_unscale,
    "_amp_update_scale.default": update_scale,
    "_convolution.default": convolution,
    "_convolution.deprecated": convolution,
    "_add_relu.Tensor": add_relu,
    "_add_relu.Scalar": add_relu,
    "_aminmax.default": lambda self: (aten.amin(self), aten.amax(self)),
    "_aminmax.dim": lambda self, dim, keepdim=False: (aten.amin(self, [dim], keepdim), aten.amax(self, [dim], keepdim)),
    "_stack.default": lambda tensors, dim=0: aten.stack(tensors, dim),
    "_logcumsumexp.default": lambda self, dim: aten.logcumsumexp(self, dim),
    "_is_all_true.default": lambda self: aten.all(self),
    "_is_any_true.default": lambda self: aten.any(self),
    "_index_put_impl.default": lambda self, indices, values, accumulate=False, unsafe=False: aten.index_put(
        self, indices, values, accumulate
    ),
    "_lazy_clone.default": lambda self: aten.clone(self),
    "_new_zeros_with_same_feature_meta.default": zeros_of_feature,
    "_conj_copy.default": lambda self: aten.conj_physical(self),
    "_neg_view_copy.default": lambda self: aten.neg(self),
    "_reshape_copy.default": lambda self, size: aten.clone(aten.reshape(self, size)),
    "_reshape_alias_copy.default": lambda self, size, stride: aten.clone(aten.reshape(self, size)),
    "_grid_sampler_2d_cpu_fallback.default": lambda *args: aten.grid_sampler_2d(*args),
    "_grid_sampler_2d_cpu_fallback_backward.default": grid_sampler_backward,
}
