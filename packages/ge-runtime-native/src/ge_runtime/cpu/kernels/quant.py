"""Quantisation, dequantisation and products of quantised operands. Arithmetic is float32, rounding half to even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.matmul import group_spans, product, turned
from ge_runtime.cpu.kernels.numerics import saturate, unpack_quant_parameter, wide
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.cpu.values import listed, torch_dtype
from ge_runtime.errors import refused

_HEADER = "operator header: quantize_ops"
_ROUND: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "round": torch.round,
    "rint": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
}


def to_quantised(op: str, x: Tensor, dtype: torch.dtype, round_mode: str = "round") -> Tensor:
    """Round by a named mode and saturate."""
    mode = round_mode.lower()
    if mode not in _ROUND:
        raise refused(op, f"round_mode is {round_mode!r}, accepted: {', '.join(_ROUND)}")
    return saturate(x if dtype.is_floating_point else _ROUND[mode](x), dtype)


def _target(op: str, code: int) -> torch.dtype:
    dtype = torch_dtype(code)
    if dtype.itemsize != 1:
        raise refused(op, f"dst_type {code} ({dtype}) is not computed here, accepted: 8-bit integers and floats")
    return dtype


def _top(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max if dtype.is_floating_point else float(torch.iinfo(dtype).max)


@kernel("AscendQuant", source=_HEADER)
def ascend_quant(
    x: Tensor, *, scale: float, offset: float, sqrt_mode: bool = False, round_mode: str = "Round", dst_type: int = 2
) -> Tensor:
    """``round(x * scale + offset)``, the scale taken twice with sqrt_mode."""
    factor = scale * scale if sqrt_mode else scale
    return to_quantised("AscendQuant", wide(x) * factor + offset, _target("AscendQuant", dst_type), round_mode)


@kernel("AscendQuantV2", source="ops-nn: quant/ascend_quant_v2, documentation and kernel")
def ascend_quant_v2(
    x: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    *,
    sqrt_mode: bool = False,
    round_mode: str = "round",
    dst_type: int = 2,
    axis: int = -1,
) -> Tensor:
    """``round(x * scale + offset)`` with scale and offset along ``axis``."""
    s, o = _along(x, scale, axis), None if offset is None else _along(x, offset, axis)
    y = wide(x) * s
    y = y * s if sqrt_mode else y
    return to_quantised("AscendQuantV2", y if o is None else y + o, _target("AscendQuantV2", dst_type), round_mode)


def _along(x: Tensor, v: Tensor, axis: int) -> Tensor:
    if v.dim() == x.dim() or v.numel() == 1:
        return wide(v)
    shape = [1] * x.dim()
    shape[axis] = -1
    return wide(v).reshape(shape)


@kernel("AscendAntiQuantV2", source="ops-nn: quant/ascend_anti_quant_v2, documentation")
def ascend_anti_quant_v2(
    x: Tensor, scale: Tensor, offset: Tensor | None = None, *, dst_type: int = 1, sqrt_mode: bool = False
) -> Tensor:
    """``(x + offset) * scale``; the offset is added before scaling."""
    y = _plus(x.float(), offset) * wide(scale)
    return (y * wide(scale) if sqrt_mode else y).to(torch_dtype(dst_type))


rows(
    {
        "AscendAntiQuant": lambda x, *, scale, offset, dtype=0, sqrt_mode=False: (
            (x.float() + offset) * (scale * scale if sqrt_mode else scale)
        ).to(torch_dtype(dtype)),
    },
    source=_HEADER,
)


@kernel("AscendDequant", source=_HEADER)
def ascend_dequant(
    x: Tensor, deq_scale: Tensor, *, sqrt_mode: bool = False, relu_flag: bool = False, dtype: int = 0
) -> Tensor:
    """``x * scale`` by the last axis, optionally through relu; a 64-bit scale carries float32 bits."""
    s = unpack_quant_parameter(deq_scale)[0]
    y = x.float() * (s * s if sqrt_mode else s)
    return (torch.relu(y) if relu_flag else y).to(torch_dtype(dtype))


# Type names of Quantize.dtype.
_QUANTIZE: Final = {
    "torch.qint8": torch.int8,
    "torch.quint8": torch.uint8,
    "torch.qint32": torch.int32,
    "torch.int8": torch.int8,
    "torch.uint8": torch.uint8,
    "torch.int32": torch.int32,
    "torch.float8_e4m3fn": torch.float8_e4m3fn,
    "torch.float8_e5m2": torch.float8_e5m2,
}


@kernel("Quantize", source="ops-nn: quant/quantize, documentation and kernel")
def quantize(x: Tensor, scales: Tensor, zero_points: Tensor | None = None, *, dtype: str, axis: int = 1) -> Tensor:
    """``round(x / scales + zero_points)`` saturated to the named type."""
    if dtype not in _QUANTIZE:
        raise refused("Quantize", f"dtype is {dtype!r}, accepted: {', '.join(_QUANTIZE)}")
    y = wide(x) / _along(x, scales, axis)
    return saturate(y if zero_points is None else y + _along(x, zero_points.float(), axis), _QUANTIZE[dtype])


@kernel("DequantBias", source="ops-nn: quant/dequant_bias, documentation")
def dequant_bias(
    x: Tensor,
    weight_scale: Tensor,
    activate_scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    output_dtype: int,
) -> Tensor:
    """``x * weight_scale * activate_scale``; an int32 bias is added before scaling, a float one after."""
    acc = x + bias if bias is not None and bias.dtype == torch.int32 else x
    y = acc.float() * wide(weight_scale)
    y = y if activate_scale is None else y * activate_scale.reshape(-1, 1)
    return (y if bias is None or bias.dtype == torch.int32 else y + wide(bias)).to(torch_dtype(output_dtype))


def _smoothed(x: Tensor, smooth: Tensor | None, group_index: Tensor | None) -> Tensor:
    """float32 rows times their smoothing factors; with groups the row's factors are those of its group."""
    if smooth is None:
        return wide(x)
    if group_index is None:
        return wide(x) * wide(smooth)
    flat = wide(x).reshape(-1, x.shape[-1])
    return (flat * wide(smooth)[_groups(group_index, flat.shape[0], smooth.shape[0])]).reshape(x.shape)


