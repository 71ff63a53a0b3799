"""Losses and their gradients. ``reduction`` is none, mean or sum; sums run in float32 for 16-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import reduced, refuse, wide
from ge_runtime.cpu.registry import kernel

_ATEN = torch.ops.aten
_HEADER = "operator header: nn_norm_ops, loss operators"
_REDUCTION: Final = {"none": 0, "mean": 1, "sum": 2}


def _spread(dout: Tensor, like: Tensor, reduction: str) -> Tensor:
    """The gradient that reaches each element: ``dout``, divided by the number of elements for mean."""
    g = wide(dout)
    return g / max(like.numel(), 1) if reduction == "mean" else g


def _nll(x: Tensor, target: Tensor, weight: Tensor | None, reduction: str, ignore_index: int) -> tuple[Tensor, Tensor]:
    op = _ATEN.nll_loss2d_forward if x.dim() > 2 else _ATEN.nll_loss_forward
    if x.dim() in (3, *range(5, 9)):  # ATen has the planar form only: join or add spatial axes
        x, shape = x.reshape(x.shape[0], x.shape[1], 1, -1), target.shape
        y, total = op.default(x, target.reshape(x.shape[0], 1, -1), weight, _REDUCTION[reduction], ignore_index)
        return (y.reshape(shape) if reduction == "none" else y), total
    return op.default(x, target, weight, _REDUCTION[reduction], ignore_index)  # type: ignore[no-any-return]


@kernel("NLLLoss", source="ops-nn: loss/nll_loss, documentation")
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean", ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """(loss, total_weight) of log-probabilities; total_weight sums the weights of entries that count."""
    target = target.long()
    w = None if weight is None else wide(weight)
    y, total = _nll(wide(x), target, w, reduction, ignore_index)
    return y.to(x.dtype), total.to(x.dtype)


@kernel("NLLLossGrad", source="ops-nn: loss/nll_loss_grad, documentation")
def nll_loss_grad(
    x: Tensor, y_grad: Tensor, target: Tensor, weight: Tensor, total_weight: Tensor, *, reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:  # fmt: skip
    """Zero except at the target class, where it is ``-weight * y_grad`` (over total_weight for mean)."""
    classes = 0 if x.dim() == 1 else 1
    index = target.long().unsqueeze(classes) if x.dim() > 1 else target.long().reshape(1)
    counts = index != ignore_index
    safe = torch.where(counts, index, torch.zeros_like(index))
    g = wide(y_grad)
    if reduction == "mean":
        g = g / wide(total_weight)
    g = g.reshape(index.shape) if g.numel() == index.numel() else g
    value = torch.where(counts, -wide(weight)[safe] * g, torch.zeros((), dtype=g.dtype))
    return torch.zeros_like(wide(x)).scatter_(classes, safe, value).to(x.dtype)


# name of the operator: loss of one element from widened predict and label
_PAIRS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "MseLoss": lambda p, t: (p - t).square(),
    "SoftMarginLoss": lambda p, t: torch.nn.functional.softplus(-p * t),
}
_PAIR_GRADS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "MseLossGrad": lambda p, t: 2 * (p - t),
    "SoftMarginLossGrad": lambda p, t: -t * torch.sigmoid(-p * t),
}


def _pair_loss(formula: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(predict: Tensor, label: Tensor, *, reduction: str = "mean") -> Tensor:
        return reduced(formula(wide(predict), wide(label)), reduction, predict.dtype)

    return run


def _pair_grad(formula: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(predict: Tensor, label: Tensor, dout: Tensor, *, reduction: str = "mean") -> Tensor:
        return (formula(wide(predict), wide(label)) * _spread(dout, predict, reduction)).to(predict.dtype)

    return run


for _op, _formula in _PAIRS.items():
    kernel(_op, source=_HEADER)(_pair_loss(_formula))
for _op, _formula in _PAIR_GRADS.items():
    kernel(_op, source=_HEADER)(_pair_grad(_formula))


@kernel("LpLoss", source=_HEADER)
def lp_loss(predict: Tensor, label: Tensor, *, p: int, reduction: str = "mean") -> Tensor:
    """``|predict - label|``; p is 1."""
    if p != 1:
        raise refuse("LpLoss", f"p is {p}, accepted: 1")
    return reduced((wide(predict) - wide(label)).abs(), reduction, predict.dtype)


@kernel("L1LossGrad", source=_HEADER)
def l1_loss_grad(grads: Tensor, predict: Tensor, label: Tensor, *, reduction: str = "mean") -> Tensor:
    """``sign(predict - label) * grads``; the gradient comes first."""
    g = torch.sign(wide(predict) - wide(label)) * _spread(grads, predict, reduction)
    return g.to(predict.dtype)


def _smooth(d: Tensor, sigma: float) -> Tensor:
    a = d.abs()
    return a if sigma == 0 else torch.where(a < sigma, 0.5 * a * a / sigma, a - 0.5 * sigma)


def _smooth_slope(d: Tensor, sigma: float) -> Tensor:
    return torch.sign(d) if sigma == 0 else (d / sigma).clamp(-1, 1)


@kernel("SmoothL1LossV2", source="ops-nn: loss/smooth_l1_loss_v2, documentation")
def smooth_l1_loss_v2(predict: Tensor, label: Tensor, *, sigma: float = 1.0, reduction: str = "mean") -> Tensor:
    """Quadratic below ``sigma`` (PyTorch's beta), linear from there on."""
    if sigma < 0:
        raise refuse("SmoothL1LossV2", f"sigma is {sigma}", "give a sigma of 0 or more")
    return reduced(_smooth(wide(predict) - wide(label), sigma), reduction, predict.dtype)


@kernel("SmoothL1LossGradV2", source="derivative of SmoothL1LossV2")
def smooth_l1_loss_grad_v2(
    predict: Tensor, label: Tensor, dout: Tensor, *, sigma: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Gradient of SmoothL1LossV2 for predict."""
    slope = _smooth_slope(wide(predict) - wide(label), sigma)
    return (slope * _spread(dout, predict, reduction)).to(predict.dtype)


@kernel("SmoothL1Loss", source=_HEADER)
def smooth_l1_loss(predict: Tensor, label: Tensor, *, sigma: float = 1.0) -> Tensor:
    """SmoothL1LossV2 without reduction."""
    return _smooth(wide(predict) - wide(label), sigma).to(predict.dtype)


@kernel("SmoothL1LossGrad", source=_HEADER)
def smooth_l1_loss_grad(predict: Tensor, label: Tensor, dout: Tensor, *, sigma: float = 1.0) -> Tensor:
    """Gradient of SmoothL1Loss for predict."""
    return (_smooth_slope(wide(predict) - wide(label), sigma) * wide(dout)).to(predict.dtype)


def _kl(x: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    p, t = wide(x), wide(target)
    loss = t.exp() * (t - p) if log_target else torch.xlogy(t, t) - t * p
    if reduction == "batchmean":
        return (loss.sum() / max(x.shape[0], 1)).to(x.dtype)
    return reduced(loss, reduction, x.dtype)


@kernel("KLDiv", source="operator header: loss operators")
def kl_div(x: Tensor, target: Tensor, *, reduction: str) -> Tensor:
    """``target * (log(target) - x)``; batchmean divides the sum by the first axis."""
    return _kl(x, target, reduction, False)


@kernel("KLDivV2", source="ops-nn: loss/kl_div_v2, documentation")
def kl_div_v2(x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """KLDiv with a target that may be given as its logarithm."""
    return _kl(x, target, reduction, log_target)


@kernel("KlDivLossGrad", source="operator header: loss operators")
def kl_div_loss_grad(
    grad: Tensor, input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """``-target * grad``, zero where the target is not positive; over the element count (rows for batchmean)."""
    t, g = wide(target), wide(grad)
    if reduction in ("mean", "batchmean"):
        g = g / max(input.numel() if reduction == "mean" else input.shape[0], 1)
    y = -t.exp() * g if log_target else torch.where(t > 0, -t * g, torch.zeros((), dtype=t.dtype))
    return y.to(input.dtype)


# The logarithm of a binary cross entropy never falls below this.
_LOG_FLOOR: Final = -100.0


@kernel("BinaryCrossEntropy", source="ops-nn: loss/binary_cross_entropy, documentation")
def binary_cross_entropy(x: Tensor, y: Tensor, weight: Tensor | None = None, *, reduction: str = "mean") -> Tensor:
    """``-(y * log(x) + (1 - y) * log(1 - x)) * weight`` with logarithms clamped at -100."""
    p, t = wide(x), wide(y)
    loss = -(t * p.log().clamp_min(_LOG_FLOOR) + (1 - t) * torch.log1p(-p).clamp_min(_LOG_FLOOR))
    return reduced(loss if weight is None else loss * wide(weight), reduction, x.dtype)


@kernel("BinaryCrossEntropyGrad", source="ops-nn: loss/binary_cross_entropy_grad, documentation")
def binary_cross_entropy_grad(
    x: Tensor, y: Tensor, grad_output: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """``(x - y) / max(x * (1 - x), 1e-12) * grad_output * weight``."""
    p, t = wide(x), wide(y)
    g = (p - t) / (p * (1 - p)).clamp_min(1e-12) * _spread(grad_output, x, reduction)
    return (g if weight is None else g * wide(weight)).to(x.dtype)


def _bce_logits(p: Tensor, t: Tensor, pos_weight: Tensor | None) -> Tensor:
    if pos_weight is None:
        return torch.nn.functional.softplus(-p.abs()) + p.clamp_min(0) - p * t
    factor = (wide(pos_weight) - 1) * t + 1
    return (1 - t) * p + factor * (torch.log1p(torch.exp(-p.abs())) + (-p).clamp_min(0))


@kernel("SigmoidCrossEntropyWithLogits", source=_HEADER)
def sigmoid_cross_entropy(predict: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy of ``sigmoid(predict)``, no reduction."""
    return _bce_logits(wide(predict), wide(target), None).to(predict.dtype)


@kernel("SigmoidCrossEntropyWithLogitsGrad", source=_HEADER)
def sigmoid_cross_entropy_grad(predict: Tensor, target: Tensor, dout: Tensor) -> Tensor:
    """``(sigmoid(predict) - target) * dout``."""
    return ((torch.sigmoid(wide(predict)) - wide(target)) * wide(dout)).to(predict.dtype)


@kernel("SigmoidCrossEntropyWithLogitsV2", source="ops-nn: loss/sigmoid_cross_entropy_with_logits_v2, documentation")
def sigmoid_cross_entropy_v2(
    predict: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, *,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Binary cross entropy with logits, weights and a factor for positive labels."""
    loss = _bce_logits(wide(predict), wide(target), pos_weight)
    return reduced(loss if weight is None else loss * wide(weight), reduction, predict.dtype)


@kernel("SigmoidCrossEntropyWithLogitsGradV2", source="derivative of SigmoidCrossEntropyWithLogitsV2")
def sigmoid_cross_entropy_grad_v2(
    predict: Tensor, target: Tensor, dout: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, *,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Gradient of SigmoidCrossEntropyWithLogitsV2 for predict."""
    s, t = torch.sigmoid(wide(predict)), wide(target)
    if pos_weight is None:
        g = s - t
    else:
        positive = wide(pos_weight) * t
        g = (positive + 1 - t) * s - positive
    g = g * _spread(dout, predict, reduction)
    return (g if weight is None else g * wide(weight)).to(predict.dtype)


@kernel("SoftmaxCrossEntropyWithLogits", source=_HEADER)
def softmax_cross_entropy(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(loss of each row, softmax - labels) over the class axis 1."""
    logp, t = torch.log_softmax(wide(features), 1), wide(labels)
    return -(t * logp).sum(1).to(features.dtype), (logp.exp() - t).to(features.dtype)


@kernel("SparseSoftmaxCrossEntropyWithLogits", source=_HEADER)
def sparse_softmax_cross_entropy(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """SoftmaxCrossEntropyWithLogits with class numbers as labels."""
    logp = torch.log_softmax(wide(features), 1)
    index = labels.long().unsqueeze(1)
    loss = -logp.gather(1, index).squeeze(1)
    back = logp.exp().scatter_add_(1, index, torch.full_like(loss.unsqueeze(1), -1.0))
    return loss.to(features.dtype), back.to(features.dtype)


@kernel("PoissonNllLoss", source=_HEADER)
def poisson_nll_loss(
    input_x: Tensor, target: Tensor, *, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """``exp(x) - t * x``, or ``x - t * log(x + eps)``; ``full`` adds Stirling's term where t > 1."""
    x, t = wide(input_x), wide(target)
    loss = x.exp() - t * x if log_input else x - t * torch.log(x + eps)
    if full:
        stirling = t * t.log() - t + 0.5 * torch.log(2 * math.pi * t)
        loss = loss + torch.where(t > 1, stirling, torch.zeros((), dtype=t.dtype))
    return reduced(loss, reduction, input_x.dtype)


@kernel("CosineEmbeddingLoss", source=_HEADER)
def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, *, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``1 - cos`` where the target is 1, ``max(cos - margin, 0)`` where it is -1; cosine along axis 1, float32."""
    a, b = x1.float(), x2.float()
    if a.dim() == 1 and b.dim() == 1:
        a, b = a.unsqueeze(0), b.unsqueeze(0)
    y = torch.nn.functional.cosine_embedding_loss(a, b, target.float().reshape(-1), margin, reduction=reduction)
    return y.float()


@kernel("MultilabelMarginLoss", source=_HEADER)
def multilabel_margin_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    """(loss, is_target)."""
    y, is_target = _ATEN.multilabel_margin_loss_forward.default(wide(x), target.long(), _REDUCTION[reduction])
    return y.to(x.dtype), is_target.to(torch.int32)


@kernel("CTCLossV2", source=_HEADER)
def ctc_loss_v2(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(negative log likelihood of each sequence, log_alpha); the caller reduces."""
    y, alpha = _ATEN._ctc_loss.Tensor(
        log_probs, targets.long(), input_lengths.long(), target_lengths.long(), blank, zero_infinity
    )
    return y, alpha


@kernel("CTCLossV2Grad", source=_HEADER)
def ctc_loss_v2_grad(
    grad_out: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    neg_log_likelihood: Tensor, log_alpha: Tensor, *, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Gradient of CTCLossV2 for log_probs."""
    return _ATEN._ctc_loss_backward.Tensor(  # type: ignore[no-any-return]
        grad_out, log_probs, targets.long(), input_lengths.long(), target_lengths.long(), neg_log_likelihood,
        log_alpha, blank, zero_infinity,
    )  # fmt: skip
