"""Ops inside a graph that compute nothing: stream markers and printing."""

from __future__ import annotations

from typing import Any

import torch

from torchair.oplib import torch_ops
from torchair.oplib.attention_ops import npu_fused_infer_attention_score, npu_fused_infer_attention_score_v2
from torchair.scope import npu_stream_switch, npu_wait_tensor

__all__ = [
    "NpuStreamSwitch",
    "npu_create_tagged_event",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_print",
    "npu_record_tagged_stream",
    "npu_tagged_event_record",
    "npu_tagged_event_wait",
    "npu_wait_tensor",
    "record",
    "wait",
]

NpuStreamSwitch = npu_stream_switch
"""Older name of ``torchair.scope.npu_stream_switch``."""


def record() -> torch.Tensor:
    """Put a marker on the current stream.

    Returns:
        A tensor without elements, only good for ``wait``.
    """
    marker: torch.Tensor = torch.ops.air.record()
    return marker


def wait(tensors: list[torch.Tensor]) -> None:
    """The current stream goes on only after the producers of ``tensors`` have run.

    Errors: ConfigError GE1030 if ``tensors`` is not a list of tensors.
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


def _tag(value: Any, what: str) -> str:
    if type(value) is int:
        return str(value)
    if not isinstance(value, str) or not value:
        torch_ops.refuse(
            f"{what} takes a text that is not empty, got {torch_ops.got(value)}",
            "event = torchair.ops.npu_create_tagged_event(tag='a')",
        )
    return value


def npu_create_tagged_event(tag: str) -> str:
    """An event that is known by its tag, for ``npu_tagged_event_record`` and ``npu_tagged_event_wait``.

    Args:
        tag: A text that is not empty; equal tags are one event.

    Returns:
        What the two take: the tag.

    Errors: ConfigError GE1030 for another type.
    """
    return _tag(tag, "npu_create_tagged_event")


def npu_tagged_event_record(event: str) -> None:
    """Let the event happen when everything before it on the current stream has run.

    Errors: ConfigError GE1030 for something that is not an event.
    """
    torch.ops.air.tagged_event_record(_tag(event, "npu_tagged_event_record"))


def npu_tagged_event_wait(event: str) -> None:
    """The current stream goes on only after the event; it has to be recorded before, in the same graph.

    Errors: ConfigError GE1030 for something that is not an event. Compiling: ConfigError GE1065 without a record.
    """
    torch.ops.air.tagged_event_wait(_tag(event, "npu_tagged_event_wait"))


def npu_record_tagged_stream(input: torch.Tensor, tagged_stream: str) -> None:
    """Keep the tensor's memory until the stream named ``tagged_stream`` has done with it; only on a device.

    Errors: ConfigError GE1030 for other types.
    """
    if not isinstance(input, torch.Tensor):
        torch_ops.refuse(f"npu_record_tagged_stream takes a tensor, got {type(input).__name__}", "pass the tensor")
    torch.ops.air.record_tagged_stream(input, _tag(tagged_stream, "npu_record_tagged_stream"))


def __getattr__(name: str) -> Any:
    from torchair.names import missing

    raise missing("torchair.ops", name, __all__)
