"""Optimiser steps: weights and moments are updated in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel, rows

_HEADER = "operator header: nn_training_ops"


def _n(x: Tensor) -> Tensor:
    return wide(x).reshape(())


def _adam(
    var: Tensor,
    m: Tensor,
    v: Tensor,
    beta1_power: Tensor,
    beta2_power: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    epsilon: Tensor,
    grad: Tensor,
    *,
    use_nesterov: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam step with bias-corrected rate ``lr * sqrt(1 - beta2_power) / (1 - beta1_power)``."""
    g, b1, b2 = wide(grad), _n(beta1), _n(beta2)
    rate = _n(lr) * torch.sqrt(1 - _n(beta2_power)) / (1 - _n(beta1_power))
    m32 = wide(m) + (g - wide(m)) * (1 - b1)
    v32 = wide(v) + (g * g - wide(v)) * (1 - b2)
    direction = m32 * b1 + g * (1 - b1) if use_nesterov else m32
    value = wide(var) - rate * direction / (_n(epsilon) + v32.sqrt())
    return var.copy_(value), m.copy_(m32), v.copy_(v32)


rows({"ApplyAdamD": _adam}, updates=("var", "m", "v"), ignores=("use_locking",), source=_HEADER)
rows(
    {"ApplyAdam": lambda *operands, use_nesterov=False: _adam(*operands, use_nesterov=use_nesterov)[0]},
    updates=("var", "m", "v"),
    ignores=("use_locking",),
    source=_HEADER,
)


@kernel("ApplyAdamW", updates=("var", "m", "v"), source="ops-nn: optim/apply_adam_w, documentation")
def apply_adam_w(
    var: Tensor,
    m: Tensor,
    v: Tensor,
    beta1_power: Tensor,
    beta2_power: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    epsilon: Tensor,
    grad: Tensor,
    max_grad_norm: Tensor | None = None,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW step; the powers are multiplied by their betas once more before they correct the bias."""
    g, b1, b2 = (-wide(grad) if maximize else wide(grad)), _n(beta1), _n(beta2)
    decayed = wide(var) * (1 - _n(lr) * _n(weight_decay))
    m32 = wide(m) * b1 + g * (1 - b1)
    v32 = wide(v) * b2 + g * g * (1 - b2)
    top: Any = v32
    if amsgrad and max_grad_norm is not None:
        top = torch.maximum(wide(max_grad_norm), v32)
        max_grad_norm.copy_(top)
    correction1, correction2 = 1 - _n(beta1_power) * b1, 1 - _n(beta2_power) * b2
    value = decayed - _n(lr) / correction1 * m32 / ((top / correction2).sqrt() + _n(epsilon))
    return var.copy_(value), m.copy_(m32), v.copy_(v32)


def _momentum(
    var: Tensor, accum: Tensor, lr: Tensor, grad: Tensor, momentum: Tensor, *, use_nesterov: bool = False
) -> tuple[Tensor, Tensor]:
    """``accum = accum * momentum + grad``; ``var -= lr * accum``."""
    g, rate = wide(grad), _n(lr)
    a = wide(accum) * _n(momentum) + g
    value = wide(var) - (rate * (g + a * _n(momentum)) if use_nesterov else rate * a)
    return var.copy_(value), accum.copy_(a)


rows(
    {
        "ApplyMomentumD": _momentum,
        "ApplyMomentum": lambda *operands, use_nesterov=False: _momentum(*operands, use_nesterov=use_nesterov)[0],
    },
    updates=("var", "accum"),
    ignores=("use_locking",),
    source=_HEADER,
)
rows(
    {"ApplyGradientDescent": lambda var, alpha, delta: var.copy_(wide(var) - _n(alpha) * wide(delta))},
    updates=("var",),
    ignores=("use_locking",),
    source=_HEADER,
)


@kernel("SGD", updates=("parameters", "accum", "stat"), source=_HEADER)
def sgd(
    parameters: Tensor,
    gradient: Tensor,
    learning_rate: Tensor,
    accum: Tensor,
    momentum: Tensor,
    stat: Tensor,
    *,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Tensor:
    """SGD step; where ``stat`` is 1 (first step) the accumulator starts as the gradient, and ``stat`` becomes 0."""
    g = wide(gradient) + weight_decay * wide(parameters)
    first = wide(stat) > 0
    a = torch.where(first, g, wide(accum) * _n(momentum) + (1 - dampening) * g)
    step = g + _n(momentum) * a if nesterov else a
    accum.copy_(a)
    stat.zero_()
    return parameters.copy_(wide(parameters) - _n(learning_rate) * step)
