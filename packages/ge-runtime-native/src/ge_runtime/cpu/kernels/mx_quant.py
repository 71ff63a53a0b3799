"""Quantisation with a shared scale a block: powers of two (MX), or a float32 of a tile.

MX, of a run of 32: ``scale = 2^(floor(log2(max|x|)) - emax)``, ``y = cast(x / scale)`` clipped to the largest number of
the format. Scales of two neighbouring runs stand beside each other in a last axis of 2; an odd one is followed by a
filler. 8-bit formats only: torch has no arithmetic to or from 4 bits, and their packing is not said.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ge_runtime.cpu.kernels.matmul import group_spans, spans
from ge_runtime.cpu.kernels.norm import rms_norm_of_rows
from ge_runtime.cpu.kernels.numerics import FLOAT8, wide
from ge_runtime.cpu.kernels.quant import swiglu, to_quantised
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import listed, torch_dtype
from ge_runtime.errors import refused

_EMAX: Final = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
_LOWEST: Final = -127
_NAN: Final = 255  # the byte of a scale that belongs to no number
_DOC: Final = "ops-nn: quant/dynamic_mx_quant, documentation and kernel"


def _format(op: str, code: int, round_mode: str, scale_alg: int, dst_type_max: float, size: int = 32) -> torch.dtype:
    dtype = torch_dtype(code) if code in (35, 36) else None
    if dtype not in FLOAT8:
        raise refused(op, f"dst_type is {code}, accepted: 35 (float8_e5m2), 36 (float8_e4m3fn); no 4-bit floats")
    if round_mode != "rint" or scale_alg not in (0, 1) or dst_type_max or size != 32:
        raise refused(
            op,
            f"round_mode {round_mode!r}, scale_alg {scale_alg}, dst_type_max {dst_type_max}, blocks of {size}",
            "accepted for 8-bit floats: 'rint', 0 and 1, 0, 32",
        )
    return dtype


def exponents(top: Tensor, dtype: torch.dtype, scale_alg: int) -> Tensor:
    """Exponent of each block's scale as int32 out of its largest magnitude; 128 for infinities and NaN."""
    if scale_alg == 0:
        _, power = torch.frexp(top)
        e = power - 1 - _EMAX[dtype]
    else:  # the least power of two that is not below max / largest number
        mantissa, power = torch.frexp(top / torch.finfo(dtype).max)
        e = torch.where(mantissa == 0.5, power - 1, power)
    e = torch.where(top == 0, torch.full_like(e, _LOWEST), e).clamp(min=_LOWEST)
    return torch.where(torch.isfinite(top), e, torch.full_like(e, 128))


def e8m0(exponent: Tensor) -> Tensor:
    """Exponents as float8_e8m0fnu: the byte is the exponent plus 127, 255 is NaN."""
    return (exponent + 127).clamp(0, _NAN).to(torch.uint8).view(torch.float8_e8m0fnu)


