"""Interpolation of images, padding by reflection and replication, and sampling at grid points.

GE's resize operators derive the step from the sizes, torch from the given scale factor if there is one. Where both are
the same the operator serves; else each axis is a product with an interpolation matrix built in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.support import BF16, F16, F32, F64, Support
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.emit.interpolation import apply_to_axes, linear_interpolation, selection
from ge_converters.emit.shapes import Size, axis_size, filled_constant, places, scalar, shape_operand
from ge_converters.emit.windows import laid_out
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten
_F32: Final = DataType.DT_FLOAT
_I32: Final = DataType.DT_INT32
_I64: Final = DataType.DT_INT64


def _single(value: float) -> Tensor:
    return ge.Const(float(np.float32(value)), dtype=_F32)


def _step(length: Size, count: Size, factor: float | None, align_corners: bool) -> Tensor:
    """Distance of the sources of two neighbouring results, float32."""
    if align_corners:
        span = ge.RealDiv(cast(ge.Sub(scalar(length), 1), _F32), cast(ge.Maximum(ge.Sub(scalar(count), 1), 1), _F32))
        return ge.SelectV2(ge.Greater(scalar(count), 1), span, _single(0.0))
    if factor is not None and factor > 0:
        return _single(1.0 / factor)
    ratio: Tensor = ge.RealDiv(cast(scalar(length), _F32), cast(scalar(count), _F32))
    return ratio


def _nearest_matrix(length: Size, count: Size, factor: float | None, half: float) -> Tensor:
    step = _step(length, count, factor, False)
    source = ge.Mul(ge.Add(cast(places(count, 0), _F32), _single(half)), step)
    return selection(length, cast(ge.Floor(source), _I64))


def _linear_matrix(length: Size, count: Size, factor: float | None, align_corners: bool) -> Tensor:
    step = _step(length, count, factor, align_corners)
    place = cast(places(count, 0), _F32)
    if align_corners:
        return linear_interpolation(length, count, ge.Mul(place, step))
    half = _single(0.5)
    return linear_interpolation(length, count, ge.Sub(ge.Mul(ge.Add(place, half), step), half))


def _cubic_matrix(length: Size, count: Size, factor: float | None, align_corners: bool) -> Tensor:
    """Four taps of the cubic kernel with a = -0.75, places outside clamped to the ends."""
    step = _step(length, count, factor, align_corners)
    place, half = cast(places(count, 0), _F32), _single(0.5)
    source = ge.Mul(place, step) if align_corners else ge.Sub(ge.Mul(ge.Add(place, half), step), half)
    floor = ge.Floor(source)
    t = ge.Sub(source, floor)
    base, zero = cast(floor, _I64), ge.Const(0, dtype=_I64)
    total = None
    for tap, distance in ((-1, ge.Add(t, 1.0)), (0, t), (1, ge.Sub(1.0, t)), (2, ge.Sub(2.0, t))):
        weight = _cubic_far(distance) if tap in (-1, 2) else _cubic_near(distance)
        picked = selection(length, ge.Maximum(ge.Add(base, tap), zero))
        part = ge.Mul(picked, weight)
        total = part if total is None else ge.Add(total, part)
    assert total is not None  # four taps
    return total


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    value = _single(coefficients[0])
    for c in coefficients[1:]:
        value = ge.Add(ge.Mul(value, x), _single(c))
    return value


def _cubic_near(x: Tensor) -> Tensor:
    a = -0.75
    return _polynomial(x, (a + 2, -(a + 3), 0.0, 1.0))


def _cubic_far(x: Tensor) -> Tensor:
    a = -0.75
    return _polynomial(x, (a, -5 * a, 8 * a, -4 * a))


def _steps_agree(factors: Sequence[float | None]) -> bool:
    """Whether size ratios are the steps that torch takes: no factor given, or a whole one."""
    return all(f is None or (f >= 1 and float(f).is_integer()) for f in factors)


def _through_float32(x: Tensor, op: str) -> Tensor:
    if x.dtype not in (_F32, DataType.DT_FLOAT16, DataType.DT_BF16):
        raise Refusal(f"{op} of {x.dtype.name} has no GE operator; cast to float32")
    return cast(x, _F32)


def _image_size(output_size: Sequence[Size]) -> Any:
    return shape_operand(list(output_size), _I32)


def _separably(
    x: Tensor, output_size: Sequence[Size], factors: Sequence[float | None], matrix: Any, *rest: Any
) -> Tensor:
    """Interpolate the trailing axes of a float32 tensor by matrices."""
    rank = 2 + len(output_size)
    made = [
        (2 + i, matrix(axis_size(x, 2 + i), count, factor, *rest))
        for i, (count, factor) in enumerate(zip(output_size, factors))
    ]
    return apply_to_axes(x, made, rank)


def _separable_gradient(
    grad: Tensor, input_size: Sequence[Size], output_size: Sequence[Size], factors: Sequence[float | None],
    spec: TensorSpec, matrix: Any, *rest: Any,
) -> Tensor:  # fmt: skip
    """The transposed matrices of ``_separably``."""
    x = _through_float32(grad, "the gradient of interpolation")
    made = [
        (2 + i, matrix(length, count, factor, *rest))
        for i, (length, count, factor) in enumerate(zip(list(input_size)[2:], output_size, factors))
    ]
    return cast(apply_to_axes(x, made, spec.rank, transposed=True), spec.dtype)


# -- nearest

_NEAREST_CASES = [
    *(Support(m(2, 3, 4, 5), [8, 10], 2.0, 2.0) for m in (F32, F16, BF16, F64)),
    Support(F32(2, 3, 4, 5), [7, 9]),
    Support(F32(2, 3, 4, 5), [2, 3]),
    Support(F32(2, 3, 4, 5), [6, 7], 1.5, 1.5),
    Support(F32(2, 3, 5, 7), [3, 4], 0.6, 0.6),
]


def _nearest(x: Tensor, output_size: Sequence[Size], factors: Sequence[float | None], half_pixel: bool) -> Tensor:
    if _steps_agree(factors):
        (inner,), back = carried("ResizeNearestNeighborV2", x)
        y = ge.ResizeNearestNeighborV2(
            inner, _image_size(output_size), align_corners=False, half_pixel_centers=half_pixel
        )
        laid_out(2, inner, y)
        return back(y)
    inner = _through_float32(x, "nearest interpolation with this scale factor")
    return cast(_separably(inner, output_size, factors, _nearest_matrix, 0.5 if half_pixel else 0.0), x.dtype)


@declare_supported(_NEAREST_CASES)
@register_fx_node_ge_converter(
    aten.upsample_nearest2d.default, source="native_functions.yaml: upsample_nearest2d; GE ResizeNearestNeighborV2"
)
def upsample_nearest2d(
    self: Tensor,
    output_size: Any,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor

    Shapes: self [n, c, h, w] -> [n, c, *output_size].
    Dtypes: floats; float64 only without a fractional factor.
    Emits:  ResizeNearestNeighborV2; for a fractional factor products with selection matrices.
    """
    return _nearest(self, output_size, (scales_h, scales_w), False)


