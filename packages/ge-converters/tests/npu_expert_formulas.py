"""Caches, products, quantisation and mixtures of experts as torch_npu's documentation has them; and calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from npu_formulas import BF16, F16, F32, HALVES, RANDOM, Case, add_rms_norm, call, fast_gelu, gradients, rand, up
from torch import Tensor
from torch.nn import functional

# -- writing, products, element types ---------------------------------------------------------------------------------


def scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return input.index_put(tuple(indices.unbind(-1)), updates)


def scatter_update(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    y = input.clone()
    if not isinstance(input, torch._subclasses.FakeTensor):
        for i, entry in enumerate(indices.tolist()):
            row, start = (i, entry) if isinstance(entry, int) else entry
            y[row].narrow(axis % input.dim() - 1, start, updates.shape[axis]).copy_(updates[i])
    return y


def scatter_list(
    input: list[Tensor],
    indices: Tensor,
    updates: Tensor,
    mask: Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> list[Tensor]:
    ys = [t.clone() for t in input]
    if not isinstance(updates, torch._subclasses.FakeTensor):
        for i, y in enumerate(ys):
            if mask is None or mask[i]:
                y.narrow(axis % updates.dim() - 1, int(indices[i]), updates.shape[axis]).copy_(updates[i])
    return ys


def scatter_pa_kv_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, **_: Any
) -> Any:
    caches = (key_cache.clone(), value_cache.clone())
    if not isinstance(key, torch._subclasses.FakeTensor):
        for new, cache in zip((key, value), caches):
            for i, slot in enumerate(slot_mapping.tolist()):
                cache[slot // cache.shape[1], slot % cache.shape[1]] = new[i]
    return caches


def batch_gather_matmul(
    input: Tensor,
    x: Tensor,
    weight_b: Tensor,
    indices: Tensor,
    weight_a: Tensor | None = None,
    layer_idx: int = 0,
    scale: float = 0.001,
    y_offset: int = 0,
    y_slice_size: int = -1,
) -> Tensor:
    if isinstance(x, torch._subclasses.FakeTensor):
        return torch.empty_like(input)
    y = input.float().clone()
    for row, i in enumerate(indices.tolist()):
        h = x[row].float()
        h = h if weight_a is None else h @ weight_a[i, layer_idx].float().T
        y[row] += h @ weight_b[i, layer_idx].float().T * scale
    return y.to(input.dtype)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(up(input), up(weight), None if bias is None else up(bias)).to(input.dtype)


def linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> Any:
    return (up(grad) @ up(weight)).to(input.dtype), (up(grad).T @ up(input)).to(input.dtype)


def bmm(input: Tensor, mat2: Tensor, output_sizes: Any) -> Tensor:
    return (up(input) @ up(mat2)).to(input.dtype)


def transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Any = None,
    scale: Any = None,
    perm_x1: Any = None,
    perm_x2: Any = None,
    perm_y: Any = None,
    batch_split_factor: Any = 1,
) -> Tensor:
    a, b = (up(t).permute(p) if p else up(t) for t, p in ((input, perm_x1), (weight, perm_x2)))
    y = a @ b
    return (y.permute(perm_y) if perm_y else y).to(input.dtype).contiguous()


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    b = None if bias is None else up(bias)
    return functional.conv2d(up(input), up(weight), b, stride, padding, dilation, groups).to(input.dtype)


def conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    y = functional.conv_transpose2d(
        up(input), up(weight), None if bias is None else up(bias), stride, padding, output_padding, groups, dilation
    )
    return y.to(input.dtype)


def as_type(input: Tensor, dtype: Any, *_: Any, **__: Any) -> Tensor:
    kinds = {5: F16, 6: F32, 15: BF16, 3: torch.int32, 11: torch.bool}
    return input.to(kinds[dtype] if isinstance(dtype, int) else dtype, copy=True)


def same(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input.clone()


def _moving_cases() -> list[Case]:
    def on(*shapes: tuple[int, ...], **keywords: Any) -> Any:
        return lambda d: call(*[rand(*s).to(d) for s in shapes], **keywords)

    def nd(d: torch.dtype) -> Any:
        return call(rand(4, 5, 6).to(d), torch.tensor([[0, 1], [3, 4], [2, 0]]), rand(3, 6).to(d))

    def paged(d: torch.dtype) -> Any:
        caches = (rand(3, 4, 2, 8).to(d), rand(3, 4, 2, 8).to(d))
        slots = torch.tensor([0, 5, 11, 3, 8])
        return call(rand(5, 2, 8).to(d), rand(5, 2, 8).to(d), *caches, slots, cache_mode="Norm")

    return [
        Case("npu_scatter_nd_update", scatter_nd_update, nd),
        Case(
            "scatter_update",
            scatter_update,
            lambda d: call(rand(2, 3, 6, 8).to(d), torch.tensor([1, 4]), rand(2, 3, 2, 8).to(d), -2),
        ),
        Case(
            "scatter_update",
            scatter_update,
            tag="pairs",
            make=lambda d: call(rand(3, 3, 6, 8).to(d), torch.tensor([[2, 1], [0, 4]]), rand(2, 3, 2, 8).to(d), -2),
        ),
        Case(
            "npu_scatter_list",
            scatter_list,
            lambda d: call(
                [rand(3, 6, 8).to(d), rand(3, 6, 8).to(d)],
                torch.tensor([1, 4]),
                rand(2, 3, 2, 8).to(d),
                None,
                "update",
                -2,
            ),
        ),
        Case(
            "npu_scatter_list",
            scatter_list,
            tag="mask",
            make=lambda d: call(
                [rand(3, 6, 8).to(d), rand(3, 6, 8).to(d)],
                torch.tensor([1, 4]),
                rand(2, 3, 2, 8).to(d),
                torch.tensor([0, 1], dtype=torch.uint8),
                "update",
                -2,
            ),
        ),
        Case("npu_scatter_pa_kv_cache_functional", scatter_pa_kv_cache, paged),
        Case(
            "npu_batch_gather_matmul",
            batch_gather_matmul,
            lambda d: call(
                rand(3, 32).to(d),
                rand(3, 16).to(d),
                rand(4, 1, 32, 16).to(d),
                torch.tensor([2, 0, 3], dtype=torch.int32),
                rand(4, 1, 16, 16).to(d),
                0,
                0.5,
                0,
                32,
            ),
            (F16,),
        ),
        Case("npu_linear", linear, on((5, 16), (4, 16), (4,)), (F32, F16)),
        Case("npu_linear_backward", linear_backward, on((5, 4), (5, 16), (4, 16))),
        Case("npu_bmmV2", bmm, lambda d: call(rand(3, 4, 5).to(d), rand(3, 5, 2).to(d), [])),
        Case(
            "npu_transpose_batchmatmul",
            transpose_batchmatmul,
            on((5, 3, 16), (3, 16, 4), perm_x1=[1, 0, 2], perm_x2=[0, 1, 2], perm_y=[1, 0, 2]),
        ),
        Case(
            "npu_conv2d",
            conv2d,
            lambda d: call(rand(2, 4, 7, 6).to(d), rand(6, 2, 3, 3).to(d), rand(6).to(d), [2, 1], [1, 1], [1, 1], 2),
        ),
        Case(
            "npu_convolution",
            conv2d,
            lambda d: call(rand(2, 4, 7, 6).to(d), rand(6, 4, 3, 3).to(d), None, [1, 1], [0, 1], [1, 2], 1),
        ),
        Case(
            "npu_convolution_transpose",
            conv_transpose,
            lambda d: call(
                rand(2, 4, 5, 6).to(d), rand(4, 3, 3, 3).to(d), rand(3).to(d), [1, 1], [1, 0], [2, 1], [1, 1], 1
            ),
            tolerance=1e-2,  # the embedded engine's, which is ATen's, adds halves in halves
        ),
        Case(
            "npu_transpose",
            lambda x, perm, _=True: x.permute(perm).contiguous(),
            lambda d: call(rand(2, 3, 4).to(d), [2, 0, 1]),
        ),
        Case(
            "npu_reshape",
            lambda x, shape, _=False: x.reshape(shape).clone(),
            lambda d: call(rand(2, 3, 4).to(d), [6, 4]),
            dynamic=False,
        ),
        Case("npu_dtype_cast", as_type, lambda d: call((rand(3, 4) * 9).to(d), torch.int32)),
        Case("_npu_dtype_cast", as_type, lambda d: call(rand(3, 4).to(d), F16)),
        Case("npu_dtype_cast_backward", as_type, lambda d: call(rand(3, 4).to(d), BF16)),
        Case("_npu_dtype_cast_backward", as_type, lambda d: call(rand(3, 4).to(d), F32)),
        Case("_npu_format_cast", same, lambda d: call(rand(3, 4).to(d), 29)),
    ]


# -- quantisation -----------------------------------------------------------------------------------------------------


def rounded(x: Tensor, dtype: torch.dtype = torch.int8) -> Tensor:
    info = torch.iinfo(dtype)
    return torch.round(x).clamp(info.min, info.max).to(dtype)


def quantize(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: Any, axis: int = 1, div_mode: bool = True
) -> Tensor:
    shape = [1] * input.dim()
    shape[axis if div_mode else -1] = -1
    s = up(scales).reshape(shape)
    y = up(input) / s if div_mode else up(input) * s
    y = y if zero_points is None else y + up(zero_points).reshape(shape)
    return rounded(
        y, {12: torch.int8, 13: torch.uint8, 3: torch.int32}[dtype] if isinstance(dtype, int) else torch.int8
    )


def anti_quant(
    x: Tensor, scale: Tensor, *, offset: Tensor | None = None, dst_dtype: Any = None, src_dtype: Any = None
) -> Tensor:
    y = (x.float() + (0 if offset is None else up(offset))) * up(scale)
    return y.to(F16 if dst_dtype is None else as_type(y, dst_dtype).dtype)


def dynamic_quant(input: Tensor, *, smooth_scales: Tensor | None = None, **_: Any) -> Any:
    x = up(input) if smooth_scales is None else up(input) * up(smooth_scales)
    scale = x.abs().amax(-1) / 127
    return rounded(x / scale.unsqueeze(-1)), scale


def dynamic_quant_asymmetric(input: Tensor, *, smooth_scales: Tensor | None = None, **_: Any) -> Any:
    x = up(input) if smooth_scales is None else up(input) * up(smooth_scales)
    scale = (x.amax(-1) - x.amin(-1)) / 255
    offset = 127 - x.amax(-1) / scale
    return rounded(x / scale.unsqueeze(-1) + offset.unsqueeze(-1)), scale, offset


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Any = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: Any = None,
    **_: Any,
) -> Tensor:
    acc = (x1.double() @ x2.double() + (0 if bias is None else bias.double())).float()
    y = acc * up(scale)
    y = y if pertoken_scale is None else y * pertoken_scale.unsqueeze(-1)
    return rounded(y) if output_dtype is None else as_type(y, output_dtype)


def weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Any = None,
    quant_offset: Any = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: Any = None,
) -> Tensor:
    offset, scale = antiquant_offset, up(antiquant_scale)
    if antiquant_group_size:
        scale = scale.repeat_interleave(antiquant_group_size, 0)
        offset = None if offset is None else offset.repeat_interleave(antiquant_group_size, 0)
    w = (weight.float() + (0 if offset is None else up(offset))) * scale
    return (up(x) @ w + (0 if bias is None else up(bias))).to(x.dtype)


def gelu_quant(
    input: Tensor,
    *,
    input_scale: Tensor | None = None,
    input_offset: Any = None,
    approximate: str = "none",
    quant_mode: str = "dynamic",
    **_: Any,
) -> Any:
    return dynamic_quant(functional.gelu(up(input), approximate=approximate), smooth_scales=input_scale)


def dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor,
    activation_scale: Tensor,
    quant_scale: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    **_: Any,
) -> Any:
    a, b = (x.float() * weight_scale * activation_scale).chunk(2, -1)
    y = functional.silu(a) * b if activate_left else a * functional.silu(b)
    return dynamic_quant(y, smooth_scales=quant_scale)


def dequant_bias(
    x: Tensor, weight_scale: Tensor, activate_scale: Tensor | None, bias: Tensor | None, *, output_dtype: Any = None
) -> Tensor:
    y = x.float() * weight_scale
    y = y if activate_scale is None else y * activate_scale.unsqueeze(-1)
    return (y if bias is None else y + up(bias)).to(F16)


def add_rms_norm_quant(
    x1: Tensor, x2: Tensor, gamma: Tensor, scales1: Tensor, zero_points1: Tensor | None, *_: Any, **__: Any
) -> Any:
    y, _rstd, x = add_rms_norm(x1.float(), x2.float(), gamma.float())
    x = (x1.float() + x2.float()).to(x1.dtype)
    y = functional.rms_norm(x.float(), gamma.shape, gamma.float(), 1e-6) / scales1
    y = rounded(y if zero_points1 is None else y + zero_points1)
    return y, torch.zeros_like(y), x


def bytes_(*shape: int) -> Tensor:
    return torch.randint(-9, 10, shape, generator=RANDOM).to(torch.int8)


def _quant_cases() -> list[Case]:
    q, halves = torch.qint8, HALVES
    return [
        Case(
            "npu_quantize",
            quantize,
            lambda d: call((rand(4, 6) * 9).to(d), rand(6).abs() + 0.1, None, q, 1),
            (F32, F16),
        ),
        Case(
            "npu_quantize",
            quantize,
            tag="multiplied",
            make=lambda d: call((rand(4, 6) * 9).to(d), (rand(6).abs() + 0.1).to(d), rand(6).to(d), q, -1, False),
        ),
        Case("npu_anti_quant", anti_quant, lambda d: call(bytes_(4, 6), rand(6)), (F16,)),
        Case(
            "npu_anti_quant",
            anti_quant,
            lambda d: call(bytes_(4, 6), rand(6), offset=rand(6), dst_dtype=BF16),
            (BF16,),
            tag="offset",
        ),
        Case("npu_dynamic_quant", dynamic_quant, lambda d: call(rand(3, 4, 16).to(d)), halves),
        Case(
            "npu_dynamic_quant",
            dynamic_quant,
            lambda d: call(rand(4, 16).to(d), smooth_scales=rand(16).to(d)),
            halves,
            tag="smooth",
        ),
        Case("npu_dynamic_quant_asymmetric", dynamic_quant_asymmetric, lambda d: call(rand(3, 4, 16).to(d)), halves),
        Case("npu_quant_matmul", quant_matmul, lambda d: call(bytes_(4, 16), bytes_(16, 8), rand(8) * 0.01), (F32,)),
        Case(
            "npu_quant_matmul",
            quant_matmul,
            tag="row scales",
            dtypes=(BF16,),
            make=lambda d: call(
                bytes_(4, 16),
                bytes_(16, 8),
                rand(8),
                pertoken_scale=rand(4),
                output_dtype=BF16,
                bias=torch.arange(8, dtype=torch.int32),
            ),
        ),
        Case(
            "npu_weight_quant_batchmatmul",
            weight_quant_batchmatmul,
            lambda d: call(rand(4, 16).to(d), bytes_(16, 8), rand(8).to(d), rand(8).to(d)),
            halves,
        ),
        Case(
            "npu_weight_quant_batchmatmul",
            weight_quant_batchmatmul,
            tag="groups",
            dtypes=halves,
            make=lambda d: call(rand(4, 64).to(d), bytes_(64, 8), rand(2, 8).to(d), antiquant_group_size=32),
        ),
        Case("npu_gelu_quant", gelu_quant, lambda d: call(rand(4, 16).to(d))),
        Case(
            "npu_dequant_swiglu_quant",
            dequant_swiglu_quant,
            lambda d: call(
                bytes_(4, 32).int(),
                weight_scale=rand(1, 32).abs(),
                activation_scale=rand(4, 1).abs(),
                quant_mode=1,
                activate_left=True,
            ),
            (F32,),
        ),
        Case(
            "npu_dequant_bias",
            dequant_bias,
            lambda d: call(bytes_(4, 16).int(), rand(16), rand(4), None, output_dtype=F16),
            (F16,),
        ),
        Case(
            "npu_add_rms_norm_quant",
            add_rms_norm_quant,
            lambda d: call(rand(4, 16).to(d), rand(4, 16).to(d), rand(16).to(d), rand(16).abs() + 0.1, None),
            halves,
            outputs=(0, 2),
        ),
    ]


# -- mixture of experts -----------------------------------------------------------------------------------------------


def gating_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> Any:
    rows = x.shape[0]
    y, index = torch.softmax(up(x), -1).topk(k, -1)
    order = torch.arange(rows * k, dtype=torch.int32).reshape(k, rows).T.contiguous()
    return y.to(x.dtype), index.int(), order


def gating_softmax_v2(
    x: Tensor, *, k: int = 1, finished: Any = None, renorm: Any = 0, output_softmax: Any = False
) -> Any:
    p = torch.softmax(up(x), -1)
    y, index = p.topk(k, -1)
    y = torch.softmax(up(x).gather(-1, index), -1) if renorm else y
    return y.to(x.dtype), index.int(), p if output_softmax else x.new_empty(0, dtype=F32)


def gating(
    x: Tensor, k: int, *, bias: Tensor | None = None, norm_type: int = 0, routed_scaling_factor: float = 1.0, **_: Any
) -> Any:
    scores = torch.sigmoid(up(x)) if norm_type else torch.softmax(up(x), -1)
    index = (scores if bias is None else scores + up(bias)).topk(k, -1).indices
    y = scores.gather(-1, index)
    y = (y / y.sum(-1, keepdim=True) if norm_type else y) * routed_scaling_factor
    return y.to(x.dtype), index.int(), scores


def init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> Any:
    rows, k = expert_idx.shape
    experts, order = expert_idx.reshape(-1).sort(stable=True)
    source = row_idx.reshape(-1)[order]
    place = torch.empty_like(source).scatter(0, source.long(), torch.arange(rows * k, dtype=source.dtype))
    return x[source.long() % rows], place, experts


def init_routing_v2(x: Tensor, expert_idx: Tensor, *, expert_num: int = -1, **_: Any) -> Any:
    rows, k = expert_idx.shape
    order = expert_idx.reshape(-1).argsort(stable=True)
    counts = (expert_idx.reshape(-1, 1) == torch.arange(expert_num)).sum(0)
    return x[order // k], order.argsort().int(), counts, x.new_empty(rows * k, dtype=F32)


def finalize_routing(
    rows: Tensor,
    skip1: Any,
    skip2: Any,
    bias: Tensor | None,
    scales: Tensor,
    place: Tensor,
    experts: Tensor,
    *_: Any,
    **__: Any,
) -> Tensor:
    n, k = scales.shape
    parts = up(rows)[place.long()].reshape(k, n, -1).transpose(0, 1)
    parts = parts if bias is None else parts + up(bias)[experts.long()]
    y = (parts * up(scales).unsqueeze(-1)).sum(1)
    return (y if skip1 is None else y + up(skip1)).to(rows.dtype)


def compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    return (sorted_expert_for_source_row.unsqueeze(0) <= torch.arange(num_expert).unsqueeze(1)).sum(1).int()


def token_permute(tokens: Tensor, indices: Tensor, num_out_tokens: Any = None, padded_mode: bool = False) -> Any:
    order = indices.reshape(-1).argsort(stable=True)
    k = 1 if indices.dim() == 1 else indices.shape[1]
    return tokens[order // k], order.argsort(stable=True).int()


def token_permute_grad(tokens: Tensor, grad: Tensor, indices: Tensor, sorted_indices: Tensor, *_: Any) -> Tensor:
    if isinstance(tokens, torch._subclasses.FakeTensor):
        return torch.empty_like(tokens)
    return gradients(lambda t: token_permute(t, indices)[0], grad, tokens)[0].to(tokens.dtype)


def token_unpermute(rows: Tensor, place: Tensor, probs: Tensor | None = None, *_: Any) -> Tensor:
    found = up(rows)[place.long()]
    if probs is not None:
        found = (found.reshape(*probs.shape, -1) * up(probs).unsqueeze(-1)).sum(1)
    return found.to(rows.dtype)


def token_unpermute_grad(rows: Tensor, grad: Tensor, place: Tensor, probs: Tensor | None = None, *_: Any) -> Any:
    if isinstance(rows, torch._subclasses.FakeTensor):
        return torch.empty_like(rows), rows.new_empty(0) if probs is None else torch.empty_like(probs)
    made = gradients(lambda r, p: token_unpermute(r, place, p), grad, rows, probs)
    return [g.to(rows.dtype) for g in made]


def grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    group_list: Any = None,
    bias: Any = None,
    group_list_type: Any = 0,
    **_: Any,
) -> list[Tensor]:
    if group_list is None:
        return [
            (up(a) @ up(w) + (0 if bias is None else up(bias[i]))).to(a.dtype)
            for i, (a, w) in enumerate(zip(x, weight))
        ]
    if isinstance(x[0], torch._subclasses.FakeTensor):
        return [x[0].new_empty(x[0].shape[0], weight[0].shape[-1])]
    group_list = torch.as_tensor(group_list)
    ends = group_list.cumsum(0).tolist() if group_list_type == 1 else group_list.tolist()
    parts = [(up(x[0][a:b]) @ up(weight[0][g])).to(x[0].dtype) for g, (a, b) in enumerate(zip([0, *ends], ends))]
    return [torch.cat(parts)]


def ffn(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    activation: str,
    *,
    expert_tokens: Any = None,
    bias1: Any = None,
    bias2: Any = None,
    **_: Any,
) -> Tensor:
    act = {
        "gelu": partial(functional.gelu, approximate="tanh"),
        "relu": torch.relu,
        "silu": functional.silu,
        "fastgelu": fast_gelu,
    }[activation]

    def block(rows: Tensor, w1: Tensor, w2: Tensor, b1: Any, b2: Any) -> Tensor:
        h = act(up(rows) @ up(w1) + (0 if b1 is None else up(b1)))
        return h @ up(w2) + (0 if b2 is None else up(b2))

    if expert_tokens is None:
        return block(x, weight1, weight2, bias1, bias2).to(x.dtype)
    parts, start = [], 0
    for e, n in enumerate(expert_tokens):
        parts.append(block(x[start : start + n], weight1[e], weight2[e], None, None))
        start += n
    return torch.cat(parts).to(x.dtype)


def _expert_cases() -> list[Case]:
    experts = torch.tensor([[1, 3], [0, 2], [3, 1], [2, 0], [0, 1]], dtype=torch.int32)
    row_idx = torch.arange(10, dtype=torch.int32).reshape(2, 5).T.contiguous()

    def finalize(d: torch.dtype) -> Any:
        place = torch.randperm(10, generator=RANDOM).int()
        return call(rand(10, 16).to(d), rand(5, 16).to(d), None, rand(4, 16).to(d), rand(5, 2).to(d), place, experts)

    def place(d: torch.dtype) -> Tensor:
        return token_permute(rand(5, 16), experts)[1]

    full = {
        "active_num": 10,
        "expert_num": 4,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [0, 4],
    }
    grouped = "npu_grouped_matmul"
    return [
        Case("npu_moe_gating_top_k_softmax", gating_softmax, lambda d: call(rand(6, 16).to(d), None, 3), (F32,)),
        Case(
            "npu_moe_gating_top_k_softmax_v2",
            gating_softmax_v2,
            lambda d: call(rand(6, 16).to(d), k=3, renorm=1),
            (F32,),
        ),
        Case(
            "npu_moe_gating_top_k_softmax_v2",
            gating_softmax_v2,
            lambda d: call(rand(6, 16).to(d), k=3, output_softmax=True),
            (F32,),
            tag="softmax",
        ),
        Case("npu_moe_gating_top_k", gating, lambda d: call(rand(6, 16).to(d), 3), (F32,), outputs=(0, 1)),
        Case(
            "npu_moe_gating_top_k",
            gating,
            tag="sigmoid",
            dtypes=(F32,),
            outputs=(0, 1),
            make=lambda d: call(rand(6, 16).to(d), 3, bias=rand(16).to(d), norm_type=1, routed_scaling_factor=2.5),
        ),
        Case("npu_moe_init_routing", init_routing, lambda d: call(rand(5, 16).to(d), row_idx, experts, 5)),
        Case(
            "npu_moe_init_routing_v2",
            init_routing_v2,
            lambda d: call(rand(5, 16).to(d), experts, **full),
            outputs=(0, 1, 2),
        ),
        Case("npu_moe_finalize_routing", finalize_routing, finalize),
        Case(
            "npu_moe_compute_expert_tokens",
            compute_expert_tokens,
            lambda d: call(experts.reshape(-1).sort().values, 4),
            (F32,),
        ),
        Case("npu_moe_token_permute", token_permute, lambda d: call(rand(5, 16).to(d), experts)),
        Case("npu_moe_token_permute", token_permute, lambda d: call(rand(5, 16).to(d), experts[:, 0]), tag="one each"),
        Case(
            "npu_moe_token_permute_grad",
            token_permute_grad,
            lambda d: call(rand(5, 16).to(d), rand(10, 16).to(d), experts, place(d)),
        ),
        Case(
            "npu_moe_token_unpermute", token_unpermute, lambda d: call(rand(10, 16).to(d), place(d), rand(5, 2).to(d))
        ),
        Case(
            "npu_moe_token_unpermute_grad",
            token_unpermute_grad,
            lambda d: call(rand(10, 16).to(d), rand(5, 16).to(d), place(d), rand(5, 2).to(d)),
        ),
        Case(
            grouped,
            grouped_matmul,
            lambda d: call(
                [rand(9, 16).to(d)],
                [rand(3, 16, 8).to(d)],
                group_list=torch.tensor([2, 5, 9]),
                split_item=3,
                group_type=0,
            ),
        ),
        Case(
            grouped + ".List",
            grouped_matmul,
            lambda d: call(
                [rand(9, 16).to(d)],
                [rand(3, 16, 8).to(d)],
                group_list=[2, 5, 9],
                split_item=3,
                group_type=0,
            ),
            dynamic=False,
        ),
        Case(
            grouped,
            grouped_matmul,
            tag="counts",
            make=lambda d: call(
                [rand(9, 16).to(d)],
                [rand(3, 16, 8).to(d)],
                group_list=torch.tensor([2, 3, 4]),
                split_item=3,
                group_type=0,
                group_list_type=1,
            ),
        ),
        Case(
            grouped,
            grouped_matmul,
            tag="lists",
            make=lambda d: call(
                [rand(2, 16).to(d), rand(3, 8).to(d)],
                [rand(16, 4).to(d), rand(8, 4).to(d)],
                split_item=0,
                group_type=-1,
            ),
        ),
        *(
            Case(
                "npu_ffn",
                ffn,
                lambda d, a=a: call(rand(5, 16).to(d), rand(16, 32).to(d), rand(32, 16).to(d), a, bias1=rand(32).to(d)),
                HALVES,
                tag=a,
            )
            for a in ("gelu", "relu", "silu", "fastgelu")
        ),
        Case(
            "npu_ffn",
            ffn,
            tag="experts",
            dtypes=HALVES,
            dynamic=False,
            make=lambda d: call(
                rand(5, 16).to(d), rand(2, 16, 32).to(d), rand(2, 32, 16).to(d), "relu", expert_tokens=[2, 3]
            ),
        ),
    ]


CASES = [*_moving_cases(), *_quant_cases(), *_expert_cases()]
