"""Padding by reflection and replication, and its gradients."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, Support
from ge_converters.emit.compute_types import carried
from ge_converters.emit.shapes import shape_operand
from ge_converters.registry import register_fx_node_ge_converter
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge


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


def _grown(padding: Any) -> list[Any]:
    return [p if isinstance(p, Tensor) or p > 0 else 0 for p in padding]


def _forms(spatial: int) -> tuple[list[Support], list[Support]]:
    """Forms of padding that many axes, and of its gradient."""
    pads = [1, 2, 2, 1, 1, 0][: 2 * spatial]
    shape = (2, 3, 4, 5, 6)[: spatial + 2]
    wide = [n + pads[2 * (spatial - 1 - i)] + pads[2 * (spatial - 1 - i) + 1] for i, n in enumerate(shape[2:])]
    forward = [*(Support(m(*shape), pads) for m in (F32, F16, BF16, F64)), Support(F32(*shape[1:]), pads)]
    gradient = [Support(m(*shape[:2], *wide), m(*shape), pads) for m in (F32, F64)]
    return forward, [*gradient, Support(F32(3, *wide), F32(*shape[1:]), pads)]


_FORMS = {n: _forms(n) for n in (1, 2, 3)}


@register_fx_node_ge_converter(
    {getattr(aten, f"reflection_pad{n}d").default: _FORMS[n][0] for n in _FORMS},
    source="native_functions.yaml: reflection_pad1d, 2d, 3d; GE PadV3",
    fixed={"mode": "reflect"},
)
@register_fx_node_ge_converter(
    {getattr(aten, f"replication_pad{n}d").default: _FORMS[n][0] for n in _FORMS},
    source="native_functions.yaml: replication_pad1d, 2d, 3d; GE PadV3",
    fixed={"mode": "edge"},
)
def pad(self: Tensor, padding: Any, *, mode: str, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: the trailing axes grow by padding.
    Dtypes: any.
    Emits:  PadV3.
    """
    (x,), back = carried("PadV3", self, moves=True)
    y = ge.PadV3(x, _paddings(_grown(padding), self.rank), mode=mode, paddings_contiguous=True)
    return back(_cropped(y, padding, self.rank))


@register_fx_node_ge_converter(
    {getattr(aten, f"reflection_pad{n}d_backward").default: _FORMS[n][1] for n in _FORMS},
    source="native_functions.yaml: reflection_pad1d_backward, 2d, 3d; GE PadV3Grad",
    fixed={"mode": "reflect"},
)
@register_fx_node_ge_converter(
    {getattr(aten, f"replication_pad{n}d_backward").default: _FORMS[n][1] for n in _FORMS},
    source="native_functions.yaml: replication_pad1d_backward, 2d, 3d; GE PadV3Grad",
    fixed={"mode": "edge"},
)
def pad_backward(grad_output: Tensor, self: Tensor, padding: Any, *, mode: str, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: that of self.
    Dtypes: float32, float16, bfloat16, float64.
    Emits:  PadV3Grad.
    """
    lost = [-p if not isinstance(p, Tensor) and p < 0 else 0 for p in padding]
    grad = grad_output
    if any(lost):  # what forward cropped gets no gradient
        grad = ge.PadV3(grad, _paddings(lost, self.rank), mode="constant", paddings_contiguous=True)
    y = ge.PadV3Grad(grad, _paddings(_grown(padding), self.rank), mode=mode, paddings_contiguous=True)
    return cast(y, meta_outputs.dtype)