@declare_supported(_NEAREST_CASES)
@register_fx_node_ge_converter(
    aten._upsample_nearest_exact2d.default,
    source="native_functions.yaml: _upsample_nearest_exact2d; GE ResizeNearestNeighborV2",
)
def _upsample_nearest_exact2d(
    self: Tensor,
    output_size: Any,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor

    Shapes: self [n, c, h, w] -> [n, c, *output_size].
    Dtypes: floats; float64 only without a fractional factor.
    Emits:  ResizeNearestNeighborV2 with half pixel centres, or products with selection matrices.
    """  # noqa: E501
    return _nearest(self, output_size, (scales_h, scales_w), True)


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
    aten.upsample_bilinear2d.default, source="native_functions.yaml: upsample_bilinear2d; GE ResizeBilinearV2"
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
    """upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor

    Shapes: self [n, c, h, w] -> [n, c, *output_size].
    Dtypes: float32; halves through float32, in which eager computes too.
    Emits:  ResizeBilinearV2; for a fractional factor products with interpolation matrices.
    """  # noqa: E501
    x = _through_float32(self, "bilinear interpolation")
    if align_corners or _steps_agree((scales_h, scales_w)):
        y = ge.ResizeBilinearV2(
            x, _image_size(output_size), align_corners=align_corners, half_pixel_centers=not align_corners
        )
        laid_out(2, x, y)
    else:
        y = _separably(x, output_size, (scales_h, scales_w), _linear_matrix, False)
    return cast(y, self.dtype)


@declare_supported(
    [
        *(Support(m(2, 3, 8, 10), [8, 10], [2, 3, 4, 5], False, 2.0, 2.0) for m in (F32, F16, BF16)),
        Support(F32(2, 3, 7, 9), [7, 9], [2, 3, 4, 5], True),
        Support(F32(2, 3, 7, 9), [7, 9], [2, 3, 4, 5], False),
        Support(F32(2, 3, 6, 7), [6, 7], [2, 3, 4, 5], False, 1.5, 1.5),
    ]
)
@register_fx_node_ge_converter(
    aten.upsample_bilinear2d_backward.default,
    source="native_functions.yaml: upsample_bilinear2d_backward; GE ResizeBilinearV2Grad",
)
def upsample_bilinear2d_backward(
    grad_output: Tensor,
    output_size: Any,
    input_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor

    Shapes: grad_output [n, c, *output_size] -> input_size.
    Dtypes: float32; halves through float32.
    Emits:  ResizeBilinearV2Grad; for a fractional factor products with interpolation matrices.
    """  # noqa: E501
    factors = (scales_h, scales_w)
    if not align_corners and not _steps_agree(factors):
        return _separable_gradient(
            grad_output, input_size, output_size, factors, meta_outputs, _linear_matrix, align_corners
        )
    grad = _through_float32(grad_output, "the gradient of interpolation")
    image = filled_constant(input_size, 0.0)
    y = ge.ResizeBilinearV2Grad(grad, image, align_corners=align_corners, half_pixel_centers=not align_corners)
    laid_out(2, grad, image, y)
    return cast(y, meta_outputs.dtype)


# -- gradients that are products with matrices, one row an op: op, matrix, arguments of the matrix

_LINE, _PLANE, _VOLUME = (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4, 5)


def _register_gradient(op: Any, size: tuple[int, ...], matrix: Any, *rest: Any) -> None:
    """A gradient without corners to align: (grad_output, output_size, input_size, scales..)."""
    spatial = len(size) - 2
    larger = [s + s // 2 + 1 for s in size[2:]]
    names = [a.name for a in op._schema.arguments if a.name.startswith("scales")]

    def convert(
        grad_output: Tensor, output_size: Any, input_size: Any, *args: Any, meta_outputs: TensorSpec, **kw: Any
    ) -> Tensor:
        given = [*args, *([None] * spatial)][:spatial]
        factors = [kw.get(n, g) for n, g in zip(names, given)]
        return _separable_gradient(grad_output, input_size, output_size, factors, meta_outputs, matrix, *rest)

    _finish(op, convert, [Support(F32(*size[:2], *larger), larger, list(size))])


def _register_aligned_gradient(op: Any, size: tuple[int, ...], matrix: Any) -> None:
    """A gradient with align_corners: (grad_output, output_size, input_size, align_corners, scales..)."""
    spatial = len(size) - 2
    larger = [s + s // 2 + 1 for s in size[2:]]
    names = [a.name for a in op._schema.arguments if a.name.startswith("scales")]

    def convert(
        grad_output: Tensor, output_size: Any, input_size: Any, align_corners: bool, *args: Any,
        meta_outputs: TensorSpec, **kw: Any,
    ) -> Tensor:  # fmt: skip
        given = [*args, *([None] * spatial)][:spatial]
        factors = [kw.get(n, g) for n, g in zip(names, given)]
        return _separable_gradient(grad_output, input_size, output_size, factors, meta_outputs, matrix, align_corners)

    cases = [Support(F32(*size[:2], *larger), larger, list(size), corners) for corners in (False, True)]
    _finish(op, convert, cases)


def _finish(op: Any, convert: Any, cases: list[Support]) -> None:
    name = str(op).removeprefix("aten.").removesuffix(".default")
    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = (
        f"{op._schema}\n\nShapes: grad_output of the resized shape -> input_size.\n"
        "Dtypes: float32; halves through float32.\nEmits:  one product with an interpolation matrix an axis."
    )
    declare_supported(cases)(convert)
    register_fx_node_ge_converter(op, source=f"native_functions.yaml: {name}; GE BatchMatMulV2")(convert)


for _name, _shape in (("1d", _LINE), ("2d", _PLANE), ("3d", _VOLUME)):
    _register_gradient(getattr(aten, f"upsample_nearest{_name}_backward").default, _shape, _nearest_matrix, 0.0)
    _register_gradient(getattr(aten, f"_upsample_nearest_exact{_name}_backward").default, _shape, _nearest_matrix, 0.5)
_register_aligned_gradient(aten.upsample_linear1d_backward.default, _LINE, _linear_matrix)
_register_aligned_gradient(aten.upsample_trilinear3d_backward.default, _VOLUME, _linear_matrix)
_register_aligned_gradient(aten.upsample_bicubic2d_backward.default, _PLANE, _cubic_matrix)


# -- padding, one row an op


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


def _register_padding(name: str, mode: str, spatial: int) -> None:
    op, gradient = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    pads = [1, 2, 2, 1, 1, 0][: 2 * spatial]
    shape = (2, 3, 4, 5, 6)[: spatial + 2]
    padded = [n + pads[2 * (spatial - 1 - i)] + pads[2 * (spatial - 1 - i) + 1] for i, n in enumerate(shape[2:])]

    def convert(self: Tensor, padding: Any, *, meta_outputs: TensorSpec) -> Tensor:
        (x,), back = carried("PadV3", self, moves=True)
        grown = [p if isinstance(p, Tensor) or p > 0 else 0 for p in padding]
        y = ge.PadV3(x, _paddings(grown, self.rank), mode=mode, paddings_contiguous=True)
        return back(_cropped(y, padding, self.rank))

    def convert_gradient(grad_output: Tensor, self: Tensor, padding: Any, *, meta_outputs: TensorSpec) -> Tensor:
        grown = [p if isinstance(p, Tensor) or p > 0 else 0 for p in padding]
        lost = [-p if not isinstance(p, Tensor) and p < 0 else 0 for p in padding]
        grad = grad_output
        if any(lost):  # what forward cropped gets no gradient
            grad = ge.PadV3(grad, _paddings(lost, self.rank), mode="constant", paddings_contiguous=True)
        y = ge.PadV3Grad(grad, _paddings(grown, self.rank), mode=mode, paddings_contiguous=True)
        return cast(y, meta_outputs.dtype)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"{op._schema}\n\nShapes: the trailing axes grow by padding.\nDtypes: any.\nEmits:  PadV3."
    convert_gradient.__name__ = convert_gradient.__qualname__ = f"{name}_backward"
    convert_gradient.__doc__ = (
        f"{gradient._schema}\n\nShapes: that of self.\nDtypes: float32, float16, bfloat16, float64.\nEmits:  PadV3Grad."
    )
    declare_supported([*(Support(m(*shape), pads) for m in (F32, F16, BF16, F64)), Support(F32(*shape[1:]), pads)])(
        convert
    )
    declare_supported(
        [Support(m(*shape[:2], *padded), m(*shape), pads) for m in (F32, F64)]
        + [Support(F32(3, *padded), F32(*shape[1:]), pads)]
    )(convert_gradient)  # fmt: skip
    register_fx_node_ge_converter(op, source=f"native_functions.yaml: {name}; GE PadV3")(convert)
    register_fx_node_ge_converter(gradient, source=f"native_functions.yaml: {name}_backward; GE PadV3Grad")(
        convert_gradient
    )


for _spatial in (1, 2, 3):
    _register_padding(f"reflection_pad{_spatial}d", "reflect", _spatial)
    _register_padding(f"replication_pad{_spatial}d", "edge", _spatial)


# -- grids

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
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor

    Shapes: input [n, c, h, w]; grid [n, oh, ow, 2] -> [n, c, oh, ow].
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler2D.
    """  # noqa: E501
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
    """grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)

    Shapes: gradients of input and grid, each of the shape of what it belongs to.
    Dtypes: float32, float16, float64, bfloat16.
    Emits:  GridSampler2DGrad.
    """  # noqa: E501
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
    """grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor

    Shapes: input [n, c, d, h, w]; grid [n, od, oh, ow, 3] -> [n, c, od, oh, ow].
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler3D.
    """  # noqa: E501
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
    """grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)

    Shapes: gradients of input and grid, each of the shape of what it belongs to.
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  GridSampler3DGrad.
    """  # noqa: E501
    operands = (grad_output, input, grid)
    return _grid_gradients(
        "GridSampler3DGrad", 3, operands, (interpolation_mode, padding_mode, align_corners), output_mask, meta_outputs
    )
