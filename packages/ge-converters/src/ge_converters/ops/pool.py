"""Pooling over sliding and adaptive windows, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, I64, Support
from ge_converters.emit.compute_types import carrier, need_floats
from ge_converters.emit.interpolation import adaptive_mean, apply_to_axes
from ge_converters.emit.shapes import axis_size, has_nothing, zeros_of
from ge_converters.emit.windows import both_sides, known_sizes, laid_out, numbers, per_axis
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_converters.registry.takes import sizes_are_numbers
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_I32: Final = int(DataType.DT_INT32)
_I64: Final = int(DataType.DT_INT64)


def _batched(x: Tensor, rank: int) -> Tensor:
    """An image without batch axis gets one."""
    return ge.Unsqueeze(x, axes=[0]) if x.rank < rank else x


def _unbatched(y: Tensor, like: Tensor, rank: int) -> Tensor:
    return ge.Squeeze(y, axis=[0]) if like.rank < rank else y


# -- maximum ------------------------------------------------------------------------------------------------------


def _max_attrs(kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> dict[str, Any]:
    """Attributes of the 2-d argmax operators, whose lists are [1, h, w, 1] whatever the layout is."""
    kernel = numbers("kernel_size", kernel_size, 2)
    lists = {
        "ksize": kernel,
        "strides": numbers("stride", stride, 2, kernel),
        "pads": numbers("padding", padding, 2),
        "dilation": numbers("dilation", dilation, 2),
    }
    return {"ceil_mode": bool(ceil_mode), "dtype": _I32, **{k: [1, *v, 1] for k, v in lists.items()}}


_MAX_CASES = [
    Support(F32(2, 3, 8, 9), [2, 2]),
    Support(F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]),
    Support(F32(2, 3, 9, 9), [3, 2], [2, 3], [1, 0], [1, 2], True),
    Support(F32(3, 8, 9), [2, 2], [1, 1]),
    Support(F16(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]),
    Support(BF16(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]),
    Support(F32(1, 1, 6, 6, value=[[[[1.0] * 6] * 6]]), [2, 2], [1, 1]),
]


@declare_supported(_MAX_CASES)
@register_fx_node_ge_converter(
    aten.max_pool2d_with_indices.default,
    source="native_functions.yaml: max_pool2d_with_indices; GE MaxPoolWithArgmaxV1",
)
def max_pool2d_with_indices(
    self: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor]:
    """Shapes: self [n, c, h, w] or [c, h, w] -> windows, and their maxima as places h * W + w in the plane.
    Dtypes: float32, float16; bfloat16 through float32, which changes no value; places int64.
    Emits:  MaxPoolWithArgmaxV1, Cast of the places.
    """
    x = _batched(self, 4)
    x = cast(x, carrier("MaxPoolWithArgmaxV1", x.dtype))
    y, places = ge.MaxPoolWithArgmaxV1(x, **_max_attrs(kernel_size, stride, padding, dilation, ceil_mode))
    laid_out(2, x, y, places)
    places = cast(places, DataType.DT_INT64)
    return _unbatched(cast(y, self.dtype), self, 4), _unbatched(places, self, 4)


@declare_supported(
    [
        Support(
            F32(1, 2, 3, 4), F32(1, 2, 6, 8), [2, 2], [2, 2], [0, 0], [1, 1], False, I64(1, 2, 3, 4, low=0, high=48)
        ),
        Support(F32(2, 3, 4), F32(2, 6, 8), [2, 2], [], [0, 0], [1, 1], False, I64(2, 3, 4, low=0, high=48)),
        Support(
            F16(1, 2, 3, 4),
            F16(1, 2, 6, 8),
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            I64(1, 2, 3, 4, value=[[[list(range(r * 16, r * 16 + 8, 2)) for r in range(3)]] * 2]),
        ),
        Support(
            BF16(1, 2, 3, 4),
            BF16(1, 2, 6, 8),
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            I64(1, 2, 3, 4, value=[[[list(range(r * 16, r * 16 + 8, 2)) for r in range(3)]] * 2]),
        ),
    ]
)
@register_fx_node_ge_converter(
    aten.max_pool2d_with_indices_backward.default,
    source="native_functions.yaml: max_pool2d_with_indices_backward; GE MaxPoolGradWithArgmaxV1",
)
def max_pool2d_with_indices_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad_output and indices of the pooled shape, self of the input's -> that of self.
    Dtypes: float32, float16; bfloat16 through float32, so that windows which share a place are summed there.
    Emits:  Cast of the places, MaxPoolGradWithArgmaxV1.
    """
    inner = carrier("MaxPoolGradWithArgmaxV1", self.dtype)
    x, grad = cast(_batched(self, 4), inner), cast(_batched(grad_output, 4), inner)
    places = cast(_batched(indices, 4), DataType.DT_INT32)
    attrs = _max_attrs(kernel_size, stride, padding, dilation, ceil_mode)
    y = ge.MaxPoolGradWithArgmaxV1(x, grad, places, **attrs)
    laid_out(2, x, grad, places, y)
    return _unbatched(cast(y, meta_outputs.dtype), self, 4)


