"""Pooling and its gradients.

The definition's output size decides: where it differs from ATen's (asymmetric pads, a last window that starts in the
trailing padding) the data is padded to what the windows cover, so one rule serves all operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.conv import begin_end, from_channels_first, pad_spatial, spatial, to_channels_first
from ge_runtime.cpu.kernels.numerics import ints, refuse, torch_dtype, wide
from ge_runtime.cpu.registry import Call, PlanContext, kernel, plan

_ATEN = torch.ops.aten
_HEADER = "operator header: nn_pooling_ops"
_F = torch.nn.functional
_MAX: Final = {1: _F.max_pool1d, 2: _F.max_pool2d, 3: _F.max_pool3d}
_AVG_GRAD: Final = {2: _ATEN.avg_pool2d_backward.default, 3: _ATEN.avg_pool3d_backward.default}


@dataclass(frozen=True, slots=True)
class Window:
    """Windows over the spatial axes: one entry per axis.

    Attributes:
        begin: Padding in front.
        end: Padding at the end, as the attribute says.
        out: Number of windows.
    """

    size: list[int]
    stride: list[int]
    begin: list[int]
    end: list[int]
    dilation: list[int]
    out: list[int]

    def cover(self, extent: Sequence[int]) -> list[int]:
        """[begin0, end0, ..] padding so that the windows fit exactly; negative where the tail is not looked at."""
        pads = []
        for n, k, s, b, d, o in zip(extent, self.size, self.stride, self.begin, self.dilation, self.out):
            pads += [b, (o - 1) * s + d * (k - 1) + 1 - n - b]
        return pads

    def native(self, extent: Sequence[int]) -> bool:
        """Whether ATen has the same windows with floor rounding and symmetric pads of at most half a window."""
        plain = all(
            o == (n + 2 * b - d * (k - 1) - 1) // s + 1
            for n, k, s, b, d, o in zip(extent, self.size, self.stride, self.begin, self.dilation, self.out)
        )
        return plain and self.begin == self.end and all(b <= k // 2 for b, k in zip(self.begin, self.size))


def calculated(
    extent: Sequence[int], size: Sequence[int], stride: Sequence[int], pads: Sequence[int],
    dilation: Sequence[int] | None = None, ceil: bool = False, drop_last: bool = False,
) -> Window:  # fmt: skip
    """Windows from explicit pads; ``drop_last`` leaves out a last window that starts in the trailing padding."""
    begin, end = begin_end(pads)
    dilation = [1] * len(size) if dilation is None else list(dilation)
    out = []
    for n, k, s, b, e, d in zip(extent, size, stride, begin, end, dilation):
        free = n + b + e - d * (k - 1) - 1
        count = (-(-free // s) if ceil else free // s) + 1
        if ceil and drop_last and (count - 1) * s >= n + b:
            count -= 1
        out.append(count)
    return Window(list(size), list(stride), begin, end, dilation, out)


def by_padding(extent: Sequence[int], size: Sequence[int], stride: Sequence[int], padding: str) -> Window:
    """Windows of the paddings VALID (none) and SAME (ceil(n / stride) windows, the odd pixel of padding after)."""
    if padding == "VALID":
        return calculated(extent, size, stride, [0, 0] * len(size))
    if padding != "SAME":
        raise refuse("pooling", f"padding is {padding!r}, accepted: SAME, VALID")
    out = [-(-n // s) for n, s in zip(extent, stride)]
    total = [max((o - 1) * s + k - n, 0) for o, s, k, n in zip(out, stride, size, extent)]
    begin = [t // 2 for t in total]
    return Window(list(size), list(stride), begin, [t - b for t, b in zip(total, begin)], [1] * len(size), out)


def from_mode(
    x: Tensor, ksize: Sequence[int], strides: Sequence[int], mode: str, pads: Sequence[int], data_format: str,
    global_pooling: bool, ceil_mode: bool, drop_last: bool,
) -> Window:  # fmt: skip
    """Windows of the V2 and V3 operators over channels-first data; only maximum pooling drops a window of padding."""
    extent = list(x.shape[2:])
    if global_pooling:
        return calculated(extent, extent, extent, [0, 0] * len(extent))
    size, stride = spatial(ksize, data_format), spatial(strides, data_format)
    if mode == "CALCULATED":
        return calculated(extent, size, stride, pads, ceil=ceil_mode, drop_last=drop_last)
    if mode == "VALID" and ceil_mode:
        return calculated(extent, size, stride, [0, 0] * len(size), ceil=True)
    return by_padding(extent, size, stride, mode)


def _lowest(x: Tensor) -> float:
    return float("-inf") if x.is_floating_point() else float(torch.iinfo(x.dtype).min)


def max_pool(x: Tensor, w: Window) -> Tensor:
    """Maximum of each window of channels-first data; padding never wins."""
    extent, rank = x.shape[2:], len(w.size)
    if w.native(extent) and x.is_floating_point():
        return _MAX[rank](x, w.size, w.stride, w.begin, w.dilation)  # type: ignore[no-any-return]
    padded = pad_spatial(x, w.cover(extent), _lowest(x))
    return _MAX[rank](padded, w.size, w.stride, 0, w.dilation)  # type: ignore[no-any-return]


def max_pool_indices(x: Tensor, w: Window) -> tuple[Tensor, Tensor]:
    """Maximum and its position in the unpadded volume of one sample and channel, int64."""
    extent, rank = list(x.shape[2:]), len(w.size)
    if w.native(extent):
        return _MAX[rank](x, w.size, w.stride, w.begin, w.dilation, return_indices=True)  # type: ignore[no-any-return]
    cover = w.cover(extent)
    padded = pad_spatial(x, cover, _lowest(x))
    y, flat = _MAX[rank](padded, w.size, w.stride, 0, w.dilation, return_indices=True)
    index = torch.zeros_like(flat)
    for axis, size in enumerate(padded.shape[2:]):
        inner = padded.shape[2 + axis + 1 :].numel()
        index = index * extent[axis] + (flat // inner) % size - cover[2 * axis]
    return y, index


def scatter_to(grad: Tensor, index: Tensor, shape: Sequence[int]) -> Tensor:
    """Add each gradient element at its position in a zero tensor of ``shape``; sums in float32."""
    flat = wide(grad).reshape(*shape[:2], -1)
    y = torch.zeros(*shape[:2], torch.Size(shape[2:]).numel(), dtype=flat.dtype)
    return y.scatter_add_(2, index.long().reshape(flat.shape), flat).reshape(tuple(shape)).to(grad.dtype)


@kernel("MaxPool", "MaxPoolExt2", source=_HEADER)
def max_pool_v1(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding: str, data_format: str = "NHWC"
) -> Tensor:
    """Maximum of each window, padding SAME or VALID."""
    first = to_channels_first(x, data_format)
    w = by_padding(first.shape[2:], spatial(ksize, data_format), spatial(strides, data_format), padding)
    return from_channels_first(max_pool(first, w), data_format)


@kernel("MaxPoolV2", host=("ksize", "strides"), source=_HEADER)
def max_pool_v2(x: Tensor, ksize: Any, strides: Any, *, padding: str, data_format: str = "NHWC") -> Tensor:
    """MaxPool with window and stride as operands."""
    return max_pool_v1(x, ksize=ints(ksize), strides=ints(strides), padding=padding, data_format=data_format)


@kernel("MaxPoolV3", source="ops-nn: pooling/max_pool_v3, documentation")
def max_pool_v3(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding_mode: str = "CALCULATED",
    pads: Sequence[int] = (0, 0, 0, 0), data_format: str = "NCHW", global_pooling: bool = False,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Maximum of each window with explicit pads [top, bottom, left, right], SAME or VALID."""
    first = to_channels_first(x, data_format)
    w = from_mode(first, ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, True)
    return from_channels_first(max_pool(first, w), data_format)


