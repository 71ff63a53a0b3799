"""Operator functions that are whole layers: called eagerly with the real wheel, against formulas and CPU tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401
from torch import Tensor
from torch.utils import _pytree as pytree

npu = torch.ops.npu
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def on_npu(value: Any) -> Any:
    return pytree.tree_map(lambda v: v.npu() if isinstance(v, Tensor) else v, value)


def same(got: Any, want: Any, **tolerance: float) -> None:
    got, want = ([v for v in pytree.tree_leaves(x) if isinstance(v, Tensor)] for x in (got, want))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        torch.testing.assert_close(g.cpu(), w, check_dtype=False, **tolerance)


def as_on_cpu(call: Callable[..., Any], *operands: Any, **tolerance: float) -> None:
    """The same call on NPU tensors and on CPU tensors, operands that are written among the results."""
    mine, theirs = pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, operands), on_npu(operands)
    want = call(*mine)
    same([call(*theirs), theirs], [want, mine], **tolerance)


# -- steps of training -----------------------------------------------------------------------------------------------


def test_lists_of_tensors():
    x, y = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    as_on_cpu(torch._foreach_sign, x)
    as_on_cpu(torch._foreach_zero_, x)
    as_on_cpu(lambda a: torch._foreach_pow(2.0, a), x)
    same(
        torch._foreach_addcmul(*on_npu([x, x, y]), torch.tensor([2.0, 3.0])),
        torch._foreach_addcmul(x, x, y, [2.0, 3.0]),
    )


@pytest.mark.parametrize("bad", [False, True])
def test_scaled_gradients(bad: bool):
    grads = [torch.tensor([1.0, torch.inf if bad else 2.0]), torch.randn(3)]
    as_on_cpu(aten._amp_foreach_non_finite_check_and_unscale_, grads, torch.zeros(1), torch.tensor([0.25]))
    for tracker in (0, 6):
        state = torch.tensor([8.0]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([float(bad)])
        as_on_cpu(lambda s, t, f: aten._amp_update_scale_(s, t, f, 2.0, 0.5, 7), *state)


def test_gradients_of_layers():
    x = torch.randn(4, 6)
    as_on_cpu(lambda g, a: aten.logit_backward(g, a, 0.1), x, x.sigmoid())
    as_on_cpu(torch.angle, x)
    as_on_cpu(lambda a, b: aten._transform_bias_rescale_qkv(a, b, 2), torch.randn(2, 3, 24), torch.randn(24))
    for counts in (2, torch.tensor([1, 0, 3, 2])):
        leaf, twin = torch.randn(4, 3, requires_grad=True), None
        twin = leaf.detach().npu().requires_grad_()
        torch.repeat_interleave(leaf, counts, 0).square().sum().backward()
        torch.repeat_interleave(twin, on_npu(counts), 0).square().sum().backward()
        same(twin.grad, leaf.grad)


def test_add_layer_norm_backward():
    x1, x2, gamma, dy, dsum = (torch.randn(*s) for s in ((3, 4, 8), (3, 4, 8), (8,), (3, 4, 8), (3, 4, 8)))
    for other in (None, dsum):
        a, b, c = (t.clone().requires_grad_() for t in (x1, x2, gamma))
        beta = torch.zeros(8, requires_grad=True)
        total = a + b
        loss = (F.layer_norm(total, (8,), c, beta) * dy).sum() + (0 if other is None else (total * other).sum())
        dx, dgamma, dbeta = torch.autograd.grad(loss, (a, c, beta))
        total = x1 + x2
        mean, rstd = total.mean(-1, keepdim=True), (total.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        got = npu.npu_add_layer_norm_backward(*on_npu((dy, x1, x2, rstd, mean, gamma, other)))
        same(got, (dx, dx, dgamma, dbeta), rtol=1e-4, atol=1e-5)


def test_group_norm_swish_gradient():
    x, gamma, beta, dy = torch.randn(2, 4, 5), torch.randn(4), torch.randn(4), torch.randn(2, 4, 5)
    leaves = [t.clone().requires_grad_() for t in (x, gamma, beta)]
    z = F.group_norm(leaves[0], 2, *leaves[1:], eps=1e-5)
    want = torch.autograd.grad(z * torch.sigmoid(1.5 * z), leaves, dy)
    groups = x.view(2, 2, -1)
    mean, rstd = groups.mean(-1), (groups.var(-1, correction=0) + 1e-5).rsqrt()
    leaf = [t.npu().requires_grad_() for t in (x, gamma, beta)]
    got = npu.npu_group_norm_swish_grad(
        *on_npu((dy, x)), 2, *(t.detach() for t in leaf[1:]), *on_npu((mean, rstd)), [True, True, True], 1.5
    )
    same(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("end", [0, 1])
def test_regions(end: int):
    x, rois = torch.randn(2, 3, 8, 8), torch.tensor([[0, 1.0, 1, 6, 6], [1, 0, 2, 7, 5]])
    got = npu.npu_roi_align(*on_npu((x, rois)), 0.5, 3, 4, 2, end)
    want = aligned(x, rois, end)
    same(got, want)
    leaf = x.clone().requires_grad_()
    grad = torch.randn(2, 3, 3, 4)
    (want,) = torch.autograd.grad(aligned(leaf, rois, end), leaf, grad)
    same(npu.npu_roi_alignbk(*on_npu((grad, rois)), [2, 3, 8, 8], 4, 3, 0.5, 2, end), want, rtol=1e-4, atol=1e-5)


def aligned(x: Tensor, rois: Tensor, end: int) -> Tensor:
    """Means of 2 by 2 samples of each bin, in bins of regions that are at least 1 wide."""
    results = []
    for image, x1, y1, x2, y2 in rois.tolist():
        x1, y1, x2, y2 = (v * 0.5 for v in (x1, y1, x2, y2))
        width, height = max(x2 + end * 0.5 - x1, 1.0), max(y2 + end * 0.5 - y1, 1.0)
        rows = y1 + (torch.arange(6) + 0.5) * height / 6
        columns = x1 + (torch.arange(8) + 0.5) * width / 8
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1) / 7 * 2 - 1
        sampled = F.grid_sample(x[int(image)][None], grid[None], align_corners=True, padding_mode="border")
        results.append(F.avg_pool2d(sampled, 2)[0])
    return torch.stack(results)


# -- attention with sinks --------------------------------------------------------------------------------------------


def sink_attention(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, scale: float) -> Tensor:
    """(B, N, S, D): the sink is one more column of scores, without value."""
    scores = q @ k.mT * scale
    column = sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v


LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "SBH": (2, 0, 1, 3), "BSH": (0, 2, 1, 3)}


@pytest.mark.parametrize("layout", [*LAYOUTS, "TND"])
def test_attention_with_sinks_and_its_gradient(layout: str):
    operands = [torch.randn(2, 4, 8, 16) for _ in range(3)]
    sink = torch.randn(4)

    def given(t: Tensor) -> Tensor:
        if layout == "TND":
            return t.transpose(1, 2).flatten(0, 1)
        t = t.permute(LAYOUTS[layout])
        return t.flatten(2) if layout.endswith("H") else t

    leaves = [t.clone().requires_grad_() for t in (*operands, sink)]
    want = given(sink_attention(*leaves, 0.3))
    dy = torch.randn_like(want)
    grads = torch.autograd.grad(want, leaves, dy)
    mine = [given(t).contiguous().npu().requires_grad_() for t in operands] + [sink.npu().requires_grad_()]
    lengths = {"actual_seq_qlen": [8, 16], "actual_seq_kvlen": [8, 16]} if layout == "TND" else {}
    got = npu.npu_fusion_attention(*mine[:3], 4, layout, scale=0.3, sink=mine[3], **lengths)[0]
    same(got.detach(), want.detach(), rtol=1e-4, atol=1e-5)
    got.backward(dy.npu())
    same([t.grad for t in mine], [given(g) for g in grads[:3]] + [grads[3]], rtol=1e-4, atol=1e-5)


def test_attention_whose_lengths_are_tensors_and_its_workspace():
    q, k, v = (torch.randn(16, 4, 16) for _ in range(3))
    ends = torch.tensor([7, 16])
    pieces = [
        sink_attention(*(t[a:b].transpose(0, 1)[None] for t in (q, k, v)), torch.full((4,), -1e9), 0.3)
        for a, b in ((0, 7), (7, 16))
    ]
    want = torch.cat([p[0].transpose(0, 1) for p in pieces])
    operands, words = on_npu((q, k, v)), {"scale": 0.3, "actual_seq_qlen": ends, "actual_seq_kvlen": ends}
    result = npu.npu_fusion_attention_v3(*operands, 4, "TND", **words)
    same(result[0], want, rtol=1e-4, atol=1e-5)
    assert npu._npu_fusion_attention_v3_get_max_workspace(*operands, 4, "TND", **words).numel() == 0
    words["scale_value"] = words.pop("scale")
    saved = {"softmax_max": result[1], "softmax_sum": result[2], "softmax_in": result[3], "attention_in": result[0]}
    dy = torch.randn_like(q)
    grads = npu.npu_fusion_attention_grad_v3(*operands, dy.npu(), 4, "TND", **saved, **words)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    pieces = [
        sink_attention(*(t[a:b].transpose(0, 1)[None] for t in leaves), torch.full((4,), -1e9), 0.3)
        for a, b in ((0, 7), (7, 16))
    ]
    wanted = torch.autograd.grad(torch.cat([p[0].transpose(0, 1) for p in pieces]), leaves, dy)
    same(grads[:3], wanted, rtol=1e-4, atol=1e-5)
    room = npu._npu_fusion_attention_grad_v3_get_max_workspace(*operands, dy.npu(), 4, "TND", **saved, **words)
    assert room.numel() == 0


# -- recurrent networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_gru(both: bool, layers: int, bias: bool):
    plain = torch.nn.GRU(4, 6, layers, bidirectional=both, bias=bias)
    other = torch.nn.GRU(4, 6, layers, bidirectional=both, bias=bias)
    other.load_state_dict(plain.state_dict())
    other.npu()
    x = torch.randn(5, 3, 4, requires_grad=True)
    twin = x.detach().npu().requires_grad_()
    results = []
    for model, leaf in ((plain, x), (other, twin)):
        y, h = model(leaf)
        (y.square().sum() + h.sum()).backward()
        results.append([y, h, leaf.grad, *(p.grad for p in model.parameters())])
    same(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_lstm(first: bool, train: bool):
    plain, other = (torch.nn.LSTM(4, 6, 1, batch_first=first) for _ in range(2))
    other.load_state_dict(plain.state_dict())
    other.npu()
    x = torch.randn(5, 3, 4, requires_grad=train)
    twin = x.detach().npu().requires_grad_(train)
    results = []
    for model, leaf in ((plain, x), (other, twin)):
        with torch.set_grad_enabled(train):
            y, (h, c) = model(leaf)
        if train:
            (y.square().sum() + h.sum() + 2 * c.sum()).backward()
        results.append([y, h, c, *([leaf.grad, *(p.grad for p in model.parameters())] if train else [])])
    same(results[1], results[0], rtol=1e-4, atol=1e-5)


# -- experts, caches, quantisation ------------------------------------------------------------------------------------


def routing() -> tuple[Tensor, Tensor]:
    """Six tokens, two of four experts each."""
    probs = torch.rand(6, 4)
    return torch.zeros(6, 4, dtype=torch.bool).scatter_(1, probs.topk(2).indices, True), probs


def test_tokens_by_a_map_and_their_gradient():
    chosen, probs = routing()
    x = torch.randn(6, 8)
    leaves = [x.clone().requires_grad_(), probs.clone().requires_grad_()]
    rows = torch.arange(6).expand(4, 6)[chosen.t()]
    want = leaves[0][rows], leaves[1].t()[chosen.t()]
    mine = [t.npu().requires_grad_() for t in (x, probs)]
    got = npu.npu_moe_token_permute_with_routing_map(mine[0], chosen.npu(), probs=mine[1], num_out_tokens=12)
    same([t.detach() for t in got[:2]], [t.detach() for t in want])
    same(got[0].detach()[got[2].long()], x.repeat_interleave(2, 0))
    grads = [torch.randn_like(t) for t in want]
    torch.autograd.backward(got[:2], on_npu(grads))
    same([t.grad for t in mine], torch.autograd.grad(want, leaves, grads))


def test_tokens_by_a_map_in_places_for_each_expert():
    chosen, probs = routing()
    x = torch.randn(6, 8)
    rows = chosen.int().t().argsort(dim=-1, descending=True, stable=True)[:, :2]
    got = npu.npu_moe_token_permute_with_routing_map(
        x.npu(), chosen.npu(), probs=probs.npu(), num_out_tokens=8, drop_and_pad=True
    )
    same(got, (x[rows.reshape(-1)], probs.t().gather(1, rows).reshape(-1), rows.reshape(-1).int()))


def test_products_of_groups_added():
    y, x, w = torch.randn(2, 8, 16), torch.randn(12, 8).half(), torch.randn(12, 16).half()
    want = y + torch.stack([x[a:b].float().t() @ w[a:b].float() for a, b in ((0, 5), (5, 12))])
    target = y.npu()
    npu.npu_grouped_matmul_add_(target, *on_npu((x, w, torch.tensor([5, 12]))))
    same(target, want, rtol=1e-3, atol=1e-3)


def test_caches():
    pages = torch.randn(2, 5, 4, 2, 16).half()
    tables, lengths = torch.tensor([[3, 1], [0, 4]], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    targets = [torch.zeros(9, 2, 16).half().npu() for _ in range(2)]
    npu.npu_gather_pa_kv_cache(*on_npu((*pages, tables, lengths)), *targets)
    same(targets, [torch.cat((p[3], p[1, :2], p[0, :3])) for p in pages])
    key, cache = torch.randn(3, 2, 16).half(), torch.zeros(2, 4, 2, 16).half()
    slots = torch.tensor([1, 5, 6], dtype=torch.int32)
    want = cache.clone()
    want.view(8, 2, 16)[slots.long()] = key
    cache = cache.npu()
    npu.npu_scatter_pa_cache(*on_npu((key, slots)), key_cache=cache)
    same(cache, want)


def test_query_key_and_value_normed_turned_and_kept():
    rows, size, counts = 4, 32, [2, 1, 1]
    qkv = torch.randn(rows, sum(counts) * size).half()
    gq, gk = torch.rand(size).half(), torch.rand(size).half()
    cos, sin = torch.randn(rows, size).half(), torch.randn(rows, size).half()
    slots = torch.tensor([5, -1, 0, 3])
    q_out, caches = torch.zeros(rows, 2 * size).half().npu(), [torch.zeros(2, 2, 4, 16).half().npu() for _ in range(2)]
    npu.npu_qkv_rms_norm_rope_cache(
        *on_npu((qkv, gq, gk, cos, sin, slots)), q_out, *caches, [rows, 1, sum(counts), size], counts, epsilon=1e-4
    )
    q, k, v = qkv.float().view(rows, 4, size).split(counts, 1)

    def turned(t: Tensor, gamma: Tensor) -> Tensor:
        t = F.rms_norm(t, (size,), gamma.float(), 1e-4)
        first, second = t.chunk(2, -1)
        return t * cos.float()[:, None] + torch.cat((-second, first), -1) * sin.float()[:, None]

    same(q_out, turned(q, gq).flatten(1), rtol=2e-3, atol=2e-3)
    for cache, value in zip(caches, (turned(k, gk), v)):
        want = torch.zeros(2, 2, 4, 16)
        for slot, row in zip(slots.tolist(), value):
            if slot >= 0:
                want[slot // 4, :, slot % 4] = row.view(2, 16)
        same(cache, want, rtol=2e-3, atol=2e-3)


def test_rounded_to_eight_bits():
    x, scale = torch.randn(4, 64).half(), torch.rand(4) + 0.5
    y = npu.npu_quantize(
        *on_npu((x.float()[:, :4], scale, torch.tensor([1, 2, 3, 4], dtype=torch.int32))), torch.qint8, 1
    )
    want = (x.float()[:, :4] / scale + torch.tensor([1.0, 2, 3, 4])).round().clamp(-128, 127).to(torch.int8)
    assert torch.equal(y.cpu().view(torch.int8) if y.dtype == torch.int8 else y.cpu().int_repr(), want)

    smooth, ends = torch.rand(2, 32) + 0.5, torch.tensor([3, 4], dtype=torch.int32)
    got = npu.npu_swiglu_quant(*on_npu((x,)), smooth_scales=smooth.npu(), group_index=ends.npu(), quant_mode=1)
    left, right = x.float().chunk(2, -1)
    value = F.silu(right) * left * torch.cat((smooth[:1].expand(3, 32), smooth[1:]))
    step = value.abs().amax(-1) / 127
    same(got[1], step)
    assert ((got[0].cpu().float() * step[:, None] - value).abs() <= step[:, None] * 0.501).all()

    gamma, points = torch.rand(64).half(), torch.randint(-3, 3, (64,), dtype=torch.int32)
    many = torch.rand(64) + 0.5
    got = npu.npu_rms_norm_quant_v2(*on_npu((x, gamma, many)), offset=points.npu(), epsilon=1e-4)[0]
    value = F.rms_norm(x.float(), (64,), gamma.float(), 1e-4) / many + points
    assert ((got.cpu().float() - value).abs() <= 0.501).all()

    rotation = torch.linalg.qr(torch.randn(64, 64))[0].bfloat16()
    got = npu.npu_rotate_quant(*on_npu((x.bfloat16(), rotation)))
    value = (x.bfloat16().float() @ rotation.float()).bfloat16().float()
    step = value.abs().amax(-1) / 127
    same(got[1], step)
    assert ((got[0].cpu().float() * step[:, None] - value).abs() <= step[:, None] * 0.501).all()


def test_eight_bit_floats():
    x, scale = torch.randn(4, 64).half(), torch.tensor([3.0])
    y, top = npu.npu_quant_max(*on_npu((x, scale)), round_mode="rint", dst_dtype=291)
    assert y.dtype == torch.float8_e5m2
    assert torch.equal(y.cpu().float(), (x.float() * 3).to(torch.float8_e5m2).float())
    same(top, x.abs().max().reshape(1))
    small = x.to(torch.float8_e4m3fn)
    powers = torch.randint(120, 134, (4, 1, 2), dtype=torch.uint8)
    got = npu.npu_anti_mx_quant(*on_npu((small, powers)))
    want = small.float() * 2.0 ** (powers.view(4, 2).float() - 127).repeat_interleave(32, -1)
    same(got.float(), want, rtol=1e-2, atol=1e-2)


# -- convolutions, streams, sparse tensors ----------------------------------------------------------------------------


def test_causal_convolution_and_its_gradient():
    x, w, kept = torch.randn(6, 2, 64).half(), torch.randn(3, 64).half(), torch.rand(2, 6) > 0.4
    leaves = [x.float().requires_grad_(), w.float().requires_grad_()]
    rows = F.pad(leaves[0].permute(1, 2, 0), (2, 0))
    want = F.conv1d(rows, leaves[1].t().unsqueeze(1), groups=64).permute(2, 0, 1) * kept.t().unsqueeze(-1)
    dy = torch.randn_like(x)
    same(npu.npu_masked_causal_conv1d(*on_npu((x, w)), mask=kept.npu()), want.detach(), rtol=2e-3, atol=2e-3)
    got = npu.npu_masked_causal_conv1d_backward(*on_npu((dy, x, w)), mask=kept.npu())
    same(got, torch.autograd.grad(want, leaves, dy.float()), rtol=5e-3, atol=1e-2)


def test_compressed_windows_and_their_gradient():
    x, w = torch.randn(64, 2, 128).half(), torch.rand(32, 2).half()
    leaves = [x.float().requires_grad_(), w.float().requires_grad_()]
    starts = [0]  # the first sequence has 40 rows, the second one 24
    want = torch.stack([(leaves[0][s : s + 32] * leaves[1].unsqueeze(-1)).sum(0) for s in starts])
    words = {"actual_seq_len": [40, 64]}
    same(npu.npu_nsa_compress(*on_npu((x, w)), 32, 16, **words), want.detach(), rtol=2e-3, atol=2e-3)
    dy = torch.randn(len(starts), 2, 128).half()
    got = npu.npu_nsa_compress_grad(*on_npu((dy, x, w)), 32, 16, **words)
    same(got, torch.autograd.grad(want, leaves, dy.float()), rtol=5e-3, atol=2e-2)


def test_streams_mixed():
    x, mix = torch.randn(2, 3, 4, 8).bfloat16(), torch.rand(2, 3, 4, 4)
    out, share = torch.randn(2, 3, 8).bfloat16(), torch.rand(2, 3, 4)
    want = torch.einsum("bsij,bsid->bsjd", mix, x.float()) + share[..., None] * out.float()[..., None, :]
    same(npu.npu_mhc_post(*on_npu((x, mix, out, share))), want, rtol=1e-2, atol=1e-2)
    logits = torch.randn(2, 3, 4, 4)
    got = npu.npu_mhc_sinkhorn(logits.npu(), eps=1e-6, num_iters=20)[0].cpu()
    same((got.sum(-1), got.sum(-2)), (torch.ones(2, 3, 4), torch.ones(2, 3, 4)), rtol=1e-3, atol=1e-3)
    one = logits.softmax(-1) + 0.5
    same(npu.npu_mhc_sinkhorn(logits.npu(), eps=0.5, num_iters=1)[0], one / (one.sum(-2, keepdim=True) + 0.5))


def test_sparse_values_added():
    made = torch.sparse_coo_tensor(torch.tensor([[0, 2, 2]]), torch.tensor([1.0, 2.0, 3.0]), (4,))
    same(made.npu().coalesce().to_dense(), made.to_dense())


# -- what torch_npu calls with another CANN or on another chip --------------------------------------------------------

ELSEWHERE = """
import torch, torch_npu
import torch.nn.functional as F
torch.manual_seed(5)
npu = torch.ops.npu
close = torch.testing.assert_close
"""
NEWER = """
x, mix = torch.randn(2, 3, 4, 8), torch.rand(2, 3, 4, 4)
out, share, dy = torch.randn(2, 3, 8), torch.rand(2, 3, 4), torch.randn(2, 3, 4, 8)
x, out, dy = (t.bfloat16() for t in (x, out, dy))
leaves = [t.float().requires_grad_() for t in (x, mix, out, share)]
y = torch.einsum("bsij,bsid->bsjd", leaves[1], leaves[0]) + leaves[3][..., None] * leaves[2][..., None, :]
want = torch.autograd.grad(y, leaves, dy.float())
got = npu.npu_mhc_post_backward(*(t.npu() for t in (dy, x, mix, out, share)))
for g, w in zip(got, want):
    close(g.cpu().float(), w, rtol=2e-2, atol=2e-2)
