"""Convolutions and their gradients, 2-D and 3-D, in the layout that ``data_format`` names.

Channels-last operands are permuted views, so nothing is copied before ATen sees it. Filters follow the layout of the
data: (Cout, Cin/groups, K..) beside NCHW and NCDHW, (K.., Cin/groups, Cout) beside NHWC and NDHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import HALVES, unpack_quant_parameter, wide
from ge_runtime.cpu.limits import ensure_sizes
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import listed, torch_dtype
from ge_runtime.errors import refused

_CONVOLUTION_GRAD: Final = torch.ops.aten.convolution_backward.default
_HEADER = "operator header: nn_calculation_ops"
Numbers: TypeAlias = "Sequence[int]"


def to_channels_first(x: Tensor, data_format: str) -> Tensor:
    """View with channels on axis 1."""
    return x.movedim(-1, 1) if data_format.endswith("C") else x


def from_channels_first(x: Tensor, data_format: str) -> Tensor:
    """View with channels where ``data_format`` has them."""
    return x.movedim(1, -1) if data_format.endswith("C") else x


def _filter_first(w: Tensor, data_format: str) -> Tensor:
    return w.movedim((-1, -2), (0, 1)) if data_format.endswith("C") else w


def _layout(x: Tensor, data_format: str, dilations: Numbers) -> tuple[str, list[int]]:
    """The layout, channels last where the attribute is absent, and dilations of the spatial axes, 1 where absent."""
    layout = data_format or ("NHWC" if x.dim() == 4 else "NDHWC")
    return layout, spatial(dilations or [1] * x.dim(), layout)


def spatial(values: Numbers, data_format: str) -> list[int]:
    """The entries of the spatial axes of a per-axis attribute; torch would spread a single one over all axes."""
    values = list(values)
    if len(values) != len(data_format):
        raise refused("window", f"{values} has {len(values)} numbers for the {len(data_format)} axes of {data_format}")
    return values[1:-1] if data_format.endswith("C") else values[2:]


def begin_end(pads: Numbers, axes: int) -> tuple[list[int], list[int]]:
    """(begin, end) pads of so many axes out of [begin0, end0, begin1, end1, ..]."""
    if len(pads) != 2 * axes:
        raise refused("window", f"pads are {list(pads)}, expected two for each of {axes} axes")
    return list(pads[0::2]), list(pads[1::2])


def pad_spatial(x: Tensor, pads: Numbers, value: float = 0.0) -> Tensor:
    """Pad the trailing axes; negative pads crop."""
    begin, end = begin_end(pads, len(pads) // 2)
    flat = [p for b, e in zip(reversed(begin), reversed(end)) for p in (b, e)]
    return torch.nn.functional.pad(x, flat, value=value)


def _forward(
    x: Tensor, w: Tensor, bias: Tensor | None, strides: Numbers, pads: Numbers, dilations: Numbers, groups: int
) -> Tensor:
    """Cross-correlation of channels-first operands; 16-bit accumulates in float32, int8 gives int32."""
    begin, end = begin_end(pads, x.dim() - 2)
    if x.dtype == torch.int8:
        y = _forward(x.double(), w.double(), None, strides, pads, dilations, groups).to(torch.int32)  # exact
        return y if bias is None else y + bias.reshape(-1, *[1] * len(begin))
    if bias is not None and bias.dtype != x.dtype and x.dtype in HALVES:
        return _forward(x.float(), w.float(), bias.float(), strides, pads, dilations, groups).to(x.dtype)
    if begin != end:
        x, begin = pad_spatial(x, pads), [0] * len(begin)
    return torch.convolution(x, w, bias, strides, begin, dilations, False, [0] * len(begin), groups)


def _left_open(x: Tensor, w: Tensor, size: Numbers, strides: Numbers, pads: Numbers, dilations: Numbers) -> list[int]:
    """How much larger the spatial ``size`` is than the least that a convolution maps to the size of ``x``."""
    begin, end = begin_end(pads, x.dim() - 2)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:])]
    least = [(n - 1) * s + r - b - e for n, s, r, b, e in zip(x.shape[2:], strides, reach, begin, end)]
    return [n - m for n, m in zip(size, least)]


def _unread(size: Numbers, beside: Tensor) -> Tensor:
    """An operand of which ATen wants type, size and memory order, and touches no memory: dense, or it would be copied.

    Args:
        beside: The other operand, whose order the gradient takes.
    """
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(beside.dim(), torch.contiguous_format)
    if beside.is_contiguous() or not beside.is_contiguous(memory_format=order):
        order = torch.contiguous_format
    return torch.empty(tuple(size), dtype=beside.dtype, memory_format=order)


def _transposed(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    size: Numbers,
    strides: Numbers,
    pads: Numbers,
    dilations: Numbers,
    groups: int,
) -> Tensor:
    """Transposed convolution to the spatial ``size``, which settles what the stride leaves open."""
    rank = x.dim() - 2
    begin, end = begin_end(pads, rank)
    if len(size) != rank:
        raise refused("transposed convolution", f"input_size has {len(size)} spatial numbers for {rank} axes")
    if begin == end:
        extra, padding = _left_open(x, w, size, strides, pads, dilations), begin
    else:
        whole = _left_open(x, w, size, strides, [0] * len(pads), dilations)
        extra, padding = [max(0, b + e) for b, e in zip(begin, whole)], [0] * rank
    if any(e < 0 or e >= max(s, d) for e, s, d in zip(extra, strides, dilations)):
        raise refused(
            "transposed convolution",
            f"spatial size {list(size)} does not follow from input {list(x.shape[2:])}, kernel {list(w.shape[2:])}, "
            f"strides {list(strides)}, pads {list(pads)}, dilations {list(dilations)}",
            "give an input_size that the forward convolution maps to the shape of x",
        )
    y = torch.convolution(x, w, bias, strides, padding, dilations, True, extra, groups)
    inner = (..., *(slice(b, b + n) for b, n in zip(begin, size)))
    return y if begin == end else y[inner]


def no_offset(op: str, offset_w: Tensor | None, offset_x: int) -> None:
    """Refuse operands that the definition reserves."""
    if offset_w is not None or offset_x:
        raise refused(op, "offset_w and offset_x are reserved in the operator's definition", "leave both out")


def _convolution(
    x: Tensor,
    filter: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    strides: Numbers,
    pads: Numbers,
    dilations: Numbers = (),
    groups: int = 1,
    data_format: str = "",
    offset_x: int = 0,
) -> Tensor:
    """Cross-correlation plus bias.

    Shapes: floor((in + pads - (dilation * (k - 1) + 1)) / stride) + 1 an axis; strides and dilations in layout order.
    """
    no_offset("convolution", offset_w, offset_x)
    layout, dilation = _layout(x, data_format, dilations)
    x, filter = to_channels_first(x, layout), _filter_first(filter, layout)
    return from_channels_first(_forward(x, filter, bias, spatial(strides, layout), pads, dilation, groups), layout)


rows({"Conv2D Conv3D": _convolution}, source=_HEADER)


@plan("Conv2D", "Conv3D")
def _plan_convolution(ctx: PlanContext) -> Call | None:
    """A channels-first convolution with symmetric pads is one ATen call."""
    data_format, pads = ctx.attr("data_format", ""), list(ctx.attr("pads", ()))
    x, w, b = ctx.dtype("x"), ctx.dtype("filter"), ctx.dtype("bias")
    begin, end = pads[0::2], pads[1::2]
    if not data_format.startswith("NC") or begin != end or x is None or not x.is_float or x != w or b not in (None, x):
        return None
    if ctx.fed("offset_w") or ctx.attr("offset_x", 0):
        return None
    begin, _ = begin_end(pads, len(data_format) - 2)
    strides, dilations = spatial(ctx.attr("strides"), data_format), spatial(ctx.attr("dilations"), data_format)
    args = (ctx.tensor("x"), ctx.tensor("filter"), ctx.tensor("bias"), strides, begin, dilations, False)
    return Call(torch.convolution, (*args, [0] * len(begin), ctx.attr("groups", 1)))


@kernel("DepthwiseConv2D", source="operator header: nn_calculation_ops; ops-nn: conv/depthwise_conv2d")
def depthwise_conv2d(
    x: Tensor,
    filter: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    strides: Numbers,
    dilations: Numbers = (1, 1, 1, 1),
    pads: Numbers,
    data_format: str = "NHWC",
    offset_x: int = 0,
) -> Tensor:
    """One filter bank a channel. NCHW filter (C * multiplier, 1, Kh, Kw); NHWC filter (Kh, Kw, C, multiplier)."""
    no_offset("DepthwiseConv2D", offset_w, offset_x)
    x = to_channels_first(x, data_format)
    if data_format.endswith("C"):
        filter = filter.permute(2, 3, 0, 1).reshape(-1, 1, *filter.shape[:2])
    y = _forward(x, filter, bias, spatial(strides, data_format), pads, spatial(dilations, data_format), x.shape[1])
    return from_channels_first(y, data_format)


@kernel(
    "Conv2DTranspose",
    "Conv3DTranspose",
    "Conv2DTransposeD",
    "Conv3DTransposeD",
    host=("input_size",),
    source="operator documentation and header",
)
def conv_transpose(
    input_size: Any,
    x: Tensor,
    filter: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    strides: Numbers,
    pads: Numbers,
    dilations: Numbers = (),
    groups: int = 1,
    data_format: str = "",
    output_padding: Numbers = (),
    offset_x: int = 0,
) -> Tensor:
    """Transposed convolution. ``input_size`` is the wanted output shape; all zeros derives it from output_padding."""
    no_offset("transposed convolution", offset_w, offset_x)
    layout, dilation = _layout(x, data_format, dilations)
    x, w, stride = to_channels_first(x, layout), _filter_first(filter, layout), spatial(strides, layout)
    shape = listed(input_size)
    if any(shape):
        size = spatial(shape, layout) if len(shape) == x.dim() else shape
    else:
        begin, end = begin_end(pads, x.dim() - 2)
        extra = spatial(output_padding or [0] * x.dim(), layout)
        size = [
            (n - 1) * s - b - e + d * (k - 1) + 1 + o
            for n, s, b, e, d, k, o in zip(x.shape[2:], stride, begin, end, dilation, w.shape[2:], extra)
        ]
    if bias is not None and bias.dtype != x.dtype:
        y = _transposed(wide(x), wide(w), wide(bias), size, stride, pads, dilation, groups).to(x.dtype)
    else:
        y = _transposed(x, w, bias, size, stride, pads, dilation, groups)
    return from_channels_first(y, layout)


def _check_grad(op: str, grad: Tensor, w: Tensor, stride: Numbers, dilation: Numbers, groups: int) -> None:
    """What ATen's gradient believes of its operands."""
    rank = grad.dim() - 2
    if rank not in (2, 3) or w.dim() != grad.dim() or len(stride) != rank or len(dilation) != rank:
        raise refused(op, f"{len(stride)} strides and {len(dilation)} dilations of {list(grad.shape)}")
    if min(*stride, *dilation) < 1 or groups < 1 or w.shape[0] % groups or grad.shape[1] != w.shape[0]:
        form = f"strides {list(stride)}, dilations {list(dilation)}, {groups} groups"
        raise refused(op, f"{form} of a gradient {list(grad.shape)} and a filter {list(w.shape)}")


