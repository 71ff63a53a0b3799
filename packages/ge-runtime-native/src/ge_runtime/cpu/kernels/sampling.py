"""Grid sampling, overlapping boxes, pairwise distances, patches, mirrored padding and depth-space moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.conv import from_channels_first, pad_spatial, to_channels_first
from ge_runtime.cpu.kernels.numerics import number, rounded, wide
from ge_runtime.cpu.kernels.shape_ops import PAD_MODES, mirror_index
from ge_runtime.cpu.limits import ensure_sizes
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_F = torch.nn.functional
_INTERPOLATION: Final = {"bilinear": 0, "nearest": 1, "bicubic": 2}
_PADDING: Final = {"zeros": 0, "border": 1, "reflection": 2}
_FAR: Final = 1e3  # of a grid, whose points -1 and 1 are the edges of an image


_GRIDS = "ops-cv: image/grid_sample, documentation"
# Samples of x at grid points -1..1, last grid axis (x, y[, z]).
rows(
    {
        "GridSampler2D GridSampler3D": rounded(
            lambda x, grid, *, interpolation_mode="bilinear", padding_mode="zeros", align_corners=False: _F.grid_sample(
                x, grid, interpolation_mode, padding_mode, align_corners
            )
        ),
    },
    ignores=("data_format",),
    source=_GRIDS,
)


def _grid_grad(op: str, rank: int, backward: Any) -> Any:
    def run(
        grad: Tensor,
        x: Tensor,
        grid: Tensor,
        *,
        interpolation_mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if interpolation_mode not in _INTERPOLATION or padding_mode not in _PADDING:
            raise refused(op, f"mode {interpolation_mode!r} with padding {padding_mode!r}")
        if x.dim() != rank + 2 or grid.dim() != rank + 2 or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
            raise refused(op, f"a grid {list(grid.shape)} for {list(x.shape)}")
        ensure_sizes(op, "the gradient", grad, [*x.shape[:2], *grid.shape[1:-1]])
        if not x.numel():
            raise refused(op, f"points of an empty image {list(x.shape)}")
        mode, pad = _INTERPOLATION[interpolation_mode], _PADDING[padding_mode]
        points = torch.nan_to_num(wide(grid), nan=-1.0, posinf=_FAR, neginf=-_FAR)
        # Where a point lies that far outside changes nothing but overflows ATen's integers; a reflected one lies
        # inside wherever it came from, as long as its place in pixels is a number.
        far = torch.finfo(points.dtype).max / (4 * max(x.shape[2:])) if pad == _PADDING["reflection"] else _FAR
        points = points.clamp(-far, far)
        dx, dgrid = backward(wide(grad), wide(x), points, mode, pad, align_corners, [True, True])
        return dx.to(x.dtype), dgrid.to(grid.dtype)

    return run


rows(
    {
        "GridSampler2DGrad": _grid_grad("GridSampler2DGrad", 2, _ATEN.grid_sampler_2d_backward.default),
        "GridSampler3DGrad": _grid_grad("GridSampler3DGrad", 3, _ATEN.grid_sampler_3d_backward.default),
    },
    source=_GRIDS,
)
rows(
    {  # affine matrices (N, 2, 3) or (N, 3, 4) to a grid with its spatial axes joined: (N, points, 2 or 3)
        "AffineGrid": rounded(
            lambda theta, output_size, *, align_corners=False: _F.affine_grid(
                theta, listed(output_size), align_corners
            ).flatten(1, -2)
        ),
    },
    host=("output_size",),
    source="operator header: transformation_ops",
)


def _first_of_three(x: Tensor, dim: int) -> int:
    """The axis; its default stands for the first one of size 3."""
    return list(x.shape).index(3) if dim == -65530 else dim


_ROUNDED: Final[dict[str, Callable[..., Tensor]]] = {
    # p-norm distances (.., P, R) of rows (.., P, M) and (.., R, M); of all pairs of rows, those of the first row first
    "Cdist": lambda x1, x2, *, p=2.0: torch.cdist(x1, x2, p, compute_mode="donot_use_mm_for_euclid_dist"),
    "Pdist": lambda x, *, p=2.0: torch.pdist(x.contiguous(), p),
    "Cross CrossV2": lambda x1, x2, *, dim=-65530: torch.linalg.cross(x1, x2, dim=_first_of_three(x1, dim)),
    "Renorm": lambda x, *, p, dim, maxnorm: torch.renorm(x, p, dim, maxnorm),
    "ShuffleChannel": lambda x, *, group=1: (  # axis 1 read as (group, rest) and transposed
        x.reshape(x.shape[0], group, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape).clone()
    ),
}
rows(
    {op: rounded(formula) for op, formula in _ROUNDED.items()},
    source="operator headers: cdist, pdist, selection_ops, nn_norm_ops, nn_detect_ops",
)


def _iou(box: Tensor, others: Tensor, offset: int) -> Tensor:
    left_top, right_bottom = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    inter = (right_bottom - left_top + offset).clamp(min=0).prod(1)
    area = (box[2:] - box[:2] + offset).prod()
    union = area + (others[:, 2:] - others[:, :2] + offset).prod(1) - inter
    return torch.where(union > 0, inter / union, 0.0)  # two boxes without area do not overlap


@kernel("NonMaxSuppressionV3", source="operator header: image_ops")
def non_max_suppression_v3(
    boxes: Tensor,
    scores: Tensor,
    max_output_size: Tensor,
    iou_threshold: Tensor,
    score_threshold: Tensor,
    *,
    offset: int = 0,
) -> Tensor:
    """Indices of boxes kept, best score first, each overlapping no better one by more than the threshold; int32."""
    corners = wide(boxes)
    one, other = corners[:, :2], corners[:, 2:]
    corners = torch.cat((torch.minimum(one, other), torch.maximum(one, other)), 1)
    limit, least = number(iou_threshold), number(score_threshold)
    order = torch.sort(wide(scores), descending=True, stable=True).indices
    alive = wide(scores) > least
    kept: list[int] = []
    for index in order.tolist():
        if len(kept) >= int(number(max_output_size)):
            break
        if alive[index]:
            kept.append(index)
            alive &= _iou(corners[index], corners, offset) <= limit
    return torch.tensor(kept, dtype=torch.int32)


@kernel("CdistGrad", source="operator header: cdist_grad")
def cdist_grad(grad: Tensor, x1: Tensor, x2: Tensor, cdist: Tensor, *, p: float = 2.0) -> Tensor:
    """Gradient of Cdist for x1."""
    g, a, b, distances = (wide(t).contiguous() for t in (grad, x1, x2, cdist))
    if a.dim() < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-1]:
        raise refused("CdistGrad", f"rows {list(a.shape)} and {list(b.shape)}")
    for name, given in (("grad", g), ("cdist", distances)):
        ensure_sizes("CdistGrad", name, given, [*a.shape[:-1], b.shape[-2]])
    return _ATEN._cdist_backward.default(g, a, b, p, distances).to(x1.dtype)  # type: ignore[no-any-return]


def _pair(values: Sequence[int]) -> list[int]:
    values = list(values)
    return values * 2 if len(values) == 1 else values[-2:]


@kernel("Im2col", source="ops-math: conversion/im2col, operator header")
def im2col(
    x: Tensor,
    *,
    ksizes: Sequence[int],
    strides: Sequence[int] = (1,),
    dilations: Sequence[int] = (1,),
    padding_mode: str = "CALCULATED",
    pads: Sequence[int] = (0,),
) -> Tensor:
    """(N, C, H, W) to (N, C * kh * kw, rows, columns); pads of 1, 2 (a pair an axis alike) or 4 values."""
    if padding_mode not in ("CALCULATED", "VALID"):
        raise refused("Im2col", f"padding_mode is {padding_mode!r}, accepted: CALCULATED, VALID")
    p = list(pads) if padding_mode == "CALCULATED" else [0]
    p = p * 4 if len(p) == 1 else ([p[0], p[0], p[1], p[1]] if len(p) == 2 else p)
    size, stride, dilation = _pair(ksizes), _pair(strides), _pair(dilations)
    data = pad_spatial(x, p)
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(data.shape[2:], size, stride, dilation)]
    rows = x.shape[1] * size[0] * size[1]
    return _F.unfold(data, size, dilation, 0, stride).reshape(x.shape[0], rows, *counts)


@kernel("Col2im", host=("output_size",), source="ops-cv: image/col2im, operator header")
def col2im(
    x: Tensor,
    output_size: Any,
    *,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Sum of patches (N, C, kh * kw, L) into an image (N, C, H, W)."""
    if x.dim() != 4:
        raise refused("Col2im", f"x of rank {x.dim()}", "it takes (N, C, kh * kw, L)")
    image, size, far, pad, step = map(_pair, (listed(output_size), kernel_size, dilation, padding, stride))
    if any(len(n) != 2 for n in (image, size, far, pad, step)) or min(*size, *far, *step) < 1 or min(pad) < 0:
        raise refused("Col2im", f"kernel_size {size}, dilation {far}, padding {pad}, stride {step}", "two numbers each")
    # in Python's numbers: ATen's are of 32 bits in its loops, and what it checked before has more
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(image, pad, far, size, step)]
    if min(counts) < 1 or counts[0] * counts[1] != x.shape[3] or size[0] * size[1] != x.shape[2]:
        raise refused("Col2im", f"x of {list(x.shape)} for patches of {size} at {counts[0]} x {counts[1]} places")
    flat = wide(x).reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[-1])
    return _F.fold(flat, image, size, far, pad, step).to(x.dtype)


