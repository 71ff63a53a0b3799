"""Interpolation of lines, images and volumes: one operator each.

The image operators take the size as an operand and derive the step from the sizes, torch from the given scale factor if
there is one: for a fractional factor an operator with scales serves. Where its size is an attribute, a symbolic size is
a product with an interpolation matrix that is built in the graph, or decomposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, Support
from ge_converters.emit.compute_types import carried
from ge_converters.emit.interpolation import apply_to_axes
from ge_converters.emit.resizing import (
    fixed,
    nearest_matrix,
    scale_of,
    steps_agree,
    through_float32,
)
from ge_converters.emit.shapes import Size, axis_size, shape_operand
from ge_converters.emit.windows import laid_out
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_converters.registry.takes import sizes_are_numbers
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_I32: Final = DataType.DT_INT32


def _image_size(output_size: Sequence[Size]) -> Any:
    return shape_operand(list(output_size), _I32)


def _single(self: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Not float64, of which GE has no operator; torch's formula serves it."""
    return self.dtype is not torch.float64


def _nearest(
    self: torch.Tensor, output_size: Any, scales_h: float | None = None, scales_w: float | None = None
) -> bool:
    """Float64 without a fractional factor only, as above."""
    return _single(self) or steps_agree((scales_h, scales_w))


# -- nearest

_NEAREST_CASES = [
    *(Support(m(2, 3, 4, 5), [8, 10], 2.0, 2.0) for m in (F32, F16, BF16, F64)),
    Support(F32(2, 3, 4, 5), [7, 9]),
    Support(F32(2, 3, 4, 5), [2, 3]),
    Support(F32(2, 3, 4, 5), [6, 7], 1.5, 1.5),
    Support(F32(2, 3, 5, 7), [3, 4], 0.6, 0.6),
]


@register_fx_node_ge_converter(
    {aten.upsample_nearest2d.default: _NEAREST_CASES},
    source="native_functions.yaml: upsample_nearest2d; GE ResizeNearestNeighborV2",
    takes=Takes(also=_nearest),
    fixed={"half_pixel": False},
)
@register_fx_node_ge_converter(
    {aten._upsample_nearest_exact2d.default: _NEAREST_CASES},
    source="native_functions.yaml: _upsample_nearest_exact2d; GE ResizeNearestNeighborV2",
    takes=Takes(also=_nearest),
    fixed={"half_pixel": True},
)
def upsample_nearest2d(
    self: Tensor,
    output_size: Any,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    half_pixel: bool,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, h, w] -> [n, c, *output_size].
    Dtypes: floats; float64 without a fractional factor, else it is decomposed.
    Emits:  ResizeNearestNeighborV2; UpsampleNearest for a fractional factor, products with selection matrices if the
            size is symbolic then.
    """
    factors = (scales_h, scales_w)
    if steps_agree(factors):
        (inner,), back = carried("ResizeNearestNeighborV2", self)
        y = ge.ResizeNearestNeighborV2(
            inner, _image_size(output_size), align_corners=False, half_pixel_centers=half_pixel
        )
        laid_out(2, inner, y)
        return back(y)
    if fixed(output_size) and self.dtype != DataType.DT_DOUBLE:
        (inner,), back = carried("UpsampleNearest", self)
        height, width = map(scale_of, factors)
        y = ge.UpsampleNearest(
            inner, output_size=list(output_size), scales_h=height, scales_w=width, exact_mode=half_pixel
        )
        laid_out(2, inner, y)
        return back(y)
    x = through_float32(self, "nearest interpolation with this scale factor")
    made = [
        (2 + i, nearest_matrix(axis_size(x, 2 + i), count, factor, 0.5 if half_pixel else 0.0))
        for i, (count, factor) in enumerate(zip(output_size, factors))
    ]
    return cast(apply_to_axes(x, made, 4), self.dtype)


# -- linear


@declare_supported(
    [
        *(Support(m(2, 3, 4, 5), [8, 10], False, 2.0, 2.0) for m in (F32, F16, BF16)),
        Support(F32(2, 3, 4, 5), [7, 9], True),
        Support(F32(2, 3, 4, 5), [7, 9], False),
        Support(F32(2, 3, 4, 5), [2, 3], False),
        Support(F32(2, 3, 4, 5), [6, 7], False, 1.5, 1.5),
        Support(F32(2, 3, 4, 5), [6, 7], True, 1.5, 1.5),
        Support(F32(2, 3, 4, 5), [1, 3], True),
    ]
)
@register_fx_node_ge_converter(
    aten.upsample_bilinear2d.default,
    source="native_functions.yaml: upsample_bilinear2d; GE ResizeBilinearV2",
    takes=Takes(also=_single),
)
def upsample_bilinear2d(
    self: Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, h, w] -> [n, c, *output_size].
    Dtypes: float32; halves through float32, in which eager computes too; float64 is decomposed.
    Emits:  ResizeBilinearV2; UpsampleBilinear2d for a fractional factor.
    """
    x = through_float32(self, "bilinear interpolation")
    if align_corners or steps_agree((scales_h, scales_w)):
        y = ge.ResizeBilinearV2(
            x, _image_size(output_size), align_corners=align_corners, half_pixel_centers=not align_corners
        )
    else:
        y = ge.UpsampleBilinear2d(
            x,
            _image_size(output_size),
            align_corners=False,
            scales=[scale_of(scales_h), scale_of(scales_w)],
        )
    laid_out(2, x, y)
    return cast(y, self.dtype)


