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

from ge_graph.dtypes import Format
from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import listed, torch_dtype
from ge_runtime.errors import refused

_ATEN = torch.ops.aten
_SMALLEST: Final = 1e-6  # scale; places divided by smaller ones leave ATen's integers
_HEADER = "operator header: image_ops, nn_pooling_ops; ops-cv: image, documentation and kernel"


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


def _keys_matrix(n: int, out: int, align: bool, half_pixel: bool, factor: float = 0.0) -> Tensor:
    """TensorFlow's cubic at pixel centres: coefficient -1/2, and neighbours outside have no weight."""
    source = _coordinates(n, out, align, half_pixel, factor, False)
    d = (source.unsqueeze(1) - torch.arange(n, dtype=torch.float32)).abs()
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    m = torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
    return m / m.sum(1, keepdim=True)


def _nearest_matrix(n: int, out: int, align: bool, half_pixel: bool, factor: float = 0.0) -> Tensor:
    m = torch.zeros(out, n)
    m[torch.arange(out), nearest_index(n, out, align, half_pixel, factor)] = 1
    return m


_UPSAMPLE: Final[dict[tuple[str, int], Any]] = {
    ("linear", 1): _ATEN.upsample_linear1d.default,
    ("linear", 2): _ATEN.upsample_bilinear2d.default,
    ("linear", 3): _ATEN.upsample_trilinear3d.default,
    ("cubic", 2): _ATEN.upsample_bicubic2d.default,
}
_MATRICES: Final = {
    "nearest": _nearest_matrix,
    "linear": _linear_matrix,
    "cubic": _cubic_matrix,
    "keys": _keys_matrix,
}


