"""Padding by reflection and replication, and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.support import BF16, F16, F32, F64, Support
from ge_converters.emit.compute_types import carried
from ge_converters.emit.shapes import shape_operand
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten


def _paddings(padding: Any, rank: int) -> Any:
    """torch pads the last axis first, GE the first axis first."""
    pairs = list(padding)
    spatial = len(pairs) // 2
    ordered: list[Any] = [0, 0] * (rank - spatial)
    for i in reversed(range(spatial)):
        ordered += pairs[2 * i : 2 * i + 2]
    return shape_operand(ordered)


def _cropped(x: Tensor, padding: Any, rank: int) -> Tensor:
    """What negative entries take away; GE's PadV3 crops in constant mode only."""
    pairs = [0 if isinstance(p, Tensor) else min(int(p), 0) for p in padding]
    spatial = len(pairs) // 2
    if not any(pairs):
        return x
    begin, end = [0] * (rank - spatial), [2**31 - 1] * (rank - spatial)
    for i in reversed(range(spatial)):
        begin.append(-pairs[2 * i])
        end.append(pairs[2 * i + 1] or 2**31 - 1)
    result: Tensor = ge.StridedSliceV2(x, begin, end, list(range(rank)), [1] * rank)
    return result


def _register_padding(name: str, mode: str, spatial: int) -> None:
    op, gradient = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    pads = [1, 2, 2, 1, 1, 0][: 2 * spatial]
    shape = (2, 3, 4, 5, 6)[: spatial + 2]
    padded = [n + pads[2 * (spatial - 1 - i)] + pads[2 * (spatial - 1 - i) + 1] for i, n in enumerate(shape[2:])]

    def convert(self: Tensor, padding: Any, *, meta_outputs: TensorSpec) -> Tensor:
        (x,), back = carried("PadV3", self, moves=True)
        grown = [p if isinstance(p, Tensor) or p > 0 else 0 for p in padding]
        y = ge.PadV3(x, _paddings(grown, self.rank), mode=mode, paddings_contiguous=True)
        return back(_cropped(y, padding, self.rank))

    def convert_gradient(grad_output: Tensor, self: Tensor, padding: Any, *, meta_outputs: TensorSpec) -> Tensor:
        grown = [p if isinstance(p, Tensor) or p > 0 else 0 for p in padding]
        lost = [-p if not isinstance(p, Tensor) and p < 0 else 0 for p in padding]
        grad = grad_output
        if any(lost):  # what forward cropped gets no gradient
            grad = ge.PadV3(grad, _paddings(lost, self.rank), mode="constant", paddings_contiguous=True)
        y = ge.PadV3Grad(grad, _paddings(grown, self.rank), mode=mode, paddings_contiguous=True)
        return cast(y, meta_outputs.dtype)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"{op._schema}\n\nShapes: the trailing axes grow by padding.\nDtypes: any.\nEmits:  PadV3."
    convert_gradient.__name__ = convert_gradient.__qualname__ = f"{name}_backward"
    convert_gradient.__doc__ = (
        f"{gradient._schema}\n\nShapes: that of self.\nDtypes: float32, float16, bfloat16, float64.\nEmits:  PadV3Grad."
    )
    declare_supported([*(Support(m(*shape), pads) for m in (F32, F16, BF16, F64)), Support(F32(*shape[1:]), pads)])(
        convert
    )
    declare_supported(
        [Support(m(*shape[:2], *padded), m(*shape), pads) for m in (F32, F64)]
        + [Support(F32(3, *padded), F32(*shape[1:]), pads)]
    )(convert_gradient)  # fmt: skip
    register_fx_node_ge_converter(op, source=f"native_functions.yaml: {name}; GE PadV3")(convert)
    register_fx_node_ge_converter(gradient, source=f"native_functions.yaml: {name}_backward; GE PadV3Grad")(
        convert_gradient
    )


for _spatial in (1, 2, 3):
    _register_padding(f"reflection_pad{_spatial}d", "reflect", _spatial)
    _register_padding(f"replication_pad{_spatial}d", "edge", _spatial)
