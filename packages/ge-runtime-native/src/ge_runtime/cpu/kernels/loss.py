"""Losses and their gradients. ``reduction`` is none, mean or sum; sums run in float32 for 16-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import rounded, wide
from ge_runtime.cpu.limits import ensure
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_HEADER = "operator header: nn_norm_ops, loss operators; ops-nn: loss, documentation"
_REDUCTION: Final = {"none": 0, "mean": 1, "sum": 2}


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    """One loss of those of all elements, in their arithmetic type."""
    if reduction not in _REDUCTION:
        raise refused("loss", f"reduction is {reduction!r}, accepted: none, mean, sum")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _share(dout: Tensor, like: Tensor, reduction: str) -> Tensor:
    """The gradient that reaches each element: ``dout``, divided by the number of elements for mean."""
    return dout / max(like.numel(), 1) if reduction == "mean" else dout


def _weighted(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x * weight


# -- losses of two tensors: widened operands, one rounding ------------------------------------------------------------


def _absolute(predict: Tensor, label: Tensor, *, p: int, reduction: str = "mean") -> Tensor:
    if p != 1:
        raise refused("LpLoss", f"p is {p}, accepted: 1")
    return _reduced((predict - label).abs(), reduction)


def _smooth(predict: Tensor, label: Tensor, sigma: float) -> Tensor:
    """Quadratic below ``sigma`` (PyTorch's beta), linear from there on."""
    if sigma < 0:
        raise refused("SmoothL1LossV2", f"sigma is {sigma}", "give a sigma of 0 or more")
    a = (predict - label).abs()
    return a if sigma == 0 else torch.where(a < sigma, 0.5 * a * a / sigma, a - 0.5 * sigma)


def _smooth_slope(predict: Tensor, label: Tensor, sigma: float) -> Tensor:
    d = predict - label
    return torch.sign(d) if sigma == 0 else (d / sigma).clamp(-1, 1)


def _divergence(x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """``target * (log(target) - x)``; the target may be given as its logarithm; batchmean divides by the first axis."""
    loss = target.exp() * (target - x) if log_target else torch.xlogy(target, target) - target * x
    return loss.sum() / max(x.shape[0], 1) if reduction == "batchmean" else _reduced(loss, reduction)


def _cross_entropy(x: Tensor, y: Tensor, weight: Tensor | None = None, *, reduction: str = "mean") -> Tensor:
    """``-(y * log(x) + (1 - y) * log(1 - x)) * weight`` with logarithms clamped at -100."""
    loss = -(y * x.log().clamp_min(-100.0) + (1 - y) * torch.log1p(-x).clamp_min(-100.0))
    return _reduced(_weighted(loss, weight), reduction)


def _cross_entropy_grad(
    x: Tensor, y: Tensor, grad_output: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """``(x - y) / max(x * (1 - x), 1e-12) * grad_output * weight``."""
    return _weighted((x - y) / (x * (1 - x)).clamp_min(1e-12) * _share(grad_output, x, reduction), weight)


def _logits(
    p: Tensor, t: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """Binary cross entropy of ``sigmoid(p)``, with weights and a factor for positive labels."""
    if pos_weight is None:
        loss = torch.nn.functional.softplus(-p.abs()) + p.clamp_min(0) - p * t
    else:
        factor = (pos_weight - 1) * t + 1
        loss = (1 - t) * p + factor * (torch.log1p(torch.exp(-p.abs())) + (-p).clamp_min(0))
    return _reduced(_weighted(loss, weight), reduction)


def _logits_grad(
    predict: Tensor,
    target: Tensor,
    dout: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    s = torch.sigmoid(predict)
    g = s - target if pos_weight is None else (pos_weight * target + 1 - target) * s - pos_weight * target
    return _weighted(g * _share(dout, predict, reduction), weight)


def _poisson(
    x: Tensor, t: Tensor, *, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> Tensor:
    """``exp(x) - t * x``, or ``x - t * log(x + eps)``; ``full`` adds Stirling's term where t > 1."""
    loss = x.exp() - t * x if log_input else x - t * torch.log(x + eps)
    if full:
        stirling = t * t.log() - t + 0.5 * torch.log(2 * math.pi * t)
        loss = loss + torch.where(t > 1, stirling, torch.zeros((), dtype=t.dtype))
    return _reduced(loss, reduction)


_FORMULAS: Final[dict[str, Callable[..., Tensor]]] = {
    "MseLoss": lambda p, t, *, reduction="mean": _reduced((p - t).square(), reduction),
    "MseLossGrad": lambda p, t, dout, *, reduction="mean": 2 * (p - t) * _share(dout, p, reduction),
    "SoftMarginLoss": lambda p, t, *, reduction="mean": _reduced(torch.nn.functional.softplus(-p * t), reduction),
    "SoftMarginLossGrad": lambda p, t, dout, *, reduction="mean": (
        -t * torch.sigmoid(-p * t) * _share(dout, p, reduction)
    ),
    "LpLoss": _absolute,
    "SmoothL1Loss": lambda p, t, *, sigma=1.0: _smooth(p, t, sigma),
    "SmoothL1LossGrad": lambda p, t, dout, *, sigma=1.0: _smooth_slope(p, t, sigma) * dout,
    "SmoothL1LossV2": lambda p, t, *, sigma=1.0, reduction="mean": _reduced(_smooth(p, t, sigma), reduction),
    "SmoothL1LossGradV2": lambda p, t, dout, *, sigma=1.0, reduction="mean": (
        _smooth_slope(p, t, sigma) * _share(dout, p, reduction)
    ),
    "KLDiv": lambda x, target, *, reduction: _divergence(x, target, reduction=reduction),
    "KLDivV2": _divergence,
    "BinaryCrossEntropy": _cross_entropy,
    "BinaryCrossEntropyGrad": _cross_entropy_grad,
    "SigmoidCrossEntropyWithLogits": lambda p, t: _logits(p, t, reduction="none"),
    "SigmoidCrossEntropyWithLogitsGrad": lambda p, t, dout: (torch.sigmoid(p) - t) * dout,
    "SigmoidCrossEntropyWithLogitsV2": _logits,
    "SigmoidCrossEntropyWithLogitsGradV2": _logits_grad,
    "PoissonNllLoss": _poisson,
}
rows({op: rounded(formula) for op, formula in _FORMULAS.items()}, source=_HEADER)


rows(
    {  # the gradient comes first
        "L1LossGrad": rounded(
            lambda grads, predict, label, *, reduction="mean": (
                torch.sign(predict - label) * _share(grads, predict, reduction)
            )
        ),
    },
    source=_HEADER,
)


@kernel("KlDivLossGrad", source=_HEADER)
def kl_div_loss_grad(
    grad: Tensor, input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """``-target * grad``, zero where the target is not positive; over the element count (rows for batchmean)."""
    t, g = wide(target), wide(grad)
    if reduction in ("mean", "batchmean"):
        g = g / max(input.numel() if reduction == "mean" else input.shape[0], 1)
    y = -t.exp() * g if log_target else torch.where(t > 0, -t * g, torch.zeros((), dtype=t.dtype))
    return y.to(input.dtype)


# -- losses of classes ------------------------------------------------------------------------------------------------


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
    x: Tensor,
    y_grad: Tensor,
    target: Tensor,
    weight: Tensor,
    total_weight: Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
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


@kernel("CosineEmbeddingLoss", source="ops-nn: loss/cosine_embedding_loss, documentation")
def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, *, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``1 - cos`` where the target is 1, ``max(cos - margin, 0)`` where it is -1, else 0; float32.

    The cosine is along axis 1 of the broadcast operands; the mean and the sum have shape (1).
    """
    a, b = torch.broadcast_tensors(x1.float(), x2.float())
    cos = (a * b).sum(1) / ((a.square().sum(1) + 1e-12).sqrt() * (b.square().sum(1) + 1e-12).sqrt())
    apart = torch.where(target == -1, (cos - margin).clamp_min(0), 0.0)
    loss = torch.where(target == 1, 1 - cos, apart)
    return loss if reduction == "none" else _reduced(loss, reduction).reshape(1)


@kernel("MultilabelMarginLoss", source=_HEADER)
def multilabel_margin_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    """(loss, is_target)."""
    y, is_target = _ATEN.multilabel_margin_loss_forward.default(wide(x), target.long(), _REDUCTION[reduction])
    return y.to(x.dtype), is_target.to(torch.int32)


def _check_ctc(op: str, log_probs: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, blank: int) -> None:
    """ATen believes every target and length of a target."""
    if log_probs.dim() not in (2, 3) or targets.dim() not in (1, 2) or inputs.dim() > 1 or lengths.dim() > 1:
        raise refused(op, f"log_probs of rank {log_probs.dim()} and targets of rank {targets.dim()}")
    steps, classes = log_probs.shape[0], log_probs.shape[-1]
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    if inputs.numel() != batch or lengths.numel() != batch:
        raise refused(op, f"{inputs.numel()} and {lengths.numel()} lengths of {batch} sequences")
    if not 0 <= blank < classes:
        raise refused(op, f"blank is {blank} of {classes} classes")
    ensure(((inputs >= 0) & (inputs <= steps)).all(), op, f"an input is longer than {steps} steps, or negative")
    ensure((lengths >= 0).all(), op, "a target has a negative length")
    if targets.dim() == 2:
        if targets.shape[0] != batch:
            raise refused(op, f"{targets.shape[0]} rows of targets of {batch} sequences")
        ensure((lengths <= targets.shape[1]).all(), op, f"a target is longer than {targets.shape[1]}")
    else:
        whole = lengths.clamp_max(targets.numel() + 1).sum()
        ensure(whole <= targets.numel(), op, f"lengths say more targets than the {targets.numel()} there are")
    if targets.numel():
        ensure(((targets >= 0) & (targets < classes)).all(), op, f"a target leaves [0, {classes})")


@kernel("CTCLossV2", source=_HEADER)
def ctc_loss_v2(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """(negative log likelihood of each sequence, log_alpha); the caller reduces."""
    _check_ctc("CTCLossV2", log_probs, targets, input_lengths, target_lengths, blank)
    lengths = input_lengths.long(), target_lengths.long()
    return tuple(_ATEN._ctc_loss.Tensor(log_probs, targets.long(), *lengths, blank, zero_infinity))


@kernel("CTCLossV2Grad", source=_HEADER)
def ctc_loss_v2_grad(
    grad_out: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Gradient of CTCLossV2 for log_probs."""
    op = "CTCLossV2Grad"
    _check_ctc(op, log_probs, targets, input_lengths, target_lengths, blank)
    batch = input_lengths.numel()
    longest = int(target_lengths.max()) if batch else 0
    if grad_out.numel() != batch or neg_log_likelihood.numel() != batch:
        raise refused(op, f"{grad_out.numel()} gradients and {neg_log_likelihood.numel()} losses of {batch} sequences")
    steps = log_alpha.shape[-2:] if log_alpha.dim() >= 2 else ()
    if log_alpha.numel() != batch * math.prod(steps) or not steps or steps[0] != log_probs.shape[0]:
        raise refused(op, f"log_alpha {list(log_alpha.shape)} of {batch} sequences and {log_probs.shape[0]} steps")
    if steps[1] < 2 * longest + 1:
        raise refused(op, f"log_alpha has {steps[1]} states, the longest target needs {2 * longest + 1}")
    operands = log_probs, targets.long(), input_lengths.long(), target_lengths.long(), neg_log_likelihood, log_alpha
    return _ATEN._ctc_loss_backward.Tensor(grad_out, *operands, blank, zero_infinity)  # type: ignore[no-any-return]