@declare_supported(
    [
        Support(F32(1, 2, 4, 6, 7), [2, 2, 2]),
        Support(F32(1, 2, 5, 6, 7), [2, 3, 2], [1, 2, 2], [1, 1, 0]),
        Support(F32(2, 5, 6, 7), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 2, 1], True),
        Support(F16(1, 2, 4, 6, 7), [2, 2, 2]),
        Support(BF16(1, 2, 4, 6, 7), [2, 2, 2]),
    ]
)
@register_fx_node_ge_converter(
    aten.max_pool3d_with_indices.default,
    source="native_functions.yaml: max_pool3d_with_indices; GE MaxPool3DWithArgmaxV2",
)
def max_pool3d_with_indices(
    self: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, Tensor]:
    """Shapes: self [n, c, d, h, w] or [c, d, h, w] -> windows, and their maxima as places in the volume.
    Dtypes: float32, float16, bfloat16; places int64.
    Emits:  MaxPool3DWithArgmaxV2.
    """
    kernel = numbers("kernel_size", kernel_size, 3)
    x = _batched(self, 5)
    x = cast(x, carrier("MaxPool3DWithArgmaxV2", x.dtype))
    y, places = ge.MaxPool3DWithArgmaxV2(
        x,
        ksize=kernel,
        strides=numbers("stride", stride, 3, kernel),
        pads=numbers("padding", padding, 3),
        dilation=numbers("dilation", dilation, 3),
        ceil_mode=bool(ceil_mode),
        data_format="NCDHW",
        dtype=_I64,
    )
    laid_out(3, x, y, places)
    return _unbatched(cast(y, self.dtype), self, 5), _unbatched(places, self, 5)


