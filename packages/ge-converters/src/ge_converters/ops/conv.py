"""Convolutions and their gradients, 1-d to 3-d, plain and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, Support
from ge_converters.emit.compute_types import carrier
from ge_converters.emit.shapes import filled, has_nothing, zeros_of
from ge_converters.emit.windows import both_sides, known_sizes, laid_out, numbers, per_axis
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_DATA_FORMAT = {2: "NCHW", 3: "NCDHW"}


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Numbers of a convolution, spatial axes only; a 1-d one is 2-d with a height of 1."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int
    flat: bool

    @property
    def spatial(self) -> int:
        return len(self.stride)

    def attrs(self) -> dict[str, Any]:
        """Attributes that all GE convolutions share."""
        return {
            "strides": per_axis(self.stride),
            "pads": both_sides(self.padding),
            "dilations": per_axis(self.dilation),
            "groups": self.groups,
            "data_format": _DATA_FORMAT[self.spatial],
        }

    def lift(self, x: Tensor) -> Tensor:
        """A 1-d operand with an axis of height 1."""
        return ge.Unsqueeze(x, axes=[2]) if self.flat else x

    def lower(self, x: Tensor) -> Tensor:
        """Back to 1-d."""
        return ge.Squeeze(x, axis=[2]) if self.flat else x

    def sizes(self, spec: TensorSpec, like: Tensor) -> Any:
        """Shape operand of a gradient: that of ``like``, which has been lifted."""
        known = known_sizes(spec)
        if known is None:
            return ge.Shape(like, dtype=int(DataType.DT_INT32))
        return [*known[:2], 1, *known[2:]] if self.flat else known


def _geometry(rank: int, stride: Any, padding: Any, dilation: Any, output_padding: Any, groups: Any) -> _Geometry:
    spatial = rank - 2
    values = [
        numbers(name, given, spatial)
        for name, given in (
            ("stride", stride),
            ("padding", padding),
            ("dilation", dilation),
            ("output_padding", output_padding),
        )
    ]
    if spatial == 1:
        values = [[1, *values[0]], [0, *values[1]], [1, *values[2]], [0, *values[3]]]
    steps, pads, spread, extra = values
    return _Geometry(steps, pads, spread, extra, groups=numbers("groups", groups, 1)[0], flat=spatial == 1)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, g: _Geometry) -> Tensor:
    op = "Conv2D" if g.spatial == 2 else "Conv3D"
    inner = carrier(op, x.dtype)
    x, weight = cast(x, inner), cast(weight, inner)
    if bias is not None:
        bias = cast(bias, carrier(op, inner, "bias"))
    y: Tensor = getattr(ge, op)(x, weight, bias, **g.attrs())
    laid_out(g.spatial, x, weight, y)
    return y


def _transposed(x: Tensor, weight: Tensor, bias: Tensor | None, g: _Geometry, spec: TensorSpec) -> Tensor:
    op = "Conv2DTranspose" if g.spatial == 2 else "Conv3DTranspose"
    inner = carrier(op, x.dtype, "x")
    x, weight = cast(x, inner), cast(weight, inner)
    if bias is not None:
        bias = cast(bias, carrier(op, inner, "bias"))
    known = known_sizes(spec)
    if known is None:
        size = [0] * (g.spatial + 2)  # GE's sign for "derive the sizes from input, strides, pads and output_padding"
    else:
        size = [*known[:2], 1, *known[2:]] if g.flat else known
    y: Tensor = getattr(ge, op)(size, x, weight, bias, **g.attrs(), output_padding=[0, 0, *g.output_padding])
    laid_out(g.spatial, x, weight, y)
    return y


_CASES = [
    Support(F32(2, 3, 8, 9), F32(4, 3, 3, 3), F32(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    Support(F32(2, 3, 8, 9), F32(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
    Support(F32(2, 4, 8, 9), F32(6, 2, 3, 3), F32(6), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
    Support(F32(2, 4, 8, 8), F32(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    Support(F16(2, 3, 8, 9), F16(4, 3, 3, 3), F16(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    Support(BF16(2, 3, 8, 9), BF16(4, 3, 3, 3), BF16(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    Support(F32(2, 3, 10), F32(4, 3, 3), F32(4), [2], [1], [1], False, [0], 1),
    Support(BF16(2, 4, 10), BF16(4, 2, 3), None, [1], [0], [2], False, [0], 2),
    Support(F32(2, 3, 5, 6, 7), F32(4, 3, 2, 3, 3), F32(4), [1, 2, 1], [0, 1, 1], [1, 1, 2], False, [0, 0, 0], 1),
    Support(F16(2, 3, 5, 6, 7), F16(4, 3, 2, 3, 3), F16(4), [1, 1, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
    Support(F32(2, 4, 5, 6), F32(4, 3, 3, 3), F32(3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    Support(F32(2, 4, 5, 6), F32(4, 3, 3, 3), None, [1, 2], [0, 1], [2, 1], True, [0, 1], 2),
    Support(F16(2, 4, 5, 6), F16(4, 3, 3, 3), F16(3), [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
    Support(BF16(2, 4, 5, 6), BF16(4, 3, 3, 3), BF16(3), [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
    Support(F32(2, 4, 9), F32(4, 3, 3), F32(3), [2], [1], [1], True, [1], 1),
    Support(F32(1, 4, 3, 4, 5), F32(4, 3, 2, 2, 3), F32(3), [2, 1, 2], [0, 1, 1], [1, 1, 1], True, [1, 0, 0], 1),
]


@declare_supported(_CASES)
@register_fx_node_ge_converter(aten.convolution.default, source="native_functions.yaml: convolution; GE Conv2D, Conv3D")
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: input [n, c, ..]; weight [o, c/groups, ..], transposed [c, o/groups, ..]; bias [o]; 1 to 3 spatial axes.
    Dtypes: float32, float16, bfloat16; a bfloat16 bias goes to float32, in which it is added.
    Emits:  Conv2D or Conv3D, transposed Conv2DTranspose or Conv3DTranspose; 1-d between Unsqueeze and Squeeze.
    Errors: refused if a window number is symbolic (a GE attribute holds it), or for float64.
    """
    g = _geometry(input.rank, stride, padding, dilation, output_padding, groups)
    x, w = g.lift(input), g.lift(weight)
    y = _transposed(x, w, bias, g, meta_outputs) if transposed else _forward(x, w, bias, g)
    return cast(g.lower(y), meta_outputs.dtype)


