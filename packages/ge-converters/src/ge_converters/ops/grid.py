"""Sampling of images and volumes at the points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import F32, F64, Support
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.emit.shapes import has_nothing, zeros_of
from ge_converters.emit.windows import laid_out
from ge_converters.registry import register_fx_node_ge_converter
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge

_INTERPOLATIONS: Final = ("bilinear", "nearest", "bicubic")
_PADDINGS: Final = ("zeros", "border", "reflection")


_IMAGES = [
    *(
        Support(F32(2, 3, 4, 5), F32(2, 6, 7, 2, low=-1.2, high=1.2), i, p, c)
        for i in (0, 1, 2)
        for p in (0, 1, 2)
        for c in (False, True)
    ),
    Support(F64(2, 3, 4, 5), F64(2, 6, 7, 2, low=-1.2, high=1.2), 0, 0, False),
]
_VOLUMES = [
    Support(F32(1, 2, 3, 4, 5), F32(1, 2, 3, 4, 3, low=-1.2, high=1.2), i, p, c)
    for i in (0, 1)
    for p in (0, 1, 2)
    for c in (False, True)
]


@register_fx_node_ge_converter(
    {aten.grid_sampler_2d.default: _IMAGES},
    source="native_functions.yaml: grid_sampler_2d; GE GridSampler2D",
    fixed={"op": "GridSampler2D", "layout": {}},
)
@register_fx_node_ge_converter(
    {aten.grid_sampler_3d.default: _VOLUMES},
    source="native_functions.yaml: grid_sampler_3d; GE GridSampler3D",
    fixed={"op": "GridSampler3D", "layout": {"data_format": "NCDHW"}},
)
def grid_sampler(
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    *,
    op: str,
    layout: dict[str, str],
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: input [n, c, h, w]; grid [n, oh, ow, 2] -> [n, c, oh, ow]; or volumes, [n, c, d, h, w] and
            [n, od, oh, ow, 3].
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler2D, GridSampler3D.
    """
    (x, at), back = carried(op, input, cast(grid, input.dtype))
    y = getattr(ge, op)(
        x,
        at,
        interpolation_mode=_INTERPOLATIONS[interpolation_mode],
        padding_mode=_PADDINGS[padding_mode],
        align_corners=align_corners,
        **layout,
    )
    laid_out(input.rank - 2, x, y)
    return back(y)


def _gradients_of(input: Any, points: Any, of: Any, *modes: Any) -> Support:
    return Support(of, input, points, *modes, [True, True])


_IMAGE = (F32(2, 3, 4, 5), F32(2, 6, 7, 2, low=-1.2, high=1.2), F32(2, 3, 6, 7))
_VOLUME = (F32(1, 2, 3, 4, 5), F32(1, 3, 4, 3, 3, low=-1.2, high=1.2), F32(1, 2, 3, 4, 3))


@register_fx_node_ge_converter(
    {
        aten.grid_sampler_2d_backward.default: [
            *(_gradients_of(*_IMAGE, i, p, False) for i in (0, 1, 2) for p in (0, 1, 2)),
            _gradients_of(*_IMAGE, 0, 0, True),
        ]
    },
    source="native_functions.yaml: grid_sampler_2d_backward; GE GridSampler2DGrad",
    fixed={"op": "GridSampler2DGrad"},
)
@register_fx_node_ge_converter(
    {
        aten.grid_sampler_3d_backward.default: [
            _gradients_of(*_VOLUME, i, p, c) for i in (0, 1) for p in (0, 1, 2) for c in (False, True)
        ]
    },
    source="native_functions.yaml: grid_sampler_3d_backward; GE GridSampler3DGrad",
    fixed={"op": "GridSampler3DGrad"},
)
def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
    *,
    op: str,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input and grid, each of the shape of what it belongs to.
    Dtypes: float32, float16, float64; bfloat16 as the operator takes it, else through float32.
    Emits:  GridSampler2DGrad, GridSampler3DGrad.
    """
    if any(map(has_nothing, (grad_output, input, grid))):
        likes = zip(meta_outputs, (input, grid), output_mask)
        return [zeros_of(spec, like) if wanted and spec is not None else None for spec, like, wanted in likes]
    inner = carrier(op, input.dtype)
    grad, x, at = (cast(t, inner) for t in (grad_output, input, grid))
    results = getattr(ge, op)(
        grad,
        x,
        at,
        interpolation_mode=_INTERPOLATIONS[interpolation_mode],
        padding_mode=_PADDINGS[padding_mode],
        align_corners=align_corners,
    )
    laid_out(input.rank - 2, grad, x, results[0])
    return [cast(r, s.dtype) if w and s is not None else None for r, w, s in zip(results, output_mask, meta_outputs)]