def apply_matrices(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply the trailing axes of float32 ``x`` by one matrix each."""
    for i, m in enumerate(matrices):
        axis = x.dim() - len(matrices) + i
        x = torch.matmul(x.movedim(axis, -1), m.to(x.dtype).mT).movedim(-1, axis)
    return x.contiguous()


def steps(factors: Sequence[float], rank: int) -> list[float]:
    """A scale an axis, 0 where it follows from the sizes."""
    if len(factors) not in (0, rank):
        raise refused("resize", f"{len(factors)} scales for {rank} sizes", "give one scale an axis, or none")
    for factor in factors:
        if not (math.isfinite(factor) and (factor <= 0 or factor >= _SMALLEST)):
            raise refused("resize", f"scale {factor}", "give a scale that is a number, or 0 for none")
    return list(factors) if any(f > 0 for f in factors) else [0.0] * rank


def resize(
    x: Tensor, size: Sequence[int], kind: str, align: bool, half_pixel: bool, factors: Sequence[float] = ()
) -> Tensor:
    """Resize the trailing axes; the result is in the arithmetic type."""
    if align and half_pixel:
        raise refused("resize", "align_corners and half_pixel_centers are both true", "set one of them")
    by = steps(factors, len(size))
    if kind == "nearest":
        for i, out in enumerate(size):
            axis = x.dim() - len(size) + i
            x = x.index_select(axis, nearest_index(x.shape[axis], out, align, half_pixel, by[i]))
        return x
    x = wide(x)
    if (align or half_pixel) and kind != "keys":
        scales = [s if s > 0 else None for s in by]
        return _UPSAMPLE[kind, len(size)](x, list(size), align, *scales)  # type: ignore[no-any-return]
    shape = x.shape[-len(size) :]
    return apply_matrices(x, [_MATRICES[kind](n, o, align, half_pixel, s) for n, o, s in zip(shape, size, by)])


def resize_grad(
    grad: Tensor, size: Sequence[int], kind: str, align: bool, half_pixel: bool, factors: Sequence[float] = ()
) -> Tensor:
    """Adjoint of ``resize`` from an input of trailing ``size``; in the arithmetic type."""
    by = steps(factors, len(size))
    g = wide(grad)
    if kind == "nearest":
        for i, n in enumerate(size):
            axis = g.dim() - len(size) + i
            index = nearest_index(n, g.shape[axis], align, half_pixel, by[i])
            shape = [*g.shape[:axis], n, *g.shape[axis + 1 :]]
            g = torch.zeros(shape, dtype=g.dtype).index_add_(axis, index, g)
        return g
    shape = list(g.shape[-len(size) :])
    return apply_matrices(g, [_MATRICES[kind](n, o, align, half_pixel, s).mT for n, o, s in zip(size, shape, by)])


def resized(
    x: Tensor, size: Sequence[int], kind: str, align: bool, half_pixel: bool, factors: Sequence[float] = ()
) -> Tensor:
    """``resize`` in the type of ``x``."""
    return resize(x, size, kind, align, half_pixel, factors).to(x.dtype)


def resized_grad(
    grad: Tensor, size: Sequence[int], kind: str, align: bool, half_pixel: bool, factors: Sequence[float] = ()
) -> Tensor:
    """``resize_grad`` in the type of ``grad``."""
    return resize_grad(grad, size, kind, align, half_pixel, factors).to(grad.dtype)


def _kernel_of(kind: str, half_pixel: bool) -> str:
    """TensorFlow's image operators, which these are, have another cubic at pixel centres."""
    return "keys" if kind == "cubic" and half_pixel else kind


def _image(kind: str) -> Any:
    """The result is float32 or what attribute dtype says, whatever the image is."""

    def run(
        x: Tensor,
        size: Any,
        *,
        align_corners: bool = False,
        half_pixel_centers: bool = False,
        dtype: int = 0,
        scales: Sequence[float] = (),
    ) -> Tensor:
        data, out = x if x.is_floating_point() else x.float(), torch_dtype(dtype)
        y = resize(data, listed(size), _kernel_of(kind, half_pixel_centers), align_corners, half_pixel_centers, scales)
        return y.round().clamp(0, 255).to(out) if out == torch.uint8 else y.to(out)

    return run


def _image_grad(kind: str) -> Any:
    def run(
        grads: Tensor,
        original_image: Tensor,
        *,
        align_corners: bool = False,
        half_pixel_centers: bool = False,
        scales: Sequence[float] = (),
    ) -> Tensor:
        which = _kernel_of(kind, half_pixel_centers)
        return resized_grad(grads, original_image.shape[2:], which, align_corners, half_pixel_centers, scales)

    return run


rows(
    {
        # floor of the scaled index, of the scaled pixel centre, or rounded half up when aligned
        "ResizeNearestNeighborV2": lambda x, size, *, align_corners=False, half_pixel_centers=False, scales=(): resize(
            x, listed(size), "nearest", align_corners, half_pixel_centers, scales
        ),
        "ResizeBilinearV2": _image("linear"),
        "ResizeBicubic": _image("cubic"),
        "ResizeTrilinear": lambda x, size, *, align_corners=False, half_pixel_centers=False: resized(
            x, listed(size), "linear", align_corners, half_pixel_centers
        ),
    },
    host=("size",),
    views=True,
    source=_HEADER,
)


def _nearest_grad(
    grads: Tensor,
    size: Tensor,
    *,
    align_corners: bool = False,
    half_pixel_centers: bool = False,
    scales: Sequence[float] = (),
) -> Tensor:
    """Of the V2 operator: the forward's scales reach the backward too."""
    return resized_grad(grads, listed(size), "nearest", align_corners, half_pixel_centers, scales)


rows({"ResizeNearestNeighborV2Grad": _nearest_grad}, host=("size",), source=_HEADER)
rows({"ResizeBilinearV2Grad": _image_grad("linear"), "ResizeBicubicGrad": _image_grad("cubic")}, source=_HEADER)


def _target(x: Tensor, output_size: Sequence[int], scales: Sequence[float]) -> list[int]:
    return list(output_size) or [math.floor(n * s) for n, s in zip(x.shape[2:], scales)]


# (N, C, ..) to ``output_size``, or by ``scales``; linear ones take pixel centres unless corners are aligned.
rows(
    {
        "UpsampleNearest1d UpsampleNearest3d": lambda x, *, output_size=(), scales=(): resize(
            x, _target(x, output_size, scales), "nearest", False, False, scales
        ),
        "UpsampleTrilinear3d": lambda x, *, output_size=(), scales=(), align_corners=False: resized(
            x, _target(x, output_size, scales), "linear", align_corners, not align_corners, scales
        ),
    },
    views=True,
    source=_HEADER,
)


def forward_size(grad: Tensor, input_size: Sequence[int], output_size: Sequence[int]) -> list[int]:
    """Spatial sizes of the forward input; ``input_size`` is its full shape, ``output_size`` says those of ``grad``."""
    if list(input_size)[:2] != list(grad.shape[:2]) or len(input_size) != grad.dim():
        raise refused("resize", f"input_size {list(input_size)} beside a gradient of shape {list(grad.shape)}")
    if output_size and list(output_size) != list(grad.shape[2:]):
        raise refused("resize", f"output_size {list(output_size)} beside a gradient of shape {list(grad.shape)}")
    return list(input_size)[2:]


rows(
    {
        "UpsampleNearest1dGrad UpsampleNearest3dGrad": lambda grad_output, *, input_size, output_size=(), scales=(): (
            resized_grad(
                grad_output, forward_size(grad_output, input_size, output_size), "nearest", False, False, scales
            )
        ),
        "UpsampleTrilinear3dGrad": lambda grad_output, *, input_size, output_size=(), scales=(), align_corners=False: (
            resized_grad(
                grad_output,
                forward_size(grad_output, input_size, output_size),
                "linear",
                align_corners,
                not align_corners,
                scales,
            )
        ),
    },
    source=_HEADER,
)


@plan(
    "ResizeNearestNeighborV2",
    "ResizeBilinearV2",
    "ResizeBicubic",
    "ResizeTrilinear",
    "ResizeNearestNeighborV2Grad",
    "ResizeBilinearV2Grad",
    "ResizeBicubicGrad",
)
def _plan_channels_first(ctx: PlanContext) -> Call | None:
    """These operators have no layout attribute: the descriptor of the data says where the picture is."""
    first = next(iter(ctx.node.operands()), None)
    if first is not None and first.format in (Format.FORMAT_NHWC, Format.FORMAT_NDHWC):
        raise refused(ctx.node.op, f"the image is {first.format.name}", "transpose it to channels before the picture")
    return None


_ONNX_COORDINATES: Final = {
    "half_pixel": (False, True),
    "pytorch_half_pixel": (False, True),
    "align_corners": (True, False),
    "asymmetric": (False, False),
}


def _onnx(
    op: str,
    fn: Any,
    x: Tensor,
    full: Sequence[int],
    scales: Sequence[float],
    mode: str,
    rule: str,
    cubic: float,
    nearest: str,
) -> Tensor:
    """``fn`` over the spatial axes of (N, C, ..) by method and coordinate rule."""
    if rule not in _ONNX_COORDINATES or mode not in ("nearest", "linear", "cubic"):
        raise refused(op, f"mode {mode!r} with coordinates {rule!r}, accepted: {sorted(_ONNX_COORDINATES)}")
    if mode == "nearest" and (nearest, rule) != ("floor", "asymmetric"):
        raise refused(op, f"nearest_mode {nearest!r} with coordinates {rule!r}, accepted: floor with asymmetric")
    if mode == "cubic" and abs(cubic + 0.75) > 1e-9:
        raise refused(op, f"cubic_coeff_a is {cubic}, accepted: -0.75")
    size = list(full)[-(x.dim() - 2) :]
    return fn(x, size, mode, *_ONNX_COORDINATES[rule], list(scales)[-len(size) :])  # type: ignore[no-any-return]


@kernel("ResizeD", ignores=("roi", "extrapolation_value", "data_format"), source=_HEADER)
def resize_d(
    x: Tensor,
    *,
    sizes: Sequence[int],
    scales: Sequence[float] = (),
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Resize as ONNX has it."""
    rule = coordinate_transformation_mode
    return _onnx("ResizeD", resized, x, sizes, scales, mode, rule, cubic_coeff_a, nearest_mode)


@kernel("ResizeGradD", ignores=("roi", "extrapolation_value", "data_format"), source=_HEADER)
def resize_grad_d(
    grads: Tensor,
    *,
    original_size: Sequence[int],
    scales: Sequence[float] = (),
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Gradient of ResizeD."""
    rule = coordinate_transformation_mode
    return _onnx("ResizeGradD", resized_grad, grads, original_size, scales, mode, rule, cubic_coeff_a, nearest_mode)
