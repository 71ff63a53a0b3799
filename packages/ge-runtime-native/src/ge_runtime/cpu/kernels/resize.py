"""Resizing of images and volumes, forward and backward.

Each method is a matrix along each spatial axis: a table says which coordinates it samples and with which weights.
ATen serves the coordinate rules it shares (plain nearest, half-pixel and aligned corners); the matrices serve the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import ints, refuse, torch_dtype, wide
from ge_runtime.cpu.registry import kernel

_ATEN = torch.ops.aten
_HEADER = "operator header: image_ops, nn_pooling_ops"
_F = torch.nn.functional


def _scale(n: int, out: int, align: bool, factor: float = 0.0) -> float:
    if align:
        return (n - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / factor if factor > 0 else n / out


def nearest_index(n: int, out: int, align: bool, half_pixel: bool, factor: float = 0.0) -> Tensor:
    """Source index of each of ``out`` positions on an axis of ``n``; arithmetic in float32 as the operator does it."""
    position = torch.arange(out, dtype=torch.float32)
    scale = torch.tensor(_scale(n, out, align, factor), dtype=torch.float32)
    if align:
        index = torch.floor(position * scale + 0.5)
    else:
        index = torch.floor((position + 0.5) * scale if half_pixel else position * scale)
    return index.long().clamp(0, n - 1)


def _coordinates(n: int, out: int, align: bool, half_pixel: bool, factor: float, clamp: bool) -> Tensor:
    position = torch.arange(out, dtype=torch.float32)
    scale = _scale(n, out, align, factor)
    source = (position + 0.5) * scale - 0.5 if half_pixel and not align else position * scale
    return source.clamp(min=0) if clamp else source


def _linear_matrix(n: int, out: int, align: bool, half_pixel: bool, factor: float = 0.0) -> Tensor:
    source = _coordinates(n, out, align, half_pixel, factor, True)
    low = source.floor().long().clamp(max=n - 1)
    high = (low + 1).clamp(max=n - 1)
    share = (source - low).clamp(0, 1)
    m = torch.zeros(out, n)
    rows = torch.arange(out)
    m.index_put_((rows, low), 1 - share, accumulate=True)
    return m.index_put_((rows, high), share, accumulate=True)


def _cubic_matrix(n: int, out: int, align: bool, half_pixel: bool, factor: float = 0.0, a: float = -0.75) -> Tensor:
    source = _coordinates(n, out, align, half_pixel, factor, False)
    base = source.floor()
    t = source - base
    m, rows = torch.zeros(out, n), torch.arange(out)
    for k in range(-1, 3):
        d = (t - k).abs()
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        weight = torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
        m.index_put_((rows, (base.long() + k).clamp(0, n - 1)), weight, accumulate=True)
    return m


def _nearest_matrix(n: int, out: int, align: bool, half_pixel: bool, factor: float = 0.0) -> Tensor:
    m = torch.zeros(out, n)
    m[torch.arange(out), nearest_index(n, out, align, half_pixel, factor)] = 1
    return m


_MATRICES: Final = {"nearest": _nearest_matrix, "linear": _linear_matrix, "cubic": _cubic_matrix}


def apply_matrices(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply the trailing axes of float32 ``x`` by one matrix each."""
    for i, m in enumerate(matrices):
        axis = x.dim() - len(matrices) + i
        x = torch.matmul(x.movedim(axis, -1), m.to(x.dtype).mT).movedim(-1, axis)
    return x.contiguous()


def resize(
    x: Tensor, size: Sequence[int], kind: str, align: bool, half_pixel: bool, factors: Sequence[float] = ()
) -> Tensor:
    """Resize the trailing axes; the result is in the arithmetic type."""
    if align and half_pixel:
        raise refuse("resize", "align_corners and half_pixel_centers are both true", "set one of them")
    steps = list(factors) or [0.0] * len(size)
    if kind == "nearest":
        for i, out in enumerate(size):
            axis = x.dim() - len(size) + i
            x = x.index_select(axis, nearest_index(x.shape[axis], out, align, half_pixel, steps[i]))
        return x
    x = wide(x)
    if align or half_pixel:
        scales = [s if s > 0 else None for s in steps]
        fns: dict[tuple[str, int], Any] = {
            ("linear", 1): _ATEN.upsample_linear1d.default,
            ("linear", 2): _ATEN.upsample_bilinear2d.default,
            ("linear", 3): _ATEN.upsample_trilinear3d.default,
            ("cubic", 2): _ATEN.upsample_bicubic2d.default,
        }
        return fns[kind, len(size)](x, list(size), align, *scales)  # type: ignore[no-any-return]
    shape = x.shape[-len(size) :]
    return apply_matrices(x, [_MATRICES[kind](n, o, align, half_pixel, s) for n, o, s in zip(shape, size, steps)])