@declare_supported(
    [
        Support(
            F32(1, 2, 2, 3, 4),
            F32(1, 2, 4, 6, 8),
            [2, 2, 2],
            [2, 2, 2],
            [0, 0, 0],
            [1, 1, 1],
            False,
            I64(1, 2, 2, 3, 4, low=0, high=192),
        ),
        Support(
            F32(2, 2, 3, 4),
            F32(2, 4, 6, 8),
            [2, 2, 2],
            [2, 2, 2],
            [0, 0, 0],
            [1, 1, 1],
            False,
            I64(2, 2, 3, 4, low=0, high=192),
        ),
    ]
)
@register_fx_node_ge_converter(
    aten.max_pool3d_with_indices_backward.default,
    source="native_functions.yaml: max_pool3d_with_indices_backward; GE MaxPool3DGradWithArgmax",
)
def max_pool3d_with_indices_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad_output and indices of the pooled shape, self of the input's -> that of self.
    Dtypes: float32, float16, bfloat16; windows that share a place are summed in float32.
    Emits:  MaxPool3DGradWithArgmax.
    """
    need_floats("MaxPool3DGradWithArgmax", grad_output, self)
    kernel = numbers("kernel_size", kernel_size, 3)
    x, grad, places = _batched(self, 5), _batched(grad_output, 5), _batched(indices, 5)
    y = ge.MaxPool3DGradWithArgmax(
        x,
        cast(grad, x.dtype),
        places,
        ksize=kernel,
        strides=numbers("stride", stride, 3, kernel),
        pads=numbers("padding", padding, 3),
        dilation=numbers("dilation", dilation, 3),
        ceil_mode=bool(ceil_mode),
        data_format="NCDHW",
    )
    laid_out(3, x, grad, places, y)
    return _unbatched(cast(y, meta_outputs.dtype), self, 5)


# -- average ------------------------------------------------------------------------------------------------------


def _as_volume(ceil_mode: bool, kernel: list[int], stride: list[int], pads: list[int]) -> bool:
    """Whether a plane has to be pooled as a volume of depth 1.

    With ceil_mode AvgPoolV2 keeps a window that starts in the trailing padding; AvgPool3D drops it, as torch does.
    """
    return ceil_mode and (any(pads) or any(s > k for s, k in zip(stride, kernel)))


def _average2d(
    x: Tensor, kernel: list[int], stride: list[int], pads: list[int], ceil_mode: bool, counts: bool, divisor: Any
) -> Tensor:
    if _as_volume(ceil_mode, kernel, stride, pads):
        attrs = _attrs3d([1, *kernel], [1, *stride], [0, *pads], ceil_mode, counts, divisor)
        deep: Tensor = ge.AvgPool3D(ge.Unsqueeze(x, axes=[2]), **attrs)
        return ge.Squeeze(deep, axis=[2])
    y: Tensor = ge.AvgPoolV2(
        x,
        ksize=per_axis(kernel),
        strides=per_axis(stride),
        padding_mode="CALCULATED",
        pads=both_sides(pads),
        data_format="NCHW",
        global_pooling=False,
        ceil_mode=bool(ceil_mode),
        exclusive=not counts,
        divisor_override=int(divisor or 0),
    )
    laid_out(2, x, y)
    return y


_AVERAGE_CASES = [
    Support(F32(2, 3, 8, 9), [2, 2]),
    Support(F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]),
    Support(F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, False),
    Support(F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], True, True),
    Support(F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], True, False),
    Support(F32(2, 3, 8, 9), [2, 2], [3, 3], [0, 0], True),
    Support(F32(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], True),
    Support(F32(2, 3, 8, 9), [3, 2], [1, 2], [1, 0], False, True, 5),
    Support(F32(3, 8, 9), [2, 2]),
    Support(F16(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]),
    Support(BF16(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]),
]


@declare_supported(_AVERAGE_CASES)
@register_fx_node_ge_converter(aten.avg_pool2d.default, source="native_functions.yaml: avg_pool2d; GE AvgPoolV2")
def avg_pool2d(
    self: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, h, w] or [c, h, w] -> one mean a window.
    Dtypes: float32, float16, float64; bfloat16 through float32, in which eager sums too.
    Emits:  AvgPoolV2; AvgPool3D where GE's ceil_mode differs from torch's.
    """
    kernel = numbers("kernel_size", kernel_size, 2)
    strides, pads = numbers("stride", stride, 2, kernel), numbers("padding", padding, 2)
    x = _batched(self, 4)
    op = "AvgPool3D" if _as_volume(ceil_mode, kernel, strides, pads) else "AvgPoolV2"
    x = cast(x, carrier(op, x.dtype))
    y = _average2d(x, kernel, strides, pads, ceil_mode, count_include_pad, divisor_override)
    return _unbatched(cast(y, self.dtype), self, 4)


