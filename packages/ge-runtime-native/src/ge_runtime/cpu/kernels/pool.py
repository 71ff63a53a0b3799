"""Pooling and its gradients.

The definition's output size decides: where it differs from ATen's (asymmetric pads, a last window that starts in the
trailing padding) the data is padded to what the windows cover, so one rule serves all operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.conv import Numbers, begin_end, from_channels_first, pad_spatial, spatial, to_channels_first
from ge_runtime.cpu.kernels.numerics import rounded, wide
from ge_runtime.cpu.limits import ensure_sizes
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import listed, torch_dtype
from ge_runtime.errors import refused

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

    def cover(self, extent: Numbers) -> list[int]:
        """[begin0, end0, ..] padding so that the windows fit exactly; negative where the tail is not looked at."""
        pads = []
        for n, k, s, b, d, o in zip(extent, self.size, self.stride, self.begin, self.dilation, self.out):
            pads += [b, (o - 1) * s + d * (k - 1) + 1 - n - b]
        return pads

    def native(self, extent: Numbers) -> bool:
        """Whether ATen has the same windows with floor rounding and symmetric pads of at most half a window."""
        plain = all(
            o == (n + 2 * b - d * (k - 1) - 1) // s + 1
            for n, k, s, b, d, o in zip(extent, self.size, self.stride, self.begin, self.dilation, self.out)
        )
        return plain and self.begin == self.end and all(b <= k // 2 for b, k in zip(self.begin, self.size))


def calculated(
    extent: Numbers,
    size: Numbers,
    stride: Numbers,
    pads: Numbers,
    dilation: Numbers | None = None,
    ceil: bool = False,
    drop_last: bool = False,
) -> Window:
    """Windows from explicit pads; ``drop_last`` leaves out a last window that starts in the trailing padding."""
    begin, end = begin_end(pads, len(extent))
    dilation = [1] * len(extent) if dilation is None else list(dilation)
    if not len(size) == len(stride) == len(dilation) == len(extent):
        raise refused("pooling", f"windows {[*size]}, strides {[*stride]}, dilations {dilation} for {len(extent)} axes")
    out = []
    for n, k, s, b, e, d in zip(extent, size, stride, begin, end, dilation):
        free = n + b + e - d * (k - 1) - 1
        count = (-(-free // s) if ceil else free // s) + 1
        if ceil and drop_last and (count - 1) * s >= n + b:
            count -= 1
        out.append(count)
    return Window(list(size), list(stride), begin, end, dilation, out)


def by_padding(extent: Numbers, size: Numbers, stride: Numbers, padding: str) -> Window:
    """Windows of the paddings VALID (none) and SAME (ceil(n / stride) windows, the odd pixel of padding after)."""
    if padding == "VALID":
        return calculated(extent, size, stride, [0, 0] * len(size))
    if padding != "SAME":
        raise refused("pooling", f"padding is {padding!r}, accepted: SAME, VALID")
    if not len(size) == len(stride) == len(extent):
        raise refused("pooling", f"windows {[*size]} and strides {[*stride]} for {len(extent)} axes")
    out = [-(-n // s) for n, s in zip(extent, stride)]
    total = [max((o - 1) * s + k - n, 0) for o, s, k, n in zip(out, stride, size, extent)]
    begin = [t // 2 for t in total]
    return Window(list(size), list(stride), begin, [t - b for t, b in zip(total, begin)], [1] * len(size), out)


# What the windows over data of an extent are, by the attributes of a group of operators.
Windows: TypeAlias = "Callable[[Numbers], Window]"


def from_mode(
    ksize: Numbers,
    strides: Numbers,
    mode: str,
    pads: Numbers,
    data_format: str,
    global_pooling: bool,
    ceil_mode: bool,
    drop_last: bool,
) -> Windows:
    """Windows of the V2 and V3 operators; only maximum pooling drops a window of padding."""

    def windows(extent: Numbers) -> Window:
        if global_pooling:
            return calculated(extent, extent, extent, [0, 0] * len(extent))
        size, stride = spatial(ksize, data_format), spatial(strides, data_format)
        if mode == "CALCULATED":
            return calculated(extent, size, stride, pads, ceil=ceil_mode, drop_last=drop_last)
        if mode == "VALID" and ceil_mode:
            return calculated(extent, size, stride, [0, 0] * len(size), ceil=True)
        return by_padding(extent, size, stride, mode)

    return windows


def _three(values: Numbers, data_format: str) -> list[int]:
    """One entry per spatial axis out of lists of 1, 3 or 5 entries."""
    values = list(values)
    if len(values) == 5:
        return spatial(values, data_format)
    return values * 3 if len(values) == 1 else values


def _padded(ksize: Any, strides: Any, padding: str, layout: str) -> Windows:
    return lambda extent: by_padding(extent, spatial(listed(ksize), layout), spatial(listed(strides), layout), padding)


def _volumes(ksize: Numbers, strides: Numbers, pads: Numbers, layout: str, ceil: bool) -> Windows:
    return lambda extent: calculated(
        extent, _three(ksize, layout), _three(strides, layout), pads, ceil=ceil, drop_last=True
    )


def _volumes_by(
    ksize: Numbers,
    strides: Numbers,
    padding: str,
    pads: Numbers,
    layout: str,
    dilation: Numbers = (1,),
    ceil: bool = False,
) -> Windows:
    """Padding SAME, VALID, or CALCULATED with six pads."""
    size, stride = _three(ksize, layout), _three(strides, layout)
    if padding == "CALCULATED":
        return lambda extent: calculated(extent, size, stride, pads, _three(dilation, layout), ceil)
    return lambda extent: by_padding(extent, size, stride, padding)


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


def scatter_to(grad: Tensor, index: Tensor, shape: Numbers, rank: int = 0) -> Tensor:
    """Add each gradient element at its position in the last ``rank`` axes (all but two) of zeros; sums in float32."""
    rank = rank or len(shape) - 2
    flat = wide(grad).reshape(*shape[:-rank], grad.shape[-rank:].numel())
    y = torch.zeros(*shape[:-rank], torch.Size(shape[-rank:]).numel(), dtype=flat.dtype)
    return y.scatter_add_(-1, index.long().reshape(flat.shape), flat).reshape(tuple(shape)).to(grad.dtype)


def _max(x: Tensor, layout: str, windows: Windows) -> Tensor:
    """Maximum of each window."""
    first = to_channels_first(x, layout)
    return from_channels_first(max_pool(first, windows(first.shape[2:])), layout)


def _max_grad(x: Tensor, grad: Tensor, layout: str, windows: Windows) -> Tensor:
    """Its gradient: the first maximum of a window takes all."""
    first = to_channels_first(x, layout)
    index = max_pool_indices(wide(first), windows(first.shape[2:]))[1]
    return from_channels_first(scatter_to(to_channels_first(grad, layout), index, first.shape), layout)


rows(
    {
        "MaxPool MaxPoolExt2": lambda x, *, ksize, strides, padding, data_format="NHWC": _max(
            x, data_format, _padded(ksize, strides, padding, data_format)
        ),
        "MaxPoolGrad": lambda x1, x2, grad, *, ksize, strides, padding, data_format="NHWC": (  # x2: the forward output
            _max_grad(x1, grad, data_format, _padded(ksize, strides, padding, data_format))
        ),
        "MaxPool3DGrad": lambda x, y, grads, *, ksize, strides, padding="SAME", pads=(0,) * 6, data_format="NDHWC": (
            _max_grad(x, grads, data_format, _volumes_by(ksize, strides, padding, pads, data_format))
        ),
    },
    source=_HEADER,
)
rows(
    {
        "MaxPoolV2": lambda x, ksize, strides, *, padding, data_format="NHWC": _max(
            x, data_format, _padded(ksize, strides, padding, data_format)
        ),
    },
    host=("ksize", "strides"),
    source=_HEADER,
)


@kernel("MaxPoolV3", source="ops-nn: pooling/max_pool_v3, documentation")
def max_pool_v3(
    x: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    padding_mode: str = "CALCULATED",
    pads: Numbers = (0, 0, 0, 0),
    data_format: str = "NCHW",
    global_pooling: bool = False,
    ceil_mode: bool = False,
) -> Tensor:
    """Maximum of each window with explicit pads [top, bottom, left, right], SAME or VALID."""
    windows = from_mode(ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, True)
    return _max(x, data_format, windows)


@kernel("MaxPoolV3Grad", source=_HEADER)
def max_pool_v3_grad(
    orig_input: Tensor,
    orig_output: Tensor,
    grad: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    padding_mode: str = "CALCULATED",
    pads: Numbers = (0, 0, 0, 0),
    data_format: str = "NCHW",
    global_pooling: bool = False,
    ceil_mode: bool = False,
) -> Tensor:
    """Gradient of MaxPoolV3."""
    windows = from_mode(ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, True)
    return _max_grad(orig_input, grad, data_format, windows)


@kernel("MaxPool3D", source=_HEADER)
def max_pool_3d(
    x: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    padding: str,
    pads: Numbers = (0,) * 6,
    dilation: Numbers = (1,) * 5,
    ceil_mode: int = 0,
    data_format: str = "NDHWC",
) -> Tensor:
    """3-D maximum; padding SAME, VALID or CALCULATED with six pads."""
    windows = _volumes_by(ksize, strides, padding, pads, data_format, dilation, bool(ceil_mode))
    return _max(x, data_format, windows)


@plan("MaxPoolV3", "AvgPoolV2")
def _plan_pool(ctx: PlanContext) -> Call | None:
    """Known sizes and windows that ATen has: one call."""
    shape, attr, op = ctx.shape("x"), ctx.attr, ctx.node.op
    kind = ctx.dtype("x")
    if shape is None or len(shape) != 4 or kind is None or not kind.is_float or attr("data_format", "NCHW") != "NCHW":
        return None
    if not all(isinstance(n, int) for n in shape):
        return None
    extent = [int(n) for n in shape[2:]]
    windows = from_mode(
        attr("ksize"),
        attr("strides"),
        attr("padding_mode", "CALCULATED"),
        attr("pads", [0, 0, 0, 0]),
        "NCHW",
        attr("global_pooling", False),
        attr("ceil_mode", False),
        op == "MaxPoolV3",
    )
    w = windows(extent)
    if not w.native(extent):
        return None
    if op == "MaxPoolV3":
        return Call(torch.max_pool2d, (ctx.tensor("x"), w.size, w.stride, w.begin))
    form = (w.size, w.stride, w.begin, False, not attr("exclusive", True), attr("divisor_override", 0) or None)
    return Call(_F.avg_pool2d, (ctx.tensor("x"), *form))


@kernel("MaxPoolWithArgmaxV1", source="ops-nn: pooling/max_pool_with_argmax_v1, shape inference")
def max_pool_with_argmax_v1(
    x: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    pads: Numbers,
    dtype: int = 3,
    dilation: Numbers = (1, 1, 1, 1),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """(y, argmax) of NCHW data; argmax is ``h * W + w``, int32: the bit mask belongs to blocked layouts only."""
    size, stride, pad, spread = (list(v)[1:3] for v in (ksize, strides, pads, dilation))  # [1, h, w, 1] lists
    both = [v for v in pad for _ in range(2)]
    y, index = max_pool_indices(x, calculated(x.shape[2:], size, stride, both, spread, ceil_mode, drop_last=True))
    return y, index.to(torch.int32)


rows(
    {"MaxPoolGradWithArgmaxV1": lambda x, grad, argmax: scatter_to(grad, argmax, x.shape)},
    ignores=("ksize", "strides", "pads", "dtype", "dilation", "ceil_mode"),
    source="ops-nn: pooling/max_pool_grad_with_argmax_v1, shape inference",
)


@kernel("MaxPool3DWithArgmaxV2", source="ops-nn: pooling/max_pool3d_with_argmax_v2, documentation and kernel")
def max_pool_3d_with_argmax_v2(
    x: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    pads: Numbers,
    dilation: Numbers = (1, 1, 1),
    ceil_mode: bool = False,
    data_format: str = "NCDHW",
    dtype: int = 3,
) -> tuple[Tensor, Tensor]:
    """(y, argmax); argmax is ``(d * H + h) * W + w`` in the unpadded volume."""
    first = to_channels_first(x, data_format)
    p = [v for v in _three(pads, data_format) for _ in range(2)]
    size, stride = _three(ksize, data_format), _three(strides, data_format)
    w = calculated(first.shape[2:], size, stride, p, _three(dilation, data_format), ceil_mode, drop_last=True)
    y, index = max_pool_indices(first, w)
    index = index.to(torch_dtype(dtype))
    return from_channels_first(y, data_format), from_channels_first(index, data_format)


def _counts(extent: Numbers, w: Window, inside: bool, clip: bool = True) -> Tensor:
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
        # ATen's refuses a window that is larger than the data without the padding
        if rank == 3 and all(n >= k for n, k in zip(extent, w.size)):
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


def avg_pool_grad(grad: Tensor, shape: Numbers, w: Window, exclusive: bool, divisor: int, clip: bool = True) -> Tensor:
    """Spread each gradient element over its window, divided as in the forward operator."""
    extent, rank = list(shape[2:]), len(w.size)
    ensure_sizes("pooling gradient", "the gradient", grad, [*shape[:2], *w.out])
    count = float(divisor) if divisor else _counts(extent, w, exclusive, clip).clamp(min=1)
    share = wide(grad) / count
    cover = w.cover(extent)
    full = [n + cover[2 * i] + cover[2 * i + 1] for i, n in enumerate(extent)]
    like = share.new_empty(()).expand(*shape[:2], *full)
    spread = _AVG_GRAD[rank](share.contiguous(), like.contiguous(), w.size, w.stride, [0] * rank, False, True, 1)
    return pad_spatial(spread, [-p for p in cover]).to(grad.dtype)


def _mean(x: Tensor, layout: str, windows: Windows, exclusive: bool = True, divisor: int = 0) -> Tensor:
    """Mean of each window; ``exclusive`` leaves padding out of the divisor."""
    first = to_channels_first(x, layout)
    return from_channels_first(avg_pool(first, windows(first.shape[2:]), exclusive, divisor), layout)


def _mean_grad(
    full: Any,
    grad: Tensor,
    layout: str,
    windows: Windows,
    exclusive: bool = True,
    divisor: int = 0,
    *,
    clip: bool = True,
) -> Tensor:
    """Its gradient for an input of shape ``full``."""
    shape = listed(full)
    shape = [shape[0], shape[-1], *shape[1:-1]] if layout.endswith("C") else shape
    first = to_channels_first(grad, layout)
    return from_channels_first(avg_pool_grad(first, shape, windows(shape[2:]), exclusive, divisor, clip), layout)


rows(
    {
        "AvgPool": lambda x, *, ksize, strides, padding, data_format="NHWC": _mean(
            x, data_format, _padded(ksize, strides, padding, data_format)
        ),
    },
    source=_HEADER,
)
rows(
    {
        "AvgPoolGrad": lambda orig_input_shape, input_grad, *, ksize, strides, padding, data_format="NHWC": _mean_grad(
            orig_input_shape, input_grad, data_format, _padded(ksize, strides, padding, data_format)
        ),
    },
    host=("orig_input_shape",),
    source=_HEADER,
)


@kernel("AvgPoolV2", source="ops-nn: pooling/avg_pool_v2, documentation and kernel")
def avg_pool_v2(
    x: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    padding_mode: str = "CALCULATED",
    pads: Numbers = (0, 0, 0, 0),
    data_format: str = "NCHW",
    global_pooling: bool = False,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: int = 0,
) -> Tensor:
    """Mean of each window; ``exclusive`` leaves padding out of the divisor."""
    windows = from_mode(ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, False)
    return _mean(x, data_format, windows, exclusive, divisor_override)


@kernel(
    "AvgPoolV2Grad", host=("orig_input_shape",), source="ops-nn: pooling/avg_pool_v2_grad, documentation and kernel"
)
def avg_pool_v2_grad(
    orig_input_shape: Any,
    input_grad: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    padding_mode: str = "CALCULATED",
    pads: Numbers = (0, 0, 0, 0),
    data_format: str = "NCHW",
    global_pooling: bool = False,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: int = 0,
) -> Tensor:
    """Gradient of AvgPoolV2; without ``exclusive`` the divisor is the whole window, also where it leaves the image."""
    windows = from_mode(ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, False)
    return _mean_grad(orig_input_shape, input_grad, data_format, windows, exclusive, divisor_override, clip=False)


@kernel("AvgPool3D", source=_HEADER)
def avg_pool_3d(
    x: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    pads: Numbers,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    data_format: str = "NDHWC",
) -> Tensor:
    """3-D mean; pads [front, back, top, bottom, left, right]."""
    windows = _volumes(ksize, strides, pads, data_format, ceil_mode)
    return _mean(x, data_format, windows, not count_include_pad, divisor_override)


@kernel("AvgPool3DGrad", host=("orig_input_shape",), source=_HEADER)
def avg_pool_3d_grad(
    orig_input_shape: Any,
    grads: Tensor,
    *,
    ksize: Numbers,
    strides: Numbers,
    pads: Numbers,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    data_format: str = "NDHWC",
) -> Tensor:
    """Gradient of AvgPool3D."""
    windows = _volumes(ksize, strides, pads, data_format, ceil_mode)
    return _mean_grad(orig_input_shape, grads, data_format, windows, not count_include_pad, divisor_override)


@kernel("AvgPool1D", source=_HEADER)
def avg_pool_1d(
    x: Tensor,
    *,
    ksize: int,
    strides: int,
    pads: Numbers,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Tensor:
    """Mean of windows along the last axis; pads [left, right]."""
    data = x.reshape(1, -1, x.shape[-1])
    w = calculated(data.shape[2:], [ksize], [strides], pads, ceil=ceil_mode, drop_last=True)
    y = avg_pool(data, w, not count_include_pad, 0)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _pair(sizes: Numbers, x: Tensor) -> list[int]:
    sizes = list(sizes)
    return list(x.shape[-2:]) if not sizes else (sizes * 2 if len(sizes) == 1 else sizes)


def _adaptive_grad(op: str, grad: Tensor, x: Tensor, rank: int) -> Tensor:
    """Gradient for an ``x`` of which ATen reads the sizes, and believes them."""
    if x.dim() not in (rank + 1, rank + 2) or grad.dim() != x.dim():
        raise refused(op, f"a gradient {list(grad.shape)} of {list(x.shape)}")
    ensure_sizes(op, "the gradient", grad, [*x.shape[:-rank], *grad.shape[-rank:]])
    if not x.numel() or not grad.numel():  # ATen divides by sizes
        return grad.new_zeros(x.shape)
    aten = _ATEN._adaptive_avg_pool2d_backward if rank == 2 else _ATEN._adaptive_avg_pool3d_backward
    return aten.default(grad.contiguous(), x.contiguous())  # type: ignore[no-any-return]


# Means over windows floor(i * H / OH) .. ceil((i + 1) * H / OH).
_ADAPTIVE = "ops-nn: pooling/adaptive_avg_pool2d, documentation and reference"
rows(
    {
        "AdaptiveAvgPool2d": rounded(lambda x, *, output_size: _F.adaptive_avg_pool2d(x, _pair(output_size, x))),
        "AdaptiveAvgPool2dGrad": rounded(
            lambda grad, *, orig_input_shape: _adaptive_grad(
                "AdaptiveAvgPool2dGrad", grad, grad.new_empty(()).expand(tuple(orig_input_shape)), 2
            )
        ),
        "GlobalAveragePool": rounded(lambda x: x.mean(list(range(2, x.dim())), keepdim=True)),
    },
    source=_ADAPTIVE,
)
rows(
    {
        "AdaptiveAvgPool": rounded(lambda x, output_size: _F.adaptive_avg_pool2d(x, _pair(listed(output_size), x))),
    },
    host=("output_size",),
    source=_HEADER,
)


@kernel("AdaptiveMaxPool2d", source=_HEADER)
def adaptive_max_pool2d(x: Tensor, *, output_size: Numbers) -> tuple[Tensor, Tensor]:
    """(y, argmax) over adaptive windows; argmax is ``h * W + w``, int32."""
    y, index = _F.adaptive_max_pool2d(x, _pair(output_size, x), return_indices=True)
    return y, index.to(torch.int32)


_NEW = "operator prototypes of CANN 2026; ops-nn: pooling, documentation"


@kernel("AdaptiveAvgPool3d", source=_NEW)
def adaptive_avg_pool3d(x: Tensor, *, output_size: Numbers, data_format: str = "NDHWC") -> Tensor:
    """Mean over windows floor(i * D / OD) .. ceil((i + 1) * D / OD) of each axis."""
    first = to_channels_first(x, data_format) if x.dim() == 5 else x
    y = _F.adaptive_avg_pool3d(wide(first), list(output_size)).to(x.dtype)
    return from_channels_first(y, data_format) if x.dim() == 5 else y


@kernel("AdaptiveAvgPool3dGrad", source=_NEW)
def adaptive_avg_pool3d_grad(y_grad: Tensor, x: Tensor, *, data_format: str = "NDHWC") -> Tensor:
    """Gradient of AdaptiveAvgPool3d; only the shape of ``x`` is read."""
    batched = x.dim() == 5
    g, like = (to_channels_first(t, data_format) if batched else t for t in (y_grad, x))
    y = _adaptive_grad("AdaptiveAvgPool3dGrad", wide(g), wide(like), 3).to(x.dtype)
    return from_channels_first(y, data_format) if batched else y


@kernel("AdaptiveMaxPool3d", source=_NEW)
def adaptive_max_pool3d(x: Tensor, *, output_size: Numbers, indices_dtype: int = 3) -> tuple[Tensor, Tensor]:
    """(y, indices) over adaptive windows of (N, C, D, H, W); indices are ``(d * H + h) * W + w``."""
    y, index = _F.adaptive_max_pool3d(x, list(output_size), return_indices=True)
    return y, index.to(torch_dtype(indices_dtype))


rows({"AdaptiveMaxPool3DGrad": lambda x, grad, argmax: scatter_to(grad, argmax, x.shape, 3)}, source=_NEW)


@kernel("MaxPool3DGradWithArgmax", ignores=("ksize", "strides", "pads", "dilation", "ceil_mode"), source=_NEW)
def max_pool_3d_grad_with_argmax(x: Tensor, grad: Tensor, argmax: Tensor, *, data_format: str = "NCDHW") -> Tensor:
    """Gradient of MaxPool3DWithArgmaxV2: the places say all, the windows are not needed."""
    first, g, places = (to_channels_first(t, data_format) for t in (x, grad, argmax))
    return from_channels_first(scatter_to(g, places, first.shape, 3), data_format)