def cast_blocks(x: Tensor, exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """``x / 2^exponent`` in the format, clipped; zero where there is no scale and for NaN."""
    limit = torch.finfo(dtype).max
    y = torch.where(exponent == 128, torch.zeros_like(x), torch.ldexp(x, -exponent.clamp(max=127)))
    return torch.nan_to_num(y, nan=0.0, posinf=limit, neginf=-limit).clamp(-limit, limit).to(dtype)


def _paired(exponent: Tensor) -> Tensor:
    """(.., blocks) as scales (.., ceil(blocks / 2), 2)."""
    if exponent.shape[-1] % 2:
        exponent = functional.pad(exponent, (0, 1), value=_LOWEST)
    return e8m0(exponent.unflatten(-1, (-1, 2)))


def mx(x: Tensor, dtype: torch.dtype, scale_alg: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """(y, scales) of runs of 32 along ``axis``; scales of another axis than the last stay in its place, pairs last."""
    rows = wide(x).movedim(axis, -1)
    size = rows.shape[-1]
    blocks = functional.pad(rows, (0, -size % 32)).unflatten(-1, (-1, 32))
    e = exponents(blocks.abs().amax(-1), dtype, scale_alg)
    y = cast_blocks(blocks, e.unsqueeze(-1), dtype).flatten(-2)[..., :size]
    scales = _paired(e)
    place = axis % x.dim()
    return y.movedim(-1, place).contiguous(), scales.movedim(-2, place).contiguous()


@kernel("DynamicMxQuant", source=_DOC)
def dynamic_mx_quant(
    x: Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = 40,
    blocksize: int = 32,
    scale_alg: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(y, mxscale): runs of 32 along ``axis``."""
    return mx(x, _format("DynamicMxQuant", dst_type, round_mode, scale_alg, dst_type_max, blocksize), scale_alg, axis)


@kernel("DynamicMxQuantWithDualAxis", source=_DOC)
def dynamic_mx_quant_with_dual_axis(
    x: Tensor, *, round_mode: str = "rint", dst_type: int = 40, scale_alg: int = 0, dst_type_max: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y1, mxscale1, y2, mxscale2): along the last axis, and along the last but one."""
    dtype = _format("DynamicMxQuantWithDualAxis", dst_type, round_mode, scale_alg, dst_type_max)
    return *mx(x, dtype, scale_alg, -1), *mx(x, dtype, scale_alg, -2)


@kernel("GroupedDynamicMxQuant", host=("group_index",), source="ops-nn: quant/grouped_dynamic_mx_quant, documentation")
def grouped_dynamic_mx_quant(
    x: Tensor,
    group_index: list[int],
    *,
    round_mode: str = "rint",
    dst_type: int = 35,
    blocksize: int = 32,
    scale_alg: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(y, mxscale (rows // 64 + groups, n, 2)): runs down the rows that begin anew at each group's end."""
    dtype = _format("GroupedDynamicMxQuant", dst_type, round_mode, scale_alg, dst_type_max, blocksize)
    ends = listed(group_index)
    y = torch.zeros(x.shape, dtype=torch.uint8).view(dtype)
    scales = e8m0(torch.full((x.shape[0] // 64 + len(ends), x.shape[1], 2), _LOWEST, dtype=torch.int32))
    for g, start, end in spans(enumerate(ends)):
        if end > start:
            part, scale = mx(x[start:end], dtype, scale_alg, 0)
            y[start:end] = part
            scales.view(torch.uint8)[start // 64 + g :][: scale.shape[0]] = scale.view(torch.uint8)
    return y, scales


@kernel("DynamicBlockMxQuant", source="ops-nn: quant/dynamic_block_mx_quant, documentation")
def dynamic_block_mx_quant(
    x: Tensor, *, round_mode: str = "rint", dst_type: int = 40, scale_alg: int = 0, dst_type_max: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, scale1, scale2): one scale a tile of 32 x 32, given along the rows and down the columns."""
    if scale_alg:
        raise refused("DynamicBlockMxQuant", f"scale_alg is {scale_alg}, accepted: 0")
    dtype = _format("DynamicBlockMxQuant", dst_type, round_mode, scale_alg, dst_type_max)
    rows, columns = x.shape[-2:]
    data = functional.pad(wide(x), (0, -columns % 32, 0, -rows % 32))
    tiles = data.unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))
    e = exponents(tiles.abs().amax((-3, -1)), dtype, 0)
    along = e.repeat_interleave(32, -2)[..., :rows, :]
    down = e.repeat_interleave(32, -1)[..., :columns]
    y = cast_blocks(wide(x), along.repeat_interleave(32, -1)[..., :columns], dtype)
    return y, _paired(along), _paired(down.mT).movedim(-3, -2).contiguous()


def _rms(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    y, rstd = rms_norm_of_rows(x, gamma, epsilon)
    return (y if beta is None else y + wide(beta)).to(x.dtype), rstd


@kernel("RmsNormDynamicMxQuant", ignores=("output_rstd",), source="ops-nn: norm/rms_norm_dynamic_mx_quant, README")
def rms_norm_dynamic_mx_quant(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    *,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: int = 40,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mxscale, rstd): RMS norm, then runs of 32 along the last axis."""
    y, rstd = _rms(x, gamma, beta, epsilon)
    dtype = _format("RmsNormDynamicMxQuant", dst_type, round_mode, scale_alg, 0.0)
    return *mx(y, dtype, scale_alg), rstd


@kernel("AddRmsNormDynamicMxQuant", ignores=("output_rstd",), source="ops-nn: norm/add_rms_norm_dynamic_mx_quant")
def add_rms_norm_dynamic_mx_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    *,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: int = 40,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, x, mxscale, rstd) with x = x1 + x2."""
    x = (wide(x1) + wide(x2)).to(x1.dtype)
    y, rstd = _rms(x, gamma, beta, epsilon)
    dtype = _format("AddRmsNormDynamicMxQuant", dst_type, round_mode, scale_alg, 0.0)
    values, scales = mx(y, dtype, scale_alg)
    return values, x, scales, rstd.squeeze(-1)


@kernel("SwigluMxQuant", source="ops-nn: activation/swiglu_mx_quant, documentation and kernel")
def swiglu_mx_quant(
    x: Tensor,
    group_index: Tensor | None = None,
    *,
    activate_dim: int = -1,
    activate_left: bool = False,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
    group_mode: int = 0,
    axis: int = -1,
    dst_type: int = 40,
    round_mode: str = "rint",
    scale_alg: int = 0,
    max_dtype_value: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(y, mxscale): a gated activation (``quant.swiglu``) rounded to the type of x, then runs of 32 at its end."""
    if group_index is not None or group_mode or axis not in (-1, x.dim() - 1) or swiglu_mode not in (0, 1):
        raise refused("SwigluMxQuant", "group_index, axis -2 or swiglu_mode above 1", "leave them at their defaults")
    dtype = _format("SwigluMxQuant", dst_type, round_mode, scale_alg, max_dtype_value)
    data = wide(x).movedim(activate_dim, -1)
    y = swiglu(data, activate_left, swiglu_mode, clamp_limit, glu_alpha, glu_bias)
    return mx(y.movedim(-1, activate_dim).to(x.dtype), dtype, scale_alg)


@kernel("DynamicBlockQuant", source="ops-nn: quant/dynamic_block_quant, documentation")
def dynamic_block_quant(
    x: Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: int = 35,
    row_block_size: int = 1,
    col_block_size: int = 128,
) -> tuple[Tensor, Tensor]:
    """(y, scale): ``scale = max|tile| / largest number`` of each tile of the last two axes, ``y = x / scale``.

    With ``min_scale`` no scale is above ``1 / min_scale``. Infinities and NaN do not count for the maximum.
    """
    op = "DynamicBlockQuant"
    if dst_type not in (2, 35, 36):
        raise refused(op, f"dst_type is {dst_type}, accepted: 2 (int8), 35 (float8_e5m2), 36 (float8_e4m3fn)")
    dtype = torch_dtype(dst_type)
    rows, columns = x.shape[-2:]
    data = functional.pad(wide(x), (0, -columns % col_block_size, 0, -rows % row_block_size))
    tiles = data.unflatten(-1, (-1, col_block_size)).unflatten(-3, (-1, row_block_size))
    top = torch.where(torch.isfinite(tiles), tiles.abs(), torch.zeros_like(tiles)).amax((-3, -1))
    limit = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    scale = top / limit
    scale = scale.clamp(max=1 / min_scale) if min_scale else scale
    each = scale.repeat_interleave(row_block_size, -2)[..., :rows, :].repeat_interleave(col_block_size, -1)
    y = torch.nan_to_num(wide(x) / each[..., :columns], nan=0.0)
    return to_quantised(op, y, dtype, round_mode), scale


@kernel("GroupedDynamicBlockQuant", host=("group_list",), source="ops-nn: quant/grouped_dynamic_block_quant")
def grouped_dynamic_block_quant(
    x: Tensor,
    group_list: Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: int = 35,
    row_block_size: int = 1,
    col_block_size: int = 128,
    group_list_type: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """As DynamicBlockQuant, with blocks of rows that begin anew in every group; ``group_list`` has running ends.

    The scales of group g begin at row ``start // row_block_size + g``; rows that no group has are 1.
    """
    op = "GroupedDynamicBlockQuant"
    if group_list_type or dst_type_max or x.dim() != 2:
        raise refused(
            op,
            f"group_list_type {group_list_type}, dst_type_max {dst_type_max}, {x.dim()} dimensions",
            "accepted: 0, 0, 2",
        )
    y = torch.zeros(x.shape, dtype=torch_dtype(dst_type))
    count = x.shape[0] // row_block_size + len(group_list)
    scale = torch.ones(count, -(-x.shape[1] // col_block_size))
    for group, start, end in group_spans(group_list, 0):
        if end == start:
            continue
        words: dict[str, Any] = {"min_scale": min_scale, "round_mode": round_mode, "dst_type": dst_type}
        y[start:end], part = dynamic_block_quant(
            x[start:end], row_block_size=row_block_size, col_block_size=col_block_size, **words
        )
        first = start // row_block_size + group
        scale[first : first + part.shape[0]] = part
    return y, scale


def _dual(op: str, y: Tensor, group_index: Tensor | None, code: int, words: tuple[str, int, float]) -> Any:
    """(y1, mxscale1, y2, mxscale2) along both of the last axes."""
    if group_index is not None:
        raise refused(op, "group_index", "leave it out")
    round_mode, scale_alg, largest = words
    dtype = _format(op, code, round_mode, scale_alg, largest)
    return *mx(y, dtype, scale_alg, -1), *mx(y, dtype, scale_alg, -2)


@kernel("SwigluMxQuantWithDualAxis", source="ops-nn: activation/swiglu_mx_quant, quant/dynamic_mx_quant")
def swiglu_mx_quant_with_dual_axis(
    x: Tensor,
    group_index: Tensor | None = None,
    *,
    activate_left: bool = True,
    round_mode: str = "rint",
    scale_alg: int = 0,
    dst_type: int = 35,
    max_dtype_value: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A gated activation rounded to the type of x, then DynamicMxQuantWithDualAxis."""
    y = swiglu(wide(x), activate_left, 0, 0.0, 0.0, 0.0).to(x.dtype)
    words = round_mode, scale_alg, max_dtype_value
    return _dual("SwigluMxQuantWithDualAxis", y, group_index, dst_type, words)


@kernel(
    "SwigluBackwardMxQuantWithDualAxis",
    source="ops-nn: activation/swiglu_backward_mx_quant_with_dual_axis, its parts' documentation",
)
def swiglu_backward_mx_quant_with_dual_axis(
    x: Tensor,
    y_grad: Tensor,
    group_index: Tensor | None = None,
    *,
    activate_left: bool = True,
    round_mode: str = "rint",
    scale_alg: int = 0,
    dst_dtype: int = 35,
    max_dtype_value: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of a gated activation rounded to the type of x, then DynamicMxQuantWithDualAxis."""
    a, b = wide(x).chunk(2, -1)
    gate, other = (a, b) if activate_left else (b, a)
    s = torch.sigmoid(gate)
    of_gate, of_other = wide(y_grad) * other * (s + s * (1 - s) * gate), wide(y_grad) * s * gate
    slope = torch.cat((of_gate, of_other) if activate_left else (of_other, of_gate), -1).to(x.dtype)
    words = round_mode, scale_alg, max_dtype_value
    return _dual("SwigluBackwardMxQuantWithDualAxis", slope, group_index, dst_dtype, words)