@plan("MaxPoolV3", "AvgPoolV2")
def _plan_pool(ctx: PlanContext) -> Call | None:
    """Known sizes and windows that ATen has: one call."""
    shape, attr, op = ctx.shape("x"), ctx.attr, ctx.node.op
    kind = ctx.dtype("x")
    if shape is None or len(shape) != 4 or kind is None or not kind.is_float or attr("data_format", "NCHW") != "NCHW":
        return None
    if not all(isinstance(n, int) for n in shape):
        return None
    w = from_mode(
        torch.empty(()).expand(shape), attr("ksize"), attr("strides"), attr("padding_mode", "CALCULATED"),
        attr("pads", [0, 0, 0, 0]), "NCHW", attr("global_pooling", False), attr("ceil_mode", False), op == "MaxPoolV3",
    )  # fmt: skip
    if not w.native([int(n) for n in shape[2:]]):
        return None
    if op == "MaxPoolV3":
        return Call(torch.max_pool2d, (ctx.tensor("x"), w.size, w.stride, w.begin))
    form = (w.size, w.stride, w.begin, False, not attr("exclusive", True), attr("divisor_override", 0) or None)
    return Call(_F.avg_pool2d, (ctx.tensor("x"), *form))


def _grad_by_maximum(x: Tensor, grad: Tensor, w: Window) -> Tensor:
    return scatter_to(grad, max_pool_indices(wide(x), w)[1], x.shape)