"""
CHIP_950 = """
q, k, v = (torch.randn(2, 4, 8, 64).half() for _ in range(3))
words = {"num_query_heads": 4, "num_key_value_heads": 4, "input_layout": "BNSD", "softmax_scale": 0.125}
got = npu.npu_fused_infer_attention_score_v2(*(t.npu() for t in (q, k, v)), **words)[0]
want = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
close(got.cpu().float(), want, rtol=2e-3, atol=2e-3)
room = npu._npu_fused_infer_attention_score_v2_get_max_workspace(*(t.npu() for t in (q, k, v)), **words)
assert room.numel() == 0

y, x, w = torch.randn(2, 8, 16), torch.randn(12, 8).half(), torch.randn(12, 16).half()
want = y + torch.stack([x[a:b].float().t() @ w[a:b].float() for a, b in ((0, 5), (5, 12))])
target = y.npu()
npu.npu_grouped_matmul_add_(target, x.npu(), w.npu(), torch.tensor([5, 12]).npu())
close(target.cpu(), want, rtol=1e-3, atol=1e-3)

scores, dy = torch.randn(2, 2, 32, 32).half(), torch.randn(2, 2, 32, 32).half()
mask = torch.rand(2, 2, 32, 32) > 0.7
leaf = scores.float().requires_grad_()
p = (leaf * 0.3).masked_fill(mask, -1e4).softmax(-1)
(want,) = torch.autograd.grad(p, leaf, dy.float())
got = npu.npu_scaled_masked_softmax_backward(dy.npu(), p.detach().half().npu(), mask.npu(), 0.3, False)
close(got.cpu().float(), want, rtol=5e-3, atol=2e-3)