@kernel(
    "Conv2DBackpropInput",
    "Conv3DBackpropInput",
    "Conv2DBackpropInputD",
    "Conv3DBackpropInputD",
    host=("input_size",),
    source="operator documentation and header",
)
def conv_backprop_input(
    input_size: Any,
    filter: Tensor,
    out_backprop: Tensor,
    *,
    strides: Numbers,
    pads: Numbers,
    dilations: Numbers = (),
    groups: int = 1,
    data_format: str = "",
) -> Tensor:
    """Gradient of a convolution for its input of shape ``input_size``."""
    layout, dilation = _layout(out_backprop, data_format, dilations)
    grad, w = to_channels_first(out_backprop, layout), _filter_first(filter, layout)
    size, stride = spatial(listed(input_size), layout), spatial(strides, layout)
    begin, end = begin_end(pads, grad.dim() - 2)
    _check_grad("Conv2DBackpropInput", grad, w, stride, dilation, groups)
    follows = all(0 <= e < s for e, s in zip(_left_open(grad, w, size, stride, pads, dilation), stride))
    if begin == end and follows:
        x = _unread((grad.shape[0], w.shape[1] * groups, *size), grad)
        y = _CONVOLUTION_GRAD(
            grad, x, w, None, stride, begin, dilation, False, [0] * len(begin), groups, [True, False, False]
        )[0]
    else:
        y = _transposed(grad, w, None, size, stride, pads, dilation, groups)
    return from_channels_first(y, layout)


