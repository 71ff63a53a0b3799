"""Operators of serving code as torch_npu's documentation has them, in loops and plain PyTorch."""

from __future__ import annotations

import math
from typing import Any

import npu_expert_formulas
import torch
from npu_formulas import BF16, F32, RANDOM, fake, up
from torch import Tensor
from torch.nn import functional

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
_CODES = {1: torch.int8, 23: E5, 24: E4, 291: E5, 292: E4}
_EMAX = {E4: 8, E5: 15}


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(low, high, shape, generator=RANDOM, dtype=dtype)


def rms(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    rstd = 1 / torch.sqrt((up(x) ** 2).mean(-1) + epsilon)
    y = up(x) * rstd[..., None] * up(gamma)
    return (y if beta is None else y + up(beta)), rstd


def rows_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1) / 127
    return torch.round(x / scale[..., None]).clamp(-128, 127).to(torch.int8), scale


# -- blocks with a scale ----------------------------------------------------------------------------------------------


def mx_last(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The definition block by block: exponents by ``math.frexp``."""
    size = x.shape[-1]
    blocks = -(-size // 32)
    y_shape, scale_shape = x.shape, (*x.shape[:-1], -(-blocks // 2), 2)
    if fake(x):
        return x.new_empty(y_shape, dtype=dtype), x.new_empty(scale_shape, dtype=torch.float8_e8m0fnu)
    flat = up(x).reshape(-1, size)
    y, scale = torch.zeros(flat.shape), torch.zeros(flat.shape[0], 2 * scale_shape[-2], dtype=torch.uint8)
    for i in range(flat.shape[0]):
        for b in range(blocks):
            part = flat[i, 32 * b : 32 * b + 32]
            top = float(part.abs().max())
            e = -127 if top == 0 else max(math.frexp(top)[1] - 1 - _EMAX[dtype], -127)
            limit = torch.finfo(dtype).max
            y[i, 32 * b : 32 * b + 32] = (part.double() / 2.0**e).clamp(-limit, limit).float()
            scale[i, b] = e + 127
    return y.to(dtype).reshape(y_shape), scale.view(torch.float8_e8m0fnu).reshape(scale_shape)


def dynamic_mx_quant(
    input: Tensor, *, axis: int = -1, round_mode: str = "rint", dst_type: int = 296, **_: Any
) -> tuple[Tensor, Tensor]:
    y, scale = mx_last(input.movedim(axis, -1), _CODES[dst_type])
    place = axis % input.dim()
    return y.movedim(-1, place).contiguous(), scale.movedim(-2, place).contiguous()


def dynamic_mx_quant_with_dual_axis(input: Tensor, *, dst_type: int = 296, **_: Any) -> Any:
    return *dynamic_mx_quant(input, dst_type=dst_type), *dynamic_mx_quant(input, axis=-2, dst_type=dst_type)


def rms_norm_dynamic_mx_quant(
    x: Tensor, gamma: Tensor, *, beta: Tensor | None = None, epsilon: float = 1e-6, dst_type: int = 296, **_: Any
) -> Any:
    y, rstd = rms(x, gamma, beta, epsilon)
    return *mx_last(y.to(x.dtype), _CODES[dst_type]), rstd.unsqueeze(-1)


def add_rms_norm_dynamic_mx_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    dst_type: int = 296,
    **_: Any,
) -> Any:
    x = (up(x1) + up(x2)).to(x1.dtype)
    y, rstd = rms(x, gamma, beta, epsilon)
    values, scale = mx_last(y.to(x.dtype), _CODES[dst_type])
    return values, x, scale, rstd


def swiglu_mx_quant(x: Tensor, *, activate_left: bool = False, dst_type: int = 296, **_: Any) -> Any:
    a, b = up(x).chunk(2, -1)
    y = functional.silu(a) * b if activate_left else a * functional.silu(b)
    return mx_last(y.to(x.dtype), _CODES[dst_type])


def grouped_dynamic_mx_quant(x: Tensor, group_index: Tensor, *, dst_type: int = 23, **_: Any) -> Any:
    rows, count = x.shape[0] // 64 + group_index.shape[0], x.shape[1]
    if fake(x):
        return x.new_empty(x.shape, dtype=_CODES[dst_type]), x.new_empty((rows, count, 2), dtype=torch.float8_e8m0fnu)
    y, scales = torch.zeros(x.shape), torch.zeros(rows, count, 2, dtype=torch.uint8)
    start = 0
    for g, end in enumerate(group_index.tolist()):
        part, scale = mx_last(x[start:end].t(), _CODES[dst_type])
        y[start:end] = part.float().t()
        at = start // 64 + g
        scales[at : at + scale.shape[1]] = scale.view(torch.uint8).transpose(0, 1)
        start = end
    return y.to(_CODES[dst_type]), scales.view(torch.float8_e8m0fnu)


def dynamic_block_mx_quant(input: Tensor, *, dst_type: int = 296, **_: Any) -> Any:
    m, n = input.shape
    a, b = -(-m // 32), -(-n // 32)
    dtype, e8 = _CODES[dst_type], torch.float8_e8m0fnu
    if fake(input):
        return (
            input.new_empty(m, n, dtype=dtype),
            input.new_empty(m, -(-b // 2), 2, dtype=e8),
            input.new_empty(-(-a // 2), n, 2, dtype=e8),
        )
    x, y = up(input), torch.zeros(m, n)
    along = torch.zeros(m, 2 * -(-b // 2), dtype=torch.uint8)
    down = torch.zeros(2 * -(-a // 2), n, dtype=torch.uint8)
    for i in range(a):
        for j in range(b):
            rows, columns = slice(32 * i, 32 * i + 32), slice(32 * j, 32 * j + 32)
            e = math.frexp(float(x[rows, columns].abs().max()))[1] - 1 - _EMAX[dtype]
            limit = torch.finfo(dtype).max
            y[rows, columns] = (x[rows, columns] / 2.0**e).clamp(-limit, limit)
            along[rows, j], down[i, columns] = e + 127, e + 127
    down = down.unflatten(0, (-1, 2)).transpose(1, 2).contiguous()
    return y.to(dtype), along.unflatten(1, (-1, 2)).contiguous().view(e8), down.view(e8)


def dynamic_block_quant(
    x: Tensor,
    *,
    min_scale: float = 0.0,
    dst_type: int = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    **_: Any,
) -> Any:
    m, n = x.shape
    a, b = -(-m // row_block_size), -(-n // col_block_size)
    dtype = _CODES[dst_type]
    if fake(x):
        return x.new_empty(m, n, dtype=dtype), x.new_empty(a, b, dtype=F32)
    limit = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    y, scale = torch.zeros(m, n), torch.zeros(a, b)
    for i in range(a):
        for j in range(b):
            at = (
                slice(i * row_block_size, (i + 1) * row_block_size),
                slice(j * col_block_size, (j + 1) * col_block_size),
            )
            scale[i, j] = up(x)[at].abs().max() / limit
            scale[i, j] = min(float(scale[i, j]), 1 / min_scale) if min_scale else scale[i, j]
            y[at] = up(x)[at] / scale[i, j]
    return (torch.round(y).to(dtype) if dtype == torch.int8 else y.clamp(-limit, limit).to(dtype)), scale


def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    **_: Any,
) -> Any:
    x = (up(x1) + up(x2)).to(x1.dtype)
    y, _ = rms(x, gamma, beta, epsilon)
    parts = [rows_int8(y if s is None else y * up(s)) for s in (smooth_scale1, smooth_scale2)]
    return parts[0][0], parts[1][0], x, parts[0][1], parts[1][1]


def rms_norm_quant(
    x: Tensor, gamma: Tensor, beta: Tensor, scale: Tensor, offset: Tensor, epsilon: float = 1e-6, **_: Any
) -> Tensor:
    y = rms(x, gamma, beta, epsilon)[0]
    return torch.round(y * up(scale) + offset.float()).clamp(-128, 127).to(torch.int8)


def trans_quant_param(scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0) -> Tensor:
    bits = scale.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    packed = (bits & 0xFFFFE000) | (1 << 46)
    if offset is None:
        return packed
    return packed | ((torch.round(offset).clamp(-256, 255).to(torch.int64) & 0x1FF) << 37)


def sign_bits_unpack(input: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    bits = [((input >> i) & 1).to(dtype) * 2 - 1 for i in range(8)]
    return torch.stack(bits, -1).reshape(size, -1)


def convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    k, n = weight.shape
    y = torch.zeros(k, n // 8, dtype=torch.int64, device=weight.device)
    for i in range(8):
        y = y + ((weight[:, i::8].to(torch.int64) & 15) << (4 * i))
    return torch.where(y >= 2**31, y - 2**32, y).to(torch.int32)


def unpacked(pack: Tensor) -> Tensor:
    parts = [(pack >> (4 * i)) & 15 for i in range(8)]
    return torch.stack([torch.where(p > 7, p - 16, p) for p in parts], -1).flatten(-2)


def weight_quant_batchmatmul(
    x: Tensor, weight: Tensor, antiquant_scale: Tensor, antiquant_offset: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    w = unpacked(weight) if weight.dtype == torch.int32 else weight
    w = w.float() if antiquant_offset is None else w.float() + up(antiquant_offset)
    return (up(x) @ (w * up(antiquant_scale))).to(x.dtype)


def kronecker_quant(
    x: Tensor, kronecker_p1: Tensor, kronecker_p2: Tensor, clip_ratio: float | None = None, *_: Any
) -> Any:
    t = torch.einsum("ij,kjl,ln->kin", up(kronecker_p1), up(x), up(kronecker_p2))
    scale = t.abs().amax((1, 2)) * (1.0 if clip_ratio is None else clip_ratio) / 7
    q = torch.round(t / scale[:, None, None]).clamp(-8, 7).to(torch.int64) & 15
    y = sum(q[..., i::8] << (4 * i) for i in range(8))
    return torch.where(y >= 2**31, y - 2**32, y).to(torch.int32), scale


# -- products ---------------------------------------------------------------------------------------------------------


def fused_matmul(
    x1: Tensor, x2: Tensor, *, bias: Tensor | None = None, x3: Tensor | None = None, fused_op_type: str = ""
) -> Tensor:
    y = up(x1) @ up(x2)
    y = y if bias is None else y + up(bias)
    if fused_op_type == "relu":
        return torch.relu(y).to(x1.dtype)
    return y.to(x1.dtype) if x3 is None else (y.to(x1.dtype).float() + up(x3)).to(x1.dtype)


def _ends(group_list: Tensor, counts: bool) -> list[int]:
    return (group_list.cumsum(0) if counts else group_list).tolist()


def quant_grouped_matmul_dequant(
    x: Tensor, quantized_weight: Tensor, weight_scale: Tensor, group_list: Tensor, **_: Any
) -> Tensor:
    if fake(x):
        return x.new_empty(x.shape[0], quantized_weight.shape[1])
    y, start = torch.zeros(x.shape[0], quantized_weight.shape[1]), 0
    for g, end in enumerate(group_list.tolist()):
        q, scale = rows_int8(up(x[start:end]))
        y[start:end] = q.float() @ quantized_weight[g].float().t() * scale[:, None] * weight_scale[g]
        start = end
    return y.to(x.dtype)


def group_quant(x: Tensor, scale: Tensor, group_index: Tensor, *, offset: Any = None, **_: Any) -> Tensor:
    y, start = torch.zeros(x.shape, device=x.device), 0
    if not fake(x):
        for g, end in enumerate(group_index.tolist()):
            y[start:end] = up(x[start:end]) * up(scale[g]) + (0 if offset is None else up(offset))
            start = end
    return y.round().clamp(-128, 127).to(torch.int8)


def quant_matmul_dequant(x: Tensor, quantized_weight: Tensor, weight_scale: Tensor, **_: Any) -> Tensor:
    if fake(x):
        return x.new_empty(x.shape[0], quantized_weight.shape[0])
    q, scale = rows_int8(up(x))
    return (q.float() @ quantized_weight.float().t() * scale[:, None] * weight_scale).to(x.dtype)


def quant_matmul_reduce_sum(x1: Tensor, x2: Tensor, *, x1_scale: Tensor, x2_scale: Tensor) -> Tensor:
    y = torch.zeros(x1.shape[1], x2.shape[2], device=x1.device)
    for b in range(x1.shape[0]):
        y = y + (x1[b].float() @ x2[b].float()) * x1_scale[b][:, None] * x2_scale.float()
    return y.to(BF16)


def masked_softmax_with_rel_pos_bias(
    x: Tensor, atten_mask: Tensor | None, relative_pos_bias: Tensor, scale_value: float = 1.0, *_: Any
) -> Tensor:
    """x [batch, windows, heads, rows, columns], mask [windows, rows, columns], bias [heads, rows, columns]."""
    scores = up(x) * scale_value + up(relative_pos_bias)
    scores = scores if atten_mask is None else scores + up(atten_mask)[:, None]
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def gather_backward(grad: Tensor, self_size: Any, dim: int, index: Tensor, *_: Any) -> Tensor:
    made = grad.new_zeros(self_size)
    if not fake(grad):
        for place in torch.cartesian_prod(*[torch.arange(n) for n in grad.shape]).tolist():
            to = [*place]
            to[dim] = int(index[tuple(place)])
            made[tuple(to)] += grad[tuple(place)]
    return made


def grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    scale: Any = None,
    per_token_scale: Any = None,
    group_list: Any = None,
    group_list_type: int = 0,
    output_dtype: Any = None,
    **_: Any,
) -> list[Tensor]:
    rows, w = x[0], weight[0]
    y = torch.zeros(rows.shape[0], w.shape[2], device=rows.device)
    if not fake(rows):
        start = 0
        for g, end in enumerate(_ends(group_list, group_list_type == 1)):
            part = rows[start:end].float() @ w[g].float() * up(scale[0][g]) * per_token_scale[0][start:end, None]
            y[start:end], start = part, end
    return [y.to(BF16)]


def grouped_matmul_finalize_routing(
    x: Tensor,
    w: Tensor,
    group_list: Tensor,
    *,
    scale: Tensor,
    pertoken_scale: Tensor,
    shared_input: Tensor,
    logit: Tensor,
    row_index: Tensor,
    shared_input_weight: float = 1.0,
    shared_input_offset: int = 0,
    output_bs: int = 0,
    group_list_type: int = 1,
    **_: Any,
) -> Tensor:
    y = torch.zeros(output_bs, w.shape[2], device=x.device)
    if fake(x):
        return y
    y[shared_input_offset : shared_input_offset + shared_input.shape[0]] += shared_input.float() * shared_input_weight
    start = 0
    for g, end in enumerate(_ends(group_list, group_list_type == 1)):
        for i in range(start, end):
            y[row_index[i]] += (x[i].float() @ w[g].float()) * scale[g] * pertoken_scale[i] * logit[i]
        start = end
    return y


def grouped_matmul_swiglu_quant(
    x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor, **_: Any
) -> Any:
    half = weight.shape[2] // 2
    if fake(x):
        return x.new_empty(x.shape[0], half), x_scale.new_empty(x.shape[0]), x_scale.new_empty(0)
    y, scale, start = torch.zeros(x.shape[0], half, dtype=torch.int8), torch.zeros(x.shape[0]), 0
    for g, end in enumerate(group_list.tolist()):
        c = x[start:end].float() @ weight[g].float() * weight_scale[g] * x_scale[start:end, None]
        y[start:end], scale[start:end] = rows_int8(functional.silu(c[:, :half]) * c[:, half:])
        start = end
    return y, scale, torch.zeros(0)


def grouped_matmul_swiglu_quant_v2(
    x: Tensor, weight: list[Tensor], weight_scale: list[Tensor], x_scale: Tensor, group_list: Tensor, **_: Any
) -> Any:
    return grouped_matmul_swiglu_quant(x, weight[0], group_list, weight_scale[0], x_scale)[:2]


def transpose_quant_batchmatmul(
    x1: Tensor, x2: Tensor, dtype: int, *, x1_scale: Tensor, x2_scale: Tensor, **_: Any
) -> Tensor:
    y = torch.einsum("mbk,bkn->mbn", x1.float(), x2.float()) * x1_scale[:, None, None] * x2_scale
    return y.to(BF16)


def dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor,
    activation_scale: Tensor,
    quant_scale: Tensor,
    group_index: Tensor,
    activate_left: bool = False,
    swiglu_mode: int = 0,
    **_: Any,
) -> Any:
    half = x.shape[1] // 2
    y, scale = torch.zeros(x.shape[0], half, dtype=torch.int8), torch.zeros(x.shape[0])
    if fake(x):
        return x.new_empty(x.shape[0], half, dtype=torch.int8), x.new_empty(x.shape[0], dtype=F32)
    start = 0
    for g, count in enumerate(group_index.tolist()):
        at = slice(start, start + count)
        data = x[at].float() * weight_scale[g] * activation_scale[at].reshape(-1, 1)
        if swiglu_mode == 1:
            gate, linear = data[:, ::2].clamp(max=7.0), data[:, 1::2].clamp(-7.0, 7.0)
            s = gate * torch.sigmoid(1.702 * gate) * (linear + 1.0)
        else:
            left, right = data[:, :half], data[:, half:]
            s = functional.silu(left) * right if activate_left else left * functional.silu(right)
        y[at], scale[at] = rows_int8(s * quant_scale[g])
        start += count
    return y, scale


# -- positions, sampling, prefetching ---------------------------------------------------------------------------------


def mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Any = None,
    rotary_mode: str = "half",
    **_: Any,
) -> Any:
    if fake(query):
        return torch.empty_like(query), torch.empty_like(key)
    half = cos_sin_cache.shape[1] // 2
    outs = []
    for x in (query, key):
        y = up(x).clone().reshape(x.shape[0], -1, head_size)
        for t in range(x.shape[0]):
            for j in range(half):
                which, left = 0, j
                if positions.dim() == 2:
                    while left >= mrope_section[which]:
                        left, which = left - mrope_section[which], which + 1
                angles = up(cos_sin_cache)[positions[which, t] if positions.dim() == 2 else positions[t]]
                c, s = angles[j], angles[half + j]
                a, b = (j, half + j) if rotary_mode == "half" else (2 * j, 2 * j + 1)
                first, second = y[t, :, a].clone(), y[t, :, b].clone()
                y[t, :, a], y[t, :, b] = first * c - second * s, second * c + first * s
        outs.append(y.reshape(x.shape).to(x.dtype))
    return tuple(outs)


def top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    if fake(logits):
        return torch.empty_like(logits)
    y = up(logits).clone()
    for b in range(y.shape[0]):
        values, places = torch.sort(y[b], stable=True)
        if k is not None:
            values[values < values[len(values) - int(k[b])]] = -math.inf
        if p is not None:
            gone = torch.softmax(values, 0).cumsum(0) <= 1 - up(p)[b]
            gone[-1] = False
            values[gone] = -math.inf
        y[b, places] = values
    return y.to(logits.dtype)


# -- chosen tokens and states -----------------------------------------------------------------------------------------


def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    block_table: Any = None,
    actual_seq_lengths_key: Any = None,
    actual_seq_lengths_query: Any = None,
    layout_query: str = "BSND",
    return_value: bool = False,
    k_scale: Any = None,
    **_: Any,
) -> Any:
    shape = (*query.shape[:-2], 1, sparse_count)
    found = torch.full(shape, -1, dtype=torch.int32, device=query.device)
    if fake(query):
        return found, query.new_empty(shape)
    values = torch.full(shape, -math.inf)
    bounds = [(b, 0, query.shape[1]) for b in range(query.shape[0])]
    if layout_query == "TND":
        ends = actual_seq_lengths_query.tolist()
        bounds = [(i, a, b) for i, (a, b) in enumerate(zip([0, *ends[:-1]], ends))]
    for i, start, end in bounds:
        if block_table is None:
            keys = up(key[i, :, 0]) if actual_seq_lengths_key is None else up(key[i, : actual_seq_lengths_key[i], 0])
            scale = None if k_scale is None else k_scale[i, :, 0]
        else:
            pages = torch.cat([key[page, :, 0] for page in block_table[i].tolist()])
            keys, scale = up(pages[: actual_seq_lengths_key[i]]), None
        for t in range(start, end):
            at = (t,) if layout_query == "TND" else (i, t)
            score = (torch.relu(up(query[at]) @ keys.t()) * up(weights[at])[:, None]).sum(0)
            score = score if scale is None else score * scale
            last = len(keys) - (end - start) + (t - start) + 1 if sparse_mode == 3 else len(keys)
            best = sorted(range(last), key=lambda s: (-float(score[s]), s))[:sparse_count]
            found[at][0, : len(best)] = torch.tensor(best, dtype=torch.int32)
            values[at][0, : len(best)] = score[best]
    return found, values.to(query.dtype)


def quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    **rest: Any,
) -> Tensor:
    if fake(query):
        return query.new_empty((*query.shape[:-2], 1, rest["sparse_count"]), dtype=torch.int32)
    w = up(weights) * up(query_dequant_scale)
    return lightning_indexer(query.float(), key.float(), w, k_scale=up(key_dequant_scale), **rest)[0]


def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    sparse_mode: int = 3,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    **_: Any,
) -> Any:
    b, s, n, d = query.shape[0], query.shape[1], query.shape[2], value.shape[-1]
    y = torch.zeros(b, s, n, d, device=query.device)
    stats = torch.zeros(b, 1, s, n, device=query.device)
    if fake(query):
        return y.to(query.dtype), stats, stats
    q, k = (up(t) if r is None else torch.cat((up(t), up(r)), -1) for t, r in ((query, query_rope), (key, key_rope)))
    for i in range(b):
        for t in range(s):
            last = k.shape[1] - s + t + 1 if sparse_mode == 3 else k.shape[1]
            tokens = [
                j * sparse_block_size + o
                for j in sparse_indices[i, t, 0].tolist()
                if j >= 0
                for o in range(sparse_block_size)
            ]
            tokens = [j for j in tokens if j < last]
            for h in range(n):
                score = k[i, tokens, 0] @ q[i, t, h] * scale_value
                extra = score if sinks is None else torch.cat((score, sinks[h : h + 1]))
                p = torch.softmax(extra, 0)[: len(tokens)]
                y[i, t, h] = p @ up(value)[i, tokens, 0]
    return y.to(query.dtype), stats, stats


def kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    **rest: Any,
) -> Tensor:
    width = query.shape[-1] - rest["rope_head_dim"]
    if fake(query):
        return query.new_empty(*query.shape[:-1], width)
    tile = rest["tile_size"]
    nope = key[..., :width].float()
    scales = key[..., width + 2 * rest["rope_head_dim"] :].contiguous().view(F32)
    for i in range(width // tile):
        nope[..., i * tile : (i + 1) * tile] *= scales[..., i : i + 1]
    rope = key[..., width : width + 2 * rest["rope_head_dim"]].contiguous().view(query.dtype)
    full = torch.cat((nope, rope.float()), -1)
    y = sparse_flash_attention(query.float(), full, nope, sparse_indices, scale_value)[0]
    return y.to(query.dtype)


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, s: Tensor, g: Tensor | None, gk: Tensor | None, t: int, h: int
) -> tuple[Tensor, Tensor]:
    """One token of one head: (output, state)."""
    n = h // (v.shape[1] // k.shape[1])
    s = s if g is None else s * math.exp(float(g[t, h]))
    s = s if gk is None else s * torch.exp(gk[t, h].float())
    u = float(beta[t, h]) * (up(v[t, h]) - s @ up(k[t, n]))
    s = s + torch.outer(u, up(k[t, n]))
    return s @ up(q[t, n]), s


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor,
    initial_state: Tensor,
    actual_seq_lengths: Tensor,
    scale: float = 1.0,
    g: Tensor | None = None,
) -> Any:
    if fake(query):
        return torch.empty_like(value), torch.empty_like(initial_state)
    out, state, t = torch.zeros(value.shape), up(initial_state).clone(), 0
    for i, length in enumerate(actual_seq_lengths.tolist()):
        for _ in range(length):
            for h in range(value.shape[1]):
                o, state[i, h] = delta(query, key, value, beta, state[i, h], g, None, t, h)
                out[t, h] = o * scale
            t += 1
    return out.to(value.dtype), state.to(initial_state.dtype)


def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor,
    scale: float = 1.0,
    actual_seq_lengths: Tensor,
    ssm_state_indices: Tensor,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Any:
    if fake(query):
        return torch.empty_like(value), torch.empty_like(state)
    out, new, t = torch.zeros(value.shape), state.clone(), 0
    for i, length in enumerate(actual_seq_lengths.tolist()):
        first = t if num_accepted_tokens is None else t + int(num_accepted_tokens[i]) - 1
        s = up(new[ssm_state_indices[first]]).clone()
        for _ in range(length):
            for h in range(value.shape[1]):
                o, s[h] = delta(query, key, value, beta, s[h], g, gk, t, h)
                out[t, h] = o * scale
            new[ssm_state_indices[t]] = s.to(state.dtype)
            t += 1
    return out.to(value.dtype), new


def recurrent_in_place(query: Tensor, key: Tensor, value: Tensor, state: Tensor, **rest: Any) -> Tensor:
    out, new = recurrent_gated_delta_rule(query, key, value, state, **rest)
    if not fake(query):
        state.copy_(new)
    return out


def rope_pairs(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    e, o = x[..., 0::2], x[..., 1::2]
    return torch.cat((e, o), -1) * cos + torch.cat((-o, e), -1) * sin


def mla_prolog(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    index: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    scale_q: float = 1.0,
    scale_kv: float = 1.0,
) -> Any:
    t, n, d = token_x.shape[0], weight_uk.shape[0], weight_uk.shape[1]
    width, rope = weight_uk.shape[2], kr_cache.shape[3]
    if fake(token_x):
        return (
            token_x.new_empty(t, n, width),
            token_x.new_empty(t, n, rope),
            kv_cache,
            kr_cache,
            token_x.new_empty(t, weight_dq.shape[1]),
        )
    kv, kr = kv_cache.clone(), kr_cache.clone()
    query, query_rope = torch.zeros(t, n, width), torch.zeros(t, n, rope)
    sin, cos, size = up(rope_sin), up(rope_cos), kv_cache.shape[1]
    latents = torch.zeros(t, weight_dq.shape[1])
    for i in range(t):
        latent = rms(up(token_x[i]) @ up(weight_dq), rmsnorm_gamma_cq, None, 1e-5)[0] * scale_q
        latents[i] = latent
        both = (latent @ up(weight_uq_qr)).reshape(n, d + rope)
        for h in range(n):
            query[i, h] = both[h, :d] @ up(weight_uk[h])
            query_rope[i, h] = rope_pairs(both[h, d:], sin[i], cos[i])
        row = up(token_x[i]) @ up(weight_dkv_kr)
        slot = int(index[i])
        kv[slot // size, slot % size, 0] = (rms(row[:width], rmsnorm_gamma_ckv, None, 1e-5)[0] * scale_kv).to(kv.dtype)
        kr[slot // size, slot % size, 0] = rope_pairs(row[width:], sin[i], cos[i]).to(kr.dtype)
    return query.to(token_x.dtype), query_rope.to(token_x.dtype), kv, kr, latents.to(token_x.dtype)


def mla_prolog_v2(*args: Any, **_: Any) -> Any:
    return *mla_prolog(*args)[:4], torch.zeros(1)


def _prolog_3(args: Any, rest: Any) -> Any:
    index = rest["cache_index"]
    return mla_prolog(*args[:9], index, *args[9:], rest.get("qc_qr_scale", 1.0), rest.get("kc_scale", 1.0))


def mla_prolog_v3_functional(*args: Any, **rest: Any) -> Any:
    q, q_rope, kv, kr, latent = _prolog_3(args, rest)
    none = args[0].new_empty(0, dtype=F32)
    return q, q_rope, none, latent if rest.get("query_norm_flag") else args[0].new_empty(0), none, kv, kr


def mla_prolog_v3(*args: Any, **rest: Any) -> Any:
    *made, kv, kr = mla_prolog_v3_functional(*args, **rest)
    if not fake(args[0]):
        args[9].copy_(kv)
        args[10].copy_(kr)
    return tuple(made)


# -- experts ----------------------------------------------------------------------------------------------------------


def moe_re_routing(tokens: Tensor, expert_token_num_per_rank: Tensor, *, per_token_scales: Tensor, **_: Any) -> Any:
    counts = expert_token_num_per_rank
    if fake(tokens):
        return (
            tokens.new_empty(tokens.shape),
            per_token_scales.new_empty(tokens.shape[0]),
            tokens.new_empty(tokens.shape[0], dtype=torch.int32),
            counts.new_empty(counts.shape[1]),
        )
    order, starts = [], (counts.reshape(-1).cumsum(0) - counts.reshape(-1)).reshape(counts.shape)
    for e in range(counts.shape[1]):
        for r in range(counts.shape[0]):
            order += range(int(starts[r, e]), int(starts[r, e] + counts[r, e]))
    return (
        tokens[order],
        per_token_scales[order],
        torch.tensor(order, dtype=torch.int32),
        counts.sum(0, dtype=counts.dtype),
    )


def dispatch(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    quant_mode: int = 0,
    x_active_mask: Tensor | None = None,
    assist: bool = False,
    **_: Any,
) -> Any:
    """One rank has all experts: rows by expert, then by token."""
    tokens, k = expert_ids.shape
    size = tokens * min(moe_expert_num, k)
    third = size * 128 if assist else tokens * k
    if fake(x):
        new = x.new_empty
        return (
            new(size, x.shape[1], dtype=torch.int8 if quant_mode else x.dtype),
            new(size, dtype=F32),
            new(third, dtype=torch.int32),
            new(moe_expert_num, dtype=torch.int64),
            new(moe_expert_num, dtype=torch.int32),
            new(1, dtype=torch.int32),
            new(size, dtype=F32),
        )
    rows, counts = [], []
    for e in range(moe_expert_num):
        found = [t for t in range(tokens) if e in expert_ids[t].tolist()]
        found = found if x_active_mask is None else [t for t in found if x_active_mask[t]]
        rows += [up(x[t]) for t in found]
        counts.append(len(found))
    data, scale = torch.zeros(size, x.shape[1]), torch.zeros(size)
    data[: len(rows)] = torch.stack(rows)
    scale[: len(rows)] = 1
    y = data.to(x.dtype)
    if quant_mode:
        y = torch.zeros(data.shape, dtype=torch.int8)
        y[: len(rows)], scale[: len(rows)] = rows_int8(data[: len(rows)])
    nums = torch.tensor(counts)
    return (
        y,
        scale,
        torch.zeros(third, dtype=torch.int32),
        nums,
        nums.cumsum(0).to(torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(size),
    )


def dispatch_v2(*args: Any, **rest: Any) -> Any:
    return dispatch(*args, assist=True, **rest)


def combine(
    expand_x: Tensor,
    expert_ids: Tensor,
    _index: Tensor,
    _counts: Tensor,
    expert_scales: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    shared_expert_x: Tensor | None = None,
    ori_x: Tensor | None = None,
    copy_expert_num: int = 0,
    **_: Any,
) -> Tensor:
    tokens, k = expert_ids.shape
    if fake(expand_x):
        return expand_x.new_empty(tokens, expand_x.shape[1])
    y, at = torch.zeros(tokens, expand_x.shape[1]), 0
    for e in range(moe_expert_num + copy_expert_num):
        for t in range(tokens):
            for j in range(k):
                if int(expert_ids[t, j]) == e:
                    row = up(expand_x[at]) if e < moe_expert_num else up(ori_x[t])
                    y[t] += float(expert_scales[t, j]) * row
                    at += 1
    return (y if shared_expert_x is None else y + up(shared_expert_x)).to(expand_x.dtype)


def format_cast(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input.clone()


# Ops that have cases in two modules: the formula that serves this call.
def any_grouped_matmul(*args: Any, **rest: Any) -> Any:
    mine = rest.get("per_token_scale") is not None
    return (grouped_matmul if mine else npu_expert_formulas.grouped_matmul)(*args, **rest)


def any_weight_quant_batchmatmul(x: Tensor, weight: Tensor, *args: Any, **rest: Any) -> Any:
    mine = weight.dtype == torch.int32
    return (weight_quant_batchmatmul if mine else npu_expert_formulas.weight_quant_batchmatmul)(
        x, weight, *args, **rest
    )


def any_dequant_swiglu_quant(x: Tensor, **rest: Any) -> Any:
    mine = rest.get("group_index") is not None
    return (dequant_swiglu_quant if mine else npu_expert_formulas.dequant_swiglu_quant)(x, **rest)