def _groups(ends: Tensor, count: int, groups: int) -> Tensor:
    """The group of each row, out of the running ends of the groups' rows."""
    return torch.searchsorted(ends.long(), torch.arange(count), right=True).clamp(max=groups - 1)


def _plus(x: Tensor, offset: Tensor | None) -> Tensor:
    return x if offset is None else x + wide(offset)


def symmetric(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(quantised, scale) of each row: scale = max|x| / largest value; a row of zeros gives zeros."""
    scale = x.abs().amax(-1, keepdim=True) / _top(dtype)
    return saturate(torch.where(scale > 0, x / scale, torch.zeros_like(x)), dtype), scale.squeeze(-1)


rows(
    {  # (y, scale): symmetric quantisation of every row
        "DynamicQuant": lambda x, smooth_scales=None, group_index=None, *, dst_type=2: symmetric(
            _smoothed(x, smooth_scales, group_index), _target("DynamicQuant", dst_type)
        ),
    },
    source="ops-nn: quant/dynamic_quant, documentation and kernel",
)


@kernel("DynamicQuantV2", source="ops-nn: quant/dynamic_quant_v2, documentation and kernel")
def dynamic_quant_v2(
    x: Tensor,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    *,
    dst_type: int = 2,
    is_symmetrical: bool = False,
    quant_mode: str = "pertoken",
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, scale, offset): asymmetric by default, offset = top - max / scale; in symmetric mode the offset is zero."""
    data, dtype = _smoothed(x, smooth_scales, group_index), _target("DynamicQuantV2", dst_type)
    if quant_mode not in ("pertoken", "pertensor"):
        raise refused("DynamicQuantV2", f"quant_mode is {quant_mode!r}, accepted: pertoken, pertensor")
    rows = data.reshape(1, -1) if quant_mode == "pertensor" else data
    if is_symmetrical:
        y, scale = symmetric(rows, dtype)
        return y.reshape(x.shape), scale, torch.zeros_like(scale)
    top, low = rows.amax(-1, keepdim=True), rows.amin(-1, keepdim=True)
    span = 2 * _top(dtype) if dtype.is_floating_point else 255.0
    scale = (top - low) / span
    offset = _top(dtype) - top / scale
    y = saturate(rows / scale + offset, dtype)
    return y.reshape(x.shape), scale.squeeze(-1), offset.squeeze(-1)


def _finish(acc: Tensor, dtype: torch.dtype, offset: Tensor | None) -> Tensor:
    return saturate(_plus(acc, offset), dtype) if dtype == torch.int8 else acc.to(dtype)


@kernel("QuantBatchMatmulV3", source="ops-nn: matmul/quant_batch_matmul_v3, documentation")
def quant_batch_matmul_v3(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    *,
    dtype: int,
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    group_size: int = 0,
) -> Tensor:
    """int8 product in int32, times scale and row scale; an int32 bias is added before scaling, a float one after."""
    if group_size:
        raise refused("QuantBatchMatmulV3", f"group_size {group_size}; accepted: 0")
    acc = product(turned(x1, transpose_x1), turned(x2, transpose_x2))
    if bias is not None and bias.dtype == torch.int32:
        acc = acc + bias
    out = torch_dtype(dtype)
    if out == torch.int32:
        return acc
    factor, packed = unpack_quant_parameter(scale)
    y = acc.float() * factor
    y = y if pertoken_scale is None else y * pertoken_scale.unsqueeze(-1)
    y = y if bias is None or bias.dtype == torch.int32 else y + wide(bias)
    return _finish(y, out, packed if offset is None and packed.dim() else offset)


@kernel("WeightQuantBatchMatmulV2", ignores=("inner_precise",), source="ops-nn: matmul/weight_quant_batch_matmul_v2")
def weight_quant_batch_matmul_v2(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    transpose_x: bool = False,
    transpose_weight: bool = False,
    antiquant_group_size: int = 0,
    dtype: int = -1,
) -> Tensor:
    """``x @ ((weight + offset) * scale) + bias``; scales per tensor, per column, or per group of rows of the weight."""
    w, s, o = weight, antiquant_scale, antiquant_offset
    if transpose_weight:
        w, s, o = w.mT, (s.mT if s.dim() == 2 else s), (o.mT if o is not None and o.dim() == 2 else o)
    if antiquant_group_size:
        s, o = (None if t is None else t.repeat_interleave(antiquant_group_size, 0)[: w.shape[0]] for t in (s, o))
    w = w.float() if o is None else w.float() + wide(o)
    y = torch.matmul(wide(turned(x, transpose_x)), w * wide(s))  # type: ignore[arg-type]
    y = y if bias is None else y + wide(bias)
    if quant_scale is not None:
        return _finish(y * unpack_quant_parameter(quant_scale)[0], torch.int8, quant_offset)
    return y.to(x.dtype if dtype == -1 else torch_dtype(dtype))


@kernel("QuantMatmulDequant", source="ops-nn: matmul/quant_matmul_dequant, documentation")
def quant_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_offset: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    *,
    x_quant_mode: str = "pertoken",
    transpose_weight: bool = True,
) -> Tensor:
    """Quantise rows of x to int8, multiply, dequantise; a 64-bit weight scale holds the product of both scales."""
    if bias is not None or x_offset is not None:
        raise refused("QuantMatmulDequant", "bias and x_offset are reserved in the definition", "leave both out")
    data = wide(x) if smooth_scale is None else wide(x) * wide(smooth_scale)
    top = data.abs().max().reshape(1, 1) if x_quant_mode == "pertensor" else data.abs().amax(-1, keepdim=True)
    row = top / 127 if x_scale is None else wide(x_scale).reshape(-1, 1)
    q = saturate(torch.where(row > 0, data / row, torch.zeros_like(data)), torch.int8)
    acc = product(q, turned(quantized_weight, transpose_weight)).float()
    y = acc * unpack_quant_parameter(weight_scale)[0]
    return (y if weight_scale.dtype in (torch.int64, torch.uint64) else y * row).to(x.dtype)


