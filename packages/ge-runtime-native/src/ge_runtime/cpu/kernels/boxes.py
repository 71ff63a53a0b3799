"""Boxes of detection: overlaps of pairs with their gradients, distances from anchors, boxes that stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import number, wide
from ge_runtime.cpu.kernels.sampling import non_max_suppression_v3
from ge_runtime.cpu.limits import ensure_sizes
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.errors import refused

_SOURCE = "operator header: nn_detect_ops; torch_npu, documentation"
_MODES = ("iou", "iof")


def _corners(op: str, boxes: Tensor, centred: bool) -> Sequence[Tensor]:
    """x1, y1, x2, y2 of boxes whose first axis is these, or centre, width and height."""
    if boxes.dim() != 2 or boxes.shape[0] != 4:
        raise refused(op, f"boxes {list(boxes.shape)}, expected [4, n]")
    if not centred:
        return boxes.unbind(0)
    x, y, w, h = boxes.unbind(0)
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def _area(box: Sequence[Tensor]) -> Tensor:
    return (box[2] - box[0]) * (box[3] - box[1])


def _common(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    width = torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])
    height = torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])
    return width.clamp(min=0) * height.clamp(min=0)


def _ratio(a: Sequence[Tensor], b: Sequence[Tensor], mode: str) -> tuple[Tensor, Tensor]:
    """Overlap over the union, or over the area of the second box; and the union."""
    common = _common(a, b)
    union = _area(a) + _area(b) - common
    return common / (union if mode == "iou" else _area(b)), union


def _enclosing(a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.maximum(a[2], b[2]) - torch.minimum(a[0], b[0]), torch.maximum(a[3], b[3]) - torch.minimum(a[1], b[1])


def _giou(a: Sequence[Tensor], b: Sequence[Tensor], mode: str) -> Tensor:
    ratio, union = _ratio(a, b, mode)
    width, height = _enclosing(a, b)
    return ratio - (width * height - union) / (width * height)


def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Squared distance of the centres over the squared diagonal of the box around both."""
    width, height = _enclosing(a, b)
    apart = (a[0] + a[2] - b[0] - b[2]) ** 2 + (a[1] + a[3] - b[1] - b[3]) ** 2
    return apart / 4 / (width**2 + height**2)


def _diou(a: Sequence[Tensor], b: Sequence[Tensor], mode: str) -> Tensor:
    return _ratio(a, b, mode)[0] - _distance(a, b)


def _paired(
    op: str, form: Callable[..., Tensor], bboxes: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool, mode: str
) -> Tensor:
    """One value for each pair of columns, (1, n); with ``is_cross`` for each column with each, (m, n)."""
    if mode not in _MODES:
        raise refused(op, f"mode is {mode!r}; accepted: {', '.join(_MODES)}")
    a, b = (_corners(op, t, trans) for t in (bboxes, gtboxes))
    if is_cross:
        return form([t.unsqueeze(0) for t in a], [t.unsqueeze(1) for t in b], mode)
    if bboxes.shape != gtboxes.shape:
        raise refused(op, f"{bboxes.shape[1]} boxes and {gtboxes.shape[1]}, which are not compared crosswise")
    return form(a, b, mode).unsqueeze(0)


def _overlap(op: str, form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        bboxes: Tensor, gtboxes: Tensor, *, trans: bool = False, is_cross: bool = True, mode: str = "iou"
    ) -> Tensor:
        return _paired(op, form, wide(bboxes), wide(gtboxes), trans, is_cross, mode).to(bboxes.dtype)

    return run


def _overlap_grad(op: str, form: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        dy: Tensor, bboxes: Tensor, gtboxes: Tensor, *, trans: bool = False, is_cross: bool = True, mode: str = "iou"
    ) -> tuple[Tensor, Tensor]:
        call = partial(_paired, op, form, trans=trans, is_cross=is_cross, mode=mode)
        y, pull = torch.func.vjp(call, wide(bboxes), wide(gtboxes))
        if dy.numel() != y.numel():
            raise refused(op, f"gradient {list(dy.shape)} of {list(y.shape)}")
        da, db = pull(wide(dy).reshape(y.shape))
        return da.to(bboxes.dtype), db.to(gtboxes.dtype)

    return run


# Intersection over union, less what a box around both has beside them (GIoU), or the distance of the centres (DIoU).
rows({"GIoU": _overlap("GIoU", _giou), "DIoU": _overlap("DIoU", _diou)}, source=_SOURCE)
rows({"GIoUGrad": _overlap_grad("GIoUGrad", _giou), "DIoUGrad": _overlap_grad("DIoUGrad", _diou)}, source=_SOURCE)


