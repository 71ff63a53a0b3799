"""Sampling of images and volumes at the points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.support import F32, F64, Support
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.emit.windows import laid_out
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten


_INTERPOLATIONS: Final = ("bilinear", "nearest", "bicubic")
_PADDINGS: Final = ("zeros", "border", "reflection")


def _grid_attrs(interpolation_mode: int, padding_mode: int, align_corners: bool) -> dict[str, Any]:
    return {
        "interpolation_mode": _INTERPOLATIONS[interpolation_mode],
        "padding_mode": _PADDINGS[padding_mode],
        "align_corners": align_corners,
    }


_GRID_CASES = [
    *(Support(F32(2, 3, 4, 5), F32(2, 6, 7, 2, low=-1.2, high=1.2), i, p, c) for i in (0, 1, 2) for p in (0, 1, 2)
      for c in (False, True)),
    Support(F64(2, 3, 4, 5), F64(2, 6, 7, 2, low=-1.2, high=1.2), 0, 0, False),
]  # fmt: skip


@declare_supported(_GRID_CASES)
@register_fx_node_ge_converter(
    aten.grid_sampler_2d.default, source="native_functions.yaml: grid_sampler_2d; GE GridSampler2D"
)
def grid_sampler_2d(
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: input [n, c, h, w]; grid [n, oh, ow, 2] -> [n, c, oh, ow].
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler2D.
    """
    (x, at), back = carried("GridSampler2D", input, cast(grid, input.dtype))
    y = ge.GridSampler2D(x, at, **_grid_attrs(interpolation_mode, padding_mode, align_corners))
    laid_out(2, x, y)
    return back(y)


@declare_supported(
    [
        *(Support(F32(2, 3, 6, 7), F32(2, 3, 4, 5), F32(2, 6, 7, 2, low=-1.2, high=1.2), i, p, False, [True, True])
          for i in (0, 1, 2) for p in (0, 1, 2)),
        Support(F32(2, 3, 6, 7), F32(2, 3, 4, 5), F32(2, 6, 7, 2, low=-1.2, high=1.2), 0, 0, True, [True, True]),
    ]
)  # fmt: skip
@register_fx_node_ge_converter(
    aten.grid_sampler_2d_backward.default,
    source="native_functions.yaml: grid_sampler_2d_backward; GE GridSampler2DGrad",
)
def grid_sampler_2d_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input and grid, each of the shape of what it belongs to.
    Dtypes: float32, float16, float64, bfloat16.
    Emits:  GridSampler2DGrad.
    """
    operands = (grad_output, input, grid)
    return _grid_gradients(
        "GridSampler2DGrad", 2, operands, (interpolation_mode, padding_mode, align_corners), output_mask, meta_outputs
    )


def _grid_gradients(
    operator: str,
    axes: int,
    operands: Sequence[Tensor],
    modes: tuple[int, int, bool],
    output_mask: Sequence[bool],
    meta_outputs: Any,
) -> list[Tensor | None]:
    inner = carrier(operator, operands[1].dtype)
    grad, x, at = (cast(t, inner) for t in operands)
    results = getattr(ge, operator)(grad, x, at, **_grid_attrs(*modes))
    laid_out(axes, grad, x, results[0])
    return [cast(r, s.dtype) if w and s is not None else None for r, w, s in zip(results, output_mask, meta_outputs)]


@declare_supported(
    [
        Support(F32(1, 2, 3, 4, 5), F32(1, 2, 3, 4, 3, low=-1.2, high=1.2), i, p, c)
        for i in (0, 1) for p in (0, 1, 2) for c in (False, True)
    ]
)  # fmt: skip
@register_fx_node_ge_converter(
    aten.grid_sampler_3d.default, source="native_functions.yaml: grid_sampler_3d; GE GridSampler3D"
)
def grid_sampler_3d(
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: input [n, c, d, h, w]; grid [n, od, oh, ow, 3] -> [n, c, od, oh, ow].
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler3D.
    """
    (x, at), back = carried("GridSampler3D", input, cast(grid, input.dtype))
    attrs = _grid_attrs(interpolation_mode, padding_mode, align_corners)
    y = ge.GridSampler3D(x, at, **attrs, data_format="NCDHW")
    laid_out(3, x, y)
    return back(y)


@declare_supported(
    [
        Support(F32(1, 2, 3, 4, 3), F32(1, 2, 3, 4, 5), F32(1, 3, 4, 3, 3, low=-1.2, high=1.2), i, p, c, [True, True])
        for i in (0, 1) for p in (0, 1, 2) for c in (False, True)
    ]
)  # fmt: skip
@register_fx_node_ge_converter(
    aten.grid_sampler_3d_backward.default,
    source="native_functions.yaml: grid_sampler_3d_backward; GE GridSampler3DGrad",
)
def grid_sampler_3d_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input and grid, each of the shape of what it belongs to.
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler3DGrad.
    """
    operands = (grad_output, input, grid)
    return _grid_gradients(
        "GridSampler3DGrad", 3, operands, (interpolation_mode, padding_mode, align_corners), output_mask, meta_outputs
    )
