"""torchvision's operators, known by their names: torchvision need not be installed, and is never imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.shapes import axis_size, ints
from ge_converters.emit.windows import laid_out
from ge_converters.registry import F, define_refusal, register_fx_node_ge_converter
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_D = DataType
_LEAST: Final = -3.4028234663852886e38  # of float32: every score is above it
_WHOLE_FLOATS: Final = 2  # ROIAlign's mode that moves regions by half a pixel; 0 leaves them


def _op(name: str, ge_op: str) -> Callable[[F], F]:
    return register_fx_node_ge_converter(f"torchvision.{name}.default", source=f"torchvision.ops; GE {ge_op}")


def _number(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        raise Refusal(f"argument '{name}' is symbolic, but a GE attribute holds it; mark that dimension static")
    return value


@_op("nms", "NonMaxSuppressionV3")
def nms(dets: Tensor, scores: Tensor, iou_threshold: float, *, meta_outputs: Any) -> Tensor:
    """Boxes that overlap no better one by more than the threshold.

    Shapes: dets [n, 4] as (x1, y1, x2, y2), scores [n] -> indices of the boxes kept, best score first.
    Dtypes: float32, float16 -> int64.
    Emits:  NonMaxSuppressionV3 without a bound on scores and number; Cast.
    """
    most = cast(axis_size(dets, 0), _D.DT_INT32)
    limits = [ge.Const(_number("iou_threshold", iou_threshold), dtype=_D.DT_FLOAT), ge.Const(_LEAST, dtype=_D.DT_FLOAT)]
    return cast(ge.NonMaxSuppressionV3(dets, scores, most, *limits), _D.DT_INT64)


def _region(
    spatial_scale: float, pooled_height: Any, pooled_width: Any, sampling_ratio: int, aligned: bool
) -> dict[str, Any]:
    return {
        "spatial_scale": _number("spatial_scale", spatial_scale),
        "pooled_height": _number("pooled_height", pooled_height),
        "pooled_width": _number("pooled_width", pooled_width),
        "sample_num": max(sampling_ratio, 0),
        "roi_end_mode": _WHOLE_FLOATS if aligned else 0,
    }


@_op("roi_align", "ROIAlign")
def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: Any,
    pooled_width: Any,
    sampling_ratio: int,
    aligned: bool,
    *,
    meta_outputs: Any,
) -> Tensor:
    """Mean of bilinear samples in each cell of each region.

    Shapes: input [n, c, h, w], rois [k, 5] as (image, x1, y1, x2, y2) -> [k, c, pooled_height, pooled_width].
    Dtypes: float32, float16.
    """
    return ge.ROIAlign(input, rois, **_region(spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned))


@_op("_roi_align_backward", "ROIAlignGrad")
def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: Any,
    pooled_width: Any,
    batch_size: Any,
    channels: Any,
    height: Any,
    width: Any,
    sampling_ratio: int,
    aligned: bool,
    *,
    meta_outputs: Any,
) -> Tensor:
    """Gradient of ``roi_align`` for its input.

    Dtypes: float32; float16 through float32.
    """
    names = ("batch_size", "channels", "height", "width")
    sizes = [_number(name, size) for name, size in zip(names, (batch_size, channels, height, width))]
    region = _region(spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)
    whole = ge.ROIAlignGrad(cast(grad, _D.DT_FLOAT), cast(rois, _D.DT_FLOAT), xdiff_shape=sizes, **region)
    return cast(whole, grad.dtype)


def _rounded(x: Tensor) -> Tensor:
    """Halves away from zero, as C rounds; GE's Round takes the even neighbour."""
    return ge.Mul(ge.Sign(x), ge.Floor(ge.Adds(ge.Abs(x), value=0.5)))


