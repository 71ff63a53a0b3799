"""Optimiser steps: weights and moments are updated in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel

_HEADER = "operator header: nn_training_ops"


def _n(x: Tensor) -> Tensor:
    return wide(x).reshape(())


def _store(target: Tensor, value: Tensor) -> Tensor:
    return target.copy_(value)


def _adam(
    var: Tensor, m: Tensor, v: Tensor, beta1_power: Tensor, beta2_power: Tensor, lr: Tensor, beta1: Tensor,
    beta2: Tensor, epsilon: Tensor, grad: Tensor, *, use_nesterov: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    g, b1, b2 = wide(grad), _n(beta1), _n(beta2)
    rate = _n(lr) * torch.sqrt(1 - _n(beta2_power)) / (1 - _n(beta1_power))
    m32 = wide(m) + (g - wide(m)) * (1 - b1)
    v32 = wide(v) + (g * g - wide(v)) * (1 - b2)
    direction = m32 * b1 + g * (1 - b1) if use_nesterov else m32
    value = wide(var) - rate * direction / (_n(epsilon) + v32.sqrt())
    return _store(var, value), _store(m, m32), _store(v, v32)


kernel("ApplyAdamD", updates=("var", "m", "v"), ignores=("use_locking",), source=_HEADER)(_adam)


@kernel("ApplyAdam", updates=("var", "m", "v"), ignores=("use_locking",), source=_HEADER)
def apply_adam(var: Tensor, m: Tensor, v: Tensor, *rest: Tensor, use_nesterov: bool = False) -> Tensor:
    """Adam step with bias-corrected rate ``lr * sqrt(1 - beta2_power) / (1 - beta1_power)``."""
    return _adam(var, m, v, *rest, use_nesterov=use_nesterov)[0]


@kernel("ApplyAdamW", updates=("var", "m", "v"), source="ops-nn: optim/apply_adam_w, documentation")
def apply_adam_w(
    var: Tensor, m: Tensor, v: Tensor, beta1_power: Tensor, beta2_power: Tensor, lr: Tensor, weight_decay: Tensor,
    beta1: Tensor, beta2: Tensor, epsilon: Tensor, grad: Tensor, max_grad_norm: Tensor | None = None, *,
    amsgrad: bool = False, maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
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
    return _store(var, value), _store(m, m32), _store(v, v32)


def _momentum(
    var: Tensor, accum: Tensor, lr: Tensor, grad: Tensor, momentum: Tensor, *, use_nesterov: bool = False
) -> tuple[Tensor, Tensor]:
    g, rate = wide(grad), _n(lr)
    a = wide(accum) * _n(momentum) + g
    value = wide(var) - (rate * (g + a * _n(momentum)) if use_nesterov else rate * a)
    return _store(var, value), _store(accum, a)


kernel("ApplyMomentumD", updates=("var", "accum"), ignores=("use_locking",), source=_HEADER)(_momentum)


@kernel("ApplyMomentum", updates=("var", "accum"), ignores=("use_locking",), source=_HEADER)
def apply_momentum(
    var: Tensor, accum: Tensor, lr: Tensor, grad: Tensor, momentum: Tensor, *, use_nesterov: bool = False
) -> Tensor:
    """``accum = accum * momentum + grad``; ``var -= lr * accum``."""
    return _momentum(var, accum, lr, grad, momentum, use_nesterov=use_nesterov)[0]


@kernel("ApplyGradientDescent", updates=("var",), ignores=("use_locking",), source=_HEADER)
def apply_gradient_descent(var: Tensor, alpha: Tensor, delta: Tensor) -> Tensor:
    """``var -= alpha * delta``."""
    return _store(var, wide(var) - _n(alpha) * wide(delta))


@kernel("SGD", updates=("parameters", "accum", "stat"), source=_HEADER)
def sgd(
    parameters: Tensor, gradient: Tensor, learning_rate: Tensor, accum: Tensor, momentum: Tensor, stat: Tensor, *,
    dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
) -> Tensor:  # fmt: skip
    """SGD step; where ``stat`` is 1 (first step) the accumulator starts as the gradient, and ``stat`` becomes 0."""
    g = wide(gradient) + weight_decay * wide(parameters)
    first = wide(stat) > 0
    a = torch.where(first, g, wide(accum) * _n(momentum) + (1 - dampening) * g)
    step = g + _n(momentum) * a if nesterov else a
    accum.copy_(a)
    stat.zero_()
    return _store(parameters, wide(parameters) - _n(learning_rate) * step)