def _input_gradient(grad: Tensor, weight: Tensor, size: Any, g: _Geometry) -> Tensor:
    op = "Conv2DBackpropInput" if g.spatial == 2 else "Conv3DBackpropInput"
    inner = carrier(op, grad.dtype, "out_backprop")
    grad, weight = cast(grad, inner), cast(weight, inner)
    y: Tensor = getattr(ge, op)(size, weight, grad, **g.attrs())
    laid_out(g.spatial, grad, weight, y)
    return y


def _filter_gradient(x: Tensor, grad: Tensor, size: Any, g: _Geometry) -> Tensor:
    op = "Conv2DBackpropFilter" if g.spatial == 2 else "Conv3DBackpropFilter"
    inner = carrier(op, x.dtype, "x")
    x, grad = cast(x, inner), cast(grad, inner)
    y: Tensor = getattr(ge, op)(x, size, grad, **g.attrs())
    laid_out(g.spatial, x, grad, y)
    return y


def _followed_by_zeros(x: Tensor, counts: list[int]) -> Tensor:
    """Zeros after the trailing axes, for windows that no input made."""
    if not any(counts):
        return x
    result: Tensor = ge.PadV3(x, [0] * 4 + [n for c in counts for n in (0, c)], mode="constant")
    return result


_ALL = [True, True, True]
_BACKWARD_CASES = [
    Support(F32(2, 4, 6, 7), F32(2, 3, 8, 9), F32(4, 3, 3, 3), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, _ALL),
    Support(
        F32(2, 4, 6, 7),
        F32(2, 3, 8, 9),
        F32(4, 3, 3, 3),
        [0],
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, False],
    ),
    Support(
        F32(2, 4, 4, 5),
        F32(2, 2, 8, 9),
        F32(4, 1, 3, 3),
        [4],
        [2, 2],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        2,
        [False, True, True],
    ),
    Support(
        F16(2, 4, 6, 7), F16(2, 3, 8, 9), F16(4, 3, 3, 3), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, _ALL
    ).within(1e-2, 1e-2),  # eager's own sums of half products
    Support(BF16(2, 4, 6, 7), BF16(2, 3, 8, 9), BF16(4, 3, 3, 3), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, _ALL),
    Support(F32(2, 4, 5), F32(2, 3, 10), F32(4, 3, 3), [4], [2], [1], [1], False, [0], 1, _ALL),
    Support(
        F32(1, 4, 4, 4, 5),
        F32(1, 3, 5, 6, 7),
        F32(4, 3, 2, 3, 3),
        [4],
        [1, 1, 1],
        [0, 0, 0],
        [1, 1, 1],
        False,
        [0, 0, 0],
        1,
        _ALL,
    ),
    Support(F32(2, 3, 10, 11), F32(2, 4, 5, 6), F32(4, 3, 3, 3), [3], [2, 2], [1, 1], [1, 1], True, [1, 0], 1, _ALL),
    Support(F32(2, 3, 18), F32(2, 4, 9), F32(4, 3, 3), [3], [2], [1], [1], True, [1], 1, _ALL),
    Support(F32(2, 3, 8, 15), F32(2, 4, 5, 6), F32(4, 3, 3, 3), [3], [1, 2], [1, 1], [2, 3], True, [1, 0], 1, _ALL),
    Support(F32(2, 4, 6, 7), F32(2, 0, 8, 9), F32(4, 0, 3, 3), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, _ALL),
    Support(F16(0, 4, 5), F16(0, 2, 10), F16(4, 1, 3), [4], [2], [1], [1], False, [0], 2, _ALL),
]