@declare_supported(
    [
        Support(F32(2, 3, 9), [2]),
        Support(F32(2, 3, 9), [3], [2], [1], True, False),
        Support(F32(3, 9), [3], [1], [1]),
        Support(BF16(2, 3, 9), [3], [2], [1]),
    ]
)
@register_fx_node_ge_converter(aten.avg_pool1d.default, source="native_functions.yaml: avg_pool1d; GE AvgPoolV2")
def avg_pool1d(
    self: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, l] or [c, l] -> one mean a window.
    Dtypes: as avg_pool2d.
    Emits:  AvgPoolV2 between Unsqueeze and Squeeze.
    """
    kernel = numbers("kernel_size", kernel_size, 1)
    strides, pads = numbers("stride", stride, 1, kernel), numbers("padding", padding, 1)
    axes = [2] if self.rank == 3 else [0, 2]
    op = "AvgPool3D" if _as_volume(ceil_mode, kernel, strides, pads) else "AvgPoolV2"
    x = cast(ge.Unsqueeze(self, axes=axes), carrier(op, self.dtype))
    y = _average2d(x, [1, *kernel], [1, *strides], [0, *pads], ceil_mode, count_include_pad, None)
    return cast(ge.Squeeze(y, axis=axes), self.dtype)


@declare_supported(
    [
        Support(F32(2, 3, 4, 4), F32(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], False, True, None),
        Support(F32(2, 3, 4, 5), F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, True, None),
        Support(F32(2, 3, 4, 5), F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, False, None),
        Support(F32(2, 3, 4, 4), F32(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], False, True, 3),
        Support(F32(2, 3, 5, 5), F32(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], True, True, None),
        Support(F32(2, 3, 4, 5), F32(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], True, True, None),
        Support(F32(3, 4, 4), F32(3, 8, 9), [2, 2], [], [0, 0], False, True, None),
        Support(BF16(2, 3, 4, 4), BF16(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], False, True, None),
    ]
)
@register_fx_node_ge_converter(
    aten.avg_pool2d_backward.default, source="native_functions.yaml: avg_pool2d_backward; GE AvgPoolV2Grad"
)
def avg_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad_output of the pooled shape, self of the input's -> that of self.
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  AvgPoolV2Grad, with the shape of self as a constant or a Shape node; AvgPool3DGrad for ceil_mode.
    """
    kernel = numbers("kernel_size", kernel_size, 2)
    strides, pads = numbers("stride", stride, 2, kernel), numbers("padding", padding, 2)
    grad = _batched(grad_output, 4)
    known = known_sizes(meta_outputs)
    shape: Any = [1] * (4 - self.rank) + known if known is not None else ge.Shape(_batched(self, 4), dtype=_I32)
    if ceil_mode:
        y = _as_volume_gradient(grad, shape, kernel, strides, pads, count_include_pad, divisor_override)
    else:
        y = ge.AvgPoolV2Grad(
            shape,
            cast(grad, carrier("AvgPoolV2Grad", grad.dtype, "input_grad")),
            ksize=per_axis(kernel),
            strides=per_axis(strides),
            padding_mode="CALCULATED",
            pads=both_sides(pads),
            data_format="NCHW",
            global_pooling=False,
            ceil_mode=bool(ceil_mode),
            exclusive=not count_include_pad,
            divisor_override=int(divisor_override or 0),
        )
        laid_out(2, grad, y)
    return _unbatched(cast(y, meta_outputs.dtype), self, 4)


def _as_volume_gradient(
    grad: Tensor, shape: Any, kernel: list[int], stride: list[int], pads: list[int], counts: bool, divisor: int | None
) -> Tensor:
    """With ceil_mode AvgPoolV2Grad divides a clipped window by the full area, AvgPool3DGrad by what is left of it."""
    if isinstance(shape, Tensor):
        head, tail = ge.Split(ge.Const(0, dtype=DataType.DT_INT32), shape, num_split=2, size_of_y=2)
        size: Any = ge.ConcatV2([head, ge.Const([1], dtype=DataType.DT_INT32), tail], 0, N=3)
    else:
        size = [*shape[:2], 1, *shape[2:]]
    deep = cast(ge.Unsqueeze(grad, axes=[2]), carrier("AvgPool3DGrad", grad.dtype, "grads"))
    y = ge.AvgPool3DGrad(size, deep, **_attrs3d([1, *kernel], [1, *stride], [0, *pads], True, counts, divisor))
    result: Tensor = ge.Squeeze(y, axis=[2])
    return result


def _attrs3d(
    kernel: list[int], stride: Any, padding: Any, ceil_mode: bool, counts: bool, divisor: int | None
) -> dict[str, Any]:
    return {
        "ksize": kernel,
        "strides": numbers("stride", stride, 3, kernel),
        "pads": both_sides(numbers("padding", padding, 3)),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(counts),
        "divisor_override": int(divisor or 0),
        "data_format": "NCDHW",
    }