@kernel("MaxPoolGrad", source=_HEADER)
def max_pool_grad(
    x1: Tensor, x2: Tensor, grad: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding: str,
    data_format: str = "NHWC",
) -> Tensor:  # fmt: skip
    """Gradient of MaxPool: x1 is its input, x2 its output; the first maximum of a window takes all."""
    x = to_channels_first(x1, data_format)
    w = by_padding(x.shape[2:], spatial(ksize, data_format), spatial(strides, data_format), padding)
    return from_channels_first(_grad_by_maximum(x, to_channels_first(grad, data_format), w), data_format)


@kernel("MaxPoolV3Grad", source=_HEADER)
def max_pool_v3_grad(
    orig_input: Tensor, orig_output: Tensor, grad: Tensor, *, ksize: Sequence[int], strides: Sequence[int],
    padding_mode: str = "CALCULATED", pads: Sequence[int] = (0, 0, 0, 0), data_format: str = "NCHW",
    global_pooling: bool = False, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Gradient of MaxPoolV3."""
    x = to_channels_first(orig_input, data_format)
    w = from_mode(x, ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, True)
    return from_channels_first(_grad_by_maximum(x, to_channels_first(grad, data_format), w), data_format)


def _argmax_window(
    x: Tensor, ksize: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilation: Sequence[int], ceil: bool
) -> Window:
    """The V1 operators give [1, h, w, 1] lists and [1, ph, pw, 1] pads whatever the layout is."""
    p = [v for v in list(pads)[1:3] for _ in range(2)]
    sides = [list(v)[1:3] for v in (ksize, strides, dilation)]
    return calculated(x.shape[2:], sides[0], sides[1], p, sides[2], ceil, drop_last=True)


@kernel("MaxPoolWithArgmaxV1", source="ops-nn: pooling/max_pool_with_argmax_v1, shape inference")
def max_pool_with_argmax_v1(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], pads: Sequence[int], dtype: int = 3,
    dilation: Sequence[int] = (1, 1, 1, 1), ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y, argmax) of NCHW data; argmax is ``h * W + w``, int32: the bit mask belongs to blocked layouts only."""
    y, index = max_pool_indices(x, _argmax_window(x, ksize, strides, pads, dilation, ceil_mode))
    return y, index.to(torch.int32)


@kernel(
    "MaxPoolGradWithArgmaxV1", ignores=("ksize", "strides", "pads", "dtype", "dilation", "ceil_mode"),
    source="ops-nn: pooling/max_pool_grad_with_argmax_v1, shape inference",
)  # fmt: skip
def max_pool_grad_with_argmax_v1(x: Tensor, grad: Tensor, argmax: Tensor) -> Tensor:
    """Add each gradient element at the position of its maximum."""
    return scatter_to(grad, argmax, x.shape)


@kernel("MaxPool3D", source=_HEADER)
def max_pool_3d(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding: str, pads: Sequence[int] = (0,) * 6,
    dilation: Sequence[int] = (1,) * 5, ceil_mode: int = 0, data_format: str = "NDHWC",
) -> Tensor:  # fmt: skip
    """3-D maximum; padding SAME, VALID or CALCULATED with six pads."""
    first = to_channels_first(x, data_format)
    size, stride = _three(ksize, data_format), _three(strides, data_format)
    if padding == "CALCULATED":
        w = calculated(first.shape[2:], size, stride, pads, _three(dilation, data_format), bool(ceil_mode))
    else:
        w = by_padding(first.shape[2:], size, stride, padding)
    return from_channels_first(max_pool(first, w), data_format)


def _three(values: Sequence[int], data_format: str) -> list[int]:
    """One entry per spatial axis out of lists of 1, 3 or 5 entries."""
    values = list(values)
    if len(values) == 5:
        return spatial(values, data_format)
    return values * 3 if len(values) == 1 else values


@kernel("MaxPool3DGrad", source=_HEADER)
def max_pool_3d_grad(
    orig_x: Tensor, orig_y: Tensor, grads: Tensor, *, ksize: Sequence[int], strides: Sequence[int],
    padding: str = "SAME", pads: Sequence[int] = (0,) * 6, data_format: str = "NDHWC",
) -> Tensor:  # fmt: skip
    """Gradient of MaxPool3D."""
    x = to_channels_first(orig_x, data_format)
    size, stride = _three(ksize, data_format), _three(strides, data_format)
    if padding == "CALCULATED":
        w = calculated(x.shape[2:], size, stride, pads)
    else:
        w = by_padding(x.shape[2:], size, stride, padding)
    return from_channels_first(_grad_by_maximum(x, to_channels_first(grads, data_format), w), data_format)


@kernel("MaxPool3DWithArgmaxV2", source="ops-nn: pooling/max_pool3d_with_argmax_v2, documentation and kernel")
def max_pool_3d_with_argmax_v2(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], pads: Sequence[int],
    dilation: Sequence[int] = (1, 1, 1), ceil_mode: bool = False, data_format: str = "NCDHW", dtype: int = 3,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y, argmax); argmax is ``(d * H + h) * W + w`` in the unpadded volume."""
    first = to_channels_first(x, data_format)
    p = [v for v in _three(pads, data_format) for _ in range(2)]
    size, stride = _three(ksize, data_format), _three(strides, data_format)
    w = calculated(first.shape[2:], size, stride, p, _three(dilation, data_format), ceil_mode, drop_last=True)
    y, index = max_pool_indices(first, w)
    index = index.to(torch_dtype(dtype))
    return from_channels_first(y, data_format), from_channels_first(index, data_format)


def _counts(extent: Sequence[int], w: Window, inside: bool, clip: bool = True) -> Tensor:
    """Cells of each window: those of the data if ``inside``, else of the padded image, or all if not ``clip``."""
    total = torch.ones((), dtype=torch.float32)
    for n, k, s, b, e, o in zip(extent, w.size, w.stride, w.begin, w.end, w.out):
        start = torch.arange(o) * s - b
        end = start + k
        if inside:
            start, end = start.clamp(min=0), end.clamp(max=n)
        elif clip:
            end = end.clamp(max=n + e)
        total = total.unsqueeze(-1) * (end - start).clamp(min=0)
    return total


def avg_pool(x: Tensor, w: Window, exclusive: bool, divisor: int) -> Tensor:
    """Mean of each window of channels-first data."""
    extent, rank = x.shape[2:], len(w.size)
    if w.native(extent):
        if rank == 2:
            return _F.avg_pool2d(x, w.size, w.stride, w.begin, False, not exclusive, divisor or None)
        if rank == 3:
            y = _F.avg_pool3d(wide(x), w.size, w.stride, w.begin, False, not exclusive, divisor or None)
            return y.to(x.dtype)
    data = pad_spatial(wide(x), w.cover(extent))
    if rank == 1:
        data, size, stride = data.unsqueeze(2), [1, *w.size], [1, *w.stride]
        total = _F.avg_pool2d(data, size, stride, divisor_override=1).squeeze(2)
    else:
        op = _F.avg_pool2d if rank == 2 else _F.avg_pool3d
        total = op(data, w.size, w.stride, divisor_override=1)
    count = float(divisor) if divisor else _counts(extent, w, exclusive).clamp(min=1)
    return (total / count).to(x.dtype)


def avg_pool_grad(
    grad: Tensor, shape: Sequence[int], w: Window, exclusive: bool, divisor: int, clip: bool = True
) -> Tensor:
    """Spread each gradient element over its window, divided as in the forward operator."""
    extent, rank = list(shape[2:]), len(w.size)
    count = float(divisor) if divisor else _counts(extent, w, exclusive, clip).clamp(min=1)
    share = wide(grad) / count
    cover = w.cover(extent)
    full = [n + cover[2 * i] + cover[2 * i + 1] for i, n in enumerate(extent)]
    like = share.new_empty(()).expand(*shape[:2], *full)
    spread = _AVG_GRAD[rank](share.contiguous(), like.contiguous(), w.size, w.stride, [0] * rank, False, True, 1)
    return pad_spatial(spread, [-p for p in cover]).to(grad.dtype)


@kernel("AvgPool", source=_HEADER)
def avg_pool_v1(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding: str, data_format: str = "NHWC"
) -> Tensor:
    """Mean of each window, padding SAME (not counted) or VALID."""
    first = to_channels_first(x, data_format)
    w = by_padding(first.shape[2:], spatial(ksize, data_format), spatial(strides, data_format), padding)
    return from_channels_first(avg_pool(first, w, True, 0), data_format)


@kernel("AvgPoolV2", source="ops-nn: pooling/avg_pool_v2, documentation and kernel")
def avg_pool_v2(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding_mode: str = "CALCULATED",
    pads: Sequence[int] = (0, 0, 0, 0), data_format: str = "NCHW", global_pooling: bool = False,
    ceil_mode: bool = False, exclusive: bool = True, divisor_override: int = 0,
) -> Tensor:  # fmt: skip
    """Mean of each window; ``exclusive`` leaves padding out of the divisor."""
    first = to_channels_first(x, data_format)
    w = from_mode(first, ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, False)
    return from_channels_first(avg_pool(first, w, exclusive, divisor_override), data_format)


@kernel("AvgPoolGrad", host=("orig_input_shape",), source=_HEADER)
def avg_pool_grad_v1(
    orig_input_shape: Any, input_grad: Tensor, *, ksize: Sequence[int], strides: Sequence[int], padding: str,
    data_format: str = "NHWC",
) -> Tensor:  # fmt: skip
    """Gradient of AvgPool."""
    shape, grad = _channels_first_shape(ints(orig_input_shape), data_format), to_channels_first(input_grad, data_format)
    w = by_padding(shape[2:], spatial(ksize, data_format), spatial(strides, data_format), padding)
    return from_channels_first(avg_pool_grad(grad, shape, w, True, 0), data_format)


def _channels_first_shape(shape: list[int], data_format: str) -> list[int]:
    return [shape[0], shape[-1], *shape[1:-1]] if data_format.endswith("C") else shape


@kernel(
    "AvgPoolV2Grad", host=("orig_input_shape",), source="ops-nn: pooling/avg_pool_v2_grad, documentation and kernel"
)
def avg_pool_v2_grad(
    orig_input_shape: Any, input_grad: Tensor, *, ksize: Sequence[int], strides: Sequence[int],
    padding_mode: str = "CALCULATED", pads: Sequence[int] = (0, 0, 0, 0), data_format: str = "NCHW",
    global_pooling: bool = False, ceil_mode: bool = False, exclusive: bool = True, divisor_override: int = 0,
) -> Tensor:  # fmt: skip
    """Gradient of AvgPoolV2; without ``exclusive`` the divisor is the whole window, also where it leaves the image."""
    shape, grad = _channels_first_shape(ints(orig_input_shape), data_format), to_channels_first(input_grad, data_format)
    like = grad.new_empty(()).expand(tuple(shape))
    w = from_mode(like, ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, False)
    return from_channels_first(avg_pool_grad(grad, shape, w, exclusive, divisor_override, clip=False), data_format)


@kernel("AvgPool1D", source=_HEADER)
def avg_pool_1d(
    x: Tensor, *, ksize: int, strides: int, pads: Sequence[int], ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Tensor:  # fmt: skip
    """Mean of windows along the last axis; pads [left, right]."""
    data = x.reshape(1, -1, x.shape[-1])
    w = calculated(data.shape[2:], [ksize], [strides], pads, ceil=ceil_mode, drop_last=True)
    y = avg_pool(data, w, not count_include_pad, 0)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _window_3d(
    extent: Sequence[int], ksize: Sequence[int], strides: Sequence[int], pads: Sequence[int], ceil: bool, layout: str
) -> Window:
    return calculated(extent, _three(ksize, layout), _three(strides, layout), pads, ceil=ceil, drop_last=True)


@kernel("AvgPool3D", source=_HEADER)
def avg_pool_3d(
    x: Tensor, *, ksize: Sequence[int], strides: Sequence[int], pads: Sequence[int], ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int = 0, data_format: str = "NDHWC",
) -> Tensor:  # fmt: skip
    """3-D mean; pads [front, back, top, bottom, left, right]."""
    first = to_channels_first(x, data_format)
    w = _window_3d(first.shape[2:], ksize, strides, pads, ceil_mode, data_format)
    return from_channels_first(avg_pool(first, w, not count_include_pad, divisor_override), data_format)


@kernel("AvgPool3DGrad", host=("orig_input_shape",), source=_HEADER)
def avg_pool_3d_grad(
    orig_input_shape: Any, grads: Tensor, *, ksize: Sequence[int], strides: Sequence[int], pads: Sequence[int],
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int = 0, data_format: str = "NDHWC",
) -> Tensor:  # fmt: skip
    """Gradient of AvgPool3D."""
    shape, grad = _channels_first_shape(ints(orig_input_shape), data_format), to_channels_first(grads, data_format)
    w = _window_3d(shape[2:], ksize, strides, pads, ceil_mode, data_format)
    return from_channels_first(avg_pool_grad(grad, shape, w, not count_include_pad, divisor_override), data_format)


def _pair(sizes: Sequence[int], x: Tensor) -> list[int]:
    sizes = list(sizes)
    return list(x.shape[-2:]) if not sizes else (sizes * 2 if len(sizes) == 1 else sizes)


@kernel("AdaptiveAvgPool2d", source="ops-nn: pooling/adaptive_avg_pool2d, documentation and reference")
def adaptive_avg_pool2d(x: Tensor, *, output_size: Sequence[int]) -> Tensor:
    """Mean over windows floor(i * H / OH) .. ceil((i + 1) * H / OH)."""
    return _F.adaptive_avg_pool2d(wide(x), _pair(output_size, x)).to(x.dtype)


@kernel("AdaptiveAvgPool", host=("output_size",), source=_HEADER)
def adaptive_avg_pool(x: Tensor, output_size: Any) -> Tensor:
    """AdaptiveAvgPool2d with the size as operand."""
    return adaptive_avg_pool2d(x, output_size=ints(output_size))


@kernel("AdaptiveAvgPool2dGrad", source="ops-nn: pooling/adaptive_avg_pool2d_grad, documentation and reference")
def adaptive_avg_pool2d_grad(input_grad: Tensor, *, orig_input_shape: Sequence[int]) -> Tensor:
    """Gradient of AdaptiveAvgPool2d."""
    g = wide(input_grad)
    like = g.new_empty(tuple(orig_input_shape))
    return _ATEN._adaptive_avg_pool2d_backward.default(g, like).to(input_grad.dtype)  # type: ignore[no-any-return]


@kernel("AdaptiveMaxPool2d", source=_HEADER)
def adaptive_max_pool2d(x: Tensor, *, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(y, argmax) over adaptive windows; argmax is ``h * W + w``, int32."""
    y, index = _F.adaptive_max_pool2d(x, _pair(output_size, x), return_indices=True)
    return y, index.to(torch.int32)