def resize_grad(
    grad: Tensor, size: Sequence[int], kind: str, align: bool, half_pixel: bool, factors: Sequence[float] = ()
) -> Tensor:
    """Adjoint of ``resize`` from an input of trailing ``size``; in the arithmetic type."""
    steps = list(factors) or [0.0] * len(size)
    g = wide(grad)
    if kind == "nearest":
        for i, n in enumerate(size):
            axis = g.dim() - len(size) + i
            index = nearest_index(n, g.shape[axis], align, half_pixel, steps[i])
            shape = [*g.shape[:axis], n, *g.shape[axis + 1 :]]
            g = torch.zeros(shape, dtype=g.dtype).index_add_(axis, index, g)
        return g
    shape = list(g.shape[-len(size) :])
    return apply_matrices(g, [_MATRICES[kind](n, o, align, half_pixel, s).mT for n, o, s in zip(size, shape, steps)])


@kernel(
    "ResizeNearestNeighborV2",
    host=("size",),
    views=True,
    source="ops-cv: image/resize_nearest_neighbor_v2, documentation and kernel",
)
def resize_nearest_neighbor_v2(
    x: Tensor, size: Any, *, align_corners: bool = False, half_pixel_centers: bool = False, scales: Sequence[float] = ()
) -> Tensor:
    """Nearest source pixel: floor of the scaled index, of the scaled pixel centre, or rounded half up when aligned."""
    factors = list(scales) if any(s > 0 for s in scales) else []
    return resize(x, ints(size), "nearest", align_corners, half_pixel_centers, factors)


@kernel(
    "ResizeNearestNeighborV2Grad", host=("size",), source="ops-cv: image/resize_nearest_neighbor_v2_grad, documentation"
)
def resize_nearest_neighbor_v2_grad(
    grads: Tensor, size: Any, *, align_corners: bool = False, half_pixel_centers: bool = False,
    scales: Sequence[float] = (),
) -> Tensor:  # fmt: skip
    """Add every gradient pixel to the source pixel it was copied from."""
    factors = list(scales) if any(s > 0 for s in scales) else []
    return resize_grad(grads, ints(size), "nearest", align_corners, half_pixel_centers, factors).to(grads.dtype)


def _image(kind: str) -> Any:
    def run(
        x: Tensor, size: Any, *, align_corners: bool = False, half_pixel_centers: bool = False, dtype: int = 0,
        scales: Sequence[float] = (),
    ) -> Tensor:  # fmt: skip
        factors = list(scales) if any(s > 0 for s in scales) else []
        data = x if x.is_floating_point() else x.float()
        y = resize(data, ints(size), kind, align_corners, half_pixel_centers, factors)
        out = torch_dtype(dtype)
        return y.round().clamp(0, 255).to(out) if out == torch.uint8 else y.to(out)

    return run


def _image_grad(kind: str) -> Any:
    def run(
        grads: Tensor, original_image: Tensor, *, align_corners: bool = False, half_pixel_centers: bool = False,
        scales: Sequence[float] = (),
    ) -> Tensor:  # fmt: skip
        factors = list(scales) if any(s > 0 for s in scales) else []
        size = list(original_image.shape[2:])
        return resize_grad(grads, size, kind, align_corners, half_pixel_centers, factors).to(grads.dtype)

    return run


# The result of the image operators is float32 (attribute dtype), whatever the image is.
kernel("ResizeBilinearV2", host=("size",), views=True, source=_HEADER)(_image("linear"))
kernel("ResizeBicubic", host=("size",), views=True, source=_HEADER)(_image("cubic"))
kernel("ResizeBilinearV2Grad", source=_HEADER)(_image_grad("linear"))
kernel("ResizeBicubicGrad", source=_HEADER)(_image_grad("cubic"))


@kernel("ResizeTrilinear", host=("size",), views=True, source=_HEADER)
def resize_trilinear(x: Tensor, size: Any, *, align_corners: bool = False, half_pixel_centers: bool = False) -> Tensor:
    """Linear resize of (N, C, D, H, W)."""
    return resize(x, ints(size), "linear", align_corners, half_pixel_centers).to(x.dtype)