@kernel("QuantGroupedMatmulDequant", source="ops-nn: matmul/quant_grouped_matmul_dequant, documentation")
def quant_grouped_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    group_list: Tensor,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_offset: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    *,
    x_quant_mode: str = "pertoken",
    transpose_weight: bool = True,
) -> Tensor:
    """QuantMatmulDequant of row ranges that end at ``group_list``; rows after the last are zero."""
    n = quantized_weight.shape[1] if transpose_weight else quantized_weight.shape[2]
    y = x.new_zeros(x.shape[0], n)
    for g, start, end in group_spans(group_list, 0):
        part = x_scale[start:end] if x_scale is not None and x_scale.numel() == x.shape[0] else x_scale
        y[start:end] = quant_matmul_dequant(
            x[start:end],
            quantized_weight[g],
            weight_scale[g],
            bias,
            part,
            x_offset,
            smooth_scale,
            x_quant_mode=x_quant_mode,
            transpose_weight=transpose_weight,
        )
    return y


@kernel("QuantMatmulReduceSum", ignores=("compute_type", "group_size"), source="ops-nn: quant_matmul_reduce_sum")
def quant_matmul_reduce_sum(
    x1: Tensor,
    x2: Tensor,
    dims: Tensor,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    y_scale: Tensor | None = None,
    x1_offset: Tensor | None = None,
    x2_offset: Tensor | None = None,
    y_offset: Tensor | None = None,
    x2_table: Tensor | None = None,
    *,
    dtype: int,
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    keep_dims: bool = False,
) -> Tensor:
    """Sum over the batch of ``(x1_b @ x2_b) * x1_scale_b * x2_scale``; scaled before it is summed."""
    if listed(dims) != [0]:
        raise refused("QuantMatmulReduceSum", f"dims is {listed(dims)}, accepted: [0]")
    acc = product(turned(x1, transpose_x1), turned(x2, transpose_x2)).float()
    acc = acc if x1_scale is None else acc * wide(x1_scale).unsqueeze(-1)
    acc = acc if x2_scale is None else acc * wide(x2_scale)
    return acc.sum(0, keepdim=keep_dims).to(torch_dtype(dtype))


