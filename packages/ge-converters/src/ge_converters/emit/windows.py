"""What sliding windows of convolution and pooling share: per-axis numbers, layouts, sizes as operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge_converters.base.errors import Refusal
from ge_graph import Tensor, TensorSpec
from ge_graph.dtypes import Format

LAYOUTS = {2: Format.FORMAT_NCHW, 3: Format.FORMAT_NCDHW}


def numbers(name: str, values: Any, count: int, default: Sequence[int] | None = None) -> list[int]:
    """A per-axis argument as ``count`` ints; one number serves all axes, an empty list means ``default``.

    Raises:
        Refusal: If an entry is a symbolic size; GE has an attribute for it.
    """
    given = list(values) if isinstance(values, (list, tuple)) else [values]
    if not given and default is not None:
        return list(default)
    if any(isinstance(v, Tensor) for v in given):
        raise Refusal(f"{name} is a symbolic size, but a GE attribute holds it; make it a number")
    return [int(v) for v in (given * count if len(given) == 1 else given)]


def both_sides(pads: Sequence[int]) -> list[int]:
    """[top, bottom, left, right] out of [vertical, horizontal]."""
    return [p for p in pads for _ in range(2)]


def per_axis(values: Sequence[int]) -> list[int]:
    """Spatial numbers with ones for the batch and channel axes, channels first."""
    return [1, 1, *values]


def known_sizes(spec: TensorSpec) -> list[int] | None:
    """All sizes of a result if none of them is symbolic."""
    sizes = [s for s in spec.size if isinstance(s, int)]
    return sizes if len(sizes) == len(spec.size) else None


def laid_out(spatial: int, *tensors: Tensor | None) -> None:
    """Mark image tensors as channels first; GE's shape inference reads the layout from the edge."""
    for tensor in tensors:
        if tensor is not None:
            tensor.format = LAYOUTS[spatial]