@declare_supported(
    [
        Support(F32(1, 2, 4, 6, 7), [2, 2, 2]),
        Support(F32(1, 2, 5, 6, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1], False, False),
        Support(F32(1, 2, 5, 6, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1], True, True),
        Support(F32(2, 4, 6, 7), [2, 2, 2], [1, 2, 2], [0, 0, 0], False, True, 3),
    ]
)
@register_fx_node_ge_converter(aten.avg_pool3d.default, source="native_functions.yaml: avg_pool3d; GE AvgPool3D")
def avg_pool3d(
    self: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c, d, h, w] or [c, d, h, w] -> one mean a window.
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  AvgPool3D.
    """
    kernel = numbers("kernel_size", kernel_size, 3)
    x = _batched(self, 5)
    x = cast(x, carrier("AvgPool3D", x.dtype))
    y = ge.AvgPool3D(x, **_attrs3d(kernel, stride, padding, ceil_mode, count_include_pad, divisor_override))
    laid_out(3, x, y)
    return _unbatched(cast(y, self.dtype), self, 5)


@declare_supported(
    [
        Support(F32(1, 2, 2, 3, 3), F32(1, 2, 4, 6, 7), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None),
        Support(F32(2, 2, 3, 3), F32(2, 4, 6, 7), [2, 2, 2], [], [0, 0, 0], False, True, None),
        Support(F32(1, 2, 3, 3, 4), F32(1, 2, 5, 6, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1], False, False, None),
    ]
)
@register_fx_node_ge_converter(
    aten.avg_pool3d_backward.default, source="native_functions.yaml: avg_pool3d_backward; GE AvgPool3DGrad"
)
def avg_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: grad_output of the pooled shape, self of the input's -> that of self.
    Dtypes: float32, float16, float64; bfloat16 through float32.
    Emits:  AvgPool3DGrad.
    """
    kernel = numbers("kernel_size", kernel_size, 3)
    grad = _batched(grad_output, 5)
    grad = cast(grad, carrier("AvgPool3DGrad", grad.dtype, "grads"))
    known = known_sizes(meta_outputs)
    if known is not None:
        shape: Any = [1, *known] if self.rank == 4 else known
    else:
        shape = ge.Shape(_batched(self, 5), dtype=_I32)
    y = ge.AvgPool3DGrad(
        shape, grad, **_attrs3d(kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
    )
    laid_out(3, grad, y)
    return _unbatched(cast(y, meta_outputs.dtype), self, 5)


# -- adaptive average ---------------------------------------------------------------------------------------------


def _single(x: Tensor) -> Tensor:
    """Floats in float32, in which the averaging matrices are; float64 would lose digits and is refused."""
    need_floats("BatchMatMulV2", x)
    return cast(x, _F32)


def _adaptive(x: Tensor, output_size: Sequence[Any], spatial: int) -> Tensor:
    """Adaptive mean axis by axis as products with averaging matrices."""
    first = x.rank - spatial
    weights = [(first + i, adaptive_mean(axis_size(x, first + i), m)) for i, m in enumerate(output_size)]
    return apply_to_axes(x, weights, x.rank)


@declare_supported(
    [
        Support(F32(2, 3, 8, 9), [4, 3]),
        Support(F32(2, 3, 8, 9), [3, 5]),
        Support(F32(3, 8, 9), [1, 1]),
        Support(F16(2, 3, 8, 9), [3, 5]),
        Support(BF16(2, 3, 8, 9), [3, 5]),
    ]
)
@register_fx_node_ge_converter(
    aten._adaptive_avg_pool2d.default, source="native_functions.yaml: _adaptive_avg_pool2d; GE AdaptiveAvgPool2d"
)
def _adaptive_avg_pool2d(self: Tensor, output_size: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n, c, h, w] or [c, h, w] -> the same with output_size.
    Dtypes: float32, float16, bfloat16.
    Emits:  AdaptiveAvgPool2d; products with averaging matrices if output_size is symbolic.
    """
    if any(isinstance(s, Tensor) for s in output_size):
        return cast(_adaptive(_single(self), output_size, 2), self.dtype)
    x = cast(self, carrier("AdaptiveAvgPool2d", self.dtype))
    y: Tensor = ge.AdaptiveAvgPool2d(x, output_size=list(output_size))
    if self.rank == 4:
        laid_out(2, x, y)
    return cast(y, self.dtype)


@declare_supported(
    [
        Support(F32(2, 3, 4, 3), F32(2, 3, 8, 9)),
        Support(F32(2, 3, 3, 5), F32(2, 3, 8, 9)),
        Support(F32(3, 1, 1), F32(3, 8, 9)),
        Support(F16(2, 3, 4, 2), F16(2, 3, 8, 8)),
        Support(BF16(2, 3, 4, 2), BF16(2, 3, 8, 8)),
    ]
)
@register_fx_node_ge_converter(
    aten._adaptive_avg_pool2d_backward.default,
    source="native_functions.yaml: _adaptive_avg_pool2d_backward; GE AdaptiveAvgPool2dGrad",
)
def _adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: grad_output of the pooled shape, self of the input's -> that of self.
    Dtypes: float32, float16; bfloat16 through float32, in which eager sums too.
    Emits:  AdaptiveAvgPool2dGrad; products with transposed averaging matrices if a size is symbolic.
    """
    known = known_sizes(meta_outputs)
    if known is None:
        grad, rank = _single(grad_output), self.rank
        weights = [(a, adaptive_mean(axis_size(self, a), axis_size(grad, a))) for a in (rank - 2, rank - 1)]
        return cast(apply_to_axes(grad, weights, rank, transposed=True), self.dtype)
    grad = cast(grad_output, carrier("AdaptiveAvgPool2dGrad", grad_output.dtype))
    y: Tensor = ge.AdaptiveAvgPool2dGrad(grad, orig_input_shape=known)
    if self.rank == 4:
        laid_out(2, grad, y)
    return cast(y, self.dtype)


@declare_supported(
    [
        Support(F32(1, 2, 4, 6, 7), [2, 3, 7]),
        Support(F32(2, 4, 6, 7), [3, 4, 1]),
        Support(F16(1, 2, 4, 6, 8), [4, 6, 4]),
        Support(BF16(1, 2, 4, 6, 8), [4, 6, 4]),
    ]
)
@register_fx_node_ge_converter(
    aten._adaptive_avg_pool3d.default, source="native_functions.yaml: _adaptive_avg_pool3d; GE AdaptiveAvgPool3d"
)
def _adaptive_avg_pool3d(self: Tensor, output_size: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: self [n, c, d, h, w] or [c, d, h, w] -> the same with output_size.
    Dtypes: float32, float16, bfloat16; summed in float32, in which eager sums halves too.
    Emits:  AdaptiveAvgPool3d; products with averaging matrices if output_size is symbolic.
    """
    if any(isinstance(s, Tensor) for s in output_size):
        return cast(_adaptive(_single(self), output_size, 3), self.dtype)
    need_floats("AdaptiveAvgPool3d", self)
    x = _batched(self, 5)
    y = ge.AdaptiveAvgPool3d(x, output_size=list(output_size), data_format="NCDHW")
    laid_out(3, x, y)
    return _unbatched(y, self, 5)


@declare_supported(
    [
        Support(F32(1, 2, 2, 3, 2), F32(1, 2, 4, 6, 7)),
        Support(F32(2, 3, 4, 1), F32(2, 4, 6, 7)),
        Support(F32(1, 2, 1, 1, 1), F32(1, 2, 4, 6, 7)),
    ]
)
@register_fx_node_ge_converter(
    aten._adaptive_avg_pool3d_backward.default,
    source="native_functions.yaml: _adaptive_avg_pool3d_backward; GE AdaptiveAvgPool3dGrad",
)
def _adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: grad_output of the pooled shape, self of the input's -> that of self.
    Dtypes: float32, float16, bfloat16; summed in float32.
    Emits:  AdaptiveAvgPool3dGrad.
    """
    need_floats("AdaptiveAvgPool3dGrad", grad_output, self)
    grad, x = _batched(grad_output, 5), _batched(self, 5)
    y = ge.AdaptiveAvgPool3dGrad(cast(grad, x.dtype), x, data_format="NCDHW")
    laid_out(3, grad, x, y)
    return _unbatched(y, self, 5)


@declare_supported(
    [
        *(Support(m(1, 2, 4, 6, 7), [2, 3, 7]) for m in (F32, F16, BF16)),
        Support(F32(1, 2, 5, 6, 7), [3, 4, 2]),
        Support(F32(2, 4, 6, 7), [3, 4, 1]),
    ]
)
@register_fx_node_ge_converter(
    aten.adaptive_max_pool3d.default,
    source="native_functions.yaml: adaptive_max_pool3d; GE AdaptiveMaxPool3d",
    takes=Takes("AdaptiveMaxPool3d", sizes_are_numbers),
)
def adaptive_max_pool3d(self: Tensor, output_size: Any, *, meta_outputs: list[TensorSpec]) -> tuple[Tensor, Tensor]:
    """Shapes: self [n, c, d, h, w] or [c, d, h, w] -> windows, and their maxima as places in the volume.
    Dtypes: float32, float16, bfloat16; places int64. Other types are decomposed.
    Emits:  AdaptiveMaxPool3d.
    """
    x = _batched(self, 5)
    size = numbers("output_size", output_size, 3)
    y, indices = ge.AdaptiveMaxPool3d(x, output_size=size, indices_dtype=_I64)
    laid_out(3, x, y, indices)
    return _unbatched(y, self, 5), _unbatched(indices, self, 5)


@declare_supported(
    [
        Support(F32(2, 3, 8, 9), [4, 3]),
        Support(F32(2, 3, 8, 9), [3, 5]),
        Support(F32(3, 8, 9), [1, 2]),
        Support(F16(2, 3, 8, 9), [3, 5]),
        Support(BF16(2, 3, 8, 9), [3, 5]),
    ]
)
@register_fx_node_ge_converter(
    aten.adaptive_max_pool2d.default, source="native_functions.yaml: adaptive_max_pool2d; GE AdaptiveMaxPool2d"
)
def adaptive_max_pool2d(self: Tensor, output_size: Any, *, meta_outputs: list[TensorSpec]) -> tuple[Tensor, Tensor]:
    """Shapes: self [n, c, h, w] or [c, h, w] -> windows, and their maxima as places h * W + w in the plane.
    Dtypes: float32, float16, float64; bfloat16 through float32, which changes no value; places int64.
    Emits:  AdaptiveMaxPool2d, Cast of the places.
    """
    x = _batched(self, 4)
    x = cast(x, carrier("AdaptiveMaxPool2d", x.dtype))
    y, indices = ge.AdaptiveMaxPool2d(x, output_size=numbers("output_size", output_size, 2))
    laid_out(2, x, y, indices)
    indices = cast(indices, DataType.DT_INT64)
    return _unbatched(cast(y, self.dtype), self, 4), _unbatched(indices, self, 4)


@declare_supported(
    [
        Support(F32(1, 2, 3, 4), F32(1, 2, 6, 8), I64(1, 2, 3, 4, low=0, high=48)),
        Support(F32(2, 3, 4), F32(2, 6, 8), I64(2, 3, 4, low=0, high=48)),
    ]
)
@register_fx_node_ge_converter(
    aten.adaptive_max_pool2d_backward.default,
    source="native_functions.yaml: adaptive_max_pool2d_backward; GE ScatterElements",
)
def adaptive_max_pool2d_backward(
    grad_output: Tensor, self: Tensor, indices: Tensor, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: grad_output and indices of the pooled shape, self of the input's -> that of self.
    Dtypes: float32; halves through float32, in which shared places are summed.
    Emits:  ZerosLike, Reshape, ScatterElements with add.
    """
    if has_nothing(self) or has_nothing(grad_output):
        return zeros_of(meta_outputs, self)
    leading = self.rank - 2  # axes before the flattened plane
    shape = [0] * leading + [-1]
    zeros, updates = (ge.Reshape(cast(t, _F32), shape) for t in (ge.ZerosLike(cast(self, _F32)), grad_output))
    summed = ge.ScatterElements(zeros, ge.Reshape(indices, shape), updates, axis=leading, reduction="add")
    whole = ge.Reshape(summed, known_sizes(meta_outputs) or ge.Shape(self, dtype=_I64))
    return cast(whole, meta_outputs.dtype)