@kernel("TransQuantParamV2", source="ops-nn: quant/trans_quant_param_v2, documentation and reference")
def trans_quant_param_v2(scale: Tensor, offset: Tensor | None = None, *, round_mode: int = 0) -> Tensor:
    """Pack scale (its upper 19 bits) and a 9-bit offset into the 64-bit quantisation parameter."""
    bits = scale.float().contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if round_mode:
        bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFFFFF  # nearest, ties to even, on the kept bits
    packed = (bits & 0xFFFFE000) | (1 << 46)
    if offset is None:
        return packed
    o = torch.round(offset.float()).clamp(-256, 255).to(torch.int64) & 0x1FF
    return packed | (o << 37)


@kernel("GeluQuant", source="ops-nn: activation/gelu_quant, documentation and kernel")
def gelu_quant(
    x: Tensor,
    input_scale: Tensor | None = None,
    input_offset: Tensor | None = None,
    *,
    approximate: str = "none",
    quant_mode: str = "dynamic",
    dst_type: int = 2,
    round_mode: str = "rint",
) -> tuple[Tensor, Tensor]:
    """gelu, then ``round(g * scale + offset)`` (static) or rows by their own scale (dynamic)."""
    if round_mode != "rint":
        raise refused("GeluQuant", f"round_mode {round_mode!r}; accepted: rint")
    g = torch.nn.functional.gelu(wide(x), approximate=approximate)
    g = g if input_scale is None else g * wide(input_scale)
    dtype = _target("GeluQuant", dst_type)
    if quant_mode == "dynamic":
        return symmetric(g, dtype)
    return saturate(_plus(g, input_offset), dtype), torch.zeros(x.shape[:-1])


@kernel("GroupQuant", source="ops-nn: quant/group_quant, documentation")
def group_quant(
    x: Tensor, scale: Tensor, group_index: Tensor, offset: Tensor | None = None, *, dst_type: int = 2
) -> Tensor:
    """``round(x * scale[g] + offset)``; ``group_index`` holds the running ends of the groups' rows."""
    y = wide(x) * wide(scale)[_groups(group_index, x.shape[0], scale.shape[0])]
    return saturate(_plus(y, offset), _target("GroupQuant", dst_type))