@kernel(
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilter",
    "Conv2DBackpropFilterD",
    "Conv3DBackpropFilterD",
    host=("filter_size",),
    source="operator documentation and header",
)
def conv_backprop_filter(
    x: Tensor,
    filter_size: Any,
    out_backprop: Tensor,
    *,
    strides: Numbers,
    pads: Numbers,
    dilations: Numbers = (),
    groups: int = 1,
    data_format: str = "",
) -> Tensor:
    """Gradient of a convolution for its filter, float32 whatever the operands are."""
    layout, dilation = _layout(x, data_format, dilations)
    last, shape = layout.endswith("C"), listed(filter_size)
    shape = [shape[-1], shape[-2], *shape[:-2]] if last else shape
    x, grad = to_channels_first(x, layout).float(), to_channels_first(out_backprop, layout).float()
    begin, end = begin_end(pads, x.dim() - 2)
    if begin != end:
        x, begin = pad_spatial(x, pads), [0] * len(begin)
    op, stride, w = "Conv2DBackpropFilter", spatial(strides, layout), _unread(shape, x)
    _check_grad(op, grad, w, stride, dilation, groups)
    windows = [
        (n + 2 * b - d * (k - 1) - 1) // s + 1
        for n, b, d, k, s in zip(x.shape[2:], begin, dilation, w.shape[2:], stride)
    ]
    ensure_sizes(op, "x", x, [grad.shape[0], w.shape[1] * groups, *x.shape[2:]])
    ensure_sizes(op, "out_backprop", grad, [x.shape[0], w.shape[0], *windows])
    y = _CONVOLUTION_GRAD(
        grad,
        x,
        w,
        None,
        stride,
        begin,
        dilation,
        False,
        [0] * len(begin),
        groups,
        [False, True, False],
    )[1]
    return y.movedim((0, 1), (-1, -2)) if last else y  # type: ignore[no-any-return]


