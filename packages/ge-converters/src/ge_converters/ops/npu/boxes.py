"""torch_npu's ops of detection and training that are one GE operator with other names: boxes, extrema, gradients."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.emit.shapes import shape_operand
from ge_converters.ops.npu.mapping import Renamed, as_declared, emit, npu_op, register_rows
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_REDUCTION: Final = {0: "none", 1: "mean", 2: "sum"}
_OVERLAP: Final = {0: "iou", 1: "iof"}
_PAIR: Final = "bboxes=input gtboxes trans is_cross mode"
_PAIR_GRAD: Final = "dy=grad bboxes gtboxes trans is_cross mode"
_MODE: Final = {"mode": _OVERLAP}
_INT_EXTREMA: Final = "values indice"

# torch_npu's op: GE operator, and its ports and attributes by torch's names.
ROWS: Final = {
    # -- boxes
    "npu_giou_backward": Renamed("GIoUGrad", _PAIR_GRAD, codes=_MODE),
    "npu_diou": Renamed("DIoU", _PAIR, codes=_MODE),
    "npu_diou_backward": Renamed("DIoUGrad", _PAIR_GRAD, codes=_MODE),
    "_npu_ciou": Renamed("CIoU", _PAIR + " atan_sub_flag", codes=_MODE),
    "npu_roi_align": Renamed(
        "ROIAlign", "features=input rois spatial_scale pooled_height pooled_width sample_num roi_end_mode"
    ),
    "npu_roi_alignbk": Renamed(
        "ROIAlignGrad",
        "ydiff=input rois xdiff_shape pooled_width pooled_height spatial_scale sample_num roi_end_mode",
    ),
    "npu_ps_roi_pooling": Renamed("PSROIPoolingV2", "x=input rois spatial_scale output_dim group_size"),
    # -- activations, extrema, packed signs
    "npu_mish": Renamed("Mish", "x=input"),
    "npu_mish_backward": Renamed("MishGrad", "grad x=input"),
    "npu_max.dim": Renamed("ArgMaxWithValue", "x=input dimension=dim keep_dims=keepdim", _INT_EXTREMA),
    "npu_min.dim": Renamed("ArgMinWithValue", "x=input dimension=dim keep_dims=keepdim", _INT_EXTREMA),
    "npu_sign_bits_pack": Renamed("SignBitsPack", "x=input size"),
    "npu_indexing": Renamed(
        "StridedSlice",
        "x=input begin end strides begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask",
    ),
    # -- gradients, parts of attention
    "npu_add_layer_norm_backward": Renamed(
        "AddLayerNormGrad", "dy=dy_opt x1 x2 rstd mean gamma dsum=dsum_opt", "dx dx dgamma dbeta"
    ),
    "npu_binary_cross_entropy_with_logits_backward": Renamed(
        "SigmoidCrossEntropyWithLogitsGradV2",
        "predict=input target dout=grad_output weight=weight_opt pos_weight=pos_weight_opt reduction",
        codes={"reduction": _REDUCTION},
    ),
    "npu_scaled_masked_softmax_backward": Renamed("ScaledMaskedSoftmaxGrad", "y_grad y mask scale fixed_triu_mask"),
    "npu_ring_attention_update": Renamed(
        "RingAttentionUpdate",
        "prev_attn_out prev_softmax_max prev_softmax_sum cur_attn_out cur_softmax_max cur_softmax_sum actual_seq_qlen "
        "input_layout",
    ),
    "npu_fusion_attention_grad_v2": Renamed(
        "FlashAttentionScoreGrad",
        "query key value dy pse_shift=pse atten_mask softmax_max softmax_sum softmax_in attention_in prefix "
        "actual_seq_qlen actual_seq_kvlen head_num input_layout sparse_mode scale_value pre_tockens=pre_tokens "
        "next_tockens=next_tokens pse_type q_start_idx kv_start_idx",
        idle="inner_precise gen_mask_parallel sync seed offset numels",
    ),
}

register_rows("npu", ROWS, __name__, "torch_npu, documentation of the op; GE's operator")


@npu_op("npu_giou.default", "GIoU")
def npu_giou(
    input: Tensor,
    gtboxes: Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
    *,
    meta_outputs: TensorSpec,
) -> Any:
    """Overlap of boxes in columns, x1, y1, x2, y2 or with ``trans`` centre and size, less what lies beside them.

    Shapes: [4, n], [4, n] -> [n, 1].
    Dtypes: float32, float16.
    Emits:  GIoU, Reshape.
    """
    if mode or is_cross:
        raise Refusal(f"mode is {mode!r}, is_cross {is_cross!r}; 0 and False are served, each box with its own")
    operands = {"bboxes": input, "gtboxes": gtboxes, "trans": trans, "is_cross": False, "mode": "iou"}
    (overlap,) = emit("GIoU", operands)
    return cast(ge.Reshape(overlap, shape_operand([-1, 1])), meta_outputs.dtype)


@npu_op("npu_ptiou.default", "Iou")
@npu_op("npu_iou.default", "Iou")
def npu_iou(bboxes: Tensor, gtboxes: Tensor, mode: int = 0, *, meta_outputs: TensorSpec) -> Any:
    """Overlap of each pair of boxes (x1, y1, x2, y2), over their union (0) or over the second box's area (1).

    Shapes: [n, 4], [m, 4] -> [m, n].
    Dtypes: float32, float16.
    Emits:  Iou.
    """
    if mode not in _OVERLAP:
        raise Refusal(f"argument 'mode' is {mode!r}; GE operator Iou knows 0 and 1")
    operands = {"bboxes": bboxes, "gtboxes": gtboxes, "mode": _OVERLAP[mode], "eps": 0.01}
    return as_declared(emit("Iou", operands), meta_outputs)


def _box(box: str, values: Any) -> dict[str, list[float]]:
    return {f"{box}s": [float(v) for v in values]}


@npu_op("npu_bounding_box_encode.default", "BoundingBoxEncode")
def npu_bounding_box_encode(
    anchor_box: Tensor, ground_truth_box: Tensor, *numbers: float, meta_outputs: TensorSpec
) -> Any:
    """Distances of boxes (x1, y1, x2, y2) from anchors: of centres, and logarithms of sizes, which count both ends.

    Shapes: [n, 4], [n, 4] -> [n, 4].
    Dtypes: float32, float16.
    Emits:  BoundingBoxEncode.
    """
    operands = {"anchor_box": anchor_box, "ground_truth_box": ground_truth_box}
    settings = {**_box("mean", numbers[:4]), **_box("std", numbers[4:])}
    return as_declared(emit("BoundingBoxEncode", {**operands, **settings}), meta_outputs)


@npu_op("npu_bounding_box_decode.default", "BoundingBoxDecode")
def npu_bounding_box_decode(rois: Tensor, deltas: Tensor, *numbers: Any, meta_outputs: TensorSpec) -> Any:
    """Boxes (x1, y1, x2, y2) from anchors and distances, inside an image of max_shape (height, width).

    Shapes: [n, 4], [n, 4] -> [n, 4].
    Dtypes: float32, float16.
    Emits:  BoundingBoxDecode.
    """
    *edges, max_shape, wh_ratio_clip = numbers
    operands = {"rois": rois, "deltas": deltas, "max_shape": max_shape, "wh_ratio_clip": wh_ratio_clip}
    settings = {**_box("mean", edges[:4]), **_box("std", edges[4:])}
    return as_declared(emit("BoundingBoxDecode", {**operands, **settings}), meta_outputs)


@npu_op("npu_one_hot.default", "OneHot")
def npu_one_hot(
    input: Tensor,
    num_classes: int = -1,
    depth: int = 1,
    on_value: float = 1,
    off_value: float = 0,
    *,
    meta_outputs: TensorSpec,
) -> Any:
    """Shapes: input [..] -> [.., depth].
    Dtypes: int32, int64, uint8 -> float32.
    Emits:  OneHot.
    """
    if num_classes != -1:
        raise Refusal(f"argument 'num_classes' is {num_classes}, the axis of the classes; leave it at -1, and permute")
    on, off = (ge.Const(np.array(v, np.float32), dtype=DataType.DT_FLOAT) for v in (on_value, off_value))
    size = ge.Const(np.array(depth, np.int32), dtype=DataType.DT_INT32)
    operands = {"x": input, "depth": size, "on_value": on, "off_value": off}
    return as_declared(emit("OneHot", operands), meta_outputs)


@npu_op("npu_dropout_do_mask.default", "DropOutDoMask")
def npu_dropout_do_mask(input: Tensor, mask: Tensor, p: float, *, meta_outputs: Any) -> Any:
    """Shapes: mask of bits [ceil(n / 128) * 16], the lowest bit of a byte first -> as input, and the mask.
    Dtypes: float32, float16, bfloat16.
    Emits:  DropOutDoMask.
    """
    return [_kept(input, mask, p, meta_outputs[0]), mask]


@npu_op("npu_dropout_backward.default", "DropOutDoMask")
def npu_dropout_backward(grad_output: Tensor, mask: Tensor, p: float, *, meta_outputs: TensorSpec) -> Any:
    """Shapes: as npu_dropout_do_mask.
    Dtypes: float32, float16, bfloat16.
    Emits:  DropOutDoMask.
    """
    return _kept(grad_output, mask, p, meta_outputs)


def _kept(x: Tensor, mask: Tensor, p: float, spec: TensorSpec) -> Tensor:
    keep = cast(ge.Const(np.array(1 - p, np.float32), dtype=DataType.DT_FLOAT), x.dtype)
    return cast(emit("DropOutDoMask", {"x": x, "mask": mask, "keep_prob": keep})[0], spec.dtype)


@npu_op("npu_nms_v4.default", "NonMaxSuppressionV4")
def npu_nms_v4(
    input: Tensor,
    scores: Tensor,
    max_output_size: int,
    iou_threshold: Tensor,
    scores_threshold: Tensor,
    pad_to_max_output_size: bool = False,
    *,
    meta_outputs: Any,
) -> Any:
    """Indices of boxes that overlap no better one, best first, padded with zeros; and how many there are.

    Shapes: [n, 4], [n] -> [max_output_size], [].
    Dtypes: float32, float16 -> int32.
    Emits:  NonMaxSuppressionV4.
    """
    if not pad_to_max_output_size:
        raise Refusal("argument 'pad_to_max_output_size' is False; the size of the result depends on data then")
    most = ge.Const(np.array(int(max_output_size), np.int32), dtype=DataType.DT_INT32)
    operands = {
        "boxes": input,
        "scores": scores,
        "max_output_size": most,
        "iou_threshold": iou_threshold,
        "score_threshold": scores_threshold,
        "pad_to_max_output_size": True,
    }
    return as_declared(emit("NonMaxSuppressionV4", operands), meta_outputs)