@kernel("CIoU", source=_SOURCE)
def ciou(
    bboxes: Tensor,
    gtboxes: Tensor,
    *,
    trans: bool = False,
    is_cross: bool = True,
    mode: str = "iou",
    atan_sub_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """DIoU less a part for the difference of the sides' ratios; second result: the difference of their angles."""

    def angles(a: Sequence[Tensor], b: Sequence[Tensor], _: str) -> Tensor:
        return torch.atan((b[2] - b[0]) / (b[3] - b[1])) - torch.atan((a[2] - a[0]) / (a[3] - a[1]))

    def form(a: Sequence[Tensor], b: Sequence[Tensor], mode: str) -> Tensor:
        v = 4 / math.pi**2 * angles(a, b, mode) ** 2
        ratio = _ratio(a, b, mode)[0]
        return ratio - _distance(a, b) - v * v / (1 - ratio + v)

    y, turned = (_paired("CIoU", f, wide(bboxes), wide(gtboxes), trans, is_cross, mode) for f in (form, angles))
    return y.to(bboxes.dtype), turned.to(bboxes.dtype) if atan_sub_flag else torch.zeros_like(turned).to(bboxes.dtype)


def _rows_of_boxes(op: str, boxes: Tensor) -> Tensor:
    if boxes.dim() != 2 or boxes.shape[1] != 4:
        raise refused(op, f"boxes {list(boxes.shape)}, expected [n, 4]")
    return wide(boxes)


@kernel("Iou", source=_SOURCE)
def iou(bboxes: Tensor, gtboxes: Tensor, *, mode: str = "iou", eps: float = 1.0, aligned: bool = False) -> Tensor:
    """Overlaps (m, n) of boxes (n, 4) and (m, 4) as x1, y1, x2, y2; ``aligned``: (1, n), each with its own."""
    if mode not in _MODES:
        raise refused("Iou", f"mode is {mode!r}; accepted: {', '.join(_MODES)}")
    a, b = (_rows_of_boxes("Iou", t).unbind(1) for t in (bboxes, gtboxes))
    if aligned:
        ensure_sizes("Iou", "gtboxes", gtboxes, list(bboxes.shape))
    firsts = [t.unsqueeze(0) for t in a]
    seconds = [t.unsqueeze(0 if aligned else 1) for t in b]
    common = _common(firsts, seconds)
    whole = _area(seconds) if mode == "iof" else _area(firsts) + _area(seconds) - common
    return (common / (whole + eps)).to(bboxes.dtype)


def _centred(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres, and sizes that count both ends."""
    return (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2] + 1


@kernel("BoundingBoxEncode", source=_SOURCE)
def bounding_box_encode(
    anchor_box: Tensor,
    ground_truth_box: Tensor,
    *,
    means: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
    stds: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
) -> Tensor:
    """(n, 4): distances of the centres in sizes of the anchor, logarithms of the sizes' ratios; less means, by stds."""
    (p, ps), (g, gs) = (_centred(_rows_of_boxes("BoundingBoxEncode", t)) for t in (anchor_box, ground_truth_box))
    deltas = torch.cat(((g - p) / ps, torch.log(gs / ps)), 1)
    return ((deltas - torch.tensor(list(means))) / torch.tensor(list(stds))).to(anchor_box.dtype)


@kernel("BoundingBoxDecode", source=_SOURCE)
def bounding_box_decode(
    rois: Tensor,
    deltas: Tensor,
    *,
    means: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
    stds: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    max_shape: Sequence[int],
    wh_ratio_clip: float = 0.016,
) -> Tensor:
    """The way back: boxes (n, 4) inside of an image (height, width); logarithms no further from 0 than the clip's."""
    p, ps = _centred(_rows_of_boxes("BoundingBoxDecode", rois))
    moved = _rows_of_boxes("BoundingBoxDecode", deltas) * torch.tensor(list(stds)) + torch.tensor(list(means))
    most = abs(math.log(wh_ratio_clip))
    centre, size = p + ps * moved[:, :2], ps * moved[:, 2:].clamp(-most, most).exp()
    inside = torch.tensor([float(max_shape[1] - 1), float(max_shape[0] - 1)])
    ends = [torch.minimum(t.clamp(min=0), inside) for t in (centre - size / 2 + 0.5, centre + size / 2 - 0.5)]
    return torch.cat(ends, 1).to(rois.dtype)


@kernel("NonMaxSuppressionV4", source="operator header: image_ops")
def non_max_suppression_v4(
    boxes: Tensor,
    scores: Tensor,
    max_output_size: Tensor,
    iou_threshold: Tensor,
    score_threshold: Tensor,
    *,
    pad_to_max_output_size: bool = False,
) -> tuple[Tensor, Tensor]:
    """As NonMaxSuppressionV3, with zeros behind up to the largest number if asked for; and how many boxes stay."""
    kept = non_max_suppression_v3(boxes, scores, max_output_size, iou_threshold, score_threshold)
    count = torch.tensor(kept.numel(), dtype=torch.int32)
    if pad_to_max_output_size:
        kept = torch.nn.functional.pad(kept, (0, int(number(max_output_size)) - kept.numel()))
    return kept, count


@kernel("AnchorResponseFlags", source="ops-cv: objdetect/anchor_response_flags, documentation")
def anchor_response_flags(
    gt_bboxes: Tensor, *, featmap_size: Sequence[int], strides: Sequence[int], num_base_anchors: int
) -> Tensor:
    """1 for every anchor of the cells in which the middle of a box lies; cells row by row, strides (across, down)."""
    height, width = featmap_size
    across, down = (((gt_bboxes[:, i] + gt_bboxes[:, i + 2]) / 2 / strides[i]).long() for i in (0, 1))
    if bool(((across < 0) | (across >= width) | (down < 0) | (down >= height)).any()):
        raise refused("AnchorResponseFlags", f"a box whose middle lies outside of {height} x {width} cells")
    flags = torch.zeros(height * width, dtype=torch.uint8)
    flags[down * width + across] = 1
    return flags.repeat_interleave(num_base_anchors)