def _pad_adjoint(x: Tensor, before: Sequence[int], after: Sequence[int], mode: str) -> Tensor:
    """Add padded positions onto the positions they were copied from, one axis after the other."""
    if mode not in PAD_MODES:
        raise refused("padding gradient", f"mode is {mode!r}, accepted: {', '.join(PAD_MODES)}")
    y = wide(x)
    for axis, (b, a) in enumerate(zip(before, after)):
        if b or a:
            size = y.shape[axis] - b - a
            shape = [*y.shape[:axis], size, *y.shape[axis + 1 :]]
            y = torch.zeros(shape, dtype=y.dtype).index_add_(axis, mirror_index(size, b, a, mode), y)
    return y.to(x.dtype)


@kernel("PadV3Grad", host=("paddings",), views=True, source="ops-math: conversion/pad_v3_grad, documentation")
def pad_v3_grad(x: Tensor, paddings: Any, *, mode: str = "reflect", paddings_contiguous: bool = True) -> Tensor:
    """Adjoint of PadV3 with a copying mode; paddings are (before, after) pairs, or all befores first."""
    p, rank = listed(paddings), x.dim()
    return _pad_adjoint(x, *((p[0::2], p[1::2]) if paddings_contiguous else (p[:rank], p[rank:])), mode)