# -- one native operator for each of the other forms


_LINE_CASES = [Support(m(2, 3, 4), [7]) for m in (F32, F16, BF16)] + [
    Support(F32(2, 3, 4), [2], 0.5),
    Support(F32(2, 3, 5), [7], 1.5),
    Support(F32(2, 3, 7), [4], 0.6),
]
# Eager rounds the weights to the half type, GE only the result.
_ROUNDED_WEIGHTS: Final = {F16: (1e-2, 2e-3), BF16: (3e-2, 1e-2)}


def _weighed(make: Any, shape: tuple[int, ...], size: list[int], align_corners: bool) -> Support:
    made = Support(make(*shape), size, align_corners)
    return made.within(*_ROUNDED_WEIGHTS[make]) if make in _ROUNDED_WEIGHTS else made


_VOLUME_CASES = [Support(m(1, 2, 3, 4, 5), [4, 6, 7]) for m in (F32, F16, BF16)] + [
    Support(F32(1, 2, 3, 4, 5), [2, 3, 7], 0.75, None, 1.5),
]


@declare_supported(_LINE_CASES)
@register_fx_node_ge_converter(
    aten.upsample_nearest1d.default,
    source="native_functions.yaml: upsample_nearest1d; GE UpsampleNearest1d",
    takes=Takes("UpsampleNearest1d", sizes_are_numbers),
)
def upsample_nearest1d(
    self: Tensor, output_size: Any, scales: float | None = None, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self [n, c, l] -> [n, c, *output_size]; a symbolic size is decomposed.
    Dtypes: floats.
    Emits:  UpsampleNearest1d.
    """
    (x,), back = carried("UpsampleNearest1d", self)
    return back(ge.UpsampleNearest1d(x, output_size=list(output_size), scales=[scale_of(scales)]))


@declare_supported(_LINE_CASES)
@register_fx_node_ge_converter(
    aten._upsample_nearest_exact1d.default,
    source="native_functions.yaml: _upsample_nearest_exact1d; GE UpsampleNearest",
    takes=Takes("UpsampleNearest", sizes_are_numbers),
)
def _upsample_nearest_exact1d(
    self: Tensor, output_size: Any, scales: float | None = None, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self [n, c, l] -> [n, c, *output_size]; a symbolic size is decomposed.
    Dtypes: float32, float16, bfloat16.
    Emits:  UpsampleNearest in exact mode between Unsqueeze and Squeeze.
    """
    image = ge.Unsqueeze(self, axes=[2])
    y = ge.UpsampleNearest(image, output_size=[1, *output_size], scales_w=scale_of(scales), exact_mode=True)
    laid_out(2, image, y)
    return ge.Squeeze(y, axis=[2])


@declare_supported(_VOLUME_CASES)
@register_fx_node_ge_converter(
    aten.upsample_nearest3d.default,
    source="native_functions.yaml: upsample_nearest3d; GE UpsampleNearest3d",
    takes=Takes("UpsampleNearest3d", sizes_are_numbers),
)
def upsample_nearest3d(
    self: Tensor,
    output_size: Any,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, d, h, w] -> [n, c, *output_size]; a symbolic size is decomposed.
    Dtypes: floats.
    Emits:  UpsampleNearest3d.
    """
    (x,), back = carried("UpsampleNearest3d", self)
    scales = [scale_of(s) for s in (scales_d, scales_h, scales_w)]
    y = ge.UpsampleNearest3d(x, output_size=list(output_size), scales=scales)
    laid_out(3, x, y)
    return back(y)


@declare_supported(_VOLUME_CASES)
@register_fx_node_ge_converter(
    aten._upsample_nearest_exact3d.default,
    source="native_functions.yaml: _upsample_nearest_exact3d; GE UpsampleNearestExact3d",
    takes=Takes("UpsampleNearestExact3d", sizes_are_numbers),
)
def _upsample_nearest_exact3d(
    self: Tensor,
    output_size: Any,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, d, h, w] -> [n, c, *output_size]; a symbolic size is decomposed.
    Dtypes: float32, float16, bfloat16.
    Emits:  UpsampleNearestExact3d.
    """
    y: Tensor = ge.UpsampleNearestExact3d(
        self,
        output_size=list(output_size),
        scale_d=scale_of(scales_d),
        scale_h=scale_of(scales_h),
        scale_w=scale_of(scales_w),
    )
    laid_out(3, self, y)
    return y


@declare_supported(
    [Support(m(2, 3, 4), [7], c) for m in (F32, F16, BF16) for c in (False, True)]
    + [Support(F32(2, 3, 5), [7], False, 1.5), Support(F32(2, 3, 4), [1], True)]
)
@register_fx_node_ge_converter(
    aten.upsample_linear1d.default,
    source="native_functions.yaml: upsample_linear1d; GE UpsampleLinear1d",
    takes=Takes("UpsampleLinear1d"),
)
def upsample_linear1d(
    self: Tensor, output_size: Any, align_corners: bool, scales: float | None = None, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self [n, c, l] -> [n, c, *output_size].
    Dtypes: float32, float16, bfloat16; computed in float32.
    Emits:  UpsampleLinear1d.
    """
    y: Tensor = ge.UpsampleLinear1d(self, _image_size(output_size), align_corners=align_corners, scale=scale_of(scales))
    return y


@declare_supported(
    [_weighed(m, (1, 2, 3, 4, 5), [4, 6, 7], c) for m in (F32, F16, BF16) for c in (False, True)]
    + [Support(F32(1, 2, 3, 4, 5), [2, 3, 7], False, 0.75, None, 1.5)]
)
@register_fx_node_ge_converter(
    aten.upsample_trilinear3d.default,
    source="native_functions.yaml: upsample_trilinear3d; GE ResizeUpsampleTrilinear",
    takes=Takes("ResizeUpsampleTrilinear", sizes_are_numbers),
)
def upsample_trilinear3d(
    self: Tensor,
    output_size: Any,
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, d, h, w] -> [n, c, *output_size]; a symbolic size is decomposed.
    Dtypes: float32, float16, bfloat16; computed in float32.
    Emits:  ResizeUpsampleTrilinear.
    """
    y: Tensor = ge.ResizeUpsampleTrilinear(
        self,
        output_size=list(output_size),
        align_corners=align_corners,
        scales_d=scale_of(scales_d),
        scales_h=scale_of(scales_h),
        scales_w=scale_of(scales_w),
    )
    laid_out(3, self, y)
    return y


def _plane(*kinds: Any) -> list[Support]:
    return [
        *(_weighed(m, (2, 3, 4, 5), [7, 9], c) for m in kinds for c in (False, True)),
        Support(F32(2, 3, 8, 9), [3, 4], False),
        Support(F32(2, 3, 4, 5), [6, 7], False, 1.5, 1.5),
    ]


@register_fx_node_ge_converter(
    {aten.upsample_bicubic2d.default: _plane(F32, F16, BF16)},
    source="native_functions.yaml: upsample_bicubic2d; GE UpsampleBicubic2d",
    takes=Takes("UpsampleBicubic2d", sizes_are_numbers),
    fixed={"op": "UpsampleBicubic2d"},
)
@register_fx_node_ge_converter(
    {aten._upsample_bilinear2d_aa.default: _plane(F32)},
    source="native_functions.yaml: _upsample_bilinear2d_aa; GE UpsampleBilinear2dAA",
    takes=Takes("UpsampleBilinear2dAA", sizes_are_numbers),
    fixed={"op": "UpsampleBilinear2dAA"},
)
@register_fx_node_ge_converter(
    {aten._upsample_bicubic2d_aa.default: _plane(F32)},
    source="native_functions.yaml: _upsample_bicubic2d_aa; GE UpsampleBicubic2dAA",
    takes=Takes("UpsampleBicubic2dAA", sizes_are_numbers),
    fixed={"op": "UpsampleBicubic2dAA"},
)
def upsample_plane(
    self: Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    op: str,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, h, w] -> [n, c, *output_size]; a symbolic size is decomposed.
    Dtypes: float32, float16, bfloat16; computed in float32.
    Emits:  UpsampleBicubic2d, UpsampleBilinear2dAA, UpsampleBicubic2dAA.
    """
    if self.dtype not in (_F32, DataType.DT_FLOAT16, DataType.DT_BF16):
        raise Refusal(f"{op} takes no {self.dtype.name}; cast to float32")
    y: Tensor = getattr(ge, op)(
        self,
        output_size=list(output_size),
        align_corners=align_corners,
        scales_h=scale_of(scales_h),
        scales_w=scale_of(scales_w),
    )
    laid_out(2, self, y)
    return y