@kernel("GlobalAveragePool", source=_HEADER)
def global_average_pool(x: Tensor) -> Tensor:
    """Mean over all spatial axes, kept as ones."""
    return wide(x).mean(list(range(2, x.dim())), keepdim=True).to(x.dtype)


_NEW = "operator prototypes of CANN 2026; ops-nn: pooling, documentation"


@kernel("AdaptiveAvgPool3d", source=_NEW)
def adaptive_avg_pool3d(x: Tensor, *, output_size: Sequence[int], data_format: str = "NDHWC") -> Tensor:
    """Mean over windows floor(i * D / OD) .. ceil((i + 1) * D / OD) of each axis."""
    first = to_channels_first(x, data_format) if x.dim() == 5 else x
    y = _F.adaptive_avg_pool3d(wide(first), list(output_size)).to(x.dtype)
    return from_channels_first(y, data_format) if x.dim() == 5 else y


@kernel("AdaptiveAvgPool3dGrad", source=_NEW)
def adaptive_avg_pool3d_grad(y_grad: Tensor, x: Tensor, *, data_format: str = "NDHWC") -> Tensor:
    """Gradient of AdaptiveAvgPool3d; only the shape of ``x`` is read."""
    batched = x.dim() == 5
    g, like = (to_channels_first(t, data_format) if batched else t for t in (y_grad, x))
    y = _ATEN._adaptive_avg_pool3d_backward.default(wide(g).contiguous(), wide(like)).to(x.dtype)
    return from_channels_first(y, data_format) if batched else y