# Mode REFLECT or SYMMETRIC.
rows(
    {"MirrorPadGrad": lambda x, paddings, *, mode: pad_v3_grad(x, paddings, mode=mode.lower())},
    host=("paddings",),
    views=True,
    source="operator header: pad_ops",
)


@kernel("DepthToSpace", source="operator header: transformation_ops")
def depth_to_space(x: Tensor, *, block_size: int, mode: str = "DCR", data_format: str = "NHWC") -> Tensor:
    """Channels become blocks of pixels; DCR: the block is the outer part of the channel axis, CRD: the inner part."""
    first = to_channels_first(x, data_format)
    n, c, h, w = first.shape
    b = block_size
    if mode == "DCR":
        y = first.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        y = first.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        raise refused("DepthToSpace", f"mode is {mode!r}, accepted: DCR, CRD")
    return from_channels_first(y.reshape(n, c // (b * b), h * b, w * b), data_format)


@kernel("SpaceToDepth", source="operator header: transformation_ops")
def space_to_depth(x: Tensor, *, block_size: int, data_format: str = "NHWC") -> Tensor:
    """Blocks of pixels become channels, the block outside."""
    first = to_channels_first(x, data_format)
    n, c, h, w = first.shape
    b = block_size
    y = first.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return from_channels_first(y.reshape(n, c * b * b, h // b, w // b), data_format)
