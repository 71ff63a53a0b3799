"""A linear layer and cross entropy in one, by chunks of the batch: only the logits of one chunk exist at a time.

What stands behind ``torch.nn.functional.linear_cross_entropy`` with chunking. torch's own implementation writes into
shared buffers; here each chunk is a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor


def _chunks(count: Any, size: int) -> Iterator[tuple[Any, Any]]:
    """Start and length; how many there are is decided by comparisons, which hold for other sizes too."""
    start: Any = 0
    while start < count:
        yield start, size if count - start >= size else count - start
        start = start + size


class _Layer:
    """The layer and the targets in the type to compute in."""

    def __init__(
        self,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        weight: Tensor | None,
        ignore_index: int,
        dtype: torch.dtype,
    ) -> None:
        self.input, self.dtype = input, dtype
        self.matrix = linear_weight.to(dtype)
        self.bias = None if linear_bias is None else linear_bias.to(dtype)
        ignored = target == ignore_index
        self.target = torch.where(ignored, 0, target)
        kept = torch.ones_like(target, dtype=dtype) if weight is None else weight.to(dtype)[self.target]
        self.weights = torch.where(ignored, 0.0, kept)

    def chunk(self, start: Any, length: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, logits and targets [length, 1]."""
        x = self.input.narrow(0, start, length).to(self.dtype)
        logits = x @ self.matrix.mT
        logits = logits if self.bias is None else logits + self.bias
        return x, logits, self.target.narrow(0, start, length).unsqueeze(1)


def _losses(logits: Tensor, target: Tensor) -> Tensor:
    return -torch.log_softmax(logits, 1).gather(1, target).squeeze(1)


def loss_and_gradients(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and its gradients by input, weight and bias; a gradient that nobody asks for is empty."""
    layer = _Layer(input, linear_weight, target, linear_bias, weight, ignore_index, acc_dtype)
    scale = layer.weights
    if reduction == "mean":
        total = scale.sum()
        scale = scale / torch.where(total == 0, math.nan, total)
    wanted = (compute_input_grad, compute_linear_weight_grad, compute_linear_bias_grad)
    loss = torch.full((), math.nan if reduction == "mean" and input.shape[0] == 0 else 0.0, dtype=acc_dtype)
    by_input = []
    by_matrix = torch.zeros_like(layer.matrix)
    by_bias = torch.zeros_like(layer.matrix[:, 0])
    for start, length in _chunks(input.shape[0], batch_chunk_size):
        x, logits, place = layer.chunk(start, length)
        share = scale.narrow(0, start, length)
        loss = loss + (_losses(logits, place) * share).sum()
        if any(wanted):
            slope = torch.softmax(logits, 1) * share.unsqueeze(1)
            slope = slope.scatter_add(1, place, -share.unsqueeze(1))
            by_input.append((slope @ layer.matrix).to(input.dtype) if compute_input_grad else None)
            by_matrix = by_matrix + slope.mT @ x if compute_linear_weight_grad else by_matrix
            by_bias = by_bias + slope.sum(0) if compute_linear_bias_grad else by_bias
    rows = torch.cat(by_input) if compute_input_grad and by_input else torch.zeros_like(input)
    computed = [g.to(input.dtype) for g in (rows, by_matrix, by_bias)]
    nothing = [input.new_zeros(shape) for shape in ((0, 0), (0, 0), (0,))]
    gradients = [g if w else n for g, w, n in zip(computed, wanted, nothing)]
    return loss.to(input.dtype), gradients[0], gradients[1], gradients[2]


def losses(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
) -> Tensor:
    """The loss of each sample."""
    layer = _Layer(input, linear_weight, target, linear_bias, weight, ignore_index, acc_dtype)
    chunks = []
    for start, length in _chunks(input.shape[0], batch_chunk_size):
        _, logits, place = layer.chunk(start, length)
        chunks.append(_losses(logits, place) * layer.weights.narrow(0, start, length))
    return (torch.cat(chunks) if chunks else layer.weights).to(input.dtype)


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_linear_cross_entropy_batch_chunked": loss_and_gradients,
    "_linear_cross_entropy_batch_chunked_no_reduction": losses,
}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Those of the ops that this torch has."""
    packets = {name: getattr(torch.ops.torch_nn, name, None) for name in _FUNCTIONS}
    return {packet.default: _FUNCTIONS[name] for name, packet in packets.items() if packet is not None}