def _target(x: Tensor, output_size: Sequence[int], scales: Sequence[float]) -> list[int]:
    if output_size:
        return list(output_size)
    return [math.floor(n * s) for n, s in zip(x.shape[2:], scales)]


@kernel("UpsampleNearest1d", "UpsampleNearest3d", views=True, source=_HEADER)
def upsample_nearest(x: Tensor, *, output_size: Sequence[int] = (), scales: Sequence[float] = ()) -> Tensor:
    """Nearest resize of (N, C, ..) to ``output_size``, or by ``scales``."""
    return resize(x, _target(x, output_size, scales), "nearest", False, False, scales)


@kernel("UpsampleNearest1dGrad", "UpsampleNearest3dGrad", ignores=("output_size",), source=_HEADER)
def upsample_nearest_grad(grad_output: Tensor, *, input_size: Sequence[int], scales: Sequence[float] = ()) -> Tensor:
    """Gradient of the nearest resize; ``input_size`` is the full shape of the forward input."""
    return resize_grad(grad_output, list(input_size)[2:], "nearest", False, False, scales).to(grad_output.dtype)


@kernel("UpsampleTrilinear3d", views=True, source=_HEADER)
def upsample_trilinear3d(
    x: Tensor, *, output_size: Sequence[int] = (), scales: Sequence[float] = (), align_corners: bool = False
) -> Tensor:
    """Linear resize of (N, C, D, H, W); pixel centres unless corners are aligned."""
    size = _target(x, output_size, scales)
    return resize(x, size, "linear", align_corners, not align_corners, scales).to(x.dtype)


@kernel("UpsampleTrilinear3dGrad", ignores=("output_size",), source=_HEADER)
def upsample_trilinear3d_grad(
    grad_output: Tensor, *, input_size: Sequence[int], scales: Sequence[float] = (), align_corners: bool = False
) -> Tensor:
    """Gradient of UpsampleTrilinear3d."""
    size = list(input_size)[2:]
    return resize_grad(grad_output, size, "linear", align_corners, not align_corners, scales).to(grad_output.dtype)


_ONNX_COORDINATES: Final = {
    "half_pixel": (False, True), "pytorch_half_pixel": (False, True), "align_corners": (True, False),
    "asymmetric": (False, False),
}  # fmt: skip


def _resize_d_form(op: str, mode: str, rule: str, cubic: float, nearest: str) -> tuple[str, bool, bool]:
    if rule not in _ONNX_COORDINATES or mode not in _MATRICES:
        raise refuse(op, f"mode {mode!r} with coordinates {rule!r}, accepted: {sorted(_ONNX_COORDINATES)}")
    if mode == "nearest" and (nearest, rule) != ("floor", "asymmetric"):
        raise refuse(op, f"nearest_mode {nearest!r} with coordinates {rule!r}, accepted: floor with asymmetric")
    if mode == "cubic" and abs(cubic + 0.75) > 1e-9:
        raise refuse(op, f"cubic_coeff_a is {cubic}, accepted: -0.75")
    return mode, *_ONNX_COORDINATES[rule]


@kernel("ResizeD", ignores=("roi", "extrapolation_value", "data_format"), source=_HEADER)
def resize_d(
    x: Tensor, *, sizes: Sequence[int], scales: Sequence[float] = (), mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    """Resize of the spatial axes of (N, C, ..) by method and coordinate rule."""
    form = _resize_d_form("ResizeD", mode, coordinate_transformation_mode, cubic_coeff_a, nearest_mode)
    size = list(sizes)[-(x.dim() - 2) :]
    return resize(x, size, *form, [s for s in scales][-len(size) :]).to(x.dtype)


@kernel("ResizeGradD", ignores=("roi", "extrapolation_value", "data_format"), source=_HEADER)
def resize_grad_d(
    grads: Tensor, *, original_size: Sequence[int], scales: Sequence[float] = (), mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    """Gradient of ResizeD."""
    form = _resize_d_form("ResizeGradD", mode, coordinate_transformation_mode, cubic_coeff_a, nearest_mode)
    size = list(original_size)[-(grads.dim() - 2) :]
    return resize_grad(grads, size, *form, [s for s in scales][-len(size) :]).to(grads.dtype)
