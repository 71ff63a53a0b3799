"""Windows of an image as columns, and the sum of columns back into an image."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, Support
from ge_converters.emit.compute_types import carried, carrier
from ge_converters.emit.shapes import axis_size, shape_operand
from ge_converters.emit.windows import known_sizes, laid_out, numbers
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge


@declare_supported(
    [Support(m(2, 3, 6, 7), [2, 3], [1, 1], [0, 0], [1, 1]) for m in (F32, F16, BF16)]
    + [Support(F32(2, 3, 6, 7), [2, 2], [1, 2], [1, 0], [2, 1]), Support(F32(3, 6, 7), [2, 3], [1, 1], [0, 1], [2, 2])]
)
@register_fx_node_ge_converter(
    aten.im2col.default, source="native_functions.yaml: im2col; GE Im2col", takes=Takes("Im2col")
)
def im2col(
    self: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any, *, meta_outputs: TensorSpec
) -> Tensor:
    """Shapes: self [n, c, h, w] or [c, h, w] -> [n, c * kh * kw, windows].
    Dtypes: numbers; complex and bool are decomposed.
    Emits:  Im2col, and Reshape that joins the axes of its rows and columns of windows.
    """
    (x,), back = carried("Im2col", ge.Unsqueeze(self, axes=[0]) if self.rank == 3 else self)
    pads = numbers("padding", padding, 2)
    y = ge.Im2col(
        x,
        ksizes=numbers("kernel_size", kernel_size, 2),
        strides=numbers("stride", stride, 2),
        dilations=numbers("dilation", dilation, 2),
        padding_mode="CALCULATED",
        pads=[p for p in pads for _ in range(2)],
    )
    laid_out(2, x, y)
    known = known_sizes(meta_outputs)
    if known is not None:
        return back(ge.Reshape(y, known))
    # neither 0, which keeps an axis, nor -1 says anything of the axes of an empty batch
    rows = meta_outputs.size[-2]
    windows = ge.Mul(axis_size(y, 2), axis_size(y, 3))
    windows.record_shape(())
    joined: Tensor = ge.Reshape(
        y, shape_operand([axis_size(y, 0), rows if isinstance(rows, int) else axis_size(y, 1), windows])
    )
    return back(ge.Squeeze(joined, axis=[0]) if self.rank == 3 else joined)


@declare_supported(
    [Support(F32(2, 12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1])]
    # eager adds overlapping windows in the half type
    + [Support(F16(2, 12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1]).within(1e-2, 4e-3)]
    + [Support(BF16(2, 12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1]).within(3e-2, 3e-2)]
    + [Support(F32(12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1])]
)
@register_fx_node_ge_converter(
    aten.col2im.default, source="native_functions.yaml: col2im; GE Col2im", takes=Takes("Col2im")
)
def col2im(
    self: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [n, c * kh * kw, windows] or [c * kh * kw, windows] -> [n, c, *output_size].
    Dtypes: float32, float16; bfloat16 through float32, in which overlaps are summed.
    Emits:  Reshape that splits the window off the channels; Col2im.
    """
    kernel = numbers("kernel_size", kernel_size, 2)
    volume = kernel[0] * kernel[1]
    channels = meta_outputs.size[-3]
    inner = carrier("Col2im", self.dtype)
    x = cast(self, inner)
    if self.rank == 2:
        x = ge.Unsqueeze(x, axes=[0])
    windows = self.known_shape[-1] if self.known_shape is not None else None
    columns = shape_operand(
        [
            0,  # keeps the axis
            channels if isinstance(channels, int) else ge.FloorDiv(axis_size(x, 1), volume),
            volume,
            windows if isinstance(windows, int) else axis_size(x, 2),
        ]
    )
    y = ge.Col2im(
        ge.Reshape(x, columns),
        shape_operand(list(output_size), DataType.DT_INT32),
        kernel_size=kernel,
        dilation=numbers("dilation", dilation, 2),
        padding=numbers("padding", padding, 2),
        stride=numbers("stride", stride, 2),
    )
    laid_out(2, y)
    y = ge.Squeeze(y, axis=[0]) if self.rank == 2 else y
    return cast(y, meta_outputs.dtype)