def _cells(rois: Tensor, spatial_scale: float, last: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Regions in cells of the feature map, whose last cell belongs to the region."""
    image, corners = ge.SplitV(rois, [1, 4], 1, num_split=2)
    start, end = ge.SplitV(_rounded(ge.Muls(corners, value=spatial_scale)), [2, 2], 1, num_split=2)
    return ge.ConcatV2([image, start, last(start, end)], 1, N=3)


@_op("roi_pool", "RoiPoolingWithArgMax")
def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: Any, pooled_width: Any, *, meta_outputs: Any
) -> Any:
    """Maximum of each cell of each region.

    Shapes: input [n, c, h, w], rois [k, 5] -> the maxima [k, c, pooled_height, pooled_width] and where they stood.
    Dtypes: float32, float16; int32.
    Emits:  RoiPoolingWithArgMax with a scale of 1: it scales without rounding, torchvision rounds first.
    """
    cells = _cells(rois, _number("spatial_scale", spatial_scale), ge.Maximum)
    return tuple(
        ge.RoiPoolingWithArgMax(
            input,
            cells,
            pooled_h=_number("pooled_height", pooled_height),
            pooled_w=_number("pooled_width", pooled_width),
            spatial_scale_h=1.0,
            spatial_scale_w=1.0,
            pool_channel=1,
        )
    )


@_op("ps_roi_pool", "PSROIPoolingV2")
def ps_roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: Any, pooled_width: Any, *, meta_outputs: Any
) -> Any:
    """Mean of each cell of each region, every cell in a channel of its own.

    Shapes: input [1, o * g * g, h, w], rois [k, 5], g = pooled_height = pooled_width -> means [k, o, g, g] and the
        channels they come from.
    Dtypes: float32, float16; int32.
    Emits:  PSROIPoolingV2 with a scale of 1: it rounds before it scales, torchvision afterwards; without the last row
        and column, which torchvision never reads. Channels: BroadcastTo.
    """
    shape, cells = input.known_shape or (), _number("pooled_height", pooled_height)
    if cells != _number("pooled_width", pooled_width):
        raise Refusal(f"pooled_height {cells} and pooled_width {pooled_width} differ; GE has one group_size for both")
    if len(shape) != 4 or shape[0] != 1 or not isinstance(shape[1], int):
        raise Refusal(
            f"argument 'input' is {shape}; PSROIPoolingV2 takes as many regions of each image, pass one image"
        )
    moved = _cells(
        rois,
        _number("spatial_scale", spatial_scale),
        lambda start, end: ge.Adds(ge.Maximum(end, ge.Adds(start, value=1.0)), value=-1.0),
    )
    planes = ge.Unsqueeze(ge.Transpose(moved, ints([1, 0])), axes=[0])
    channels = shape[1] // cells**2
    read = ge.StridedSlice(input, ints([0] * 4), ints([0, 0, -1, -1]), ints([1] * 4), end_mask=3)
    pooled = ge.PSROIPoolingV2(read, planes, spatial_scale=1.0, output_dim=channels, group_size=cells)
    places = ge.Const(np.arange(shape[1], dtype=np.int32).reshape(1, channels, cells, cells))
    return pooled, ge.BroadcastTo(places, ge.Shape(pooled, dtype=int(_D.DT_INT64)))


@_op("deform_conv2d", "DeformableOffsets, Conv2D")
def deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: Any,
    stride_w: Any,
    pad_h: Any,
    pad_w: Any,
    dilation_h: Any,
    dilation_w: Any,
    groups: Any,
    offset_groups: Any,
    use_mask: bool,
    *,
    meta_outputs: Any,
) -> Tensor:
    """A convolution whose samples are moved by offsets and weighted by a mask.

    Shapes: input [n, c, h, w], weight [o, c / groups, kh, kw], offset [n, 2 * offset_groups * kh * kw, oh, ow] in pairs
        (y, x), mask [n, offset_groups * kh * kw, oh, ow] -> [n, o, oh, ow].
    Dtypes: float32, float16.
    Emits:  GatherV2 and ConcatV2 (GE wants all x, all y, then the mask), DeformableOffsets, Conv2D.
    """
    kernel = (weight.known_shape or ())[2:]
    names = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "offset_groups")
    given = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups)
    sh, sw, ph, pw, dh, dw, groups, shared = (_number(name, value) for name, value in zip(names, given))
    if len(kernel) != 2 or not all(isinstance(k, int) for k in kernel):
        raise Refusal("argument 'weight' has symbolic kernel sizes, but a GE attribute holds them; mark them static")
    pairs = shared * kernel[0] * kernel[1]
    order = np.concatenate([np.arange(1, 2 * pairs, 2), np.arange(0, 2 * pairs, 2)])
    axis = ge.Const(1, dtype=_D.DT_INT64)
    moved = ge.GatherV2(offset, ge.Const(order.astype(np.int64)), axis)
    if not use_mask:
        mask = ge.OnesLike(ge.GatherV2(offset, ge.Const(np.arange(pairs, dtype=np.int64)), axis))
    sampled = ge.DeformableOffsets(
        input,
        ge.ConcatV2([moved, mask], 1, N=2),
        strides=[1, 1, sh, sw],
        pads=[ph, ph, pw, pw],
        ksize=[int(k) for k in kernel],
        dilations=[1, 1, dh, dw],
        data_format="NCHW",
        deformable_groups=shared,
        modulated=True,
    )
    y: Tensor = ge.Conv2D(
        sampled,
        weight,
        bias,
        strides=[1, 1, int(kernel[0]), int(kernel[1])],
        pads=[0] * 4,
        dilations=[1] * 4,
        groups=groups,
        data_format="NCHW",
    )
    laid_out(2, input, sampled, weight, y)
    return y


define_refusal(
    "torchvision.box_iou_rotated.default",
    "torchvision.box_iou_rotated: GE RotatedIou says in no document how it turns; compute it in eager mode",
    module=__name__,
    source="torchvision.ops",
    title="box_iou_rotated",
)
