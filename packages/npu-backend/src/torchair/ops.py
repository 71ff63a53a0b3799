"""Ops inside a graph that compute nothing: stream markers and printing."""

from __future__ import annotations

from typing import Any

import torch

from torchair import torch_ops

__all__ = ["npu_print", "record", "wait"]


def record() -> torch.Tensor:
    """Put a marker on the current stream.

    Returns:
        A tensor without elements, only good for ``wait``.
    """
    marker: torch.Tensor = torch.ops.air.record()
    return marker


def wait(tensors: list[torch.Tensor]) -> None:
    """The current stream goes on only after the producers of ``tensors`` have run.

    Errors: ConfigError GE1030 if ``tensors`` is no list of tensors.
    """
    if not isinstance(tensors, (list, tuple)) or not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        torch_ops.refuse(
            f"wait takes a list of at least one tensor, got {type(tensors).__name__}",
            "write torchair.ops.wait([tensor])",
        )
    torch.ops.air.wait(list(tensors))


def npu_print(*args: Any, summarize_size: int = 3, tensor_detail: bool = False) -> None:
    """Print from inside a graph, without a graph break, in graph order.

    Args:
        *args: Tensors and plain values, separated by a blank as ``print`` does; at least one tensor.
        summarize_size: Elements shown at each end of a long dimension; -1 shows everything.
        tensor_detail: Also show shape and dtype.

    Errors: ConfigError GE1030 without a tensor, or for another ``summarize_size``.
    """
    if not any(isinstance(a, torch.Tensor) for a in args):
        torch_ops.refuse("npu_print got no tensor", "use print for plain values")
    if not isinstance(summarize_size, int) or summarize_size < -1 or summarize_size == 0:
        torch_ops.refuse(
            f"npu_print: summarize_size must be -1 or at least 1, got {torch_ops.got(summarize_size)}",
            "-1 shows everything",
        )
    text = " ".join(torch_ops.PLACEHOLDER if isinstance(a, torch.Tensor) else str(a) for a in args)
    torch.ops.air.print([a for a in args if isinstance(a, torch.Tensor)], text, summarize_size, tensor_detail)