x = torch.randint(-1000, 1000, (4, 32), dtype=torch.int32)
weight, row = torch.rand(1, 32) / 500, torch.rand(4, 1)
got = npu.npu_dequant_swiglu_quant(
    x.npu(), weight_scale=weight.npu(), activation_scale=row.npu(), activate_left=True, quant_mode=1
)
left, right = (x * weight * row).chunk(2, -1)
value = F.silu(left) * right
step = value.abs().amax(-1) / 127
close(got[1].cpu(), step)
assert ((got[0].cpu().float() * step[:, None] - value).abs() <= step[:, None] * 0.501).all()

var, m, v, grad = (torch.rand(3) for _ in range(4))
got = [t.clone().npu() for t in (var, m, v)]
npu.npu_apply_adam.out(0.9, 0.99, 0.1, 0.8, 0.7, 1e-4, grad.npu(), False, False, out=got)
m = m * 0.8 + grad * 0.2
v = v * 0.7 + grad * grad * 0.3
rate = 0.1 * (1 - 0.99) ** 0.5 / (1 - 0.9)
close(got[0].cpu(), var - rate * m / (v.sqrt() + 1e-4))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "settings"),
    [
        (NEWER, {"TAIR_EMULATOR_CANN": "9.1.0"}),
        (CHIP_950, {"TAIR_EMULATOR_CANN": "9.1.0", "TAIR_EMULATOR_CHIP": "Ascend950PR_9589"}),
    ],
    ids=["CANN 9.1", "Ascend950"],
)
def test_elsewhere(code: str, settings: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE + code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("mask", [[True, False], [True, True]])
def test_a_quantisation_that_is_left_out(mask):
    """Its place has another size; what is asked for is the largest of each row at 127."""
    torch.manual_seed(0)
    x, y, gamma = (torch.randn(*size, dtype=torch.float16) for size in ((3, 8), (3, 8), (8,)))
    got = torch.ops.npu.npu_add_rms_norm_dynamic_quant(x.npu(), y.npu(), gamma.npu(), epsilon=1e-5, output_mask=mask)
    total = (x + y).float()
    normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * gamma.float()
    scale = normed.abs().amax(-1) / 127
    torch.testing.assert_close(got[2].cpu(), x + y)
    for quantised, scales in [(got[0], got[3]), (got[1], got[4])][: sum(mask)]:
        torch.testing.assert_close(scales.cpu(), scale, rtol=2e-3, atol=1e-5)
        assert int((quantised.cpu() - (normed / scale[:, None]).round()).abs().max()) <= 1