@declare_supported(_BACKWARD_CASES)
@register_fx_node_ge_converter(
    aten.convolution_backward.default,
    source="native_functions.yaml: convolution_backward; GE Conv2DBackpropInput, Conv2DBackpropFilter",
)
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input, weight and bias, each of the shape of what it belongs to; None where the mask says so.
    Dtypes: float32, float16, bfloat16; the filter gradient is summed in float32 and rounded once.
    Emits:  Conv2DBackpropInput, Conv2DBackpropFilter, ReduceSum (3-d likewise); for a transposed convolution the roles
            of input and gradient change: Conv2D and Conv2DBackpropFilter. Fill of zeros where an operand is empty.
    """  # noqa: E501
    g = _geometry(input.rank, stride, padding, dilation, output_padding, groups)
    grad, x, w = g.lift(grad_output), g.lift(input), g.lift(weight)
    beyond = [p // s for p, s in zip(g.output_padding, g.stride)] if transposed else [0]
    empty = any(map(has_nothing, (grad_output, input, weight)))

    def of_input(spec: TensorSpec) -> Tensor:
        made = _forward(grad, w, None, g) if transposed else _input_gradient(grad, w, g.sizes(spec, x), g)
        if any(beyond):  # output_padding of a whole stride: windows that no input made
            made = ge.Slice(made, [0] * (g.spatial + 2), g.sizes(spec, x))
        return cast(g.lower(made), spec.dtype)

    def of_weight(spec: TensorSpec) -> Tensor:
        first, second = (grad, _followed_by_zeros(x, beyond)) if transposed else (x, grad)
        return cast(g.lower(_filter_gradient(first, second, g.sizes(spec, w), g)), spec.dtype)

    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        results[0] = zeros_of(meta_outputs[0], input) if empty else of_input(meta_outputs[0])
    if output_mask[1]:
        results[1] = zeros_of(meta_outputs[1], weight) if empty else of_weight(meta_outputs[1])
    if output_mask[2]:
        axes = [0, *range(2, grad_output.rank)]
        sums = ge.ReduceSum(grad_output, axes, keep_dims=False)
        # without input channels the gradient has no channels either, in eager PyTorch too
        results[2] = filled(list(meta_outputs[2].size), 0, meta_outputs[2].dtype) if empty else sums
    return results