@kernel("AdaptiveMaxPool3d", source=_NEW)
def adaptive_max_pool3d(x: Tensor, *, output_size: Sequence[int], indices_dtype: int = 3) -> tuple[Tensor, Tensor]:
    """(y, indices) over adaptive windows of (N, C, D, H, W); indices are ``(d * H + h) * W + w``."""
    y, index = _F.adaptive_max_pool3d(x, list(output_size), return_indices=True)
    return y, index.to(torch_dtype(indices_dtype))


def _scatter_volume(x: Tensor, grad: Tensor, argmax: Tensor) -> Tensor:
    """Each gradient added to the place in the volume that its maximum came from."""
    flat = torch.zeros_like(wide(x)).flatten(-3)
    flat = flat.scatter_add(-1, argmax.long().flatten(-3), wide(grad).flatten(-3))
    return flat.reshape(x.shape).to(x.dtype)


@kernel("AdaptiveMaxPool3DGrad", source=_NEW)
def adaptive_max_pool3d_grad(x: Tensor, grad: Tensor, argmax: Tensor) -> Tensor:
    """Gradient of AdaptiveMaxPool3d."""
    return _scatter_volume(x, grad, argmax)


@kernel("MaxPool3DGradWithArgmax", ignores=("ksize", "strides", "pads", "dilation", "ceil_mode"), source=_NEW)
def max_pool_3d_grad_with_argmax(x: Tensor, grad: Tensor, argmax: Tensor, *, data_format: str = "NCDHW") -> Tensor:
    """Gradient of MaxPool3DWithArgmaxV2: the places say all, the windows are not needed."""
    first, g, places = (to_channels_first(t, data_format) for t in (x, grad, argmax))
    return from_channels_first(_scatter_volume(first, g, places), data_format)
