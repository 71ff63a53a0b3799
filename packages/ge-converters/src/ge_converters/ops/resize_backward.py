"""Gradients of interpolation: one operator if the sizes are numbers, else products with transposed matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, Support
from ge_converters.emit.compute_types import carried
from ge_converters.emit.interpolation import apply_to_axes
from ge_converters.emit.resizing import (
    cubic_matrix,
    fixed,
    linear_matrix,
    nearest_matrix,
    scale_of,
    steps_agree,
    through_float32,
)
from ge_converters.emit.shapes import Size, filled_constant
from ge_converters.emit.windows import laid_out
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec, schema
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT


def _separable_gradient(
    grad: Tensor,
    input_size: Sequence[Size],
    output_size: Sequence[Size],
    factors: Sequence[float | None],
    spec: TensorSpec,
    matrix: Any,
    *rest: Any,
) -> Tensor:
    """The transposed matrices of ``_separably``."""
    x = through_float32(grad, "the gradient of interpolation")
    made = [
        (2 + i, matrix(length, count, factor, *rest))
        for i, (length, count, factor) in enumerate(zip(list(input_size)[2:], output_size, factors))
    ]
    return cast(apply_to_axes(x, made, spec.rank, transposed=True), spec.dtype)


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
    """Shapes: grad_output [n, c, *output_size] -> input_size.
    Dtypes: float32; halves through float32.
    Emits:  ResizeBilinearV2Grad; UpsampleBilinear2dGrad for a fractional factor, products with interpolation
            matrices if a size is symbolic then.
    """
    factors = (scales_h, scales_w)
    if not align_corners and not steps_agree(factors):
        if fixed([*input_size, *output_size]):
            (grad,), back = carried("UpsampleBilinear2dGrad", grad_output)
            return back(_sized_gradient("UpsampleBilinear2dGrad", grad, input_size, output_size, factors))
        return _separable_gradient(
            grad_output, input_size, output_size, factors, meta_outputs, linear_matrix, align_corners
        )
    grad = through_float32(grad_output, "the gradient of interpolation")
    image = filled_constant(input_size, 0.0)
    y = ge.ResizeBilinearV2Grad(grad, image, align_corners=align_corners, half_pixel_centers=not align_corners)
    laid_out(2, grad, image, y)
    return cast(y, meta_outputs.dtype)


# -- one row per op: shape of a case, GE operator, matrix and its arguments


def _sized_gradient(
    operator: str,
    grad: Tensor,
    input_size: Sequence[Size],
    output_size: Sequence[Size],
    factors: Sequence[float | None],
    align_corners: bool | None = None,
) -> Tensor:
    """A gradient operator whose sizes are attributes; it writes its scales as a list or one by one."""
    names = {a.name for a in schema.require(operator).attrs}
    scales = [scale_of(f) for f in factors]
    given = {"scales": scales} if "scales" in names else dict(zip(("scales_h", "scales_w"), scales))
    corners = {} if align_corners is None else {"align_corners": align_corners}
    y: Tensor = getattr(ge, operator)(
        grad, input_size=list(input_size), output_size=list(output_size), **given, **corners
    )
    if len(output_size) > 1:
        laid_out(len(output_size), grad, y)
    return y


def _forms(*size: int, aligns: bool = False) -> list[Support]:
    larger = [s + s // 2 + 1 for s in size[2:]]
    rest = [(False,), (True,)] if aligns else [()]
    return [Support(F32(*size[:2], *larger), larger, list(size), *r) for r in rest]


_LINE, _PLANE, _VOLUME = (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4, 5)


# GE has no gradient of nearest-exact on a line, and that of bicubic, UpsampleBicubic2dGrad, has no place for the size.
@register_fx_node_ge_converter(
    {aten.upsample_nearest1d_backward.default: _forms(*_LINE)},
    source="native_functions.yaml: upsample_nearest1d_backward; GE UpsampleNearest1dGrad",
    fixed={"op": "UpsampleNearest1dGrad", "matrix": nearest_matrix, "offset": 0.0},
    names={"scales": "scales_w"},
)
@register_fx_node_ge_converter(
    {aten.upsample_nearest2d_backward.default: _forms(*_PLANE)},
    source="native_functions.yaml: upsample_nearest2d_backward; GE UpsampleNearest2dGrad",
    fixed={"op": "UpsampleNearest2dGrad", "matrix": nearest_matrix, "offset": 0.0},
)
@register_fx_node_ge_converter(
    {aten.upsample_nearest3d_backward.default: _forms(*_VOLUME)},
    source="native_functions.yaml: upsample_nearest3d_backward; GE UpsampleNearest3dGrad",
    fixed={"op": "UpsampleNearest3dGrad", "matrix": nearest_matrix, "offset": 0.0},
)
@register_fx_node_ge_converter(
    {aten._upsample_nearest_exact1d_backward.default: _forms(*_LINE)},
    source="native_functions.yaml: _upsample_nearest_exact1d_backward; GE MatMulV2, BatchMatMulV2",
    fixed={"op": "", "matrix": nearest_matrix, "offset": 0.5},
    names={"scales": "scales_w"},
)
@register_fx_node_ge_converter(
    {aten._upsample_nearest_exact2d_backward.default: _forms(*_PLANE)},
    source="native_functions.yaml: _upsample_nearest_exact2d_backward; GE UpsampleNearestExact2dGrad",
    fixed={"op": "UpsampleNearestExact2dGrad", "matrix": nearest_matrix, "offset": 0.5},
)
@register_fx_node_ge_converter(
    {aten._upsample_nearest_exact3d_backward.default: _forms(*_VOLUME)},
    source="native_functions.yaml: _upsample_nearest_exact3d_backward; GE UpsampleNearestExact3dGrad",
    fixed={"op": "UpsampleNearestExact3dGrad", "matrix": nearest_matrix, "offset": 0.5},
)
@register_fx_node_ge_converter(
    {aten.upsample_linear1d_backward.default: _forms(*_LINE, aligns=True)},
    source="native_functions.yaml: upsample_linear1d_backward; GE MatMulV2, BatchMatMulV2",
    fixed={"op": "", "matrix": linear_matrix, "offset": None},
    names={"scales": "scales_w"},
)
@register_fx_node_ge_converter(
    {aten.upsample_bicubic2d_backward.default: _forms(*_PLANE, aligns=True)},
    source="native_functions.yaml: upsample_bicubic2d_backward; GE MatMulV2, BatchMatMulV2",
    fixed={"op": "", "matrix": cubic_matrix, "offset": None},
)
@register_fx_node_ge_converter(
    {aten.upsample_trilinear3d_backward.default: _forms(*_VOLUME, aligns=True)},
    source="native_functions.yaml: upsample_trilinear3d_backward; GE UpsampleTrilinear3dGrad",
    fixed={"op": "UpsampleTrilinear3dGrad", "matrix": linear_matrix, "offset": None},
)
def upsample_backward(
    grad_output: Tensor,
    output_size: Any,
    input_size: Any,
    align_corners: bool | None = None,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    op: str,
    matrix: Callable[..., Tensor],
    offset: float | None,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad_output of the resized shape -> input_size.
    Dtypes: float32; halves in float32, rounded once.
    Emits:  the operator, if there is one and the sizes are numbers; one product with an interpolation matrix an axis.
    """
    factors = (scales_d, scales_h, scales_w)[-len(output_size) :]
    floats = (_F32, DataType.DT_FLOAT16, DataType.DT_BF16)
    if op and fixed([*input_size, *output_size]) and grad_output.dtype in floats:
        (grad,), back = carried(op, grad_output)
        return back(_sized_gradient(op, grad, input_size, output_size, factors, align_corners))
    form = align_corners if offset is None else offset
    return _separable_gradient(grad_output, input_size, output_size, factors, meta_outputs, matrix, form)