@kernel("QuantConv2D", source="ops-nn: conv/quant_conv2d, documentation")
def quant_conv2d(
    x: Tensor,
    filter: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    dtype: int,
    strides: Numbers,
    pads: Numbers,
    dilations: Numbers = (1, 1, 1, 1),
    groups: int = 1,
    data_format: str = "NHWC",
    offset_x: int = 0,
    round_mode: str = "rint",
) -> Tensor:
    """``(conv(x, filter) + bias) * scale`` of int8 data, one scale an output channel."""
    y = _convolution(
        x, filter, bias, strides=strides, pads=pads, dilations=dilations, groups=groups, data_format=data_format
    )
    factor = unpack_quant_parameter(scale)[0]
    factor = factor if data_format.endswith("C") else factor.reshape(-1, 1, 1)
    return (y.float() * factor).to(torch_dtype(dtype))


def _bias_axis(x: Tensor, data_format: str) -> int:
    return x.dim() - 1 if data_format.endswith("C") or x.dim() == 2 else 1


rows(
    {  # a vector along the channel axis
        "BiasAdd": lambda x, bias, *, data_format="NHWC": (
            x + bias.reshape(-1, *[1] * (x.dim() - 1 - _bias_axis(x, data_format)))
        ),
    },
    source=_HEADER,
)


@kernel("BiasAddGrad", views=True, source=_HEADER)
def bias_add_grad(x: Tensor, *, data_format: str = "NHWC") -> Tensor:
    """Sum over all axes but the channel axis."""
    others = [i for i in range(x.dim()) if i != _bias_axis(x, data_format)]
    return wide(x).sum(others).to(x.dtype) if others else x