@kernel("QuantUpdateScatter", updates=("var",), source="ops-nn: index/quant_update_scatter, documentation and kernel")
def quant_update_scatter(
    var: Tensor,
    indices: Tensor,
    updates: Tensor,
    quant_scales: Tensor,
    quant_zero_points: Tensor | None = None,
    *,
    reduce: str,
    axis: int = 0,
    quant_axis: int = 1,
    reciprocal_scale: bool = False,
    round_mode: str = "rint",
) -> Tensor:
    """Overwrite slices of ``var`` along ``axis`` with ``round(updates / scale + zero_point)``.

    Scales and zero points are one number, or one an element of ``quant_axis`` of the updates.
    """
    if reduce != "update" or round_mode != "rint":
        raise refused(
            "QuantUpdateScatter", f"reduce is {reduce!r}, round_mode {round_mode!r}", "accepted: update, rint"
        )

    def along(v: Tensor) -> Tensor:
        shape = [1] * updates.dim()
        shape[quant_axis] = -1
        return wide(v).reshape(shape)

    s = along(quant_scales)
    q = wide(updates) * s if reciprocal_scale else wide(updates) / s
    q = saturate(q if quant_zero_points is None else q + along(quant_zero_points).float(), var.dtype)
    length = updates.shape[axis]
    for i, entry in enumerate(indices.tolist()):
        row, start = (i, entry) if not isinstance(entry, Sequence) else (int(entry[0]), int(entry[1]))
        var[row].narrow(axis % var.dim() - 1, start, length).copy_(q[i])
    return var


def swiglu(y: Tensor, left: bool, mode: int, limit: float, alpha: float, bias: float) -> Tensor:
    """A gated activation: the right half of the last axis is the activated one, with ``left`` the left.

    Mode 1: gates stand on even positions, clamped above, their partners on odd ones, clamped on both sides.
    """
    if mode == 1:
        gate, linear = y[..., 0::2].clamp(max=limit), y[..., 1::2].clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (linear + bias)
    a, b = y.chunk(2, -1)
    return torch.nn.functional.silu(a) * b if left else a * torch.nn.functional.silu(b)


@kernel("DequantSwigluQuant", source="ops-nn: activation/dequant_swiglu_quant, documentation and kernel")
def dequant_swiglu_quant(
    x: Tensor,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    *,
    activate_left: bool = False,
    quant_mode: str = "static",
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
    dst_type: int = 2,
    round_mode: str = "rint",
    activate_dim: int = -1,
) -> tuple[Tensor, Tensor]:
    """Dequantise, gate over the last axis, quantise; static scales divide, those of dynamic quantisation multiply.

    ``group_index`` counts the rows of each group, whose scales and bias are a row each; rows after the last are zero.
    """
    if swiglu_mode not in (0, 1) or quant_mode not in ("static", "dynamic"):
        raise refused(
            "DequantSwigluQuant", f"swiglu_mode {swiglu_mode}, quant_mode {quant_mode!r}; accepted: 0, 1; both"
        )
    if dst_type != 2 or round_mode != "rint" or activate_dim not in (-1, x.dim() - 1):
        what = f"dst_type {dst_type}, round_mode {round_mode!r}, activate_dim {activate_dim}"
        raise refused("DequantSwigluQuant", f"{what}; accepted: 2 (int8), rint, the last axis")
    rows, used = x.reshape(-1, x.shape[-1]), x.shape[:-1].numel()
    group = None
    if group_index is not None:
        ends = group_index.long().cumsum(0)
        used = min(int(ends[-1]), used)
        group = torch.searchsorted(ends, torch.arange(used), right=True)
        rows = rows[:used]

    def of(t: Tensor) -> Tensor:
        """A scale or bias, for every row or for the row's group."""
        return wide(t).reshape(-1) if group is None else wide(t).reshape(len(ends), -1)[group]

    early = bias is not None and bias.dtype == torch.int32
    y = (rows + of(bias) if early else rows).float()  # type: ignore[arg-type]
    y = y if weight_scale is None else y * of(weight_scale)
    y = y if activation_scale is None else y * activation_scale.reshape(-1, 1)[:used]
    y = y if bias is None or early else y + of(bias)
    s = swiglu(y, activate_left, swiglu_mode, clamp_limit, glu_alpha, glu_bias)
    if quant_mode == "dynamic":
        q, scale = symmetric(s if quant_scale is None else s * of(quant_scale), torch.int8)
    else:
        s = s if quant_scale is None else s / of(quant_scale)
        q, scale = saturate(s if quant_offset is None else s + of(quant_offset), torch.int8), torch.zeros(used)
    out, scales = q.new_zeros(x.shape[:-1].numel(), q.shape[1]), torch.zeros(x.shape[:-1].numel())
    out[:used], scales[:used] = q, scale
    return out.reshape(*x.shape[:-1], -1), scales.reshape(x.shape[:-1])
